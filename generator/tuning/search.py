"""What is tried, in which order, and what is kept. Knows no card: a measurer is handed in.

Both products run one after the other, so each is searched by itself beside the other's default row.
Afterwards the best pair of one BLOCK_SIZE_M is measured alternately with the default pair, and kept
only where it is faster by more than noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lingen.tuned.lookup import Row
from lingen.tuning.rows import PRODUCTS, Shape, rows_to_try
from lingen.tuning.state import Choice, State, row_key

LEAST_GAIN = 0.01
"""A row that is not faster than the default by this part of its time is not kept."""

Pair = tuple[Row, Row]
"""An up row and a down row."""


class CannotRun(Exception):
    """A row that the card or the compiler does not take."""


class Measurer(Protocol):
    """Runs the experts on a card. Times are in microseconds of one call."""

    def microseconds(self, num_tokens: int, pair: Pair) -> float:
        """A median. Raises CannotRun."""

    def alternately(self, num_tokens: int, pairs: Sequence[Pair]) -> list[list[float]]:
        """Times of each pair, of runs that take turns, as many of each."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of one product, and the numbers of tokens that it is tried for."""

    product: str
    row: Row
    token_counts: tuple[int, ...]


Prepare = Callable[[Sequence[Variant]], Iterable[Variant]]
"""Compiles variants and hands each on as soon as it is ready."""


@dataclass(slots=True)
class Search:
    """A search for rows of one shape.

    defaults: the kernels' own rows, by number of tokens.  report: takes a line of progress.
    seconds: no row is tried any more after that time.
    """

    shape: Shape
    shared_memory: int
    defaults: Mapping[int, Pair]
    state: State
    measurer: Measurer
    prepare: Prepare = iter
    report: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.monotonic
    seconds: float | None = None
    skipped: int = field(default=0, init=False)

    def run(self) -> dict[int, Choice]:
        """The rows of each number of tokens. Goes on from what the state knows."""
        self._try_rows()
        for num_tokens in self.defaults:
            if num_tokens not in self.state.choices:
                choice = self.state.choices[num_tokens] = self._choose(num_tokens)
                self.state.save()
                self.report(f"{num_tokens} tokens: {_verdict(choice)}")
        return {num_tokens: self.state.choices[num_tokens] for num_tokens in self.defaults}

    def variants(self) -> Iterator[Variant]:
        """Everything to try, the most promising of all numbers of tokens first."""
        ranked: dict[tuple[int, str, tuple], tuple[Row, list[int]]] = {}
        for num_tokens in self.defaults:
            for product in PRODUCTS:
                for rank, row in enumerate(self.rows(num_tokens, product)):
                    place = ranked.setdefault((rank, product, row_key(row)), (row, []))
                    place[1].append(num_tokens)
        merged: dict[tuple[str, tuple], tuple[Row, list[int]]] = {}
        for (_, product, key), (row, counts) in sorted(ranked.items(), key=lambda item: item[0][0]):
            merged.setdefault((product, key), (row, []))[1].extend(counts)
        for (product, _), (row, counts) in merged.items():
            yield Variant(product, row, tuple(sorted(counts)))

    def rows(self, num_tokens: int, product: str) -> list[Row]:
        """Each row once, the default first."""
        tried = rows_to_try(self.shape, num_tokens, product, self.shared_memory)
        rows = [self.defaults[num_tokens][PRODUCTS.index(product)], *tried]
        return list({row_key(row): row for row in reversed(rows)}.values())[::-1]

    def _try_rows(self) -> None:
        open_variants = [variant for each in self.variants() if (variant := self._rest(each))]
        total = len(open_variants)
        start = self.clock()
        for number, variant in enumerate(self.prepare(open_variants), 1):
            if self.seconds is not None and self.clock() - start >= self.seconds:
                self.skipped = total - number + 1
                self.report(f"{self.skipped} of {total} rows left out: --budget is spent")
                return
            try:
                best_at = [n for n in variant.token_counts if self._try(variant, n)]
            finally:
                self.state.save()
            best = f", best so far at {', '.join(map(str, best_at))}" if best_at else ""
            self.report(f"{number} of {total} rows: {variant.product} {shown(variant.row)}{best}")

    def _rest(self, variant: Variant) -> Variant | None:
        """What the state does not know yet."""
        key = row_key(variant.row)
        known = self.state.times
        counts = [n for n in variant.token_counts if (variant.product, n, key) not in known]
        return Variant(variant.product, variant.row, tuple(counts)) if counts else None

    def _try(self, variant: Variant, num_tokens: int) -> bool:
        """Measure; whether no row of this product was faster so far."""
        key = row_key(variant.row)
        if (variant.product, num_tokens, key) in self.state.times:
            return False  # the default pair, which the other product has measured
        up, down = self.defaults[num_tokens]
        pair = (variant.row, down) if variant.product == "up" else (up, variant.row)
        try:
            time = self.measurer.microseconds(num_tokens, pair)
        except CannotRun as reason:
            self.report(f"{variant.product} {shown(variant.row)} cannot run: {reason}")
            time = None
        others = self._times(variant.product, num_tokens).values()
        is_best = time is not None and all(time < other for other in others)
        self.state.times[variant.product, num_tokens, key] = time
        if pair == (up, down):
            for product, row in zip(PRODUCTS, pair, strict=True):
                self.state.times[product, num_tokens, row_key(row)] = time
        self.state.choices.pop(num_tokens, None)
        return is_best

    def _times(self, product: str, num_tokens: int) -> dict[tuple, float]:
        return {
            key: time
            for (of, tokens, key), time in self.state.times.items()
            if (of, tokens) == (product, num_tokens) and time is not None
        }

    def _choose(self, num_tokens: int) -> Choice:
        default = self.defaults[num_tokens]
        best = self._best_pair(num_tokens)
        pairs = [default] if best in (None, default) else [default, best]
        times = self.measurer.alternately(num_tokens, pairs)
        medians = [round(statistics.median(samples), 2) for samples in times]
        if len(pairs) == 1 or not is_faster(times[1], times[0]):
            return Choice(*default, True, medians[0], medians[0])
        return Choice(*best, False, medians[1], medians[0])

    def _best_pair(self, num_tokens: int) -> Pair | None:
        """The fastest rows that share one BLOCK_SIZE_M; of equal ones the first that are tried."""
        best: tuple[float, Pair] | None = None
        up_times, down_times = (self._times(product, num_tokens) for product in PRODUCTS)
        for up in self.rows(num_tokens, "up"):
            for down in self.rows(num_tokens, "down"):
                times = up_times.get(row_key(up)), down_times.get(row_key(down))
                if None in times or up["BLOCK_SIZE_M"] != down["BLOCK_SIZE_M"]:
                    continue
                if best is None or sum(times) < best[0]:
                    best = sum(times), (up, down)
        return best[1] if best else None


def is_faster(times: Sequence[float], others: Sequence[float]) -> bool:
    """Whether by more than noise: LEAST_GAIN, and what half of the runs of either spread over."""
    gain = statistics.median(others) - statistics.median(times)
    return gain > max(LEAST_GAIN * statistics.median(others), spread(times), spread(others))


def spread(times: Sequence[float]) -> float:
    """Between the first and the third quartile."""
    if len(times) < 2:
        return 0.0
    first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    return third - first


def shown(row: Row) -> str:
    """`16x64x128, group 1, 4 warps, 3 stages, TMA`"""
    blocks = "x".join(str(row[f"BLOCK_SIZE_{side}"]) for side in "MNK")
    parts = [blocks, f"group {row['GROUP_SIZE_M']}"]
    parts += [
        f"{row[f'num_{what}']} {what}" for what in ("warps", "stages") if f"num_{what}" in row
    ]
    return ", ".join([*parts, "TMA"] if row.get("USE_TMA") else parts)


def _verdict(choice: Choice) -> str:
    if choice.is_default:
        return f"default rows kept, {choice.microseconds:.1f} µs"
    gain = choice.default_microseconds / choice.microseconds
    return (
        f"{choice.microseconds:.1f} µs beside {choice.default_microseconds:.1f} of the default"
        f" rows, {gain:.2f} times as fast"
    )
