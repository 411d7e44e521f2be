"""On a GPU: what crosses streams is not handed to others while it is still read."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.gpu

SPIN_CYCLES = 20_000_000  # about ten milliseconds
SIZE = 1 << 20


@pytest.fixture(params=[False, True], ids=["segments", "expandable"])
def allocator(request: pytest.FixtureRequest) -> Iterator[None]:
    """The caching allocator in both of its ways."""
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{request.param}")
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def slow_reader_beside_a_writer(side: object) -> Tensor:
    """A result of the side stream is dropped while the current stream still has to read it; the
    side stream then asks for as much memory and fills it with another number."""
    given = torch.zeros(SIZE, device="cuda")
    result, _ = side.run_beside(lambda hidden: hidden + 17, lambda hidden: hidden + 1, given)
    torch.cuda._sleep(SPIN_CYCLES)
    read = result.clone()
    del result
    with torch.cuda.stream(side.stream):
        taken = torch.full((SIZE,), 93.0, device="cuda")
    torch.cuda.current_stream().wait_stream(side.stream)
    taken.record_stream(torch.cuda.current_stream())
    return read


@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "captured"])
@pytest.mark.usefixtures("allocator")
@pytest.mark.filterwarnings("ignore:.*_set_allocator_settings:FutureWarning")
@torch.no_grad()
def test_a_dropped_result_keeps_its_memory_until_it_is_read(
    tiny: ModuleType, is_captured: bool
) -> None:
    side = tiny.model.SideStream()
    slow_reader_beside_a_writer(side)  # the kernels are loaded
    torch.cuda.synchronize()
    if is_captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            read = slow_reader_beside_a_writer(side)
        graph.replay()
    else:
        read = slow_reader_beside_a_writer(side)
    assert (read == 17).all()
