"""Random planner inputs, the solve written as a loop, and the flagship's geometry."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st
from lingen.planner import DoesNotFit, Geometry, Options, Stage, plan_cache

MIB = 1 << 20
GIB = 1 << 30
RATIOS = ("0.9", "1", "0.25", "0.001", "3", "0.37", "20.5", "1e3")


def flash(tp=1):
    """Ling-2.6-flash in one stage: 28 lightning layers of 32 heads, 4 MLA layers, 1 MTP layer."""
    return Geometry((Stage(56 * MIB // tp, 28 * 32 // tp * 256 * 2, 4 * 1152, 1152),))


@st.composite
def geometries(draw, largest=24):
    """Up to three stages; some without state, some without KV, never without both."""
    size = st.integers(0, largest)
    stages = draw(
        st.lists(st.tuples(size, size, size), min_size=1, max_size=3).filter(
            lambda found: any(state or kv for state, _, kv in found)
        )
    )
    draft = draw(size)
    return Geometry(
        tuple(
            Stage(state, replay if state else 0, kv, draft if index == len(stages) - 1 else 0)
            for index, (state, replay, kv) in enumerate(stages)
        )
    )


@st.composite
def option_sets(draw, largest=400):
    count = st.none() | st.integers(1, 40)
    return Options(
        budget_bytes=draw(st.integers(-5, largest)),
        page_size=draw(st.integers(1, 4)),
        ratio=draw(st.sampled_from(RATIOS)),
        prefix_cache=draw(st.booleans()),
        extra_buffer=draw(st.sampled_from(("none", "no-overlap", "overlap"))),
        draft_tokens=draw(st.integers(0, 4)),
        verify_states=draw(st.sampled_from(("replay", "snapshot"))),
        max_running_requests=draw(count),
        max_state_slots=draw(count),
        dp=draw(st.integers(1, 3)),
    )


def plan_or_none(geometry, options, **changes):
    try:
        return plan_cache(geometry, replace(options, **changes))
    except DoesNotFit:
        return None


def by_hand(geometry, options):
    """(slots, rows, pages, requests) by trying every number of slots, None for a refusal.

    Written from the rules alone; pages are None without KV. Needs a state or a bounded count.
    """
    drafts, dp = options.draft_tokens, options.dp
    has_state = any(stage.state_bytes for stage in geometry.stages)
    rho = 1
    if options.prefix_cache and has_state:
        rho = {"none": 3, "no-overlap": 4, "overlap": 5}[options.extra_buffer]
    bound = 10**9
    if options.max_running_requests is not None:
        bound = max(1, options.max_running_requests // dp)
    snapshot = options.verify_states == "snapshot"
    state = [stage.state_bytes for stage in geometry.stages]
    verify = [drafts * (s.state_bytes if snapshot else s.replay_bytes) for s in geometry.stages]
    token = [s.kv_bytes + (s.draft_kv_bytes if drafts else 0) for s in geometry.stages]

    def rows(slots):
        return min(bound, slots // rho) if drafts else 0

    def taken(slot, row, slots):
        return slot * (slots + 1) + row * (rows(slots) + 1)

    if options.max_state_slots is not None:
        slots = max(1, options.max_state_slots // dp)
    elif not options.prefix_cache and options.max_running_requests is not None:
        slots = bound
    elif has_state:
        ratio = Fraction(options.ratio)
        share = options.budget_bytes * ratio / (1 + ratio) // 1
        slots = -1
        while taken(max(state), max(verify), slots + 1) <= share:
            slots += 1
    else:
        slots = None
    counted = 0 if slots is None else slots
    rests = [
        options.budget_bytes - taken(s, v, counted) for s, v in zip(state, verify, strict=True)
    ]
    counts = [r // (t * options.page_size) - 1 for r, t in zip(rests, token, strict=True) if t]
    pages = min(counts) if counts else None
    if min(rests) < 0 or (pages is not None and pages < 1):
        return None
    requests = min(x for x in (bound, pages, None if slots is None else slots // rho)
                   if x is not None)  # fmt: skip
    if requests < 1:
        return None
    slots = requests if slots is None else slots
    return slots, rows(slots), pages, requests
