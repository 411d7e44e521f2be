"""Times calls on one GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

REPLAYS = 20


@torch.no_grad()
def median(calls: list[Callable[[], object]]) -> float:
    """Microseconds of one call, the median over REPLAYS replays of a graph of all calls."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / len(calls))
    return round(statistics.median(times), 2)
