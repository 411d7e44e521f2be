"""What a refusal says: numbers first, then each knob that works."""

from decimal import Decimal

import pytest
from lingen.planner import DoesNotFit, Geometry, Options, Stage, plan_cache
from planner_cases import MIB, flash, plan_or_none


def refusal(geometry, options):
    with pytest.raises(DoesNotFit) as caught:
        plan_cache(geometry, options)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget_bytes", 8.5),
        ("budget_bytes", float("nan")),
        ("page_size", 0),
        ("page_size", -64),
        ("page_size", True),
        ("ratio", 0.9),
        ("ratio", "0"),
        ("ratio", "-1"),
        ("ratio", "nan"),
        ("ratio", "inf"),
        ("ratio", "1/0"),
        ("extra_buffer", "yes"),
        ("verify_states", "both"),
        ("draft_tokens", -1),
        ("draft_tokens", None),
        ("max_running_requests", 0),
        ("max_running_requests", 1.0),
        ("max_state_slots", -3),
        ("dp", 0),
        ("dp", None),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field} is "):
        Options(**{"budget_bytes": 1 << 30, "page_size": 64, field: value})


def test_too_little_for_the_slots_of_one_request():
    found = refusal(flash(), Options(470 * MIB, 64))
    assert found.needed_bytes == -(-4 * 56 * MIB * 19 // 9)
    assert found.budget_bytes == 470 * MIB
    assert found.would_work["ratio"] == "0.911"
    assert found.error == (
        "not one request fits: a request holds 3 state slots, and 2 fit; 492,830,720 bytes are"
        " there, 495,859,940 are needed"
    )


def test_ratio_steps_are_thousandths_and_the_step_before_fails():
    options = Options(470 * MIB, 64)
    found = refusal(flash(), options)
    value = Decimal(found.would_work["ratio"])
    assert plan_or_none(flash(), options, ratio=str(value)) is not None
    assert plan_or_none(flash(), options, ratio=str(value - Decimal("0.001"))) is None


def test_too_many_requests_without_a_prefix_cache():
    options = Options(1024 * MIB, 64, prefix_cache=False, max_running_requests=100)
    found = refusal(flash(), options)
    assert found.would_work == {
        "cache_bytes": 101 * 56 * MIB + 2 * 64 * 4608,
        "max_running_requests": 17,
        "max_state_slots": 17,
    }


def test_drafts_that_do_not_fit_may_be_fewer():
    options = Options(500 * MIB, 64, draft_tokens=8, verify_states="snapshot", max_state_slots=3)
    found = refusal(flash(), options)
    assert found.would_work["draft_tokens"] == 2
    assert found.needed_bytes == (4 + 8 * 2) * 56 * MIB + 2 * 64 * 5760


def test_too_few_slots_need_no_memory_but_slots():
    options = Options(8 << 30, 64, max_state_slots=5, dp=2)
    found = refusal(flash(), options)
    assert found.needed_bytes is None
    assert found.would_work == {"max_state_slots": 6}


def test_memory_below_nothing_is_refused_like_too_little():
    found = refusal(flash(), Options(-(1 << 40), 64))
    assert found.needed_bytes == -(-4 * 56 * MIB * 19 // 9)
    assert found.would_work == {"cache_bytes": found.needed_bytes}


def test_more_memory_can_take_the_last_pages():
    # 3 slots and 2 pages fit from 50 bytes on; a fourth slot would take the pages.
    geometry = Geometry((Stage(10, 0, 4),))
    works = [
        budget for budget in range(200) if plan_or_none(geometry, Options(budget, 1, ratio="1000"))
    ]
    assert works[0] == 48
    assert 51 not in works
    assert refusal(geometry, Options(51, 1, ratio="1000")).needed_bytes == 48
