"""What SGLang computes for the same budget, for comparison; float arithmetic, as there."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from lingen.planner.geometry import Geometry, Stage
from lingen.planner.options import Options, slots_per_request

ENGINES = {
    "sglang": "SGLang 0.5.23",
    "sglang-pr": "the change that introduced Ling-2.6 to SGLang",
}


@dataclass(frozen=True, slots=True)
class Compat:
    """Usable counts; over_budget_bytes: its pools, padding included, less the budget."""

    max_state_slots: int
    max_running_requests: int
    kv_tokens: int
    over_budget_bytes: int


def compat_plan(geometry: Geometry, options: Options, engine: str) -> Compat:
    """The three branches of an engine of ENGINES: verify rows are always whole states.

    `sglang` counts a padding entry in each pool, `sglang-pr` counts none; both allocate them.
    """
    padding = 1 if engine == "sglang" else 0
    rho = slots_per_request(geometry.has_state, options.prefix_cache, options.extra_buffer)
    slots = _slots(geometry, options, rho, padding)
    fit, asked = slots // rho, options.requests
    rows = fit if asked is None else min(asked, fit)
    page_counts = [
        (options.budget_bytes - _states(stage, options, slots, rows, padding))
        // (options.kv_bytes(stage) * options.page_size)
        for stage in geometry.stages
        if options.kv_bytes(stage)
    ]
    pages = max(0, min(page_counts) - padding) if page_counts else 0
    limits = [asked, fit if geometry.has_state else None, pages if page_counts else None]
    requests = min(limit for limit in limits if limit is not None)
    taken = max(
        _states(stage, options, slots, rows, 1)
        + options.kv_bytes(stage) * options.page_size * (pages + 1)
        for stage in geometry.stages
    )
    return Compat(
        max_state_slots=slots if geometry.has_state else requests,
        max_running_requests=requests,
        kv_tokens=pages * options.page_size,
        over_budget_bytes=taken - options.budget_bytes,
    )


def _slots(geometry: Geometry, options: Options, rho: int, padding: int) -> int:
    if options.max_state_slots is not None:
        return max(1, options.max_state_slots // options.dp)
    if options.rule == "max_running_requests":
        return options.requests or 1
    size = max(stage.state_bytes for stage in geometry.stages)
    if not size:
        return 0
    ratio, drafts = float(Fraction(options.ratio)), options.draft_tokens
    share = options.budget_bytes * ratio / (1 + ratio)
    padded = share - padding * size * (1 + drafts)
    return max(0, int(padded // (size * (1 + drafts / rho))))


def _states(stage: Stage, options: Options, slots: int, rows: int, padding: int) -> int:
    drafted = options.draft_tokens * stage.state_bytes * (rows + padding)
    return stage.state_bytes * (slots + padding) + drafted
