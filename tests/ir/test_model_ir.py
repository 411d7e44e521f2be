"""The IR as a whole: frozen, plain as JSON, and one model's changes are no other model's."""

import dataclasses
import json

import lingen.ir.parts
import lingen.ir.plan
import lingen.ir.sglang
import lingen.ir.types
import lingen.ir.weight_map
import pytest
from golden_cases import (
    CASES,
    GQA_CASES,
    LIGHTNING_CASES,
    MLA_CASES,
    SHIPPED,
    expected,
    golden_ir,
    shipped_ir,
)
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec_text

YARN = "rope_scaling: {rope_type: yarn, factor: 2, original_max_position_embeddings: 32768, \
beta_fast: 32, beta_slow: 1, mscale: null, mscale_all_dim: null}"
ALL_IRS = {
    **{name: shipped_ir(name) for name in SHIPPED},
    "yarn": lower(load_spec_text(f"extends: ling-mini-2.0\nmodel:\n  {YARN}\n", "yarn.yaml")),
}


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


@pytest.mark.parametrize("name", ALL_IRS)
def test_every_part_is_frozen_and_holds_nothing_mutable(name):
    for part in parts(ALL_IRS[name]):
        assert not hasattr(part, "__dict__")
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            assert not isinstance(value, (list, dict, set)), (type(part), field.name)
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field.name, value)


def test_the_models_looked_at_have_every_part_there_is():
    seen = {type(part) for ir in ALL_IRS.values() for part in parts(ir)}
    modules = (
        lingen.ir.parts,
        lingen.ir.plan,
        lingen.ir.sglang,
        lingen.ir.types,
        lingen.ir.weight_map,
    )
    there = {
        value
        for module in modules
        for value in vars(module).values()
        if dataclasses.is_dataclass(value) and value.__module__.startswith("lingen.ir")
    }
    assert seen == there


@pytest.mark.parametrize("name", ALL_IRS)
def test_to_json_survives_json_and_lacks_only_the_spec(name):
    ir = ALL_IRS[name]
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
        "name", "package", "model", "mtp", "cache", "weights", "parameters", "targets", "sglang",
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
        assert ir.mtp.pool_idx == len(ir.plan.full)


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
def test_a_model_has_the_kinds_of_attention_of_its_layers_and_no_other(case):
    ir = golden_ir(case)
    assert (ir.lightning is not None) == (case in LIGHTNING_CASES)
    assert (ir.mla is not None) == (case in MLA_CASES)
    assert (ir.gqa is not None) == (case in GQA_CASES)
    assert ir.halves is (ir.lightning or ir.gqa)


@pytest.mark.parametrize("case", GQA_CASES)
def test_heads_of_grouped_query_attention_are_as_recorded(case):
    ir = golden_ir(case)
    assert ir.gqa.head_dim == expected(case)["head_dim"]
    assert ir.gqa.rotary_dim == expected(case)["rotary_dims"]
    assert ir.gqa.num_heads % ir.gqa.num_key_value_heads == 0
    if ir.lightning:
        assert (ir.lightning.head_dim, ir.lightning.rotary_dim) == (
            ir.gqa.head_dim, ir.gqa.rotary_dim
        )  # fmt: skip


def test_head_dim_need_not_be_hidden_size_over_heads():
    ir = golden_ir("v2-gqa")
    assert ir.gqa.head_dim != ir.model.hidden_size // ir.model.num_attention_heads
    plain = golden_ir("v1-gqa")
    assert plain.gqa.head_dim == plain.model.hidden_size // plain.model.num_attention_heads


@pytest.mark.parametrize("case", CASES)
def test_the_router_is_that_of_the_generation(case):
    moe = golden_ir(case).moe
    is_first = case.startswith("v1")
    assert moe.router_kind == ("softmax" if is_first else "sigmoid_grouped")
    assert moe.has_expert_bias != is_first
    assert moe.normalizes_weights == (case != "v1-normhead")


def test_one_expert_keeps_its_score_whatever_renormalize_says():
    one = shipped_ir("ling-lite-1.5", "moe.num_experts_per_tok=1")
    assert one.moe.renormalize and not one.moe.normalizes_weights


@pytest.mark.parametrize("case", CASES)
def test_only_the_first_generation_may_norm_its_head(case):
    assert golden_ir(case).model.norm_head == (case == "v1-normhead")


@pytest.mark.parametrize("case", CASES)
def test_biases_follow_the_two_switches(case):
    ir = golden_ir(case)
    has_bias = case in ("bias-tiny", "v2-mtp", "v1-normhead")
    for part in (ir.lightning, ir.gqa):
        if part:
            assert (part.qkv_bias, part.dense_bias) == (has_bias, has_bias)
    if ir.mla:
        assert ir.mla.bias == has_bias


def test_each_switch_has_its_own_biases():
    qkv = shipped_ir("ling-2.6-flash", "model.use_qkv_bias=true")
    assert (qkv.lightning.qkv_bias, qkv.lightning.dense_bias, qkv.mla.bias) == (True, False, True)
    dense = shipped_ir("ling-2.6-flash", "model.use_bias=true")
    assert (dense.lightning.qkv_bias, dense.lightning.dense_bias) == (False, True)
    assert not dense.mla.bias
    gqa = shipped_ir("ling-mini-2.0", "model.use_qkv_bias=true").gqa
    assert (gqa.qkv_bias, gqa.dense_bias) == (True, False)
    gqa = shipped_ir("ling-mini-2.0", "model.use_bias=true").gqa
    assert (gqa.qkv_bias, gqa.dense_bias) == (False, True)
