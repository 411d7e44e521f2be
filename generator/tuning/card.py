"""Times calls of the experts on the present card, as medians of CUDA graph replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from lingen.tuning.experts import Experts
from lingen.tuning.search import CannotRun, Pair

REPLAYS = 7
TURNS = 15
# A graph's calls read at least this much of the weights: several times what the L2 cache holds.
_ROTATED_BYTES = 400 << 20
_MOST_CALLS = 8


class Card:
    """A `Measurer`. The calls of one graph choose different experts: weights come from memory."""

    def __init__(self, experts: Experts) -> None:
        self.experts = experts
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        # Memory goes from one graph to the next as long as one that has the pool is alive.
        self.keeper = self._capture([lambda: torch.zeros(1, device="cuda")])

    @torch.no_grad()
    def microseconds(self, num_tokens: int, pair: Pair) -> float:
        graph = self._captured(num_tokens, pair)
        times = [self._replay(graph) for _ in range(REPLAYS)]
        return round(statistics.median(times) / self._num_calls(num_tokens), 2)

    @torch.no_grad()
    def alternately(self, num_tokens: int, pairs: Sequence[Pair]) -> list[list[float]]:
        graphs = [self._captured(num_tokens, pair) for pair in pairs]
        turns = [[self._replay(graph) for graph in graphs] for _ in range(TURNS)]
        count = self._num_calls(num_tokens)
        return [[time / count for time in times] for times in zip(*turns, strict=True)]

    def _num_calls(self, num_tokens: int) -> int:
        shape = self.experts.shape
        chosen = min(shape.num_experts, num_tokens * shape.top_k)
        read = 3 * chosen * shape.width * shape.hidden * shape.weight_bytes
        return min(_MOST_CALLS, -(-_ROTATED_BYTES // read))

    def _captured(self, num_tokens: int, pair: Pair) -> torch.cuda.CUDAGraph:
        calls = self.experts.calls(num_tokens, pair, self._num_calls(num_tokens))
        try:
            for call in calls:
                call()
        except Exception as error:
            torch.cuda.synchronize()  # a broken context ends the search instead
            raise CannotRun(next(iter(str(error).splitlines()), type(error).__name__)) from error
        graph = self._capture(calls)
        self._replay(graph)
        return graph

    def _capture(self, calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
        """Without `torch.cuda.graph`, which empties the allocator's cache each time."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(self.pool)
            try:
                for call in calls:
                    call()
            finally:  # after Ctrl-C, too: what is left open would fail all that comes after it
                graph.capture_end()
        return graph

    def _replay(self, graph: torch.cuda.CUDAGraph) -> float:
        """Microseconds of one replay."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1000 * start.elapsed_time(end)
