"""Splits a budget between recurrent-state slots, verify rows and KV pages: the one exact solve.

Everything is an integer of bytes. Knows nothing of refusals: `refusal.py` has the public function.
"""

from __future__ import annotations

from dataclasses import dataclass

from lingen.planner.geometry import Geometry, Stage
from lingen.planner.options import Options, slots_per_request


@dataclass(frozen=True, slots=True)
class Plan:
    """Usable counts, and the bytes of `stage`, the tightest one, padding included."""

    max_state_slots: int
    max_running_requests: int
    slots_per_request: int
    verify_rows: int
    kv_tokens: int
    kv_pages: int
    page_size: int
    budget_bytes: int
    state_bytes: int
    verify_bytes: int
    kv_bytes: int
    unused_bytes: int
    stage: int
    state_bytes_per_slot: int
    verify_bytes_per_request: int
    kv_bytes_per_token: int
    draft_tokens: int
    verify_states: str
    tp: int
    pp: int
    rule: str
    binds: str
    warnings: tuple[str, ...] = ()


class Demand:
    """Bytes that states and verify rows take, for any number of slots."""

    def __init__(self, geometry: Geometry, options: Options) -> None:
        self.stages = geometry.stages
        self.options = options
        self.rho = slots_per_request(geometry.has_state, options.prefix_cache, options.extra_buffer)
        self.slot_bytes = max(stage.state_bytes for stage in self.stages)
        self.row_bytes = max(options.verify_bytes(stage) for stage in self.stages)

    def rows(self, slots: int) -> int:
        """Verify rows beside `slots` state slots, 0 without drafts."""
        if not self.options.draft_tokens:
            return 0
        requests = self.options.requests
        fit = slots // self.rho
        return fit if requests is None else min(requests, fit)

    def at_most(self, slots: int) -> int:
        """A bound over all stages; the ratio's share is held against it."""
        state = self.slot_bytes * (slots + 1)
        return state + self.row_bytes * (self.rows(slots) + 1)

    def of_stage(self, stage: Stage, slots: int) -> int:
        state = stage.state_bytes * (slots + 1)
        return state + self.options.verify_bytes(stage) * (self.rows(slots) + 1)

    def page_bytes(self, stage: Stage) -> int:
        return self.options.kv_bytes(stage) * self.options.page_size

    def largest_slots(self, share: int) -> int:
        """The most slots with `at_most(slots) <= share`; -1 where not even the padding fits."""
        low, high = -1, max(0, share // self.slot_bytes)
        while low < high:
            middle = (low + high + 1) // 2
            if self.at_most(middle) <= share:
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True, slots=True)
class Solution:
    """What the budget gives, a plan or not. Terms that bind nothing are None.

    slots: None where no layer has a state and no option counts slots.  pages: usable ones of the
    tightest stage, below 0 where not even the padding fits; None without KV.  stage: the tightest.
    """

    slots: int | None
    rho: int
    pages: int | None
    stage: int
    rests: tuple[int, ...]

    @property
    def has_slots(self) -> bool:
        """Whether one request has its state slots."""
        return self.slots is None or self.slots >= self.rho

    @property
    def has_memory(self) -> bool:
        """Whether every stage holds its states, verify rows and one usable page."""
        return min(self.rests) >= 0 and (self.pages is None or self.pages >= 1)

    @property
    def serves(self) -> bool:
        """Whether one request can run."""
        return self.has_slots and self.has_memory


def solve(geometry: Geometry, options: Options) -> Solution:
    """Slots first, by the rule that the options choose; pages from what they leave."""
    demand = Demand(geometry, options)
    slots: int | None
    if options.max_state_slots is not None:
        slots = max(1, options.max_state_slots // options.dp)
    elif options.rule == "max_running_requests":
        slots = options.requests
    elif geometry.has_state:
        slots = demand.largest_slots(options.share(options.budget_bytes))
    else:
        slots = None
    counted = 0 if slots is None else slots
    rests = tuple(options.budget_bytes - demand.of_stage(stage, counted) for stage in demand.stages)
    pages = {
        index: rests[index] // demand.page_bytes(stage) - 1
        for index, stage in enumerate(demand.stages)
        if demand.page_bytes(stage)
    }
    tightest = min(pages, key=pages.__getitem__) if pages else rests.index(min(rests))
    return Solution(slots, demand.rho, pages.get(tightest), tightest, rests)


def plan_of(geometry: Geometry, options: Options, solution: Solution) -> Plan:
    """The plan of a solution that serves a request."""
    demand = Demand(geometry, options)
    rho, pages = solution.rho, solution.pages
    slots = solution.slots
    terms = {"max_running_requests": options.requests, "state slots": None, "kv pages": pages}
    if slots is not None:
        terms["state slots"] = slots // rho
    limits = {name: count for name, count in terms.items() if count is not None}
    binds = min(limits, key=limits.__getitem__)
    requests = limits[binds]
    slots = requests if slots is None else slots
    rows = demand.rows(slots)
    stage = demand.stages[solution.stage]
    padded_rows = rows + 1 if options.draft_tokens else 0
    kv_bytes = demand.page_bytes(stage) * (pages + 1) if pages is not None else 0
    return Plan(
        max_state_slots=slots,
        max_running_requests=requests,
        slots_per_request=rho,
        verify_rows=rows,
        kv_tokens=(pages or 0) * options.page_size,
        kv_pages=pages or 0,
        page_size=options.page_size,
        budget_bytes=options.budget_bytes,
        state_bytes=stage.state_bytes * (slots + 1),
        verify_bytes=options.verify_bytes(stage) * padded_rows,
        kv_bytes=kv_bytes,
        unused_bytes=solution.rests[solution.stage] - kv_bytes,
        stage=solution.stage,
        state_bytes_per_slot=stage.state_bytes,
        verify_bytes_per_request=options.verify_bytes(stage),
        kv_bytes_per_token=options.kv_bytes(stage),
        draft_tokens=options.draft_tokens,
        verify_states=options.verify_states,
        tp=geometry.tp,
        pp=len(geometry.stages),
        rule=options.rule if geometry.has_state or options.rule != "ratio" else "none",
        binds=binds,
        warnings=_warnings(options, slots, rho, binds, requests),
    )


def _warnings(options: Options, slots: int, rho: int, binds: str, requests: int) -> tuple[str, ...]:
    found = []
    asked = options.requests
    if asked is not None and requests < asked:
        whole = f"{options.max_running_requests} requests asked"
        if options.dp > 1:
            whole += f", {asked} on each of {options.dp} replicas"
        why = "each needs a KV page"
        if binds == "state slots":
            sized = f"ratio {options.ratio}" if options.rule == "ratio" else options.rule
            why = f"{sized} gives {slots} state slots, and a request holds {rho}"
        found.append(f"{whole}, {requests} fit; {binds} bind: {why}")
    found += _shares(options, slots, requests)
    if options.max_state_slots is not None:
        found.append(
            f"ratio {options.ratio} was not used: max_state_slots"
            f" {options.max_state_slots} sized the state pool"
        )
    return tuple(found)


def _shares(options: Options, slots: int, requests: int) -> list[str]:
    """Counts that the replicas cannot share evenly: what was asked, and what is there in all."""
    dp, found = options.dp, []
    for name, asked, each, done in (
        ("max_running_requests", options.max_running_requests, requests, "served"),
        ("max_state_slots", options.max_state_slots, slots, "there"),
    ):
        if asked is not None and asked % dp:
            found.append(
                f"{name} {asked} is no multiple of dp {dp}: {asked} asked,"
                f" {each * dp} are {done}, {each} on each replica"
            )
    return found
