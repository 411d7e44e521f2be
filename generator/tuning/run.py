"""One run of `lingen tune` on the present card: package, search, tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lingen.tuned.devices import SHARED_MEMORY
from lingen.tuning.request import Request
from lingen.tuning.search import Measurer, Pair, Prepare, Search
from lingen.tuning.state import Choice, Key, open_state
from lingen.tuning.tables import Files, write_tables


@dataclass(frozen=True, slots=True)
class Options:
    """folder: of the tables, with one folder per Triton version below it.  seconds: to search."""

    folder: Path
    seconds: float | None = None
    restart: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Bench:
    """What a search needs of a card, and what is written about it.

    kernels: sha256 of their sources.  shared_memory: bytes that one block may use.
    """

    device: str
    triton: str
    torch: str
    kernels: str
    shared_memory: int
    defaults: Callable[[int], Pair]
    measurer: Measurer
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class Outcome:
    """skipped: rows that were left out.  tried: rows that were measured, over all counts."""

    files: Files
    key: Key
    choices: dict[int, Choice]
    tried: int
    skipped: int
    seconds: float


def tune(
    request: Request, options: Options, bench: Bench, report: Callable[[str], None]
) -> Outcome:
    """Search, then write the tables; an interrupted search leaves its state and no table."""
    start = time.monotonic()
    shape = request.shape
    key = Key(
        kernels=bench.kernels,
        device=bench.device,
        triton=bench.triton,
        num_experts=shape.num_experts,
        width=shape.width,
        hidden=shape.hidden,
        top_k=shape.top_k,
        dtype=shape.form,
    )
    files = Files(options.folder, request.table_key(bench.device), bench.triton)
    if not options.force and not files.state.exists():
        files.refuse_to_replace()
    files.make_folder()
    state = open_state(files.state, key, options.restart)
    if state.times:
        report(f"{len(state.times)} times known from {files.state.name}")
    if bench.device not in SHARED_MEMORY:
        report(f"{bench.device} is no card that specs can name: add it to tuned/devices.py")
    search = Search(
        shape=shape,
        shared_memory=bench.shared_memory,
        defaults={count: bench.defaults(count) for count in request.token_counts},
        state=state,
        measurer=bench.measurer,
        prepare=bench.prepare,
        report=report,
        seconds=options.seconds,
    )
    try:
        choices = search.run()
    except KeyboardInterrupt:
        state.save()
        report(f"{len(state.times)} times are kept in {files.state}: the same command goes on")
        raise
    write_tables(files, choices, key, {"torch": bench.torch, "source": "lingen tune"})
    if not search.skipped:
        state.remove()
    seconds = round(time.monotonic() - start, 1)
    return Outcome(files, key, choices, len(state.times), search.skipped, seconds)


def print_line(line: str) -> None:
    """Progress, for people."""
    print(line, file=sys.stderr, flush=True)
