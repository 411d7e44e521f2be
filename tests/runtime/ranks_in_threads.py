"""Tensor-parallel ranks as threads of one process: fast, and a rank's tensors can be looked at.

What torch.distributed does between processes, two meetings of the threads do here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

WAIT_S = 60


@dataclass
class Meeting:
    """Where all ranks lay down a tensor and take up everybody's."""

    size: int
    count: int = 0
    tensors: list[Tensor | None] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.size)
        self.tensors = [None] * self.size

    def exchange(self, rank: int, own: Tensor) -> list[Tensor]:
        self.tensors[rank] = own.clone()
        self.barrier.wait(WAIT_S)
        everybodys = list(self.tensors)
        assert len({(t.shape, t.dtype) for t in everybodys}) == 1
        self.barrier.wait(WAIT_S)
        if rank == 0:
            self.count += 1
        return everybodys


def rank_of(package: ModuleType, rank: int, meeting: Meeting) -> Any:
    """A TensorParallel of the package that talks to the other threads."""

    class ThreadRank(package.TensorParallel):
        def all_reduce(self, x: Tensor) -> Tensor:
            return x.copy_(torch.stack(meeting.exchange(rank, x)).sum(0))

        def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
            return torch.cat(meeting.exchange(rank, x), dim)

    return ThreadRank(rank, meeting.size)


def on_ranks(
    package: ModuleType, size: int, work: Callable[[Any], Any], meeting: Meeting | None = None
) -> list[Any]:
    """What `work(tp)` returns on each of `size` ranks."""
    meeting = meeting or Meeting(size)

    def run(rank: int) -> Any:
        try:
            with torch.no_grad():
                return work(rank_of(package, rank, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    broken = [f.exception() for f in futures if f.exception() is not None]
    for error in broken:
        if type(error).__name__ != "BrokenBarrierError":
            raise error
    return [future.result() for future in futures]
