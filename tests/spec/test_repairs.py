"""Fixes that rules propose: each mends what it is for, and breaks nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lingen.errors import SpecError
from lingen.spec import load_spec_text
from lingen.spec.rules import RULES, repairs
from spec_bases import BASES

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128])
TP = st.lists(SIZES, max_size=3).map(lambda sizes: list(dict.fromkeys([1, *sizes])))
FACTORS = st.sampled_from([1, 1.0, 0.5, 0.25, 0.3])
BETAS = st.sampled_from([0.5, 1, 2.0, 32])
CHANGES: dict[str, st.SearchStrategy] = {
    **dict.fromkeys(
        (
            "model.num_attention_heads",
            "model.num_hidden_layers",
            "attention.pattern.layer_group_size",
            "attention.lightning.group_norm_size",
            "attention.lightning.head_dim",
            "attention.gqa.num_key_value_heads",
            "attention.gqa.head_dim",
            "mlp.first_k_dense_replace",
            "moe.num_experts",
            "moe.n_group",
            "moe.topk_group",
            "moe.num_experts_per_tok",
            "moe.moe_intermediate_size",
        ),
        SIZES,
    ),
    "parallel.tp": TP,
    "attention.lightning.partial_rotary_factor": FACTORS,
    "attention.gqa.partial_rotary_factor": FACTORS,
    "model.rope_scaling.beta_fast": BETAS,
    "model.rope_scaling.beta_slow": BETAS,
    "model.model_type": st.sampled_from(["bailing_hybrid", "bailing_moe_linear", "bailing_moe"]),
    "moe.score_function": st.sampled_from(["sigmoid", "softmax"]),
    "moe.expert_bias": st.booleans(),
    "moe.renormalize": st.booleans(),
    "moe.routed_scaling_factor": st.sampled_from([1, 1.0, 2.5, 3]),
    "quantization.checkpoint_formats": st.sampled_from([["fp8_block"], ["float32"]]),
}


@given(st.sampled_from(list(BASES)), st.fixed_dictionaries({}, optional=CHANGES))
def test_every_repair_mends_its_rule_and_breaks_no_other(base, changes):
    own = BASES[base].values()
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}
    values |= {key: value for key, value in changes.items() if key in own}
    broken = broken_rules(values)
    for name, rule in broken.items():
        for key, proposals in repairs(rule, values).items():
            assert 1 <= len(proposals) <= 2
            for value in proposals:
                still = broken_rules({**values, key: value})
                assert name not in still
                assert set(still) <= set(broken)


def broken_rules(values: dict[str, object]) -> dict[str, object]:
    """Broken rules by name, of those whose keys are all there."""
    return {
        rule.name: rule
        for rule in RULES
        if values.keys() >= set(rule.keys) and rule.why_not(*(values[key] for key in rule.keys))
    }


def test_a_whole_number_may_be_the_repair_of_a_fraction():
    text = "extends: ring-mini-linear-2.0\nattention:\n  lightning:\n    partial_rotary_factor: 1\n"
    with pytest.raises(SpecError) as caught:
        load_spec_text(text, "s.yaml")
    (problem,) = caught.value.problems
    assert problem.key == "attention.lightning.partial_rotary_factor"
    assert problem.fix == "gqa.partial_rotary_factor 1"
