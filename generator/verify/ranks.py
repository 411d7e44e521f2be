"""Tensor-parallel ranks as processes of this machine: started, given work, ended together.

Knows nothing of cases. A rank that dies or fails ends all of them, and one error says which.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lingen.errors import EnvironmentLacks, LingenError

TIMEOUT_S = 60
"""How long a rank waits for the others in one exchange."""
_GRACE_S = 2.0
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
# What a rank replies with; the first that any rank replied with, from `_REFUSED` on, is reported.
_DONE, _REFUSED, _FAILED, _LOST = "done", "refused", "failed", "lost"

Work = Callable[..., Any]
"""A function of a module, which every rank calls with the same arguments."""


class RankFailed(Exception):
    """A rank raised what no input should raise: a bug. Holds its traceback."""


class Ranks:
    """`size` processes that form the whole world of torch.distributed.

    On a CPU they talk over gloo, on CUDA devices over NCCL, one device each.
    """

    def __init__(self, size: int, device: str = "cpu", timeout_s: float = TIMEOUT_S) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lingen-ranks-")
        context = multiprocessing.get_context("spawn")
        store = Path(self._folder.name) / "store"
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            pipe, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, size, device, str(store), timeout_s, theirs),
                name=f"rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(pipe)
            self.processes.append(process)

    def run(self, work: Work, *arguments: object) -> list[Any]:
        """What `work(*arguments)` returns on each rank, rank 0 first.

        Raises the LingenError that a rank raised, EnvironmentLacks where one died or waited in vain
        for another, RankFailed for anything else. All ranks are ended then.
        """
        replies: dict[int, tuple[str, Any]] = {}
        try:
            for pipe in self._pipes:
                pipe.send((work, arguments))
            self._collect(replies, deadline=None)
        except (BrokenPipeError, EOFError, ConnectionResetError):
            pass
        if len(replies) < len(self._pipes) or any(kind != _DONE for kind, _ in replies.values()):
            self._collect(replies, deadline=time.monotonic() + _GRACE_S)
            error = self._error(replies)
            self.end()
            raise error
        return [replies[rank][1] for rank in range(len(self._pipes))]

    def _collect(self, replies: dict[int, tuple[str, Any]], deadline: float | None) -> None:
        """Wait for replies: until all have come or, without a deadline, something went wrong."""
        dead: set[int] = set()
        while True:
            waited = {
                self._pipes[rank]: rank
                for rank in range(len(self._pipes))
                if rank not in replies and rank not in dead
            }
            left = None if deadline is None else deadline - time.monotonic()
            if not waited or (left is not None and left <= 0):
                return
            for pipe in wait([*waited], left):
                try:
                    replies[waited[pipe]] = pipe.recv()
                except (EOFError, ConnectionResetError):  # it has ended, so its end is closed
                    dead.add(waited[pipe])
                    self.processes[waited[pipe]].join(_GRACE_S)
            is_wrong = dead or any(kind != _DONE for kind, _ in replies.values())
            if deadline is None and is_wrong:
                return

    def _error(self, replies: dict[int, tuple[str, Any]]) -> Exception:
        """The cause: who died comes first, who lost another only if nobody says more."""
        for rank, process in enumerate(self.processes):
            if rank not in replies and process.exitcode is not None:
                return EnvironmentLacks(f"rank {rank} of {len(self.processes)} {_how(process)}")
        for wanted in (_REFUSED, _FAILED, _LOST):
            for rank, (kind, detail) in sorted(replies.items()):
                if kind != wanted:
                    continue
                if kind == _REFUSED:
                    return detail
                if kind == _FAILED:
                    return RankFailed(f"rank {rank} of {len(self.processes)} failed\n{detail}")
                silent = [r for r in range(len(self.processes)) if r not in replies]
                whom = f": no sign of life from {_names(silent)}" if silent else ""
                return EnvironmentLacks(
                    f"rank {rank} of {len(self.processes)} waited in vain for the others{whom}\n"
                    f"  found     {detail}"
                )
        raise AssertionError("no rank failed")

    def end(self) -> None:
        """End every process: those that wait for work at once, others by force."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self._folder.cleanup()


@contextmanager
def ranks(size: int, device: str = "cpu", timeout_s: float = TIMEOUT_S) -> Iterator[Ranks]:
    """Ranks that are ended on leaving, whatever happens."""
    started = Ranks(size, device, timeout_s)
    try:
        yield started
    finally:
        started.end()


def _names(numbers: Sequence[int]) -> str:
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def _how(process: multiprocessing.Process) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _serve(
    rank: int, size: int, device: str, store: str, timeout_s: float, pipe: Connection
) -> None:
    """A rank: joins the others, then works until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the ranks
    kind, detail = _DONE, None
    try:
        _join(rank, size, device, store, timeout_s)
    except Exception as error:
        kind, detail = _classified(error)
    while True:
        try:
            work, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # destroying the process group would wait for ranks that are gone
        if kind == _DONE:
            try:
                reply = (_DONE, work(*arguments))
            except Exception as error:
                reply = _classified(error)
        else:
            reply = (kind, detail)
        pipe.send(reply)


def _join(rank: int, size: int, device: str, store: str, timeout_s: float) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    if device == "cuda":
        torch.cuda.set_device(rank)
    elif sys.platform in _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )


def _classified(error: Exception) -> tuple[str, Any]:
    import torch.distributed as dist

    if isinstance(error, LingenError):
        return _REFUSED, error
    text = str(error)
    if isinstance(error, dist.DistError) or "gloo" in text.lower():
        return _LOST, text.strip().splitlines()[0]
    return _FAILED, traceback.format_exc()
