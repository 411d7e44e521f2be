"""`plan_cache`: a plan, or a refusal with every knob whose change alone would help.

Each suggestion was solved again before it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from lingen.planner.geometry import Geometry
from lingen.planner.options import Options
from lingen.planner.solve import Demand, Plan, Solution, plan_of, solve

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


def _most(works: Callable[[int], bool], low: int, high: int) -> int:
    """The largest value up to `high` before `works` turns false; it is true for `low`."""
    return -_least(lambda value: works(-value), -high, -low)


def _would_work(
    geometry: Geometry, options: Options, solution: Solution, needed: int | None
) -> dict[str, object]:
    """Every knob with its value nearest to the options that serves a request; none is a guess."""

    def serves(**changes: object) -> bool:
        return solve(geometry, replace(options, **changes)).serves

    found: dict[str, object] = {
        "cache_bytes": needed,
        "max_running_requests": _fewer_requests(geometry, options, solution),
        "draft_tokens": next(
            (
                count
                for count in reversed(range(options.draft_tokens))
                if serves(draft_tokens=count)
            ),
            None,
        ),
        "ratio": _nearest_ratio(geometry, options, solution),
        "max_state_slots": _nearest_slots(geometry, options, solution),
    }
    knobs = {"cache_bytes": "budget_bytes"}
    return {
        knob: value
        for knob, value in found.items()
        if value is not None and serves(**{knobs.get(knob, knob): value})
    }


def _fewer_requests(geometry: Geometry, options: Options, solution: Solution) -> int | None:
    """The most requests, fewer than now, that leave memory for one page.

    Where a rule other than the ratio gives the slots, fewer requests only ever take less. By the
    ratio they give room to slots, and memory goes up and down: the next `_NEAR` values are all
    tried, of those behind them the ends of spans that double.
    """

    def fits(requests: int) -> bool:
        return solve(geometry, replace(options, max_running_requests=requests)).has_memory

    most = _most_requests(geometry, options, solution)
    if options.rule == "ratio" and options.prefix_cache:
        for requests in range(most, max(0, most - _NEAR), -1):
            if fits(requests):
                return requests
        span = _NEAR
        while span < most:
            if fits(low := max(1, most - 2 * span)):
                return _most(fits, low, most - span)
            span *= 2
        return None
    return _most(fits, 1, most) if most >= 1 and fits(1) else None


def _most_requests(geometry: Geometry, options: Options, solution: Solution) -> int:
    """A number of requests that does not work, above which none does."""
    held = (max(0, solution.slots or 0) // solution.rho + 1) * options.dp
    if options.max_running_requests is not None:
        is_held = options.rule != "max_running_requests"
        return min(options.max_running_requests, held) if is_held else options.max_running_requests
    if options.rule == "max_state_slots" or options.prefix_cache or not geometry.has_state:
        return held
    # A number of requests would size the pool of slots.
    slot_bytes = max(stage.state_bytes for stage in geometry.stages)
    return (max(0, options.budget_bytes) // slot_bytes + 1) * options.dp


def _nearest_ratio(geometry: Geometry, options: Options, solution: Solution) -> str | None:
    """The ratio nearest to the given one, in steps of its last decimal place, at least 0.001.

    More ratio never means fewer slots, nor more memory behind them: up to the first that holds a
    request's slots, or down to the last that leaves a page. At most `_LARGEST_RATIO`.
    """
    if options.rule != "ratio" or not geometry.has_state:
        return None
    given = Decimal(options.ratio)
    exponent = given.as_tuple().exponent
    places = max(_RATIO_PLACES, -exponent if isinstance(exponent, int) else 0)
    steps = int(given.scaleb(places))
    most = _LARGEST_RATIO * 10**places

    def text(count: int) -> str:
        return format(Decimal(count).scaleb(-places).normalize(), "f")

    def at(count: int) -> Solution:
        return solve(geometry, replace(options, ratio=text(count)))

    if not solution.has_slots:
        if steps >= most or not at(most).has_slots:
            return None
        return text(_least(lambda count: at(count).has_slots, steps + 1, most))
    if steps <= 1 or not at(1).has_memory:
        return None
    return text(_most(lambda count: at(count).has_memory, 1, steps - 1))


def _nearest_slots(geometry: Geometry, options: Options, solution: Solution) -> int | None:
    """From the slots there are: up where a request lacks some, down where a page does."""
    if not geometry.has_state:
        return None
    fewest = solution.rho * options.dp
    if not solution.has_slots:
        return fewest

    def fits(slots: int) -> bool:
        return solve(geometry, replace(options, max_state_slots=slots)).has_memory

    most = options.max_state_slots or (solution.slots or 0) * options.dp + options.dp - 1
    return _most(fits, fewest, most) if fits(fewest) else None


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
