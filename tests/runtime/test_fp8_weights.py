"""fp8 checkpoints: exact numbers, formats chosen tensor by tensor, and scales that do not fit."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from checkpoints import (
    QUANTIZERS,
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
)
from lingen.verify.package import generated_package
from lingen.verify.session import Session
from small_models import lowered_small
from torch import Tensor, nn

MTP = "model.layers.8."
NORM = "model.layers.3.input_layernorm.weight"
ROUTER = "model.layers.3.mlp.gate.weight"
TABLE = "model.word_embeddings.weight"
KV_A = "model.layers.3.attention.kv_a_proj_with_mqa.weight"  # [160, 512]


@pytest.fixture(scope="module")
def tensors(tiny_model: nn.Module) -> dict[str, Tensor]:
    return published(tiny_model)


@pytest.fixture(scope="module")
def unfilled(tiny: ModuleType) -> nn.Module:
    """For loads that must fail: nothing may write to it."""
    return poisoned(tiny.ForCausalLM())


def run(package: ModuleType, model: nn.Module) -> tuple[Tensor, Tensor]:
    """Logits of a prefill, and of the MTP layer behind it."""
    tokens = [7, 151, 0, 33, 98, 12, 64, 5]
    session = Session(package, model.eval(), 1, len(tokens))
    with torch.no_grad():
        step = session.prepare({0: tokens})
        hidden = model(step, session.backend)
        next_ids = torch.tensor([*tokens[1:], 20])
        drafted = model.draft(next_ids, hidden, step, session.backend)
        return session.logits(hidden), session.logits(drafted)


def test_dequantizing_a_small_example_gives_the_numbers_worked_out_by_hand(tiny):
    payload = torch.tensor([[1.0, -2.0], [0.5, 448.0]]).to(torch.float8_e4m3fn)
    by_row = tiny.weights.dequantize(payload, torch.tensor([[2.0], [4.0]]))
    assert by_row.tolist() == [[2.0, -4.0], [2.0, 1792.0]]
    by_block = tiny.weights.dequantize(payload, torch.tensor([[3.0]]))
    assert by_block.tolist() == [[3.0, -6.0], [1.5, 1344.0]]


@pytest.mark.parametrize("shape", [(128, 128), (160, 512), (96, 300), (1, 1), (300, 1), (129, 257)])
@pytest.mark.parametrize("suffix", QUANTIZERS)
def test_dequantized_weights_are_the_exact_products_rounded_once(tiny, shape, suffix):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    payload, scale = QUANTIZERS[suffix](weight)
    for stored in (scale, scale.bfloat16()):
        got = tiny.weights.dequantize(payload, stored)
        assert got.dtype == torch.float32
        for row in {0, shape[0] // 2, shape[0] - 1}:
            for column in {0, shape[1] // 2, shape[1] - 1}:
                place = (row, 0) if suffix == "_scale" else (row // 128, column // 128)
                exact = payload[row, column].double() * stored[place].double()
                assert got[row, column] == exact.float(), (row, column)
        if stored is scale:
            step = weight.abs().amax() / 448 * 2**-9  # half the distance of fp8 numbers near 0
            assert ((got - weight).abs() <= weight.abs() / 16 + step).all()


@pytest.mark.parametrize(
    ("suffix", "mtp_suffix"),
    [
        ("_scale", "_scale"),
        ("_scale", None),
        ("_scale_inv", "_scale_inv"),
        ("_scale_inv", "_scale"),
        (None, "_scale_inv"),
    ],
)
def test_an_fp8_model_equals_the_model_of_its_dequantized_weights(
    tiny, tensors, tmp_path, suffix, mtp_suffix
):
    """Scales lie in a file of their own. A part that is not in fp8 is in bfloat16."""
    stored, exact = {}, {}
    for part_suffix, is_mtp in ((suffix, False), (mtp_suffix, True)):
        part = {name: t for name, t in tensors.items() if name.startswith(MTP) == is_mtp}
        if part_suffix is None:
            part = {name: tensor.bfloat16() for name, tensor in part.items()}
        part_stored, part_exact = quantized(part, part_suffix) if part_suffix else (part, part)
        stored |= part_stored
        exact |= part_exact
    scales = {name: stored.pop(name) for name in list(stored) if "_scale" in name}
    save(tmp_path / "fp8", stored)
    save(tmp_path / "fp8", scales, "scales.safetensors")
    save(tmp_path / "exact", {name: tensor.float() for name, tensor in exact.items()})
    got, want = loaded(tiny, tmp_path / "fp8"), loaded(tiny, tmp_path / "exact")
    assert_same_weights(got, want)
    for got_logits, want_logits in zip(run(tiny, got), run(tiny, want), strict=True):
        assert want_logits.std() > 0.1
        assert torch.equal(got_logits, want_logits)


@pytest.mark.parametrize("suffix", QUANTIZERS)
def test_a_package_of_one_fp8_kind_refuses_the_other(suffix, tmp_path):
    kind = {"_scale": "fp8_block", "_scale_inv": "fp8_channel"}[suffix]
    with generated_package(
        lowered_small(f"quantization.checkpoint_formats=[float32,{kind}]")
    ) as package:
        model = poisoned(package.ForCausalLM())
        names = described(published(model))
        query = "model.layers.1.attention.q_a_proj.weight"  # [20, 32]
        scale = (20, 1) if suffix == "_scale" else (1, 1)
        fp8 = {query: ("F8_E4M3", (20, 32)), query + suffix: ("F32", scale)}
        describe_empty(tmp_path, {**names, **fp8})
        [other] = QUANTIZERS.keys() - {suffix}
        assert problems(refusal(package, model, tmp_path)) == [
            f"{query}: fp8 needs one of {query}{other}; neither is there",
            f"{query}{suffix}: unexpected, in model.safetensors",
        ]


@pytest.mark.parametrize(
    ("scales", "dtype", "want"),
    [
        ({}, "F32", f": fp8 needs one of {KV_A}_scale and {KV_A}_scale_inv; neither is there"),
        (
            {"_scale": (160, 1), "_scale_inv": (2, 4)},
            "F32",
            f": fp8 needs one of {KV_A}_scale and {KV_A}_scale_inv; both are there",
        ),
        ({"_scale": (160,)}, "F32", "_scale: has shape [160], not [160, 1]"),
        ({"_scale": (1, 160)}, "F32", "_scale: has shape [1, 160], not [160, 1]"),
        ({"_scale": (1,)}, "F32", "_scale: has shape [1], not [160, 1]"),
        ({"_scale_inv": (1, 4)}, "F32", "_scale_inv: has shape [1, 4], not [2, 4]"),
        ({"_scale_inv": (4, 2)}, "F32", "_scale_inv: has shape [4, 2], not [2, 4]"),
        ({"_scale": (160, 1)}, "F16", "_scale: scales stored as F16"),
        ({"_scale": (160, 1)}, "F8_E4M3", "_scale: scales stored as F8_E4M3"),
    ],
)
def test_bad_scales_are_refused_by_name(tiny, unfilled, tensors, tmp_path, scales, dtype, want):
    named = {KV_A + suffix: (dtype, shape) for suffix, shape in scales.items()}
    names = {**described(tensors), KV_A: ("F8_E4M3", (160, 512)), **named}
    describe_empty(tmp_path, names)
    assert problems(refusal(tiny, unfilled, tmp_path)) == [KV_A + want]


@pytest.mark.parametrize("name", [NORM, ROUTER, TABLE, "lm_head.weight"])
def test_fp8_is_refused_for_a_tensor_that_is_never_fp8(tiny, unfilled, tensors, tmp_path, name):
    names = described(tensors)
    shape = names[name][1]
    fp8 = {name: ("F8_E4M3", shape), f"{name}_scale": ("F32", (shape[0], 1))}
    describe_empty(tmp_path, {**names, **fp8})
    assert problems(refusal(tiny, unfilled, tmp_path)) == [
        f"{name}: stored in fp8; this tensor has no scales and is never fp8",
        f"{name}_scale: unexpected, in model.safetensors",
    ]


def test_scales_of_a_tensor_that_is_not_fp8_are_unexpected(tiny, unfilled, tensors, tmp_path):
    describe_empty(tmp_path, {**described(tensors), f"{KV_A}_scale": ("F32", (160, 1))})
    want = [f"{KV_A}_scale: unexpected: {KV_A} is not in fp8"]
    assert problems(refusal(tiny, unfilled, tmp_path)) == want
