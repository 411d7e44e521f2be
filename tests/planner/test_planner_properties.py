"""What holds for every input: exact, maximal, monotone, never silently zero."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import assume, example, given
from hypothesis import strategies as st
from lingen.planner import (
    DoesNotFit,
    Geometry,
    Options,
    Stage,
    plan_cache,
    slots_per_request,
)
from lingen.planner.solve import solve
from planner_cases import RATIOS, by_hand, flash, geometries, option_sets, plan_or_none

SERVING = st.integers(200, 4000)


@given(geometries(), option_sets())
def test_a_loop_over_all_slots_finds_the_same(geometry, options):
    found = plan_or_none(geometry, options)
    expected = by_hand(geometry, options)
    if expected is None:
        assert found is None
        return
    counts = (found.max_state_slots, found.verify_rows, found.kv_pages, found.max_running_requests)
    slots, rows, pages, requests = expected
    assert counts == (slots, rows, pages or 0, requests)


@given(geometries(), option_sets(), SERVING)
def test_parts_and_the_rest_are_the_budget_on_every_stage(geometry, options, budget_bytes):
    found = plan_or_none(geometry, options, budget_bytes=budget_bytes)
    assume(found is not None)
    parts = found.state_bytes + found.verify_bytes + found.kv_bytes + found.unused_bytes
    assert parts == found.budget_bytes == budget_bytes
    assert found.unused_bytes >= 0
    assert found.max_running_requests >= 1
    assert found.max_state_slots >= found.max_running_requests * found.slots_per_request
    assert found.kv_tokens == found.kv_pages * found.page_size
    for stage in geometry.stages:
        taken = stage.state_bytes * (found.max_state_slots + 1)
        if options.draft_tokens:
            taken += options.verify_bytes(stage) * (found.verify_rows + 1)
        page = options.kv_bytes(stage) * found.page_size
        assert taken + page * ((found.kv_pages + 1) if page else 0) <= budget_bytes


@given(geometries(), option_sets(), SERVING)
def test_one_more_page_does_not_fit(geometry, options, budget_bytes):
    found = plan_or_none(geometry, options, budget_bytes=budget_bytes)
    assume(found is not None and found.kv_pages)
    assert found.unused_bytes < found.kv_bytes_per_token * found.page_size


@given(geometries(), option_sets(), SERVING)
def test_one_more_slot_does_not_fit_into_the_share(geometry, options, budget_bytes):
    options = replace(options, budget_bytes=budget_bytes, max_state_slots=None)
    assume(geometry.has_state and options.rule == "ratio")
    found = plan_or_none(geometry, options)
    assume(found is not None)
    slots = found.max_state_slots + 1
    bound = slots // found.slots_per_request
    rows = 0
    if options.draft_tokens:
        rows = 1 + (bound if options.requests is None else min(bound, options.requests))
    state = max(stage.state_bytes for stage in geometry.stages)
    row = max(options.verify_bytes(stage) for stage in geometry.stages)
    share = options.share(budget_bytes)
    assert state * (slots + 1) + row * rows > share
    drop = row if rows and rows - 1 > found.verify_rows else 0
    assert state * slots + row * rows - drop <= share


@given(geometries(), option_sets(), SERVING, st.integers(0, 300))
def test_slots_and_rows_grow_with_memory(geometry, options, budget_bytes, more):
    less = plan_or_none(geometry, options, budget_bytes=budget_bytes)
    larger = plan_or_none(geometry, options, budget_bytes=budget_bytes + more)
    assume(less is not None and larger is not None)
    assert less.max_state_slots <= larger.max_state_slots
    assert less.verify_rows <= larger.verify_rows


@given(st.integers(1 << 55, 1 << 64), option_sets())
def test_terabytes_are_as_exact_as_bytes(budget_bytes, options):
    found = plan_or_none(flash(), options, budget_bytes=budget_bytes, page_size=64)
    assume(found is not None)
    parts = found.state_bytes + found.verify_bytes + found.kv_bytes + found.unused_bytes
    assert parts == budget_bytes


@given(geometries(), option_sets())
@example(flash(), Options(0, 64))
def test_a_refusal_names_the_smallest_budget_that_works(geometry, options):
    try:
        plan_cache(geometry, options)
    except DoesNotFit as refusal:
        needed = refusal.needed_bytes
        if needed is None:
            assert "cache_bytes" not in refusal.would_work
            fits = [plan_or_none(geometry, options, budget_bytes=b) for b in (10**6, 10**9)]
            assert fits == [None, None]
            return
        assert refusal.would_work["cache_bytes"] == needed
        assert plan_or_none(geometry, options, budget_bytes=needed) is not None
        for budget_bytes in range(max(0, needed - 40), needed):
            assert by_hand(geometry, replace(options, budget_bytes=budget_bytes)) is None


KNOBS = {
    "cache_bytes": "budget_bytes",
    "max_running_requests": "max_running_requests",
    "draft_tokens": "draft_tokens",
    "ratio": "ratio",
    "max_state_slots": "max_state_slots",
}


def serves(geometry, options, **changes):
    """Whether there is a plan; a refusal is not looked for."""
    return solve(geometry, replace(options, **changes)).serves


def refused(geometry, options):
    """`would_work` of a refusal, None for a plan."""
    try:
        plan_cache(geometry, options)
    except DoesNotFit as refusal:
        assert list(refusal.would_work) == [k for k in KNOBS if k in refusal.would_work]
        return refusal.would_work
    return None


def one_step_less(knob, value, options):
    """The value one step nearer to the options than the suggested one, None where that is theirs.

    Memory's smallest budget has a smaller one before it, whichever of the two is asked for. A ratio
    moves by its last decimal place, at least the third. Less than one for each replica, or a ratio
    of nothing, is no option.
    """
    if knob == "cache_bytes":
        return value - 1
    if knob == "ratio":
        given, found = Decimal(options.ratio), Decimal(value)
        places = max(3, -given.as_tuple().exponent)
        step = Decimal(1).scaleb(-places)
        nearer = found - step if found > given else found + step
        return None if nearer in (0, given) else format(nearer, "f")
    now = getattr(options, knob)
    if knob == "max_state_slots" and now is None:
        rho = slots_per_request(True, options.prefix_cache, options.extra_buffer)
        nearer = value - 1 if value == rho * options.dp else value + 1
    else:
        nearer = value + (1 if now is None or now > value else -1)
    return nearer if knob == "draft_tokens" or nearer >= options.dp else None


@given(geometries(), option_sets(largest=300))
def test_a_suggested_value_works_and_one_step_less_does_not(geometry, options):
    for knob, value in (refused(geometry, options) or {}).items():
        assert serves(geometry, options, **{KNOBS[knob]: value})
        nearer = one_step_less(knob, value, options)
        if nearer is not None:
            assert not serves(geometry, options, **{KNOBS[knob]: nearer}), knob


@given(st.integers(48, 400), st.integers(1, 9), st.sampled_from(RATIOS), st.integers(0, 4))
@example(100, 1, "0.37", 0)
@example(100, 1, "20.5", 0)
def test_a_ratio_comes_up_to_its_slots_or_down_to_its_page(budget_bytes, kv_bytes, ratio, drafts):
    geometry = Geometry((Stage(10, 1, kv_bytes),))
    options = Options(budget_bytes, 4, ratio=ratio, draft_tokens=drafts)
    found = refused(geometry, options) or {}
    if "ratio" in found:
        assert serves(geometry, options, ratio=found["ratio"])
        nearer = one_step_less("ratio", found["ratio"], options)
        assert nearer is None or not serves(geometry, options, ratio=nearer)
    elif found:
        # No number of slots leaves a request its slots and a page, or no ratio gives such a number.
        tried = [str(Decimal(step).scaleb(-3)) for step in (*range(1, 4000, 13), 10**6, 10**9)]
        assert not any(serves(geometry, options, ratio=other) for other in tried)


@given(geometries(), option_sets(largest=300))
def test_nothing_nearer_than_a_suggestion_works(geometry, options):
    found = refused(geometry, options)
    for knob in ("max_running_requests", "draft_tokens", "max_state_slots"):
        now = getattr(options, knob)
        if found is None or now is None:
            continue
        value = found.get(knob)
        first = 0 if knob == "draft_tokens" else 1
        nearer = _between(value, now) if knob in found else range(first, now)
        for other in nearer:
            assert not serves(geometry, options, **{knob: other})


@given(geometries(), option_sets(largest=300))
def test_a_knob_that_is_not_suggested_does_not_help(geometry, options):
    found = refused(geometry, options)
    assume(found is not None)
    tried = {
        "max_running_requests": range(1, 60),
        "draft_tokens": range(options.draft_tokens),
        "max_state_slots": range(1, 60) if geometry.has_state else (),
        "ratio": [str(Decimal(n).scaleb(-3)) for n in (*range(1, 3000, 37), 10**6, 10**9)],
    }
    if options.rule != "ratio" or not geometry.has_state:
        tried["ratio"] = ()
    for knob, values in tried.items():
        if knob not in found:
            for value in values:
                assert not serves(geometry, options, **{knob: value}), (knob, value)


@given(
    st.integers(1 << 20, 1 << 34),
    st.integers(1, 1 << 62),
    st.sampled_from(("max_state_slots", "max_running_requests")),
    option_sets(),
)
@example(1 << 30, 1_000_000, "max_state_slots", Options(0, 64))
def test_counts_far_too_large_come_down_to_the_last_that_fits(budget_bytes, count, knob, options):
    none = {"max_running_requests": None, "max_state_slots": None}
    options = replace(options, budget_bytes=budget_bytes, page_size=64, **{**none, knob: count})
    if knob == "max_running_requests":
        options = replace(options, prefix_cache=False)
    rho = slots_per_request(True, options.prefix_cache, options.extra_buffer)
    fewest = rho * options.dp
    assume(count >= fewest)
    found = refused(flash(), options)
    assume(found is not None)
    value = found.get(knob)
    if value is None:
        assert not serves(flash(), options, **{knob: fewest})
    else:
        assert serves(flash(), options, **{knob: value})
        assert not serves(flash(), options, **{knob: value + 1})


def _between(value, now):
    """Whole values strictly between a suggestion and what was given."""
    return range(min(value, now) + 1, max(value, now))
