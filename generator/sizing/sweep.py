"""One knob over a range of values, everything else unchanged: what each value gives."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from lingen.planner import DoesNotFit, Plan, plan_cache, slots_per_request
from lingen.sizing.request import Request, refuse

_DOUBLING = tuple(2**power for power in range(10))
KNOBS = ("cache-bytes", "draft-tokens", "max-running-requests", "max-state-slots", "ratio")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of the knob, and its plan; None where not one request fits."""

    value: int | str
    plan: Plan | None


def sweep(request: Request, knob: str) -> tuple[Point, ...]:
    """Plans for the usual values of a knob of KNOBS. Raises LingenError for another one."""
    if knob not in KNOBS:
        raise refuse("--sweep", knob, "unknown", ", ".join(KNOBS))
    field = "budget_bytes" if knob == "cache-bytes" else knob.replace("-", "_")
    points = []
    for value in _values(request, knob):
        try:
            options = replace(request.options, **{field: value})
            points.append(Point(value, plan_cache(request.geometry, options)))
        except DoesNotFit:
            points.append(Point(value, None))
    return tuple(points)


def _values(request: Request, knob: str) -> tuple[int | str, ...]:
    options = request.options
    if knob == "cache-bytes":
        return tuple(options.budget_bytes * eighths // 8 for eighths in range(1, 17))
    if knob == "draft-tokens":
        return tuple(range(9)) if request.can_draft else (0,)
    if knob == "ratio":
        return ("0.1", "0.2", "0.3", "0.5", "0.7", "0.9", "1.2", "1.6", "2", "3", "5", "9")
    if knob == "max-running-requests":
        return tuple(options.dp * count for count in _DOUBLING)
    rho = slots_per_request(request.geometry.has_state, options.prefix_cache, options.extra_buffer)
    return tuple(options.dp * rho * count for count in _DOUBLING)


def sweep_text(knob: str, points: tuple[Point, ...]) -> str:
    """A table, a line per value."""
    rows = [(knob, "slots", "requests", "draft rows", "KV tokens", "tokens each")]
    for point in points:
        plan = point.plan
        if plan is None:
            rows.append((shown(point.value), "-", "none fits", "-", "-", "-"))
            continue
        each = plan.kv_pages // plan.max_running_requests * plan.page_size
        counts = (
            plan.max_state_slots, plan.max_running_requests, plan.verify_rows,
            plan.kv_tokens, each,
        )  # fmt: skip
        rows.append((shown(point.value), *(f"{count:,}" for count in counts)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(lines)


def sweep_json(knob: str, points: tuple[Point, ...]) -> str:
    """`{"sweep": knob, "points": [{"value", counts…}]}`; counts are null where nothing fits."""
    keys = ("max_state_slots", "max_running_requests", "verify_rows", "kv_tokens")
    found = [
        {
            "value": float(point.value) if isinstance(point.value, str) else point.value,
            **{key: getattr(point.plan, key) if point.plan else None for key in keys},
        }
        for point in points
    ]
    return json.dumps({"sweep": knob, "points": found}, indent=2)


def shown(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
