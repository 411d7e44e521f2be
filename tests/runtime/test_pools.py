"""The package carries the planner that `lingen plan` runs, and pools take the planned bytes."""

from __future__ import annotations

import ast
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from types import ModuleType

import lingen.planner
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lingen.ir import lower
from lingen.planner.source import planner_source
from lingen.sizing.geometry import geometry_of
from lingen.spec import load_spec
from lingen.verify.package import generated_package
from small_models import lowered, lowered_variant

SPECS = Path(__file__).parents[2] / "specs"
BUDGET = 30 << 30
FLAGS = list(product((True, False), ("none", "overlap"), (0, 1, 4), ("replay", "snapshot")))
SIZES = st.integers(0, 50)
COUNTS = st.none() | st.integers(1, 40)


def assert_pools_take_what_is_planned(package: ModuleType, plan: object) -> None:
    pools = package.Pools(plan, device="meta")
    state, verify, kv = (getattr(pools, name, None) for name in ("state", "verify", "kv"))
    sizes = [0 if pool is None else pool.nbytes for pool in (state, verify, kv)]
    assert sizes == [plan.state_bytes, plan.verify_bytes, plan.kv_bytes]
    assert sum(tensor.nbytes for tensor in pools.tensors()) == sum(sizes)
    assert sum(sizes) + plan.unused_bytes == plan.budget_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pools_take_the_planned_bytes_with_every_set_of_flags(dtype: str) -> None:
    with generated_package(lowered(f"cache.state_dtype={dtype}")) as package:
        for prefix_cache, extra_buffer, drafts, states in FLAGS:
            options = package.Options(
                100 << 20,
                package.PAGE_SIZE,
                prefix_cache=prefix_cache,
                extra_buffer=extra_buffer,
                draft_tokens=drafts,
                verify_states=states,
            )
            plan = package.plan_cache(package.GEOMETRY, options)
            assert_pools_take_what_is_planned(package, plan)
            assert (plan.verify_bytes > 0) == (drafts > 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pools_of_every_rank_and_stage_take_the_planned_bytes(dtype: str) -> None:
    ir = lower(load_spec(SPECS / "ling-2.6-flash.yaml", [f"cache.state_dtype={dtype}"]))
    splits = product((1, 2, 4, 8), (1, 2, 3), (0, 1, 4), ("replay", "snapshot"))
    with generated_package(ir) as package:
        for tp, pp, drafts, states in splits:
            geometry = package.geometry(tp, pp)
            options = package.Options(
                BUDGET, package.PAGE_SIZE, draft_tokens=drafts, verify_states=states
            )
            plan = package.plan_cache(geometry, options)
            sizes = [stage_bytes(package.Pools(plan, "meta", stage)) for stage in range(pp)]
            assert sizes[plan.stage] == (plan.state_bytes, plan.verify_bytes, plan.kv_bytes)
            assert sum(sizes[plan.stage]) + plan.unused_bytes == BUDGET
            assert all(sum(size) <= BUDGET for size in sizes)
            # The other stages hold as many slots, rows and pages of their own layers.
            for stage, size in zip(geometry.stages, sizes, strict=True):
                assert size == (
                    stage.state_bytes * (plan.max_state_slots + 1),
                    options.verify_bytes(stage) * (plan.verify_rows + 1 if drafts else 0),
                    options.kv_bytes(stage) * plan.page_size * (plan.kv_pages + 1),
                )


def stage_bytes(pools: object) -> tuple[int, ...]:
    tensors = (pools.state, pools.verify, pools.kv)
    return tuple(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("file", sorted(SPECS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_packages_geometry_is_the_one_that_lingen_plans_with(file: Path) -> None:
    ir = lower(load_spec(file))
    with generated_package(ir) as package:
        for tp, pp in product(ir.parallel.tp, (1, 2, 3, 4)):
            expected = geometry_of(ir, tp, pp)
            if not ir.has_verify_rows:  # no drafts, so no rows to size
                stages = tuple(replace(stage, replay_bytes=0) for stage in expected.stages)
                expected = replace(expected, stages=stages)
            assert asdict(package.geometry(tp, pp)) == asdict(expected)


def test_a_split_that_the_model_does_not_have_is_refused(tiny: ModuleType) -> None:
    with pytest.raises(ValueError, match="tp is 3: this model splits into "):
        tiny.geometry(tp=3)
    with pytest.raises(ValueError, match="pp is 0: 8 layers make 1 to 8 stages"):
        tiny.geometry(pp=0)


@pytest.mark.parametrize(
    "name",
    ["all-mla", "all-lightning", "all-lightning-with-mtp", "v2", "v2-with-mtp", "linear-v2"],
)
def test_packages_of_all_kinds_know_their_geometry(name: str) -> None:
    ir = lowered_variant(name)
    drafts = 2 if ir.mtp else 0
    with generated_package(ir) as package:
        stage = asdict(package.GEOMETRY)["stages"][0]
        expected = asdict(geometry_of(ir))["stages"][0]
        if not ir.has_verify_rows:
            expected["replay_bytes"] = 0
        assert stage == expected
        options = package.Options(1 << 20, package.PAGE_SIZE, draft_tokens=drafts)
        assert_pools_take_what_is_planned(package, package.plan_cache(package.GEOMETRY, options))


def test_verify_rows_have_the_documented_shapes() -> None:
    with generated_package(lowered()) as package:
        shape = package.Pools.of_size(5, 7, draft_tokens=3, verify_states="replay").verify.shape
        assert shape == (6, 6, 3, 8, 64 + 64)
        shape = package.Pools.of_size(5, 7, draft_tokens=3, verify_states="snapshot").verify.shape
        assert shape == (6, 6, 3, 8, 64, 64)


def test_pools_of_given_counts_have_them(tiny: ModuleType) -> None:
    pools = tiny.Pools.of_size(num_slots=5, num_pages=7, draft_tokens=2)
    assert (pools.num_slots, pools.num_pages) == (5, 7)
    assert (pools.plan.verify_rows, pools.plan.unused_bytes) == (5, 0)


def test_a_plan_for_pages_of_another_size_is_refused(tiny: ModuleType) -> None:
    plan = tiny.plan_cache(tiny.GEOMETRY, tiny.Options(1 << 30, 32))
    with pytest.raises(ValueError, match="pages of 32 tokens are planned: this model has 16"):
        tiny.Pools(plan)


def test_a_plan_with_drafts_is_refused_without_an_mtp_layer() -> None:
    with generated_package(lowered_variant("linear-v2")) as package:
        plan = package.plan_cache(package.GEOMETRY, package.Options(1 << 20, 16, draft_tokens=2))
        with pytest.raises(ValueError, match="2 draft tokens are planned: no MTP layer"):
            package.Pools(plan)


def test_the_package_has_the_very_source_and_no_torch(tiny: ModuleType) -> None:
    text = (Path(tiny.__file__).parent / "planner.py").read_text()
    assert text.endswith(planner_source())
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "collections.abc", "dataclasses", "decimal", "fractions"}


@given(
    st.lists(st.tuples(SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=3),
    st.fixed_dictionaries(
        {
            "budget_bytes": st.integers(-10, 3000),
            "page_size": st.integers(1, 4),
            "ratio": st.sampled_from(("0.9", "0.05", "3")),
            "prefix_cache": st.booleans(),
            "extra_buffer": st.sampled_from(("none", "no-overlap", "overlap")),
            "draft_tokens": st.integers(0, 4),
            "verify_states": st.sampled_from(("replay", "snapshot")),
            "max_running_requests": COUNTS,
            "max_state_slots": COUNTS,
            "dp": st.integers(1, 3),
        }
    ),
)
@example([(1, 0, 1, 0)], {"budget_bytes": 2**63, "page_size": 1})
def test_the_packages_planner_plans_and_refuses_as_lingen_does(
    tiny: ModuleType, stages: list[tuple[int, ...]], options: dict
) -> None:
    stages = [stage for stage in stages if stage[0] or stage[2]] or [(1, 1, 1, 1)]
    answers = []
    for planner in (lingen.planner, tiny.planner):
        geometry = planner.Geometry(tuple(planner.Stage(*stage) for stage in stages))
        try:
            answers.append(asdict(planner.plan_cache(geometry, planner.Options(**options))))
        except planner.DoesNotFit as refusal:
            answers.append(vars(refusal))
    assert answers[0] == answers[1]
