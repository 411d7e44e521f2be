"""One knob over a range of values, everything else unchanged: what each value gives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from lingen.ir.types import ModelIR
from lingen.planner import DoesNotFit, Plan, slots_per_request
from lingen.sizing.output import aligned, requests_at, warnings_of
from lingen.sizing.request import Asked, Request, read_request, refuse

_DOUBLING = tuple(2**power for power in range(10))
KNOBS = ("cache-bytes", "draft-tokens", "max-running-requests", "max-state-slots", "ratio")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of the knob, and its plan; where not one request fits, the refusal instead."""

    value: int | str
    asked: Asked
    request: Request
    plan: Plan | None
    refusal: DoesNotFit | None = None


def sweep(ir: ModelIR, asked: Asked, knob: str) -> tuple[Point, ...]:
    """Plans for the usual values of a knob of KNOBS.

    Raises LingenError for another knob, and for one that is given a value as well.
    """
    if knob not in KNOBS:
        raise refuse("--sweep", knob, "unknown", ", ".join(KNOBS))
    field = knob.replace("-", "_")
    given = getattr(asked, field)
    if given is not None and knob != "cache-bytes":
        raise refuse("--sweep", knob, f"--{knob} {given} is given too", "one of the two")
    request = read_request(ir, asked)
    points = []
    for value in _values(request, knob):
        if knob == "cache-bytes":
            options = replace(request.options, budget_bytes=value)
            at_value = replace(request, options=options)
            asked_so = _only_bytes(asked, value)
        else:
            # Read anew: the weights on a card depend on drafts.
            asked_so = replace(asked, **{field: value})
            at_value = read_request(ir, asked_so)
        try:
            points.append(Point(value, asked_so, at_value, at_value.plan()))
        except DoesNotFit as refusal:
            points.append(Point(value, asked_so, at_value, None, refusal))
    return tuple(points)


def _only_bytes(asked: Asked, budget: int) -> Asked:
    """The same question about a given budget, whatever card or GiB it came from."""
    return replace(
        asked, cache_gib=None, cache_bytes=budget, device=None, weights=None, mem_fraction=None
    )


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
    """A table, a line per value; columns for a context length and for other engines if asked.

    The warnings of its plans follow, each once.
    """
    asked = points[0].request
    header = [knob, "slots", "requests", "draft rows", "KV tokens", "tokens each"]
    if asked.context_len is not None:
        header.append(f"of {asked.context_len:,} tokens")
    header += [f"{name} requests" for name in asked.compat]
    texts = [aligned([tuple(header), *(_cells(point) for point in points)])]
    found = [
        text for point in points if point.plan for text in warnings_of(point.request, point.plan)
    ]
    if found:
        texts.append("\n".join(f"warning: {text}" for text in dict.fromkeys(found)))
    return "\n\n".join(texts)


def _cells(point: Point) -> tuple[str, ...]:
    plan, request = point.plan, point.request
    if plan is None:
        cells = ["-", "none fits", "-", "-", "-"]
    else:
        each = plan.kv_pages // plan.max_running_requests * plan.page_size
        counts = (
            plan.max_state_slots, plan.max_running_requests, plan.verify_rows,
            plan.kv_tokens, each,
        )  # fmt: skip
        cells = [f"{count:,}" for count in counts]
    if request.context_len is not None:
        cells.append(f"{requests_at(plan, request.context_len):,}" if plan else "-")
    cells += [f"{other.max_running_requests:,}" for other in request.compat_plans().values()]
    return (shown(point.value), *cells)


def sweep_json(knob: str, points: tuple[Point, ...]) -> str:
    """`{"sweep": knob, "points": [{"value", counts…, "warnings"}]}`; no fit: counts are null.

    `requests_at_context_len` and `compat` follow if asked, as a single plan has them.
    """
    keys = ("max_state_slots", "max_running_requests", "verify_rows", "kv_tokens")
    found = []
    for point in points:
        plan, request = point.plan, point.request
        value = float(point.value) if isinstance(point.value, str) else point.value
        entry: dict[str, object] = {"value": value}
        entry |= {key: getattr(plan, key) if plan else None for key in keys}
        entry["warnings"] = list(plan.warnings) if plan else []
        if request.context_len is not None:
            fit = requests_at(plan, request.context_len) if plan else None
            entry["requests_at_context_len"] = fit
        if request.compat:
            entry["compat"] = {name: asdict(p) for name, p in request.compat_plans().items()}
        found.append(entry)
    return json.dumps({"sweep": knob, "points": found}, indent=2)


def shown(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
