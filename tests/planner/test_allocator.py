"""Slots, rows and pages are given once each, up to the plan and never beyond it."""

import copy

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lingen.planner import Allocator, Geometry, Options, PoolsFull, Stage, plan_cache
from planner_cases import flash, geometries, option_sets, plan_or_none


def state_of(allocator):
    parts = {key: value for key, value in vars(allocator).items() if key.startswith("_")}
    held = {(a.row, a.slots, tuple(a.pages)) for a in allocator.running}
    return copy.deepcopy(parts), held


def assert_distinct_and_planned(allocator):
    plan, running = allocator.plan, allocator.running
    for held, count in (
        ([a.row for a in running], plan.max_running_requests),
        ([slot for a in running for slot in a.slots], plan.max_state_slots),
        ([page for a in running for page in a.pages], plan.kv_pages),
    ):
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(count))


@given(geometries(), option_sets(), st.integers(300, 3000))
def test_requests_run_up_to_the_planned_number_and_the_next_takes_nothing(
    geometry, options, budget_bytes
):
    plan = plan_or_none(geometry, options, budget_bytes=budget_bytes)
    assume(plan is not None and plan.kv_bytes_per_token)
    allocator = Allocator(plan)
    for _ in range(plan.max_running_requests):
        allocator.admit(1)
    assert_distinct_and_planned(allocator)
    before = state_of(allocator)
    with pytest.raises(PoolsFull, match=f"{plan.max_running_requests} requests run, as many as"):
        allocator.admit(1)
    assert state_of(allocator) == before


@given(
    st.lists(
        st.tuples(st.sampled_from(("admit", "grow", "free")), st.integers(0, 400)), max_size=60
    )
)
def test_no_order_of_calls_gives_anything_twice_or_loses_it(calls):
    plan = plan_cache(Geometry((Stage(10, 0, 1),)), Options(600, 4, draft_tokens=0))
    allocator = Allocator(plan)
    fresh = {name: set(value) for name, value in state_of(allocator)[0].items()}
    order = []
    for call, number in calls:
        before = state_of(allocator)
        try:
            if call == "admit":
                order.append(allocator.admit(number))
            elif order and call == "grow":
                held = order[number % len(order)]
                allocator.grow(held, number)
                assert len(held.pages) * 4 >= number
            elif order:
                allocator.free(order.pop(number % len(order)))
        except PoolsFull:
            assert state_of(allocator) == before
        assert_distinct_and_planned(allocator)
    for held in order:
        allocator.free(held)
    assert {name: set(value) for name, value in state_of(allocator)[0].items()} == fresh


def test_pages_that_are_not_there_are_refused_with_both_numbers():
    allocator = Allocator(plan_cache(flash(), Options(8 << 30, 64)))
    first = allocator.admit(64 * 15_000)
    with pytest.raises(PoolsFull, match="25600 tokens need 400 more pages of 64: 387 of 15387"):
        allocator.admit(64 * 400)
    allocator.free(first)
    allocator.admit(64 * 400)


def test_what_was_freed_cannot_be_freed_or_grown_again():
    allocator = Allocator(plan_cache(flash(), Options(8 << 30, 64)))
    held = allocator.admit(1)
    allocator.free(held)
    for call in (allocator.free, lambda held: allocator.grow(held, 100)):
        with pytest.raises(ValueError, match="is not running"):
            call(held)


def test_a_model_without_keys_and_values_needs_no_pages():
    allocator = Allocator(plan_cache(Geometry((Stage(10, 0, 0),)), Options(1000, 16)))
    held = allocator.admit(40)
    assert held.pages == [0, 0, 0]
    allocator.grow(held, 100)
    assert held.pages == [0] * 7
