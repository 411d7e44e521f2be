"""Bytes of weights on a card: whole, split, padded, in fp8, with the drafting layer."""

import pytest
from lingen.ir.weight_map import Weight
from lingen.sizing.card import GPU_MIB, rank_bytes, weight_bytes
from test_geometry import SPECS, shipped


def routers(ir, is_draft):
    groups = [group for group in ir.weights.groups if group.is_draft == is_draft]
    return sum(
        max(1, len(group.layers)) * weight.num_parameters
        for group in groups
        for weight in group.weights
        if weight.param.startswith("mlp.gate.")
    )


@pytest.mark.parametrize("name", SPECS)
def test_one_gpu_holds_two_bytes_a_parameter_and_four_in_routers(name):
    ir = shipped(name)
    found = weight_bytes(ir, 1, 1, "bf16", False)
    assert found == 2 * ir.parameters.total + 2 * routers(ir, False)


def test_the_mtp_layer_counts_with_drafts_only():
    ir = shipped("ling-2.6-flash")
    added = weight_bytes(ir, 1, 1, "bf16", True) - weight_bytes(ir, 1, 1, "bf16", False)
    assert added == 2 * ir.parameters.mtp + 2 * routers(ir, True)


def test_fp8_files_keep_the_mtp_layer_as_published():
    # Ling-2.6-1T's leave it in bfloat16; Ling-2.6-flash's file of it is 3.10 GiB large.
    added = {}
    for name in ("ling-2.6-1t", "ling-2.6-flash"):
        ir = shipped(name)
        added[name] = weight_bytes(ir, 1, 1, "fp8", True) - weight_bytes(ir, 1, 1, "fp8", False)
    ir = shipped("ling-2.6-1t")
    assert added["ling-2.6-1t"] == 2 * ir.parameters.mtp + 2 * routers(ir, True)
    assert abs(added["ling-2.6-flash"] / (3.10 * 2**30) - 1) < 0.01


def test_fp8_of_flash_is_what_its_published_files_take():
    # 105,597,618,432 bytes with scales of 128×128 blocks, as facts of the published files have it.
    # Output channels have more scales than blocks: 6144 of each expert instead of 768.
    found = weight_bytes(shipped("ling-2.6-flash"), 1, 1, "fp8", False)
    more = 31 * 257 * (6144 - 768) * 4
    assert abs((found - more) / 105_597_618_432 - 1) < 1e-4


@pytest.mark.parametrize(
    ("weight", "tp", "bf16", "fp8"),
    [
        (Weight("a", "a", (10, 6), tp_dim=0, quantizable=True), 2, 60, 30 + 5 * 4),
        (Weight("a", "a", (10, 6), tp_dim=1, quantizable=True), 2, 60, 30 + 10 * 4),
        (Weight("a", "a", (10, 6), quantizable=True), 2, 120, 60 + 10 * 4),
        (Weight("a", "a", (10, 6), 4, tp_dim=0, quantizable=True), 2, 240, 120 + 20 * 4),
        (Weight("a", "a", (10,)), 2, 20, 20),
        (Weight("a", "mlp.gate.weight", (4, 6)), 2, 96, 96),
        (Weight("a", "mlp.gate.expert_bias", (4,)), 2, 16, 16),
        # Eight query heads of 2, and one key and one value head that both ranks hold.
        (Weight("a", "a", (20, 1), tp_dim=0, tp_blocks=(16, 2, 2), tp_unit=2), 2, 24, 24),
    ],
)
def test_a_rank_holds_its_part(weight, tp, bf16, fp8):
    assert rank_bytes(weight, tp, "bf16", False) == bf16
    assert rank_bytes(weight, tp, "fp8", False) == fp8


def test_a_vocabulary_shard_is_padded():
    assert rank_bytes(Weight("a", "a", (10, 6), tp_dim=0), 4, "bf16", True) == 3 * 6 * 2


def test_the_heaviest_stage_counts():
    ir = shipped("ling-2.6-flash")
    one, two = (weight_bytes(ir, 1, pp, "bf16", False) for pp in (1, 2))
    assert one / 2 < two < one
    # With drafts the last stage holds the embedding too.
    last = weight_bytes(ir, 1, 32, "bf16", True) - weight_bytes(ir, 1, 32, "bf16", False)
    assert last > 2 * ir.parameters.mtp


def test_cards_are_as_reported():
    assert GPU_MIB == {
        "h100": 81559, "h200": 143771, "h20": 97871, "h20-3e": 143771, "b200": 183359
    }  # fmt: skip
