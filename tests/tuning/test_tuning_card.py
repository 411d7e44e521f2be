"""The measurer, with graphs and events that stand for those of a card."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from lingen.tuning.card import REPLAYS, TURNS, Card
from lingen.tuning.rows import Shape
from lingen.tuning.search import CannotRun

FLASH = Shape(256, 1024, 4096, 8, "bf16")


class FakeCuda:
    """Time passes while a graph is replayed: as much as the calls in it take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.running: list[float] | None = None
        self.live = 0

    def run(self, microseconds: float) -> None:
        if self.running is not None:
            self.running.append(microseconds)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = self

        class Graph:
            def __init__(self):
                self.calls = []

            def capture_begin(self, pool):
                assert pool == "pool"
                assert cuda.live or not hasattr(cuda, "begun"), "a pool that no graph holds"
                cuda.begun, cuda.running, cuda.live = True, self.calls, cuda.live + 1

            def capture_end(self):
                cuda.running = None

            def replay(self):
                cuda.now += sum(self.calls)

            def __del__(self):
                cuda.live -= 1

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.time = cuda.now

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.time - self.time) / 1000

        fakes = {
            "CUDAGraph": Graph, "Event": Event, "Stream": lambda: "side",
            "synchronize": lambda: None, "stream": lambda stream: nullcontext(),
            "graph_pool_handle": lambda: "pool",
        }  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch, "zeros", lambda *size, device: cuda.run(1.0))


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def card_of(cuda: FakeCuda, shape: Shape = FLASH) -> Card:
    """Rows are times; -1 cannot run."""

    def call(pair):
        if min(pair) < 0:
            raise RuntimeError("out of resource: shared memory\nand more")
        cuda.run(sum(pair))

    def calls(num_tokens, pair, count):
        return [lambda: call(pair)] * count

    return Card(SimpleNamespace(shape=shape, calls=calls))


@pytest.mark.parametrize("tokens", [1, 8, 512])
def test_a_time_is_that_of_one_call(cuda, tokens):
    card = card_of(cuda)
    assert card.microseconds(tokens, (35.5, 19.5)) == 55.0
    assert card.microseconds(tokens, (30.0, 19.5)) == 49.5


def test_few_tokens_are_measured_over_several_calls_so_that_weights_come_from_memory(cuda):
    card = card_of(cuda)
    counts = [card._num_calls(tokens) for tokens in (1, 2, 8, 64, 4096)]
    assert counts == [3, 2, 1, 1, 1]
    small = card_of(cuda, Shape(256, 512, 4096, 8, "fp8_channel"))
    assert small._num_calls(1) == 8


def test_pairs_take_turns(cuda):
    times = card_of(cuda).alternately(8, [(10.0, 5.0), (7.0, 4.0)])
    assert [len(each) for each in times] == [TURNS, TURNS]
    assert times[0] == pytest.approx([15.0] * TURNS) and times[1] == pytest.approx([11.0] * TURNS)


def test_what_cannot_run_is_told_in_a_line_and_the_next_row_is_measured(cuda):
    card = card_of(cuda)
    with pytest.raises(CannotRun, match=r"^out of resource: shared memory$"):
        card.microseconds(8, (-1, 3))
    assert card.microseconds(8, (1.0, 3.0)) == 4.0


def test_ctrl_c_amid_a_capture_leaves_none_open(cuda):
    card = card_of(cuda)

    def pressed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        card._capture([pressed])
    assert cuda.running is None


def test_a_graph_is_replayed_once_before_it_is_timed(cuda):
    card_of(cuda).microseconds(64, (1.0, 2.0))
    assert cuda.now == 3.0 * (REPLAYS + 1)
