"""What `lingen plan` prints: a table with a bar for people, stable JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal

from lingen.planner import DoesNotFit, Plan
from lingen.report import byte_text, table
from lingen.sizing.request import Request

_BAR_WIDTH = 60
_RULES = {
    "ratio": "ratio {ratio}: the states' share of the budget",
    "max_state_slots": "--max-state-slots; the ratio was not used",
    "max_running_requests": "--max-running-requests, without a prefix cache; no ratio used",
    "none": "none: the model keeps no recurrent state",
}


def plan_json(request: Request, plan: Plan) -> str:
    """The stable form. From a card its bytes come first; `compat` and context keys when asked."""
    found: dict[str, object] = {}
    if request.card:
        found["gpu_bytes"] = request.card.gpu_bytes
        found["weight_bytes"] = request.card.weight_bytes
    for key in (
        "max_state_slots", "max_running_requests", "slots_per_request", "verify_rows",
        "kv_tokens", "kv_pages", "page_size",
    ):  # fmt: skip
        found[key] = getattr(plan, key)
    parts = ("budget", "state", "verify", "kv", "unused")
    found["bytes"] = {part: getattr(plan, f"{part}_bytes") for part in parts}
    for key in (
        "stage", "state_bytes_per_slot", "verify_bytes_per_request", "kv_bytes_per_token",
    ):  # fmt: skip
        found[key] = getattr(plan, key)
    found["warnings"] = list(plan.warnings)
    if request.context_len is not None:
        found["context_len"] = request.context_len
        found["requests_at_context_len"] = requests_at(plan, request.context_len)
    if request.compat:
        found["compat"] = {name: asdict(p) for name, p in request.compat_plans().items()}
    return json.dumps(found, indent=2)


def refusal_json(request: Request, refusal: DoesNotFit, remedies: dict[str, object]) -> str:
    """The stable form. From a card its bytes follow, and what its own options would do."""
    found: dict[str, object] = {
        "error": refusal.error,
        "needed_bytes": refusal.needed_bytes,
        "budget_bytes": refusal.budget_bytes,
        "would_work": _numbers(refusal.would_work),
    }
    if request.card:
        found["gpu_bytes"] = request.card.gpu_bytes
        found["weight_bytes"] = request.card.weight_bytes
        found["would_work_on_card"] = _numbers(remedies)
    return json.dumps(found, indent=2)


def _numbers(values: dict[str, object]) -> dict[str, object]:
    """Decimals, which are texts, as numbers where a float says the same."""
    found = dict(values)
    for key in found.keys() & {"ratio", "mem_fraction"}:
        number = float(str(found[key]))
        if Decimal(str(number)) == Decimal(str(found[key])):
            found[key] = number
    return found


def refusal_text(request: Request, refusal: DoesNotFit, remedies: dict[str, object]) -> str:
    lines = [refusal.error]
    if request.card:
        card = request.card
        lines.append(f"  {'card':<10}{card.name}, {byte_text(card.gpu_bytes)}")
        lines.append(f"  {'weights':<10}{byte_text(card.weight_bytes)}")
    for knob, value in (refusal.would_work | remedies).items():
        name = "memory for the cache" if knob == "cache_bytes" else f"--{knob.replace('_', '-')}"
        text = byte_text(value) if isinstance(value, int) and knob == "cache_bytes" else value
        lines.append(f"  {'would do':<10}{name} {text}")
    if not refusal.would_work and not remedies:
        lines.append("  no single option helps")
    return "\n".join(lines)


def requests_at(plan: Plan, context_len: int) -> int:
    """Requests of `context_len` tokens each that run at the same time."""
    if not plan.kv_bytes_per_token:
        return plan.max_running_requests
    pages_each = -(-context_len // plan.page_size)
    return min(plan.max_running_requests, plan.kv_pages // pages_each)


def plan_text(request: Request, plan: Plan, color: bool) -> str:
    """The report for people; it says nothing that the JSON's numbers do not."""
    texts = [
        table(list(_memory_rows(request, plan)), color) + f"\n{_bar(plan)}\n",
        table(list(_count_rows(request, plan)), color),
    ]
    if request.compat:
        texts.append(_compat_text(request, plan))
    warnings = [f"warning: {text}" for text in warnings_of(request, plan)]
    if warnings:
        texts.append("\n".join(warnings) + "\n")
    return "\n".join(texts)


def _memory_rows(request: Request, plan: Plan) -> Iterator[tuple[str, str]]:
    yield "name", request.name
    if request.card:
        yield "card", f"{request.card.name}, {byte_text(request.card.gpu_bytes)}"
        yield "weights", byte_text(request.card.weight_bytes)
    yield "budget per GPU", byte_text(plan.budget_bytes)
    slots, rows, pages = plan.max_state_slots, plan.verify_rows, plan.kv_pages
    each = f"{slots} + 1 slots of {plan.state_bytes_per_slot:,}"
    has_state = request.geometry.has_state
    yield "  states", f"{byte_text(plan.state_bytes)}: {each}" if has_state else "none"
    if rows:
        each = f"{rows} + 1 rows of {plan.verify_bytes_per_request:,}"
        yield "  draft rows", f"{byte_text(plan.verify_bytes)}: {each}"
    each = f"{pages} + 1 pages of {plan.kv_bytes_per_token * plan.page_size:,}"
    yield "  KV", f"{byte_text(plan.kv_bytes)}: {each}" if plan.kv_bytes else "none"
    yield "  unused", byte_text(plan.unused_bytes)
    if len(request.geometry.stages) > 1:
        yield "tightest stage", f"{plan.stage} of {len(request.geometry.stages)}, shown above"


def _count_rows(request: Request, plan: Plan) -> Iterator[tuple[str, str]]:
    replicas = f", on each of {request.options.dp} replicas" if request.options.dp > 1 else ""
    yield "requests", f"{plan.max_running_requests:,}{replicas}"
    yield "slots per request", str(plan.slots_per_request)
    if plan.kv_bytes:
        yield "KV tokens", f"{plan.kv_tokens:,}"
        each = plan.kv_pages // plan.max_running_requests * plan.page_size
        yield "context, full load", f"{each:,} tokens for each request"
    if request.context_len is not None:
        fit = requests_at(plan, request.context_len)
        yield "at context length", f"{fit:,} requests of {request.context_len:,} tokens"
    yield "slots sized by", _RULES[plan.rule].format(ratio=request.options.ratio)
    yield "requests bound by", plan.binds


def warnings_of(request: Request, plan: Plan) -> Iterator[str]:
    """The plan's own, and one where no request of the asked context length fits."""
    yield from plan.warnings
    if request.context_len is not None and not requests_at(plan, request.context_len):
        yield f"no request of {request.context_len:,} tokens fits: there are {plan.kv_tokens:,}"


def _bar(plan: Plan) -> str:
    """The budget in characters: S states, V verify rows, K keys and values, a dot for the rest.

    Ends of the parts are rounded down, so the characters add up.
    """
    text, taken = "", 0
    for letter, size in (("S", plan.state_bytes), ("V", plan.verify_bytes), ("K", plan.kv_bytes)):
        taken += size
        text += letter * (taken * _BAR_WIDTH // plan.budget_bytes - len(text))
    return f"|{text:.<{_BAR_WIDTH}}|\n S states, V draft rows, K keys and values"


def _compat_text(request: Request, plan: Plan) -> str:
    """What each engine computes, and beside each count what it has more or less than this plan."""
    mine = (plan.max_state_slots, plan.max_running_requests, plan.kv_tokens, -plan.unused_bytes)
    rows = [
        ("", "slots", "", "requests", "", "KV tokens", "", "bytes over", ""),
        ("lingen", *(text for value in mine for text in (f"{value:,}", ""))),
    ]
    exceeding = []
    for name, other in request.compat_plans().items():
        cells = []
        for value, own in zip(asdict(other).values(), mine, strict=True):
            cells += [f"{value:,}", f"{value - own:+,}" if value != own else "="]
        rows.append((name, *cells))
        if other.over_budget_bytes > 0:
            size = byte_text(other.over_budget_bytes)
            exceeding.append(f"{name} would exceed the budget by {size}")
    return "\n".join([aligned(rows), *exceeding]) + "\n"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns side by side, the first to the left and numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
