"""The generated loader on whole checkpoints: what it fills, refuses and passes over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkpoints import (
    Described,
    assert_holds,
    assert_same_weights,
    describe_empty,
    described,
    loaded,
    poisoned,
    problems,
    published,
    quantized,
    refusal,
    save,
    save_sharded,
    write_index,
)
from lingen.emit.render import render_all
from lingen.ir import ModelIR
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered, lowered_variant
from torch import Tensor, nn

SPECS = Path(__file__).parents[2] / "specs"
MTP = "model.layers.8."
NORM = "model.layers.3.input_layernorm.weight"
KV_A = "model.layers.3.attention.kv_a_proj_with_mqa.weight"
SLOPE = "model.layers.2.attention.slope"
HINT = "Only the MTP layer lacks tensors: ForCausalLM(drafts=False) runs without."


@pytest.fixture(scope="module")
def tensors(tiny_model: nn.Module) -> dict[str, Tensor]:
    return published(tiny_model)


@pytest.fixture(scope="module")
def whole(tensors: dict[str, Tensor]) -> Described:
    return described(tensors)


@pytest.fixture(scope="module")
def unfilled(tiny: ModuleType) -> nn.Module:
    """For loads that must fail: nothing may write to it."""
    return poisoned(tiny.ForCausalLM())


def of_mtp(names: dict) -> dict:
    return {name: value for name, value in names.items() if name.startswith(MTP)}


def without_mtp(names: dict) -> dict:
    return {name: value for name, value in names.items() if not name.startswith(MTP)}


def test_one_file_fills_every_parameter_with_its_tensor(tiny, tiny_model, tensors, tmp_path):
    save(tmp_path, tensors)
    model = poisoned(tiny.ForCausalLM())
    report = tiny.load_weights(model, str(tmp_path))
    assert_same_weights(model, tiny_model)
    assert report == tiny.weights.LoadReport((tmp_path / "model.safetensors",), (), ())


def test_shards_of_mixed_formats_and_files_outside_the_index_are_read(tiny, tensors, tmp_path):
    mixed = {n: t if "norm" in n or "gate." in n else t.bfloat16() for n, t in tensors.items()}
    main, names = without_mtp(mixed), sorted(without_mtp(mixed))
    shards = {f"model-{i}-of-3.safetensors": {n: main[n] for n in names[i::3]} for i in range(3)}
    save_sharded(tmp_path, shards)
    save(tmp_path, of_mtp(mixed), "model-mtp-layer.safetensors")
    save(tmp_path, {"main.logits": torch.ones(2)}, "golden.safetensors")
    model = poisoned(tiny.ForCausalLM())
    report = tiny.load_weights(model, tmp_path)
    files = sorted([*shards, "model-mtp-layer.safetensors"])
    assert [file.name for file in report.files] == files
    assert [file.name for file in report.ignored] == ["golden.safetensors"]
    assert_holds(model, mixed)


def test_gate_rows_stand_above_up_rows_and_experts_in_their_order(tiny, tensors, tmp_path):
    layer = "model.layers.5.mlp.experts"
    marked = dict(tensors)
    for expert in range(16):
        for part, name in enumerate(("gate_proj", "up_proj", "down_proj")):
            full = tensors[f"{layer}.{expert}.{name}.weight"]
            marked[f"{layer}.{expert}.{name}.weight"] = torch.full_like(full, 100 * part + expert)
    save(tmp_path, marked)
    experts = loaded(tiny, tmp_path).layers[5].mlp.experts
    order = torch.arange(16.0)[:, None, None]
    assert torch.equal(experts.gate_up_proj[:, :128], order.expand(16, 128, 512))
    assert torch.equal(experts.gate_up_proj[:, 128:], 100 + order.expand(16, 128, 512))
    assert torch.equal(experts.down_proj, 200 + order.expand(16, 512, 128))


# Variants of which the loader has code of its own, in the formats that change it.
LOADERS = {
    **dict.fromkeys(
        (
            *("no-mtp", "all-mla-without-mtp", "all-lightning", "all-lightning-with-mtp"),
            *("all-dense", "all-dense-with-mtp", "all-moe", "no-shared-expert"),
            *("biases", "no-q-lora", "bfloat16", "v2", "v2-biases", "linear-v2"),
            *("linear-v2-all-lightning-with-mtp", "v1", "v1-raw-scores"),
        ),
        ("[bfloat16,float32]", "[bfloat16,float32,fp8_channel,fp8_block]"),
    ),
    "every-kind": ("[bfloat16]", "[float32,fp8_channel]", "[bfloat16,float32,fp8_block]"),
}


def loader_ir(variant: str, formats: str) -> ModelIR:
    return lowered_variant(variant, f"quantization.checkpoint_formats={formats}")


@pytest.mark.parametrize("variant", LOADERS)
def test_every_kind_of_model_loads_what_it_declares_to_read(variant, tmp_path):
    for formats in LOADERS[variant]:
        with generated_package(loader_ir(variant, formats)) as package:
            stored = exact = published(fill_randomly(package.ForCausalLM()))
            if formats == "[bfloat16]":
                stored = exact = {name: tensor.bfloat16() for name, tensor in stored.items()}
            elif "fp8_channel" in formats:
                stored, exact = quantized(stored, "_scale")
            elif "fp8_block" in formats:
                stored, exact = quantized(stored, "_scale_inv")
            save(tmp_path, stored)
            assert_holds(loaded(package, tmp_path), exact)


def test_every_generated_loader_is_short_narrow_and_clean(tmp_path):
    irs = [loader_ir(name, formats) for name in LOADERS for formats in LOADERS[name]]
    irs += [lowered(spec=spec) for spec in SPECS.glob("*.yaml")]
    for number, files in enumerate(render_all([(ir, "torch") for ir in irs])):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "weights.py").write_bytes(files["weights.py"])
        lines = files["weights.py"].decode().splitlines()
        assert len(lines) <= 800
        assert [line for line in lines[1:] if len(line) > 100] == []
    rules = ["--select", "E,F,I,B,UP,SIM,RUF", "--ignore", "E501", "--isolated"]
    command = [sys.executable, "-m", "ruff", "check", *rules, "--target-version", "py311", "."]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_all_missing_and_unexpected_names_are_listed_at_once_by_layer(
    tiny, unfilled, whole, tmp_path
):
    kv_b = "model.layers.3.attention.kv_b_proj.weight"
    names = dict(whole)
    names["model.layers.3.attention.embed_q.weight"] = names.pop(kv_b)
    del names["model.layers.1.mlp.experts.3.up_proj.weight"]
    del names["model.layers.1.mlp.experts.11.up_proj.weight"]
    names["foo.weight"] = ("F32", (3,))
    names["model.layers.10.input_layernorm.weight"] = ("F32", (512,))
    describe_empty(tmp_path, names)
    assert refusal(tiny, unfilled, tmp_path) == (
        f"{tmp_path} does not fit tiny: 6 problems with its tensors\n"
        "  foo.weight: unexpected, in model.safetensors\n"
        "  model.layers.1.mlp.experts.3.up_proj.weight: missing\n"
        "  model.layers.1.mlp.experts.11.up_proj.weight: missing\n"
        "  model.layers.3.attention.embed_q.weight: unexpected, in model.safetensors\n"
        "  model.layers.3.attention.kv_b_proj.weight: missing\n"
        "  model.layers.10.input_layernorm.weight: unexpected, in model.safetensors"
    )


def test_slopes_of_repacked_checkpoints_are_passed_over_and_reported(tiny, tensors, tmp_path):
    save(tmp_path, {**tensors, SLOPE: torch.ones(8, 1, 1)})
    model = poisoned(tiny.ForCausalLM())
    assert tiny.load_weights(model, tmp_path).skipped == (SLOPE,)
    assert_holds(model, tensors)


def test_a_slope_of_a_layer_that_has_none_is_unexpected(tiny, unfilled, whole, tmp_path):
    describe_empty(tmp_path, {**whole, "model.layers.3.attention.slope": ("F32", (8, 1, 1))})
    want = ["model.layers.3.attention.slope: unexpected, in model.safetensors"]
    assert problems(refusal(tiny, unfilled, tmp_path)) == want


def test_a_model_without_drafts_passes_over_the_mtp_layer_whatever_its_format(
    tiny, tensors, tmp_path
):
    mtp, _ = quantized(of_mtp(tensors), "_scale")
    del mtp[f"{MTP}eh_proj.weight_scale"]
    save(tmp_path, without_mtp(tensors))
    save(tmp_path, mtp, "mtp.safetensors")
    model = poisoned(tiny.ForCausalLM(drafts=False))
    report = tiny.load_weights(model, tmp_path)
    assert report.skipped == tuple(sorted(mtp))
    assert report.ignored == ()
    assert_holds(model, without_mtp(tensors))


def test_a_model_without_drafts_still_refuses_names_that_no_mtp_layer_has(tiny, whole, tmp_path):
    describe_empty(tmp_path, {**whole, f"{MTP}embed_tokens.weight": ("F32", (3,))})
    message = refusal(tiny, poisoned(tiny.ForCausalLM(drafts=False)), tmp_path)
    assert problems(message) == [f"{MTP}embed_tokens.weight: unexpected, in model.safetensors"]


def test_an_absent_mtp_layer_is_an_error_that_says_how_to_go_without(
    tiny, unfilled, tensors, whole, tmp_path
):
    describe_empty(tmp_path, without_mtp(whole))
    lines = problems(refusal(tiny, unfilled, tmp_path))
    assert lines[-1] == HINT
    assert sorted(lines[:-1]) == sorted(f"{name}: missing" for name in of_mtp(whole))
    save(tmp_path, without_mtp(tensors))
    assert_holds(loaded(tiny, tmp_path, drafts=False), without_mtp(tensors))


def test_the_hint_is_not_given_where_going_without_drafts_would_not_help(
    tiny, unfilled, whole, tmp_path
):
    names = without_mtp(whole)
    del names[NORM]
    describe_empty(tmp_path, names)
    assert HINT not in refusal(tiny, unfilled, tmp_path)


@pytest.mark.parametrize(
    ("dtype", "shape", "want"),
    [
        ("F32", (511,), "has shape [511], not [512]"),
        ("F32", (1, 512), "has shape [1, 512], not [512]"),
        ("F32", (), "has shape [], not [512]"),
        ("F16", (512,), "stored as F16; this package reads BF16, F32, F8_E4M3"),
        ("I8", (512,), "stored as I8; this package reads BF16, F32, F8_E4M3"),
    ],
)
def test_wrong_shapes_and_unreadable_formats_are_listed(
    tiny, unfilled, whole, tmp_path, dtype, shape, want
):
    describe_empty(tmp_path, {**whole, NORM: (dtype, shape), KV_A: ("F32", (512, 160))})
    lines = problems(refusal(tiny, unfilled, tmp_path))
    assert lines == [f"{KV_A}: has shape [512, 160], not [160, 512]", f"{NORM}: {want}"]


def test_a_tensor_in_two_files_is_listed_with_both(tiny, unfilled, whole, tmp_path):
    describe_empty(tmp_path, whole, "model.safetensors")
    describe_empty(tmp_path, {NORM: whole[NORM]}, "spare.safetensors")
    want = [f"{NORM}: in two files: model.safetensors, spare.safetensors"]
    assert problems(refusal(tiny, unfilled, tmp_path)) == want
    write_index(tmp_path, dict.fromkeys(whole, "model.safetensors"))
    assert problems(refusal(tiny, unfilled, tmp_path)) == want


def test_names_of_the_index_that_no_file_holds_are_listed(tiny, unfilled, whole, tmp_path):
    names = dict(whole)
    del names[NORM]
    describe_empty(tmp_path, names)
    write_index(tmp_path, dict.fromkeys([*whole, "foo.bias"], "model.safetensors"))
    assert problems(refusal(tiny, unfilled, tmp_path)) == [
        "foo.bias: unexpected, in model.safetensors.index.json and no file",
        f"{NORM}: missing",
    ]


def test_a_foreign_checkpoint_is_refused_in_one_line(tiny, unfilled, whole, tmp_path):
    describe_empty(tmp_path, {f"language_model.{name}": entry for name, entry in whole.items()})
    describe_empty(tmp_path, {}, "empty.safetensors")
    want = f"{tmp_path}: no tensor of tiny is in empty.safetensors, model.safetensors"
    assert refusal(tiny, unfilled, tmp_path) == want


def test_names_cannot_forge_lines_of_the_message(tiny, unfilled, whole, tmp_path):
    forged = {"a\n  b: missing": ("F32", (1,)), "c\x1b[2J\ud800": ("F32", (1,))}
    describe_empty(tmp_path, {**whole, **forged})
    assert problems(refusal(tiny, unfilled, tmp_path)) == [
        r"'a\n  b: missing': unexpected, in model.safetensors",
        r"'c\x1b[2J\ud800': unexpected, in model.safetensors",
    ]
