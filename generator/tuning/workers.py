"""Compiles rows in processes of their own, ahead of the search, which finds them in Triton's cache.

Nearly all of a search's time would be one compiler's.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lingen.tuned.lookup import Row
from lingen.tuning.rows import Shape
from lingen.tuning.search import Pair, Variant

MOST_WORKERS = {"bf16": 14, "fp8_channel": 8, "fp8_block": 8}
"""A compiler of fp8 products takes more of the host's memory."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Prepares variants for a search.

    folder: of the package.  command: what starts a worker, before its arguments.
    """

    count: int
    folder: Path
    shape: Shape
    defaults: Callable[[int], Pair]
    command: Sequence[str] = (sys.executable, "-m", "lingen.tuning.worker")

    def __call__(self, variants: Sequence[Variant]) -> Iterator[Variant]:
        """Each variant once, as soon as a worker is through with it, whether it compiled or not."""
        jobs: queue.SimpleQueue[Variant] = queue.SimpleQueue()
        done: queue.SimpleQueue[Variant] = queue.SimpleQueue()
        for variant in variants:
            jobs.put(variant)
        arguments = [*self.command, str(self.folder), json.dumps(asdict(self.shape))]
        processes = [_start(arguments) for _ in range(min(self.count, len(variants)))]
        threads = [
            threading.Thread(target=self._feed, args=(process, jobs, done), daemon=True)
            for process in processes
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in variants:
                yield done.get()
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def _feed(
        self, process: subprocess.Popen, jobs: queue.SimpleQueue, done: queue.SimpleQueue
    ) -> None:
        """Jobs of one worker. One that has ended compiles nothing; the search then does."""
        while True:
            try:
                variant = jobs.get_nowait()
            except queue.Empty:
                break
            with contextlib.suppress(OSError):
                process.stdin.write(json.dumps(self._calls(variant)) + "\n")
                process.stdin.flush()
                process.stdout.readline()
            done.put(variant)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()

    def _calls(self, variant: Variant) -> list[tuple[int, Row, Row]]:
        calls = []
        for num_tokens in variant.token_counts:
            up, down = self.defaults(num_tokens)
            calls.append(
                (num_tokens, variant.row, down)
                if variant.product == "up"
                else (num_tokens, up, variant.row)
            )
        return calls


def _start(arguments: list[str]) -> subprocess.Popen:
    """In a session of its own: an interrupt at the keyboard is the search's to handle.

    The end of its input ends it, so that none is left behind when the search is killed.
    """
    return subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
