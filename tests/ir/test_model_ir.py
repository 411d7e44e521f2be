"""The IR as a whole: frozen, plain as JSON, and one model's changes are no other model's."""

import dataclasses
import json

import pytest
from golden_cases import CASES, golden_ir, shipped_ir
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec_text

SHIPPED = ["ling-2.6-flash", "ling-2.6-1t", "ring-2.5-1t"]


def parts(value):
    """The value and every dataclass below it."""
    if dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            if field.name != "spec":
                yield from parts(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_part_is_frozen_and_holds_nothing_mutable(name):
    seen = set()
    for part in parts(shipped_ir(name)):
        seen.add(type(part).__name__)
        assert not hasattr(part, "__dict__")
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            assert not isinstance(value, (list, dict, set)), (type(part), field.name)
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field.name, value)
    assert {"ModelIR", "LayerPlan", "Layer", "Decay", "Mla", "Moe", "Weight", "Cache"} <= seen


@pytest.mark.parametrize("name", SHIPPED)
def test_to_json_survives_json_and_lacks_only_the_spec(name):
    ir = shipped_ir(name)
    data = ir.to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert set(data) == {field.name for field in dataclasses.fields(ModelIR)} - {"spec"}


@pytest.mark.parametrize("case", CASES)
def test_lowering_twice_gives_equal_irs(case):
    ir = golden_ir(case)
    assert lower(ir.spec) == ir
    assert json.dumps(lower(ir.spec).to_json()) == json.dumps(ir.to_json())


def sibling(name, hidden_size, mtp):
    """A model on the shared family, with a place of its own for each value."""
    return lower(
        load_spec_text(
            f"extends: ling-2.6-flash\nmodel:\n  name: {name}\n  hidden_size: {hidden_size}\n"
            f"mtp:\n  num_nextn_predict_layers: {mtp}\n",
            f"{name}.yaml",
        )
    )


def test_a_value_changed_in_one_model_leaves_its_sibling_as_it_was():
    with_mtp, without = sibling("one", 4096, 1), sibling("two", 4096, 0)
    before = json.dumps(without.to_json())
    changed = sibling("one", 2048, 1)
    assert json.dumps(changed.to_json()) != json.dumps(with_mtp.to_json())
    assert json.dumps(sibling("two", 4096, 0).to_json()) == before


def test_siblings_differ_only_where_their_specs_do():
    ling, ring = shipped_ir("ling-2.6-1t").to_json(), shipped_ir("ring-2.5-1t").to_json()
    assert {key for key in ling if ling[key] != ring[key]} == {
        "name", "package", "model", "mtp", "cache", "weights", "parameters",
    }  # fmt: skip
    assert {key for key in ling["model"] if ling["model"][key] != ring["model"][key]} == {
        "eos_token_id"
    }


@pytest.mark.parametrize("case", CASES)
def test_the_mtp_layer_stands_behind_the_last_layer(case):
    ir = golden_ir(case)
    drafts = ir.spec.mtp.num_nextn_predict_layers
    assert (ir.mtp is not None) == bool(drafts)
    if ir.mtp:
        assert ir.mtp.layer_idx == ir.model.num_hidden_layers
        assert ir.mtp.pool_idx == len(ir.plan.mla)


def test_shared_experts_are_one_mlp_as_wide_as_all():
    assert golden_ir("tail-layers").moe.shared_intermediate_size == 2 * 4
    none = shipped_ir("ling-2.6-flash", "moe.num_shared_experts=0")
    assert not none.moe.has_shared_experts
    names = {weight.name for group in none.weights.groups for weight in group.weights}
    assert not any("shared_experts" in name for name in names)


def test_group_norm_size_counts_groups():
    lightning = golden_ir("qlora").lightning
    assert (lightning.group_norm_size, lightning.group_norm_width) == (4, 4 * 32 // 4)


@pytest.mark.parametrize("case", CASES)
def test_biases_follow_the_two_switches(case):
    ir = golden_ir(case)
    has_bias = case == "bias-tiny"
    assert (ir.lightning.qkv_bias, ir.lightning.dense_bias, ir.mla.bias) == (has_bias,) * 3


def test_each_switch_has_its_own_biases():
    qkv = shipped_ir("ling-2.6-flash", "model.use_qkv_bias=true")
    assert (qkv.lightning.qkv_bias, qkv.lightning.dense_bias, qkv.mla.bias) == (True, False, True)
    dense = shipped_ir("ling-2.6-flash", "model.use_bias=true")
    assert (dense.lightning.qkv_bias, dense.lightning.dense_bias) == (False, True)
    assert not dense.mla.bias
