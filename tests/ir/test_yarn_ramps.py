"""Scaled rotary frequencies against those that the transformers library computes."""

import json
import math

import pytest
from golden_cases import GOLDEN, shipped_ir
from lingen.ir.rope import attention_factor, mla_scale_factor, yarn_ramp
from lingen.spec.model import RopeScaling

RECORDED = json.loads((GOLDEN / "yarn.json").read_text())
CASES = {case["name"]: case for case in RECORDED["cases"]}


def scaling_of(case):
    return RopeScaling(**case["rope_scaling"])


def frequencies(rotary_dim, theta, ramp, factor):
    """As generated code computes them, in float64."""
    low, high = ramp
    for pair in range(rotary_dim // 2):
        slowed = min(max((pair - low) / (high - low), 0), 1)
        plain = theta ** (-2 * pair / rotary_dim)
        yield plain * (1 - slowed) + plain / factor * slowed


@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_the_recorded_ones(name):
    case = CASES[name]
    scaling, theta, dim = scaling_of(case), case["rope_theta"], case["rotary_dim"]
    got = list(frequencies(dim, theta, yarn_ramp(dim, theta, scaling), scaling.factor))
    assert len(got) == len(case["inv_freq"])
    assert got == pytest.approx(case["inv_freq"], rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_factor_on_cosines_and_sines_is_the_recorded_one(name):
    case = CASES[name]
    assert attention_factor(scaling_of(case)) == pytest.approx(case["attention_factor"], rel=1e-12)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("nothing_stretched", "bounds_on_one_pair")]
)
def test_a_ramp_one_pair_off_would_be_seen(name):
    case = CASES[name]
    scaling, theta, dim = scaling_of(case), case["rope_theta"], case["rotary_dim"]
    low, high = yarn_ramp(dim, theta, scaling)
    for ramp in ((low + 1, high), (low, high - 1)):
        got = list(frequencies(dim, theta, ramp, scaling.factor))
        assert got != pytest.approx(case["inv_freq"], rel=1e-6)


def settings_of(case):
    return [
        f"model.rope_scaling.{key}={'null' if value is None else value}"
        for key, value in case["rope_scaling"].items()
    ]


def test_a_model_has_a_ramp_for_each_width_that_it_rotates():
    settings = settings_of(CASES["ling_2_6_at_256k"])
    ir = shipped_ir("ling-2.6-flash", *settings)
    assert set(ir.rope.yarn.ramp_table) == {64}
    apart = shipped_ir("ling-2.6-flash", *settings, "attention.mla.qk_rope_head_dim=32")
    assert set(apart.rope.yarn.ramp_table) == {32, 64}
    gqa = shipped_ir("ling-mini-2.0", *settings_of(CASES["ling_2_0_at_128k"]))
    case = CASES["ling_2_0_at_128k"]
    assert gqa.rope.theta == case["rope_theta"]
    [(dim, ramp)] = gqa.rope.yarn.ramp_table.items()
    got = list(frequencies(dim, gqa.rope.theta, ramp, gqa.rope.yarn.factor))
    assert got == pytest.approx(case["inv_freq"], rel=1e-6)


def test_the_softmax_scale_of_mla_is_stretched_only_by_a_stated_mscale_all_dim():
    plain = settings_of(CASES["ling_2_6_at_256k"])
    assert not shipped_ir("ling-2.6-flash", *plain).mla_scale_is_stretched
    stated = [*plain[:-1], "model.rope_scaling.mscale_all_dim=0.5"]
    yarn = shipped_ir("ling-2.6-flash", *stated).rope.yarn
    assert yarn.mla_scale_factor == pytest.approx((0.05 * math.log(2) + 1) ** 2, rel=1e-12)
    assert mla_scale_factor(scaling_of(CASES["ling_2_6_at_256k"])) == 1.0


def test_without_scaling_there_is_only_theta():
    rope = shipped_ir("ling-2.6-flash").rope
    assert (rope.theta, rope.yarn) == (6000000.0, None)


def test_the_record_says_where_it_comes_from():
    assert RECORDED["transformers"] == "4.57.6"
    assert "_compute_yarn_parameters" in RECORDED["source"]
