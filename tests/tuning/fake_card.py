"""A card of the imagination: times follow from the rows, and nothing else.

Run as a script it tunes slowly, to be killed: `fake_card.py FOLDER SECONDS_PER_TIME`.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lingen.ir import lower
from lingen.spec import load_spec
from lingen.tuning.request import Request, read_request
from lingen.tuning.run import Bench, Options, Outcome, tune
from lingen.tuning.search import CannotRun, Pair

ROOT = Path(__file__).parents[2]
FLASH = ROOT / "specs" / "ling-2.6-flash.yaml"
COUNTS = "1,8,64,512,4096"


def default_rows(num_tokens: int) -> Pair:
    block_m = 16 if num_tokens <= 256 else 64
    row = {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 1,
        "num_warps": 4,
        "num_stages": 3,
    }
    return row, row


def any_time(num_tokens: int, product: str, row: dict) -> float:
    """From 10 to 73 µs, another for every row, alike in every process."""
    text = repr((num_tokens, product, sorted(row.items())))
    return 10 + zlib.crc32(text.encode()) % 64


@dataclass
class FakeMeasurer:
    """time_of: µs of one product, None if it cannot run.  calls: what was measured.

    stop_after: calls, after which comes Ctrl-C.
    """

    time_of: Callable[[int, str, dict], float] = any_time
    noise: float = 0.0
    stop_after: int | None = None
    pause: float = 0.0
    calls: list = field(default_factory=list)

    def microseconds(self, num_tokens: int, pair: Pair) -> float:
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((num_tokens, *(tuple(row.items()) for row in pair)))
        time.sleep(self.pause)
        return float(self._time(num_tokens, pair))

    def alternately(self, num_tokens: int, pairs: list[Pair]) -> list[list[float]]:
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((num_tokens, "alternately"))
        time.sleep(self.pause)
        swings = (-self.noise, 0.0, self.noise, 0.0, self.noise, -self.noise)
        return [[self._time(num_tokens, pair) + swing for swing in swings] for pair in pairs]

    def _time(self, num_tokens: int, pair: Pair) -> float:
        times = [
            self.time_of(num_tokens, name, row)
            for name, row in zip(("up", "down"), pair, strict=True)
        ]
        if None in times:
            raise CannotRun("out of resource: shared memory")
        return sum(times)


@cache
def request(tp: int = 1, form: str = "bf16", counts: str = COUNTS) -> Request:
    return read_request(lower(load_spec(FLASH)), tp, form, counts)


def bench(measurer: FakeMeasurer, **values: object) -> Bench:
    stated = {
        "device": "NVIDIA H200",
        "triton": "3.6.0",
        "torch": "2.11.0",
        "kernels": "0" * 64,
        "shared_memory": 227 * 1024,
        "defaults": default_rows,
        "measurer": measurer,
        "prepare": iter,
    }
    return Bench(**(stated | values))


def tuned(
    folder: Path, measurer: FakeMeasurer, asked: Request | None = None, **values: object
) -> Outcome:
    options = {name: values.pop(name) for name in ("seconds", "restart", "force") if name in values}
    report = values.pop("report", lambda line: None)
    return tune(asked or request(), Options(folder, **options), bench(measurer, **values), report)


if __name__ == "__main__":
    tuned(Path(sys.argv[1]), FakeMeasurer(pause=float(sys.argv[2])))
