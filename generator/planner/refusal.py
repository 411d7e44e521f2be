"""`plan_cache`: a plan, or a refusal with every knob whose change alone would help.

Each suggestion was solved again before it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from lingen.planner.solve import Demand, Geometry, Options, Plan, Solution, plan_of, solve

_NEAR = 256
_RATIO_PLACES = 3
_LARGEST_RATIO = 10**6


class DoesNotFit(ValueError):
    """Not one request can run.

    needed_bytes: the smallest budget that works with all else unchanged, None if none does.
    would_work: knob → value, the smallest change that alone works, in the units of the options.
    """

    def __init__(
        self, error: str, needed_bytes: int | None, budget_bytes: int, would_work: dict[str, object]
    ) -> None:
        super().__init__(error)
        self.error = error
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
        self.would_work = would_work


def plan_cache(geometry: Geometry, options: Options) -> Plan:
    """Split `options.budget_bytes` between state slots, verify rows and KV pages.

    Exact: within the budget on every stage, and not one slot or page more fits. Each pool holds one
    padding entry more than the plan counts.

    Raises:
        DoesNotFit: not one request can run.
    """
    solution = solve(geometry, options)
    if solution.serves:
        return plan_of(geometry, options, solution)
    needed = needed_bytes(geometry, options)
    raise DoesNotFit(
        _why(options, solution, needed),
        needed,
        options.budget_bytes,
        _would_work(geometry, options, solution, needed),
    )


def needed_bytes(geometry: Geometry, options: Options) -> int | None:
    """The smallest budget that serves one request; None if the options alone rule that out."""
    demand = Demand(geometry, options)
    if options.rule != "ratio" or not geometry.has_state:
        slots = solve(geometry, options).slots
        if slots is not None and slots < demand.rho:
            return None
        return _floor(demand, slots or 0)
    # With `slots` the ratio's choice, budgets run from `first(slots)` to `first(slots + 1) - 1`,
    # and `_floor(slots)` of them is needed. One more slot can cost the pages that were there, so
    # the smallest number of slots that has such a budget is searched. Between two numbers of
    # requests the gap repeats, and it widens from one to the next.
    found = []
    for start in range(demand.rho, 2 * demand.rho):
        steps = _first_step(start, demand, options)
        found.append(start + demand.rho * steps)
    slots = min(found)
    return max(_first_budget(demand, options, slots), _floor(demand, slots))


def sized(geometry: Geometry, options: Options, num_pages: int) -> Options:
    """The options with the budget that `max_state_slots` slots and `num_pages` pages take."""
    return replace(
        options,
        budget_bytes=_floor(Demand(geometry, options), options.max_state_slots or 0, num_pages),
    )


def _floor(demand: Demand, slots: int, num_pages: int = 1) -> int:
    """The least that `slots` slots, their verify rows and `num_pages` pages take on every stage."""
    pages = num_pages + 1
    return max(
        demand.of_stage(stage, slots) + pages * demand.page_bytes(stage) for stage in demand.stages
    )


def _first_budget(demand: Demand, options: Options, slots: int) -> int:
    """The smallest budget whose share holds `slots` slots."""
    ratio = Fraction(options.ratio)
    whole = demand.at_most(slots) * (ratio.numerator + ratio.denominator)
    return -(-whole // ratio.numerator)


def _first_step(start: int, demand: Demand, options: Options) -> int:
    """The fewest steps of `rho` slots from `start` to a number of slots that has a budget."""

    def has_budget(step: int) -> bool:
        slots = start + step * demand.rho
        return _floor(demand, slots) < _first_budget(demand, options, slots + 1)

    # At the asked number of requests the verify rows end: the gap narrows there once.
    bounds = [0]
    if options.requests is not None:
        bounds.append(max(0, options.requests - 1))
        bounds.append(options.requests)
    for first, last in zip(bounds, [bound - 1 for bound in bounds[1:]], strict=False):
        if first <= last and has_budget(last):
            return _least(has_budget, first, last)
    last = bounds[-1] + 1
    while not has_budget(last):
        last *= 2
    return _least(has_budget, bounds[-1], last)


def _least(works: Callable[[int], bool], low: int, high: int) -> int:
    """The least value from `low` on for which `works` turns true; it is true for `high`."""
    while low < high:
        middle = (low + high) // 2
        if works(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _nearest(start: int, end: int, works: Callable[[int], bool]) -> int | None:
    """The value nearest to `start`, towards `end`, that works; the one before it does not.

    `start` does not work. Near values are all tried; further ones are bracketed first.
    """
    step = 1 if end > start else -1
    distance = abs(end - start)
    for away in range(1, min(distance, _NEAR) + 1):
        if works(start + step * away):
            return start + step * away
    low = min(distance, _NEAR)
    while low < distance:
        high = min(2 * low, distance)
        if works(start + step * high):
            return start + step * _least(lambda away: works(start + step * away), low + 1, high)
        low = high
    return None


def _would_work(
    geometry: Geometry, options: Options, solution: Solution, needed: int | None
) -> dict[str, object]:
    def works(**changes: object) -> bool:
        return solve(geometry, replace(options, **changes)).serves

    found: dict[str, object] = {}
    if needed is not None and works(budget_bytes=needed):
        found["cache_bytes"] = needed
    top = _most_requests(geometry, options, solution)
    requests = _nearest(top, 1, lambda count: works(max_running_requests=count))
    if requests is not None:
        found["max_running_requests"] = requests
    drafts = _nearest(options.draft_tokens, 0, lambda count: works(draft_tokens=count))
    if drafts is not None:
        found["draft_tokens"] = drafts
    ratio = _nearest_ratio(options, works) if options.rule == "ratio" else None
    if ratio is not None:
        found["ratio"] = ratio
    if geometry.has_state:
        slots = _nearest_slots(options, solution, works)
        if slots is not None:
            found["max_state_slots"] = slots
    return found


def _most_requests(geometry: Geometry, options: Options, solution: Solution) -> int:
    """A number of requests that does not work, above which none does."""
    if options.max_running_requests is not None:
        return options.max_running_requests
    if options.rule == "max_state_slots" or options.prefix_cache or not geometry.has_state:
        return (max(0, solution.slots or 0) // solution.rho + 1) * options.dp
    slot_bytes = max(stage.state_bytes for stage in geometry.stages)
    return (max(0, options.budget_bytes) // slot_bytes + 1) * options.dp


def _nearest_ratio(options: Options, works: Callable[..., bool]) -> str | None:
    """The ratio nearest to the given one, in steps of its last decimal place, at least 0.001."""
    given = Decimal(options.ratio)
    exponent = given.as_tuple().exponent
    places = max(_RATIO_PLACES, -exponent if isinstance(exponent, int) else 0)
    start = int(given.scaleb(places))

    def text(value: int) -> str:
        return format(Decimal(value).scaleb(-places).normalize(), "f")

    def fits(value: int) -> bool:
        return works(ratio=text(value))

    ends = (1, max(start, _LARGEST_RATIO * 10**places))
    values = [value for end in ends if (value := _nearest(start, end, fits)) is not None]
    return text(min(values, key=lambda value: abs(value - start))) if values else None


def _nearest_slots(options: Options, solution: Solution, works: Callable[..., bool]) -> int | None:
    """From the slots there are: up where a request lacks some, down where a page does."""
    slots = solution.slots or 0
    if slots < solution.rho:
        low = max(0, slots) * options.dp
        start = options.max_state_slots or low
        end = solution.rho * options.dp
    else:
        start = options.max_state_slots or slots * options.dp + options.dp - 1
        end = 1
    return _nearest(start, end, lambda count: works(max_state_slots=count))


def _why(options: Options, solution: Solution, needed: int | None) -> str:
    budget = f"{options.budget_bytes:,} bytes are there"
    wanted = "no budget would do" if needed is None else f"{needed:,} are needed"
    if solution.slots is not None and solution.slots < solution.rho:
        held = f"a request holds {solution.rho} state slots, and {max(0, solution.slots)} fit"
    elif min(solution.rests) < 0:
        short = -min(solution.rests)
        held = f"states and verify rows of {solution.slots} slots exceed the budget by {short:,}"
    else:
        held = "no KV page is left beside the padding page"
    return f"not one request fits: {held}; {budget}, {wanted}"
