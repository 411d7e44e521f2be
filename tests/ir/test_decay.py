"""The decay: head slopes of the whole model, layer factors, and both public offsets."""

import math

import pytest
from golden_cases import LIGHTNING_CASES, expected, golden_ir, shipped_ir
from lingen.ir.decay import decay, head_slopes, layer_factor

EPSILON = 1e-5
# The alternative was recorded by changing the offset in float32: one more unit of its last place.
TOLERANCE = {
    "log_decay_per_layer_and_head": 1e-7,
    "alt_decay_log_decay_per_layer_and_head": 2.0**-23,
}
# (case, offset, key of the recorded table)
RECORDED = [
    (case, offset, "alt_decay_log_decay_per_layer_and_head" if which == "alt" else
     "log_decay_per_layer_and_head")
    for case in LIGHTNING_CASES
    for which, offset in expected(case)["decay_layer_offset"].items()
]  # fmt: skip


def log_decays(ir):
    decays = ir.lightning.decay
    return {
        str(layer): [-slope * factor for slope in decays.head_slopes]
        for layer, factor in decays.layer_factors
    }


def test_both_offsets_are_recorded_for_five_cases():
    assert {case for case, _, key in RECORDED if key.startswith("alt")} == {
        "hybrid-mla-h4", "hybrid-heads6", "engine-h128", "linear-v2-gqa", "linear-v2-tail",
    }  # fmt: skip
    assert {case for case, _, _ in RECORDED} == set(LIGHTNING_CASES)
    assert {offset for _, offset, _ in RECORDED} == {0, -1}


@pytest.mark.parametrize(("case", "offset", "key"), RECORDED)
def test_decay_equals_the_recorded_one_under_its_offset(case, offset, key):
    want = expected(case)[key]
    got = log_decays(golden_ir(case, offset))
    assert list(got) == list(want)
    for layer, values in want.items():
        assert got[layer] == pytest.approx(values, rel=TOLERANCE[key])


@pytest.mark.parametrize(("case", "offset", "key"), RECORDED)
def test_decay_differs_from_the_recorded_one_under_the_other_offset(case, offset, key):
    want = expected(case)[key]
    got = log_decays(golden_ir(case, -1 - offset))
    for layer, values in want.items():
        assert got[layer] != pytest.approx(values, rel=1e-2)


def test_layer_factors_of_32_layers():
    assert layer_factor(0, 32, 0, EPSILON) == pytest.approx(1.00001, abs=1e-9)
    assert layer_factor(30, 32, 0, EPSILON) == pytest.approx(0.032268, abs=5e-7)
    assert layer_factor(0, 32, -1, EPSILON) == pytest.approx(1.032268, abs=5e-7)
    assert layer_factor(30, 32, -1, EPSILON) == pytest.approx(0.064526, abs=5e-7)


def test_near_the_top_the_offsets_differ_by_a_factor_of_two():
    ratio = layer_factor(30, 32, -1, EPSILON) / layer_factor(30, 32, 0, EPSILON)
    assert ratio == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("offset", [0, -1])
def test_a_model_of_one_layer_has_a_finite_factor(offset):
    assert layer_factor(0, 1, offset, EPSILON) == 1 + EPSILON
    ir = golden_one_layer(offset)
    assert ir.lightning.decay.layer_factors == ((0, 1 + EPSILON),)


def golden_one_layer(offset):
    return shipped_ir(
        "ling-2.6-flash", "model.num_hidden_layers=1", "attention.pattern.tail=linear",
        "parallel.pp=[1]", f"attention.lightning.decay.layer_offset={offset}",
    )  # fmt: skip


def test_slopes_of_a_power_of_two():
    assert head_slopes(8) == tuple(2.0**-power for power in range(1, 9))
    assert head_slopes(1) == (2.0**-8,)
    assert head_slopes(2) == (2.0**-4, 2.0**-8)


def test_slopes_of_six_heads_are_four_and_every_second_of_eight():
    assert head_slopes(6) == (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3)


@pytest.mark.parametrize("num_heads", range(1, 130))
def test_there_is_one_distinct_slope_below_one_per_head(num_heads):
    slopes = head_slopes(num_heads)
    assert len(set(slopes)) == num_heads
    assert all(0 < slope < 1 for slope in slopes)


def test_slopes_of_a_rank_are_a_slice_of_the_whole_models():
    """8 heads on 4 ranks: rank 2 has heads 4 and 5 of 8, not the two of a model of 2 heads."""
    heads, tp, rank = 8, 4, 2
    own = head_slopes(heads)[rank * heads // tp : (rank + 1) * heads // tp]
    assert own == (1 / 32, 1 / 64)
    assert own != head_slopes(heads // tp) == (1 / 16, 1 / 256)


def test_slopes_are_those_of_all_heads_whatever_tp_is_declared():
    wide = shipped_ir("ling-2.6-flash")
    assert wide.parallel.tp == (1, 2, 4, 8)
    narrow = shipped_ir("ling-2.6-flash", "parallel.tp=[1]", "targets=[torch]")
    assert wide.lightning.decay == narrow.lightning.decay
    assert len(wide.lightning.decay.head_slopes) == wide.model.num_attention_heads


@pytest.mark.parametrize("name", ["ling-2.6-flash", "ling-2.6-1t", "ring-mini-linear-2.0"])
def test_every_step_shrinks_the_state(name):
    decays = shipped_ir(name).lightning.decay
    for layer, factor in decays.layer_factors:
        for head, slope in enumerate(decays.head_slopes):
            value = decay(decays, layer, head)
            assert 0 < value < 1
            assert value == math.exp(-slope * factor)


def test_models_without_lightning_layers_have_no_decay():
    assert shipped_ir("ling-mini-2.0").lightning is None
    assert shipped_ir("ling-lite-1.5").lightning is None


def test_published_models_use_offset_zero_with_factors_from_the_first_to_the_last_layer():
    factors = dict(shipped_ir("ling-2.6-1t").lightning.decay.layer_factors)
    assert factors[0] == pytest.approx(1 + EPSILON, rel=1e-12)
    assert factors[78] == pytest.approx(1 / 79 + EPSILON, rel=1e-12)
    assert 79 not in factors
    mini = dict(shipped_ir("ring-mini-linear-2.0").lightning.decay.layer_factors)
    assert mini[0] == pytest.approx(1 + EPSILON, rel=1e-12)
    assert mini[18] == pytest.approx(1 / 19 + EPSILON, rel=1e-12)
    assert not {4, 9, 14, 19} & mini.keys()
