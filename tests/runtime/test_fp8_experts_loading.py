"""Experts keep the checkpoint's fp8 form, layer by layer, or are quantised on reading."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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
    weight_values,
)
from comparison import assert_same_bits
from lingen.verify.package import generated_package
from ranks_in_threads import Meeting, rank_of
from small_models import fill_randomly, lowered, lowered_variant
from torch import Tensor, nn

FLASH = Path(__file__).parents[2] / "specs/ling-2.6-flash.yaml"
FP8 = torch.float8_e4m3fn
MTP = "model.layers.8."
LAYER = "model.layers.3.mlp.experts."
GATE = LAYER + "0.gate_proj.weight"  # [128, 512]
DOWN = LAYER + "15.down_proj.weight"  # [512, 128]


@pytest.fixture(scope="module")
def tensors(tiny_model: nn.Module) -> dict[str, Tensor]:
    return published(tiny_model)


def all_experts(model: nn.Module) -> dict[str, nn.Module]:
    return {name: m for name, m in model.named_modules() if type(m).__name__ == "Experts"}


def assert_form(experts: nn.Module, form: str | None, dtype: torch.dtype = torch.float32) -> None:
    weights = (experts.gate_up_proj, experts.down_proj)
    assert [w.dtype for w in weights] == [FP8 if form else dtype] * 2
    scales = (experts.gate_up_scale, experts.down_scale)
    if form is None:
        assert scales == (None, None)
        return
    for scale in scales:
        assert scale.dtype == torch.float32
        assert scale.dim() == (3 if form == "_scale_inv" else 2)


@pytest.mark.parametrize("suffix", QUANTIZERS)
@pytest.mark.parametrize("mtp_is_fp8", [True, False])
def test_payload_and_scales_are_those_of_the_checkpoint(
    tiny, tensors, tmp_path, suffix, mtp_is_fp8
):
    stored, _ = quantized(tensors, suffix)
    if not mtp_is_fp8:
        stored = {n: t for n, t in stored.items() if not n.startswith(MTP)}
        stored |= {n: t.bfloat16() for n, t in tensors.items() if n.startswith(MTP)}
    save(tmp_path, stored)
    model = loaded(tiny, tmp_path)
    found = all_experts(model)
    assert len(found) == 8
    for path, experts in found.items():
        assert_form(experts, suffix if mtp_is_fp8 or not path.startswith("mtp.") else None)
    experts = found["layers.3.mlp.experts"]
    assert_same_bits(experts.gate_up_proj[0, :128].float(), stored[GATE].float())
    assert_same_bits(experts.down_proj[15].float(), stored[DOWN].float())
    gate_scale, down_scale = stored[GATE + suffix], stored[DOWN + suffix]
    if suffix == "_scale":
        gate_scale, down_scale = gate_scale[:, 0], down_scale[:, 0]
    assert_same_bits(experts.gate_up_scale[0, : gate_scale.shape[0]], gate_scale)
    assert_same_bits(experts.down_scale[15], down_scale)


@pytest.mark.parametrize(
    ("suffix", "other", "want"),
    [
        ("_scale", "_scale_inv", "fp8_block, experts before it in its layer as fp8_channel"),
        ("_scale_inv", "_scale", "fp8_channel, experts before it in its layer as fp8_block"),
        ("_scale", None, "no fp8, experts before it in its layer as fp8_channel"),
        (None, "_scale", "fp8_channel, experts before it in its layer as no fp8"),
    ],
)
def test_one_layer_of_two_forms_is_refused(tiny, tensors, tmp_path, suffix, other, want):
    stored = quantized(tensors, suffix)[0] if suffix else dict(tensors)
    last = {DOWN: tensors[DOWN]}
    stored.pop(f"{DOWN}{suffix}", None)
    save(tmp_path, stored | (quantized(last, other)[0] if other else last))
    model = poisoned(tiny.ForCausalLM())
    assert problems(refusal(tiny, model, tmp_path)) == [f"{DOWN}: stored as {want}"]


def test_one_deleted_scale_is_named(tiny, tensors, tmp_path):
    stored, _ = quantized(tensors, "_scale")
    del stored[DOWN + "_scale"]
    save(tmp_path, stored)
    model = poisoned(tiny.ForCausalLM())
    want = f"{DOWN}: fp8 needs one of {DOWN}_scale and {DOWN}_scale_inv; neither is there"
    assert problems(refusal(tiny, model, tmp_path)) == [want]


def test_fp8_experts_without_any_scale_are_named(tiny, tensors, tmp_path):
    names = described(tensors)
    fp8 = {n: ("F8_E4M3", shape) for n, (_, shape) in names.items() if n.startswith(LAYER)}
    describe_empty(tmp_path, names | fp8)
    found = problems(refusal(tiny, poisoned(tiny.ForCausalLM()), tmp_path))
    assert len(found) == 3 * 16
    assert all(line.endswith("neither is there") and LAYER in line for line in found)


def test_a_model_takes_one_form_after_another(tiny, tensors, tmp_path):
    """What an earlier checkpoint left in place decides nothing."""
    folders = {None: tensors} | {s: quantized(tensors, s)[0] for s in QUANTIZERS}
    for suffix, stored in folders.items():
        save(tmp_path / str(suffix), stored)
    model = tiny.ForCausalLM()
    for suffix in ("_scale", "_scale_inv", None, "_scale_inv"):
        tiny.load_weights(model, tmp_path / str(suffix))
        assert_same_weights(model, loaded(tiny, tmp_path / str(suffix)))
        for experts in all_experts(model).values():
            assert_form(experts, suffix)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_experts_are_quantised_on_reading(tiny, tensors, tmp_path, dtype):
    """Per channel, within half a step of e4m3; all other weights stay."""
    given = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save(tmp_path, given)
    model = poisoned(tiny.ForCausalLM())
    tiny.load_weights(model, tmp_path, quantize_experts=True)
    plain = weight_values(loaded(tiny, tmp_path))
    for experts in all_experts(model).values():
        assert_form(experts, "_scale")
    for name, got in weight_values(model).items():
        want = plain[name]
        if ".experts." not in name:
            assert_same_bits(got, want)
            continue
        largest = want.abs().amax(-1, keepdim=True)
        assert ((got - want).abs() <= want.abs() / 16 + largest / 448 * 2**-10 * 1.01).all()
    experts = all_experts(model)["layers.3.mlp.experts"]
    payload, scale = tiny.kernels.moe.quantize_weight(given[DOWN])
    assert_same_bits(experts.down_proj[15].float(), payload.float())
    assert_same_bits(experts.down_scale[15], scale)


def test_experts_that_are_in_fp8_are_not_quantised_again(tiny, tensors, tmp_path):
    save(tmp_path, quantized(tensors, "_scale_inv")[0])
    model = poisoned(tiny.ForCausalLM())
    tiny.load_weights(model, tmp_path, quantize_experts=True)
    assert_same_weights(model, loaded(tiny, tmp_path))


def test_reading_quantised_never_holds_more_than_one_expert_beside(tiny, tensors, tmp_path):
    """Whatever is quantised at once is one expert's matrix."""
    save(tmp_path, tensors)
    seen = []
    quantize = tiny.weights.quantize_weight
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tiny.weights, "quantize_weight", lambda w: (seen.append(w.dim()), quantize(w))[1]
        )
        tiny.load_weights(tiny.ForCausalLM(), tmp_path, quantize_experts=True)
    assert seen == [2] * (8 * 16 * 3)


@pytest.mark.parametrize("name", ["v1", "linear-v2", "bfloat16"])
def test_a_package_of_any_family_quantises_and_runs(name, tmp_path):
    with generated_package(lowered_variant(name)) as package:
        save(tmp_path, published(fill_randomly(package.ForCausalLM())))
        model = package.ForCausalLM()
        package.load_weights(model, tmp_path, quantize_experts=True)
        for experts in all_experts(model).values():
            assert_form(experts, "_scale")
            plain = package.model.Experts()
            values = package.kernels.moe.dequantize_weight
            dtype = model.word_embeddings.weight.dtype
            plain.gate_up_proj.data = values(experts.gate_up_proj, experts.gate_up_scale, dtype)
            plain.down_proj.data = values(experts.down_proj, experts.down_scale, dtype)
            hidden = torch.randn(3, experts.down_proj.shape[1]).to(dtype)
            routing = package.kernels.moe.route(hidden, *router_of(model))
            for is_prefill in (True, False):
                step = step_of(is_prefill)
                assert_same_bits(experts(hidden, routing, step), plain(hidden, routing, step))


def step_of(is_prefill: bool) -> SimpleNamespace:
    """What experts ask of a step."""
    return SimpleNamespace(batch=SimpleNamespace(is_prefill=is_prefill))


def router_of(model: nn.Module) -> list[Tensor]:
    """Weight of the first router, and its bias if there is one."""
    [router, *_] = (m for m in model.modules() if type(m).__name__ == "Router")
    return list(router.parameters())


@pytest.mark.parametrize("suffix", QUANTIZERS)
def test_a_rank_holds_its_part_in_fp8(suffix, tmp_path: Path) -> None:
    """Experts 256 wide: a rank of two has one block of each."""
    ir = lowered(
        "moe.moe_intermediate_size=256", "model.hidden_size=160", "model.num_hidden_layers=4"
    )
    with generated_package(ir) as package:
        stored, exact = quantized(published(fill_randomly(package.ForCausalLM())), suffix)
        save(tmp_path / "fp8", stored)
        save(tmp_path / "exact", exact)
        for rank in (0, 1):
            tp = rank_of(package, rank, Meeting(2))
            got, want = (loaded(package, tmp_path / n, tp=tp) for n in ("fp8", "exact"))
            for experts in all_experts(got).values():
                assert_form(experts, suffix)
            assert_same_weights(got, want)


def test_a_part_that_begins_inside_a_block_is_in_the_models_dtype(tiny, tensors, tmp_path):
    """Experts 128 wide on two ranks: not in fp8, or quantised anew where that is asked for."""
    stored, exact = quantized(tensors, "_scale_inv")
    save(tmp_path / "fp8", stored)
    save(tmp_path / "exact", exact)
    tp = rank_of(tiny, 1, Meeting(2))
    model, want = (loaded(tiny, tmp_path / name, tp=tp) for name in ("fp8", "exact"))
    for experts in all_experts(model).values():
        assert_form(experts, None)
    assert_same_weights(model, want)
    for each, name in ((model, "fp8"), (want, "exact")):
        tiny.load_weights(each, tmp_path / name, quantize_experts=True)
    for experts in all_experts(model).values():
        assert_form(experts, "_scale")
    assert_same_weights(model, want)


def test_the_scale_reaches_the_tables_and_the_products(monkeypatch):
    """The package with tables of its own looks up the form that it runs."""
    calls = {}
    with generated_package(lowered(spec=FLASH)) as package, torch.device("meta"):
        model = package.model
        experts = model.Experts()
        monkeypatch.setattr(model, "expert_rows", lambda *args: calls.update(rows=args) or (1, 2))
        monkeypatch.setattr(model, "experts", lambda *args, **named: calls.update(named))
        for form in ("fp8_channel", "fp8_block", "bf16"):
            experts.make_room(form, like=torch.empty(0, dtype=torch.bfloat16))
            experts(torch.empty(3, 4096), None, step_of(is_prefill=False))
            _, weight, scale = calls["rows"]
            assert package.kernels.moe.weight_form(weight, scale) == form
            assert calls["gate_up_scale"] is experts.gate_up_scale
            assert calls["down_scale"] is scale is experts.down_scale
