"""The planner on the flagship's numbers: every flag set, and what binds."""

import itertools

import pytest
from lingen.planner import Geometry, Options, Stage, plan_cache, slots_per_request
from planner_cases import GIB, MIB, flash, plan_or_none

FLAGS = list(
    itertools.product(
        (True, False), ("none", "overlap"), (0, 4), ("replay", "snapshot"), (None, 3, 200)
    )
)


def plan(geometry=None, budget_bytes=8 * GIB, page_size=64, **options):
    return plan_cache(geometry or flash(), Options(budget_bytes, page_size, **options))


def test_eight_gib_without_drafts_hold_22_requests():
    options = Options(8 * GIB, 64)
    assert options.share(8 * GIB) == 4_068_916_385
    found = plan_cache(flash(), options)
    assert (found.max_state_slots, found.max_running_requests) == (68, 22)
    assert (found.rule, found.binds, found.warnings) == ("ratio", "state slots", ())
    assert found.state_bytes == 69 * 56 * MIB
    assert found.kv_pages == (8 * GIB - found.state_bytes) // (64 * 4608) - 1
    assert found.kv_tokens == 64 * found.kv_pages


def test_4096_requests_are_clamped_and_both_numbers_named():
    found = plan(max_running_requests=4096)
    assert found.max_running_requests == 22
    assert found.warnings == (
        "4096 requests asked, 22 fit; state slots bind: ratio 0.9 gives 68 state slots, and a"
        " request holds 3",
    )


def test_sixteen_requests_fit_into_eight_gib_and_not_into_four():
    assert plan(max_running_requests=16).warnings == ()
    assert plan(max_running_requests=16).binds == "max_running_requests"
    clamped = plan(budget_bytes=4 * GIB, max_running_requests=16)
    assert clamped.max_running_requests == 11
    [warning] = clamped.warnings
    assert warning.startswith("16 requests asked, 11 fit; state slots bind: ")


def test_a_given_number_of_slots_says_that_the_ratio_was_not_used():
    found = plan(max_state_slots=40)
    assert (found.max_state_slots, found.max_running_requests) == (40, 13)
    assert found.rule == "max_state_slots"
    assert found.warnings == ("ratio 0.9 was not used: max_state_slots 40 sized the state pool",)


@pytest.mark.parametrize(
    ("flags", "rho", "requests"),
    [
        ({"prefix_cache": False}, 1, 40),
        ({"prefix_cache": False, "extra_buffer": "overlap"}, 1, 40),
        ({}, 3, 13),
        ({"extra_buffer": "no-overlap"}, 4, 10),
        ({"extra_buffer": "overlap"}, 5, 8),
    ],
)
def test_a_request_counts_what_it_holds_at_worst(flags, rho, requests):
    found = plan(max_state_slots=40, **flags)
    assert (found.slots_per_request, found.max_running_requests) == (rho, requests)
    # A scheduler that gives each request its slots, run to the cap, lacks none and wastes few.
    free = list(range(found.max_state_slots))
    held = [[free.pop() for _ in range(rho)] for _ in range(requests)]
    assert sum(map(len, held)) >= 0.95 * 40
    assert slots_per_request(False, True, "overlap") == 1


@pytest.mark.parametrize("flags", FLAGS)
def test_every_flag_set_is_within_budget_and_maximal(flags):
    prefix_cache, extra_buffer, drafts, states, requests = flags
    options = {
        "prefix_cache": prefix_cache,
        "extra_buffer": extra_buffer,
        "draft_tokens": drafts,
        "verify_states": states,
        "max_running_requests": requests,
    }
    found = plan(flash(8), **options)
    parts = found.state_bytes + found.verify_bytes + found.kv_bytes + found.unused_bytes
    assert parts == found.budget_bytes == 8 * GIB
    assert found.unused_bytes >= 0
    state = 7 * MIB
    row = drafts * (state if states == "snapshot" else 28 * 4 * 256 * 2)
    assert found.state_bytes == state * (found.max_state_slots + 1)
    assert found.verify_bytes == (row * (found.verify_rows + 1) if drafts else 0)
    assert found.kv_bytes_per_token == (5760 if drafts else 4608)
    assert found.unused_bytes < 64 * found.kv_bytes_per_token
    if prefix_cache or requests is None:
        slots = found.max_state_slots + 1
        bound = slots // found.slots_per_request
        rows = min(bound, requests or bound) + 1 if drafts else 0
        assert state * (slots + 1) + row * rows > 4_068_916_385


def test_rows_stop_at_the_asked_requests_and_leave_the_rest_to_slots():
    asked = plan(draft_tokens=4, verify_states="snapshot", max_running_requests=4)
    free = plan(draft_tokens=4, verify_states="snapshot")
    assert asked.verify_rows == 4 < free.verify_rows
    assert asked.max_state_slots == 48
    assert free.max_state_slots == 28


def test_replicas_share_the_counts():
    found = plan(dp=4, max_running_requests=30, max_state_slots=99)
    assert (found.max_state_slots, found.max_running_requests) == (24, 7)
    assert plan(dp=8, max_running_requests=3).max_running_requests == 1
    assert (
        plan(dp=2, max_running_requests=100)
        .warnings[0]
        .startswith("100 requests asked, 50 on each of 2 replicas, 22 fit; ")
    )


def test_the_tightest_stage_decides_and_is_reported():
    stages = Geometry((Stage(100, 0, 10), Stage(60, 0, 40), Stage(60, 0, 40)))
    found = plan(stages, 10_000, 1, max_state_slots=30)
    assert found.stage == 1
    assert found.state_bytes_per_slot == 60
    assert found.kv_pages == (10_000 - 31 * 60) // 40 - 1


def test_a_stage_without_kv_does_not_bind_pages_but_must_hold_its_states():
    stages = Geometry((Stage(100, 0, 0), Stage(10, 0, 10)))
    assert plan(stages, 3200, 1, max_state_slots=30).kv_pages == (3200 - 310) // 10 - 1
    assert plan_or_none(stages, Options(3099, 1, max_state_slots=30)) is None


def test_draft_kv_counts_on_the_last_stage_and_only_with_drafts():
    stages = Geometry((Stage(10, 1, 10), Stage(10, 1, 10, 5)))
    assert plan(stages, 10_000, 1).kv_bytes_per_token == 10
    found = plan(stages, 10_000, 1, draft_tokens=1)
    assert (found.stage, found.kv_bytes_per_token) == (1, 15)


def test_a_model_without_state_gives_everything_to_kv():
    found = plan(Geometry((Stage(0, 0, 10),)), 1000, 1, max_running_requests=7)
    assert (found.max_state_slots, found.max_running_requests, found.kv_pages) == (7, 7, 99)
    assert (found.rule, found.state_bytes, found.unused_bytes) == ("none", 0, 0)
    assert plan(Geometry((Stage(0, 0, 10),)), 1000, 1).max_running_requests == 99


def test_a_model_without_kv_has_no_pages():
    found = plan(Geometry((Stage(10, 0, 0),)), 1000, 1, ratio="1")
    assert (found.kv_pages, found.kv_tokens, found.max_running_requests) == (0, 0, 16)
    assert found.unused_bytes == 1000 - 10 * (found.max_state_slots + 1)


@pytest.mark.parametrize("budget_bytes", [2**63 - 1, 2**63, 2**70 + 1])
def test_numbers_beyond_floats_stay_exact(budget_bytes):
    found = plan(Geometry((Stage(1, 0, 1),)), budget_bytes, 1, ratio="0.9")
    assert found.state_bytes == budget_bytes * 9 // 19
    assert found.state_bytes + found.kv_bytes == budget_bytes


def test_the_ratio_is_a_decimal_and_no_float():
    # As floats, 0.9 / 1.9 of this budget is one byte more or less.
    assert Options(19 * 10**17, 1, ratio="0.9").share(19 * 10**17) == 9 * 10**17
