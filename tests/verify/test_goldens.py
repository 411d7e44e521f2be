"""`lingen verify` on every recorded case whose kinds exist."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lingen.cli import run

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = (
    "bias-tiny",
    "engine-h128",
    "hybrid-heads6",
    "hybrid-mla-h4",
    "linear-v2-gqa",
    "linear-v2-tail",
    "mtp",
    "qlora",
    "tail-layers",
    "v1-gqa",
    "v1-normhead",
    "v2-gqa",
    "v2-mtp",
)


def verify(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    """Exit code and parsed report of `lingen verify --json`."""
    code = run(["verify", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("case", CASES)
def test_every_recorded_tensor_is_within_its_tolerance(case, capsys):
    code, report = verify(capsys, str(GOLDEN / case))
    assert code == 0
    assert report["passed"] is True
    [result] = report["cases"]
    assert (result["case"], result["backend"]) == (case, "seg_la")
    for check in result["checks"]:
        assert check["passed"], check
        assert check["max_abs_error"] <= check["tolerance"], check


def test_names_are_those_of_the_recorded_tensors(capsys):
    from safetensors import safe_open

    with safe_open(GOLDEN / "mtp" / "golden.safetensors", framework="pt") as golden:
        recorded = set(golden.keys())
    _, report = verify(capsys, str(GOLDEN / "mtp"))
    names = [check["name"] for check in report["cases"][0]["checks"]]
    inputs = {name for name in recorded if name.endswith("_ids")}
    assert recorded - inputs == {name for name in names if "@" not in name}
    assert {name.partition("@")[0] for name in names} <= recorded
    assert len(names) == len(set(names))
    assert {name.partition("@")[2] for name in names} == {
        "",
        "chunks20+17",
        "padded-rows",
        "reused",
        "stepwise",
        "ragged",
        "reversed",
    }


def test_both_decay_conventions_are_checked_where_both_are_recorded(capsys):
    _, report = verify(capsys, str(GOLDEN / "hybrid-heads6"))
    names = {check["name"] for check in report["cases"][0]["checks"]}
    assert {"main.logits", "alt_decay.logits", "alt_decay.layer.0.state"} <= names


def test_the_minimax_backend_is_accepted_and_named(capsys):
    code, report = verify(capsys, "--backend", "minimax", str(GOLDEN / "bias-tiny"))
    assert code == 0
    assert report["cases"][0]["backend"] == "minimax"


def test_the_table_shows_tensors_errors_and_the_verdict(capsys):
    assert run(["verify", str(GOLDEN / "bias-tiny"), str(GOLDEN / "qlora")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bias-tiny (seg_la, torch reference): passed\n")
    assert "main.layer.*.out" in out
    assert out.splitlines()[-1].startswith("2 of 2 cases passed, ")
    assert max(map(len, out.splitlines())) <= 80


def test_a_kind_of_attention_that_does_not_exist_yet_is_one_clear_line(capsys):
    assert run(["verify", str(GOLDEN / "ling3-kda")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.strip().splitlines()
    assert "BailingMoeV3ForCausalLM" in line
    assert "KDA" in line
    assert "not supported yet" in line


@pytest.mark.parametrize("missing", ["config.json", "expected.json", "golden.safetensors"])
def test_a_folder_that_is_no_case_names_what_is_missing(missing, tmp_path, capsys):
    case = tmp_path / "case"
    shutil.copytree(GOLDEN / "bias-tiny", case)
    (case / missing).unlink()
    assert run(["verify", str(case)]) == 2
    assert f"no {missing}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("--backend", "seg-la", "seg_la or minimax"),
        ("--device", "gpu", "cpu or cuda"),
        ("--dtype", "bfloat16", "float32"),
    ],
)
def test_an_unknown_choice_names_the_known_ones(option, value, known, capsys):
    assert run(["verify", option, value, str(GOLDEN / "bias-tiny")]) == 2
    assert known in capsys.readouterr().err


def test_a_recorded_tensor_that_no_scenario_computes_is_an_error(tmp_path, capsys):
    import torch
    from safetensors.torch import load_file, save_file

    case = tmp_path / "case"
    shutil.copytree(GOLDEN / "bias-tiny", case)
    tensors = load_file(case / "golden.safetensors")
    save_file({**tensors, "main.layer.0.conv_state": torch.zeros(2)}, case / "golden.safetensors")
    assert run(["verify", str(case)]) == 2
    assert "main.layer.0.conv_state" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_listed_and_nothing_runs(tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    case = tmp_path / "case"
    shutil.copytree(GOLDEN / "bias-tiny", case)
    tensors = load_file(case / "weights.safetensors")
    tensors["foo.weight"] = tensors.pop("model.norm.weight")
    save_file(tensors, case / "weights.safetensors")
    assert run(["verify", str(case)]) == 2
    err = capsys.readouterr().err
    assert "model.norm.weight: missing" in err
    assert "foo.weight: unexpected" in err


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["seg_la", "minimax"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_pass_on_a_gpu(case, backend, capsys):
    code, _ = verify(capsys, "--device", "cuda", "--backend", backend, str(GOLDEN / case))
    assert code == 0
