"""What SGLang computes for the same budget, with its own formulas written out here."""

import pytest
from lingen.planner import Geometry, Options, Stage
from lingen.planner.compat import compat_plan
from planner_cases import GIB, MIB, flash

S = 56 * MIB
PAGE = 64


@pytest.mark.parametrize("drafts", [0, 4])
def test_sglang_sizes_by_floats_and_pads(drafts):
    options = Options(8 * GIB, PAGE, draft_tokens=drafts)
    share = 8 * GIB * 0.9 / 1.9
    slots = int((share - S * (1 + drafts)) // (S * (1 + drafts / 3)))
    rest = 8 * GIB - S * (slots + 1) - drafts * S * (slots // 3 + 1)
    token = 5760 if drafts else 4608
    pages = rest // (PAGE * token) - 1
    found = compat_plan(flash(), options, "sglang")
    assert (found.max_state_slots, found.max_running_requests) == (slots, slots // 3)
    assert found.kv_tokens == pages * PAGE
    assert -PAGE * token < found.over_budget_bytes <= 0


def test_the_first_form_forgets_the_padding():
    options = Options(8 * GIB, PAGE, draft_tokens=4)
    slots = int(8 * GIB * 0.9 / 1.9 // (S * (1 + 4 / 3)))
    rest = 8 * GIB - S * slots - 4 * S * (slots // 3)
    found = compat_plan(flash(), options, "sglang-pr")
    assert found.max_state_slots == slots
    assert found.kv_tokens == rest // (PAGE * 5760) * PAGE
    taken = S * (slots + 1) + 4 * S * (slots // 3 + 1) + (found.kv_tokens + PAGE) * 5760
    assert found.over_budget_bytes == taken - 8 * GIB > 5 * S - PAGE * 5760


@pytest.mark.parametrize("engine", ["sglang", "sglang-pr"])
def test_given_counts_are_taken_as_they_are(engine):
    given = compat_plan(flash(), Options(8 * GIB, PAGE, max_state_slots=40, dp=2), engine)
    assert (given.max_state_slots, given.max_running_requests) == (20, 6)
    without = Options(8 * GIB, PAGE, prefix_cache=False, max_running_requests=16)
    assert compat_plan(flash(), without, engine).max_state_slots == 16


@pytest.mark.parametrize("engine", ["sglang", "sglang-pr"])
def test_nothing_fits_is_zero_and_no_error(engine):
    found = compat_plan(flash(), Options(MIB, PAGE), engine)
    assert (found.max_state_slots, found.max_running_requests) == (0, 0)
    assert found.kv_tokens == (0 if engine == "sglang" else 3 * PAGE)
    assert found.over_budget_bytes > 0


def test_models_without_state_or_without_kv():
    only_kv = compat_plan(Geometry((Stage(0, 0, 10),)), Options(1000, 1), "sglang")
    assert (only_kv.max_running_requests, only_kv.kv_tokens) == (99, 99)
    only_state = compat_plan(Geometry((Stage(10, 0, 0),)), Options(1000, 1, ratio="1"), "sglang")
    assert (only_state.max_state_slots, only_state.kv_tokens) == (49, 0)
