"""Which layer is of which kind: groups, tails, and the recorded cases."""

import pytest
from golden_cases import CASES, GQA_CASES, expected, golden_ir, shipped_ir
from lingen.ir.layers import layer_kind, mlp_kind


def kinds(num_layers, group_size, tail, full_kind="mla"):
    letters = {"lightning": "L", full_kind: "M"}
    return "".join(
        letters[layer_kind(index, num_layers, group_size, tail, full_kind)]
        for index in range(num_layers)
    )


@pytest.mark.parametrize(
    ("num_layers", "group_size", "full", "linear"),
    [
        (8, 4, "LLLMLLLM", "LLLMLLLM"),
        (6, 4, "LLLMMM", "LLLMLL"),
        (10, 4, "LLLMLLLMMM", "LLLMLLLMLL"),
        (3, 4, "MMM", "LLL"),
        (1, 1, "M", "M"),
        (1, 2, "M", "L"),
        (3, 1, "MMM", "MMM"),
        (5, 2, "LMLMM", "LMLML"),
    ],
)
def test_last_layer_of_a_group_is_full_and_the_tail_as_chosen(num_layers, group_size, full, linear):
    for full_kind in ("mla", "gqa"):
        assert kinds(num_layers, group_size, "full", full_kind) == full
        assert kinds(num_layers, group_size, "linear", full_kind) == linear


def test_the_first_layers_are_dense():
    assert [mlp_kind(index, 2) for index in range(4)] == ["dense", "dense", "moe", "moe"]
    assert mlp_kind(0, 0) == "moe"


@pytest.mark.parametrize("case", CASES)
def test_plan_of_a_recorded_case_is_the_recorded_one(case):
    plan = golden_ir(case).plan
    layers = plan.layers
    assert plan.full_kind == ("gqa" if case in GQA_CASES else "mla")
    names = {"linear": "lightning", "full": plan.full_kind}
    assert [layer.attention for layer in layers] == [
        names[kind] for kind in expected(case)["layer_kinds"]
    ]
    assert [layer.mlp for layer in layers] == expected(case)["mlp_kinds"]


@pytest.mark.parametrize(
    ("name", "full", "num_lightning"),
    [
        ("ling-2.6-flash", (7, 15, 23, 31), 28),
        ("ling-2.6-1t", tuple(range(7, 80, 8)), 70),
        ("ring-mini-linear-2.0", (4, 9, 14, 19), 16),
        ("ling-mini-2.0", tuple(range(20)), 0),
        ("ling-lite-1.5", tuple(range(28)), 0),
    ],
)
def test_full_layers_of_the_published_models(name, full, num_lightning):
    plan = shipped_ir(name).plan
    assert plan.full == full
    assert len(plan.lightning) == num_lightning


@pytest.mark.parametrize("case", CASES)
def test_kinds_places_and_runs_of_a_plan_agree(case):
    """A layer's kind, the set it is in, its place in its pool, and its run say the same."""
    plan = golden_ir(case).plan
    for layer in plan.layers:
        members = {"lightning": plan.lightning, plan.full_kind: plan.full}[layer.attention]
        others = {"lightning": plan.full, plan.full_kind: plan.lightning}[layer.attention]
        assert members[layer.pool_idx] == layer.index
        assert layer.index not in others
        assert (layer.index in plan.dense) == (layer.mlp == "dense") != (layer.index in plan.moe)
    in_runs = [
        (index, run.attention, run.mlp)
        for run in plan.runs
        for index in range(run.first, run.last + 1)
    ]
    assert in_runs == [(layer.index, layer.attention, layer.mlp) for layer in plan.layers]


def test_lightning_layers_of_the_case_with_groups_of_four():
    plan = golden_ir("hybrid-mla-h4").plan
    assert plan.lightning == (0, 1, 2, 4, 5, 6)
    assert plan.full == (3, 7)


def test_tail_layers_are_counted():
    plan = golden_ir("tail-layers").plan
    assert (plan.num_groups, plan.num_tail_layers, plan.tail_kind) == (1, 2, "mla")
    assert shipped_ir("ling-2.6-flash").plan.num_tail_layers == 0
    plan = golden_ir("linear-v2-tail").plan
    assert (plan.num_groups, plan.num_tail_layers, plan.tail_kind) == (1, 2, "gqa")
    assert plan.full == (2, 3, 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ling-2.6-flash", "32 layers: 28 lightning and 4 MLA, 1 dense and 31 MoE"),
        ("ring-mini-linear-2.0", "20 layers: 16 lightning and 4 GQA, 1 dense and 19 MoE"),
        ("ling-mini-2.0", "20 layers: 20 GQA, 1 dense and 19 MoE"),
        ("ling-lite-1.5", "28 layers: 28 GQA, 28 MoE"),
    ],
)
def test_a_plan_in_words_leaves_out_kinds_that_no_layer_is_of(name, text):
    assert shipped_ir(name).plan.description == text
