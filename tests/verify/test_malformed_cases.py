"""A case that is not one ends in one clear line, never in a pass or a traceback."""

from __future__ import annotations

import json

import pytest
import torch
from damage import GOLDEN, edit_json
from lingen.cli import run
from safetensors.torch import load_file, save_file


def refusal(case, capsys) -> str:
    assert run(["verify", str(case)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err.strip()


EXPECTED_CHANGES = {
    "infinite tolerance": (
        lambda d: d["suggested_tolerance_float32"].update(logits_atol=float("inf")),
        "not a description of a case: a tolerance is not a finite number",
    ),
    "no tolerance": (
        lambda d: d["suggested_tolerance_float32"].pop("state_atol"),
        "state_atol is missing",
    ),
    "no chunk splits": (lambda d: d.pop("chunk_splits_checked"), "chunk_splits_checked is missing"),
    "chunks of other tokens": (
        lambda d: d.update(chunk_splits_checked=[[20, 18]]),
        "chunks [20, 18] are not 37 tokens",
    ),
    "fractional offset": (
        lambda d: d["decay_layer_offset"].update(main=-0.5),
        "not a description of a case: -0.5 is not an integer",
    ),
    "unrecorded tensor": (
        lambda d: d["shapes"].update({"main.layer.9.out": [1]}),
        "golden.safetensors: main.layer.9.out is missing",
    ),
}


@pytest.mark.parametrize("case", ["bias-tiny"], indirect=True)
@pytest.mark.parametrize(
    ("change", "message"), EXPECTED_CHANGES.values(), ids=list(EXPECTED_CHANGES)
)
def test_an_expectation_that_says_nothing_is_refused(case, change, message, capsys):
    edit_json(case / "expected.json", change)
    assert refusal(case, capsys).endswith(message)


def drop(name: str):
    return lambda tensors: tensors.pop(name)


def put(name: str, tensor: torch.Tensor):
    return lambda tensors: tensors.update({name: tensor})


GOLDEN_CHANGES = {
    "token outside the vocabulary": (
        put("main.input_ids", torch.full((2, 37), 199, dtype=torch.int32)),
        "main.input_ids holds tokens from 199 to 199; the vocabulary has 199",
    ),
    "negative token": (
        put("decode.tokens", torch.full((2, 6), -1, dtype=torch.int32)),
        "decode.tokens holds tokens from -1 to -1; the vocabulary has 199",
    ),
    "flat tokens": (
        put("main.input_ids", torch.zeros(37, dtype=torch.int32)),
        "main.input_ids has shape [37], not 2 dimensions",
    ),
    "no tokens to decode": (drop("decode.tokens"), "decode.tokens is missing"),
    "no logits of a length": (drop("len1.logits"), "len1.logits is missing"),
    "no logits": (drop("main.logits"), "main.logits is missing"),
}


@pytest.mark.parametrize("case", ["bias-tiny"], indirect=True)
@pytest.mark.parametrize(("change", "message"), GOLDEN_CHANGES.values(), ids=list(GOLDEN_CHANGES))
def test_recorded_tensors_that_do_not_fit_are_refused(case, change, message, capsys):
    tensors = load_file(case / "golden.safetensors")
    change(tensors)
    save_file(tensors, case / "golden.safetensors")
    assert refusal(case, capsys).endswith(message)


@pytest.mark.parametrize("case", ["engine-h128"], indirect=True)
def test_a_mask_that_hides_everything_is_refused(case, capsys):
    tensors = load_file(case / "golden.safetensors")
    tensors["padded.attention_mask"].zero_()
    save_file(tensors, case / "golden.safetensors")
    assert refusal(case, capsys).endswith("padded.attention_mask masks every position")


def test_other_cases_are_reported_beside_one_that_cannot_run(capsys):
    code = run(["verify", "--json", str(GOLDEN / "ling3-kda"), str(GOLDEN / "bias-tiny")])
    captured = capsys.readouterr()
    assert code == 2
    report = json.loads(captured.out)
    assert [result["case"] for result in report["cases"]] == ["bias-tiny"]
    assert "BailingMoeV3ForCausalLM" in captured.err
