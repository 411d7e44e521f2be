"""Cache geometry: bytes of state and KV, slots of a request, and what drafting adds."""

import pytest
from golden_cases import CASES, GQA_CASES, golden_ir, shipped_ir
from lingen.ir.cache import (
    kv_bytes_per_token,
    kv_width,
    replay_bytes_per_draft,
    state_bytes_per_slot,
)
from lingen.planner import slots_per_request

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "state", "kv"),
    [
        ("ling-2.6-flash", 56 * MIB, 4608),
        ("ling-2.6-1t", 280 * MIB, 11520),
        ("ring-mini-linear-2.0", 16 * MIB, 4 * 2 * 4 * 128 * 2),
        ("ling-mini-2.0", 0, 20 * 2 * 4 * 128 * 2),
        ("ling-lite-1.5", 0, 28 * 2 * 4 * 128 * 2),
    ],
)
def test_bytes_of_the_published_models(name, state, kv):
    cache = shipped_ir(name).cache
    assert cache.state_bytes_per_slot == state
    assert cache.kv_bytes_per_token == kv


@pytest.mark.parametrize("name", ["ling-2.6-flash", "ling-2.6-1t"])
def test_the_latent_row_is_whole_on_every_rank(name):
    ir = shipped_ir(name)
    assert [kv_width(ir.mla, ir.gqa, tp) for tp in (1, 2, 8, 64)] == [576] * 4


@pytest.mark.parametrize("name", ["ling-mini-2.0", "ring-mini-linear-2.0", "ling-lite-1.5"])
def test_key_heads_are_split_over_ranks_and_copied_where_there_are_too_few(name):
    ir = shipped_ir(name)
    assert [kv_width(ir.mla, ir.gqa, tp) for tp in (1, 2, 4, 8, 16)] == [
        2 * heads * 128 for heads in (4, 2, 1, 1, 1)
    ]


def test_without_full_layers_nothing_is_kept_per_token():
    assert kv_width(None, None) == 0
    assert kv_bytes_per_token(0, 576, "bfloat16") == 0


@pytest.mark.parametrize("case", CASES)
def test_a_token_takes_keys_and_values_or_one_latent_row_in_each_full_layer(case):
    ir = golden_ir(case)
    if case in GQA_CASES:
        width = 2 * ir.gqa.num_key_value_heads * ir.gqa.head_dim
    else:
        width = ir.mla.kv_lora_rank + ir.mla.qk_rope_head_dim
    assert kv_width(ir.mla, ir.gqa) == width
    assert ir.cache.kv_bytes_per_token == len(ir.plan.full) * width * 2
    assert ir.cache.num_kv_layers == len(ir.plan.full)
    assert ir.cache.num_state_layers == len(ir.plan.lightning)


def test_state_is_split_over_ranks():
    ir = shipped_ir("ling-2.6-1t")
    per_rank = [state_bytes_per_slot(70, ir.lightning, "float32", tp) for tp in (1, 4, 8)]
    assert per_rank == [280 * MIB, 70 * MIB, 35 * MIB]


def test_state_in_half_precision_is_half():
    half = shipped_ir("ling-2.6-flash", "cache.state_dtype=bfloat16")
    assert half.cache.state_bytes_per_slot == 28 * MIB


def test_a_replayed_draft_is_a_key_and_a_value_in_each_lightning_layer():
    ir = shipped_ir("ling-2.6-flash")
    assert replay_bytes_per_draft(28, ir.lightning, "bfloat16") == 28 * 32 * (128 + 128) * 2
    assert replay_bytes_per_draft(28, ir.lightning, "bfloat16", 8) == 28 * 4 * 256 * 2
    assert replay_bytes_per_draft(28, None, "bfloat16") == 0


def test_kv_in_single_precision_is_twice():
    wide = shipped_ir("ling-2.6-flash", "cache.kv_dtype=float32", "targets=[torch]")
    assert wide.cache.kv_bytes_per_token == 9216


@pytest.mark.parametrize(("name", "kv"), [("ling-2.6-flash", 5760), ("ling-2.6-1t", 12672)])
def test_drafting_adds_the_mtp_layers_rows(name, kv):
    drafting = shipped_ir(name, "cache.speculative.num_draft_tokens=4").cache
    assert drafting.kv_bytes_per_token == kv
    assert drafting.num_draft_kv_layers == 1
    assert shipped_ir("ring-2.5-1t").cache.num_draft_kv_layers == 0


def test_drafting_adds_keys_and_values_of_a_gqa_layer():
    settings = ("mtp.num_nextn_predict_layers=1", "cache.speculative.num_draft_tokens=4")
    drafting = shipped_ir("ling-mini-2.0", *settings).cache
    assert drafting.kv_bytes_per_token == 21 * 2 * 4 * 128 * 2
    assert drafting.num_draft_kv_layers == 1


@pytest.mark.parametrize(
    ("prefix_cache", "extra_buffer", "slots"),
    [
        (False, "none", 1),
        (False, "overlap", 1),
        (True, "none", 3),
        (True, "no-overlap", 4),
        (True, "overlap", 5),
    ],
)
def test_slots_of_a_request(prefix_cache, extra_buffer, slots):
    assert slots_per_request(True, prefix_cache, extra_buffer) == slots
    assert slots_per_request(False, prefix_cache, extra_buffer) == 1


def test_lightning_layers_forbid_branching_between_stored_states():
    assert not shipped_ir("ling-2.6-flash").cache.can_branch_unaligned
    only_mla = shipped_ir("ling-2.6-flash", "attention.pattern.layer_group_size=1")
    assert only_mla.cache.can_branch_unaligned
    assert only_mla.lightning is None
    assert only_mla.cache.state_bytes_per_slot == 0
    assert not shipped_ir("ring-mini-linear-2.0").cache.can_branch_unaligned
    assert shipped_ir("ling-mini-2.0").cache.can_branch_unaligned
    assert shipped_ir("ling-mini-2.0").cache.slots_per_request == 1


@pytest.mark.parametrize(("factor", "rotary_dim"), [("0.5", 64), ("0.25", 32), ("1", 128)])
def test_the_partial_factor_is_lightnings_alone(factor, rotary_dim):
    setting = f"attention.lightning.partial_rotary_factor={factor}"
    ir = shipped_ir("ling-2.6-flash", setting)
    assert ir.lightning.rotary_dim == rotary_dim
    assert (ir.mla.qk_rope_head_dim, ir.mla.qk_head_dim, ir.mla.latent_width) == (64, 192, 576)


@pytest.mark.parametrize(("factor", "rotary_dim"), [("0.5", 32), ("0.25", 16)])
def test_mla_rotates_its_whole_rope_part_in_a_small_model_too(factor, rotary_dim):
    ir = shipped_ir(
        "ling-2.6-flash", "attention.lightning.head_dim=64", "attention.mla.qk_rope_head_dim=32",
        f"attention.lightning.partial_rotary_factor={factor}",
    )  # fmt: skip
    assert ir.lightning.rotary_dim == rotary_dim
    assert ir.mla.qk_rope_head_dim == 32
