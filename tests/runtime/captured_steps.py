"""Steps of a whole model and its MTP layer, eager or as CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from step_loop import Served, StepLoop
from torch import Tensor


def run(loop: StepLoop, step: object) -> Tensor:
    """[T, 2 * D]: what the model returns, and a draft of its MTP layer behind it."""
    hidden = loop.model(step, loop.backend)
    drafted = loop.model.draft(step.batch.input_ids, hidden, step, loop.backend)
    return torch.cat([hidden, drafted], dim=-1)


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@dataclass
class Graph:
    graph: torch.cuda.CUDAGraph
    hidden: Tensor

    @classmethod
    def captured(cls, loop: StepLoop, num_reqs: int, is_verify: bool) -> Graph:
        step = loop.backend.prepare_capture(num_reqs, is_verify)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are compiled before the capture
            run(loop, step)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), waiting_is_an_error():
            hidden = run(loop, step)
        return cls(graph, hidden)


def prefilled(loop: StepLoop, requests: list[Served]) -> None:
    step = loop.backend.prepare(loop.batch(requests, [r.tokens for r in requests]))
    run(loop, step)
