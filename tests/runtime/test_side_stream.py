"""Routed experts on a second stream: who waits for whom, and when it is used at all.

Streams and the card are stand-ins here; `test_side_stream_on_gpu.py` runs the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lingen.errors import SpecError
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_small, lowered_variant, new_moe
from torch import Tensor, nn


class OnCard(Tensor):
    """A tensor that says it is on a card, and logs on whom it is recorded."""

    log: ClassVar[list[tuple]] = []
    is_cuda = True

    def record_stream(self, stream: FakeStream) -> None:
        self.log.append(("record", self.data_ptr(), stream.name))


@dataclass
class FakeStream:
    name: str
    log: list[tuple]

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(("wait", self.name, other.name))


@dataclass
class FakeCard:
    log: list[tuple] = field(default_factory=list)
    is_capturing: bool = False
    made: int = 0

    def __post_init__(self) -> None:
        self.current = self.main = FakeStream("main", self.log)

    @property
    def is_side(self) -> bool:
        return self.current is not self.main

    def new_stream(self, device: object = None) -> FakeStream:
        self.made += 1
        return FakeStream(f"side {self.made}", self.log)

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    card = FakeCard()
    monkeypatch.setattr(OnCard, "log", card.log)
    monkeypatch.setattr(torch.cuda, "Stream", card.new_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: card.current)
    monkeypatch.setattr(torch.cuda, "stream", card.on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: card.is_capturing)
    return card


STEP = SimpleNamespace(batch=SimpleNamespace(is_prefill=False))


@pytest.fixture
def moe(tiny: ModuleType, card: FakeCard) -> nn.Module:
    return fill_randomly(new_moe(tiny))


def hidden_of(tiny: ModuleType, num_tokens: int) -> Tensor:
    torch.manual_seed(num_tokens)
    return torch.randn(num_tokens, tiny.model.HIDDEN_SIZE)


def on_card(hidden: Tensor) -> OnCard:
    return hidden.clone().as_subclass(OnCard)


def log_parts(moe: nn.Module, card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves of the block log the stream they run on, and their results."""

    def logged(name: str, run: object) -> object:
        def call(*args: object) -> Tensor:
            card.log.append(("run", name, card.current.name))
            result = run(*args)
            card.log.append(("result", name, result.data_ptr()))
            return result

        return call

    monkeypatch.setattr(moe, "routed", logged("routed", moe.routed))
    monkeypatch.setattr(moe.shared_experts, "forward", logged("shared", moe.shared_experts.forward))


@torch.no_grad()
def test_both_streams_wait_and_every_tensor_that_crosses_is_recorded(
    tiny: ModuleType, moe: nn.Module, card: FakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = hidden_of(tiny, 3)
    want = moe(hidden, STEP)
    log_parts(moe, card, monkeypatch)
    card.is_capturing = True
    given = on_card(hidden)
    got = moe(given, STEP)
    assert torch.equal(got.as_subclass(Tensor), want)
    assert torch.equal(given.as_subclass(Tensor), hidden), "the input was written"
    places = {event: i for i, event in enumerate(card.log)}
    results = {event[1]: event[2] for event in card.log if event[0] == "result"}
    fork, join = places["wait", "side 1", "main"], places["wait", "main", "side 1"]
    routed, shared = places["run", "routed", "side 1"], places["run", "shared", "main"]
    assert fork < routed < join and fork < shared < join
    assert places["record", given.data_ptr(), "side 1"] < join
    assert places["record", results["routed"], "main"] > join
    assert sum(event[0] == "wait" for event in card.log) == 2


@torch.no_grad()
@pytest.mark.parametrize(
    ("num_tokens", "is_capturing", "is_forced", "is_used"),
    [
        (2, False, False, False),
        (2, True, False, True),
        (2, False, True, True),
        (2, True, True, True),
        (0, True, True, False),
    ],
)
def test_the_side_stream_is_for_captures_with_tokens(
    tiny: ModuleType,
    moe: nn.Module,
    card: FakeCard,
    num_tokens: int,
    is_capturing: bool,
    is_forced: bool,
    is_used: bool,
) -> None:
    assert not moe.side_stream.is_forced, "a new model is not forced"
    card.is_capturing, moe.side_stream.is_forced = is_capturing, is_forced
    hidden = hidden_of(tiny, num_tokens)
    want = moe(hidden, STEP)
    assert not card.log, "a tensor on the CPU went to a stream"
    got = moe(on_card(hidden), STEP)
    assert torch.equal(got.as_subclass(Tensor), want)
    assert bool(card.log) == is_used
    assert card.made == is_used


@torch.no_grad()
def test_one_stream_may_be_both(tiny: ModuleType, moe: nn.Module, card: FakeCard) -> None:
    card.is_capturing = True
    moe.side_stream.stream = card.main
    hidden = hidden_of(tiny, 4)
    assert torch.equal(moe(on_card(hidden), STEP).as_subclass(Tensor), moe(hidden, STEP))
    assert not card.made


@torch.no_grad()
def test_a_model_has_one_side_stream_and_its_mtp_layer_another(
    tiny: ModuleType, card: FakeCard
) -> None:
    model = tiny.ForCausalLM(drafts=True)
    ours = {id(layer.mlp.side_stream) for layer in model.layers if layer.is_moe}
    assert ours == {id(model.side_stream)}
    assert model.mtp.mlp.side_stream is model.mtp.side_stream is not model.side_stream
    card.is_capturing = True
    fill_randomly(model)
    for _ in range(2):
        for layer in (*model.layers, model.mtp):
            if hasattr(layer.mlp, "side_stream"):
                layer.mlp(on_card(hidden_of(tiny, 2)), STEP)
    assert card.made == 2, "streams are made once"


CALLS = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), max_size=8)


@given(calls=CALLS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@torch.no_grad()
def test_any_order_of_calls_leaves_both_streams_joined(
    tiny: ModuleType, card: FakeCard, calls: list[tuple[bool, bool, int]]
) -> None:
    """Whatever was captured, forced or empty before: each call that forks also joins."""
    side = tiny.model.SideStream()
    card.made = 0
    was_used = False
    for is_capturing, is_forced, num_tokens in calls:
        card.log.clear()
        card.is_capturing, side.is_forced = is_capturing, is_forced
        hidden = on_card(torch.ones(num_tokens, 2))
        is_used = side.takes(hidden)
        assert is_used == (num_tokens > 0 and (is_capturing or is_forced))
        if is_used:
            was_used = True
            beside, here = side.run_beside(lambda x: x + card.is_side, lambda x: x * 2, hidden)
            assert (beside == 2).all(), "the first call ran on the current stream"
            assert (here == 2).all()
            waits = [event for event in card.log if event[0] == "wait"]
            assert waits == [("wait", "side 1", "main"), ("wait", "main", "side 1")]
        assert card.current is card.main
        assert card.made == was_used


@pytest.mark.parametrize("text", ["true", "false"])
def test_the_switch_of_a_spec_is_a_boolean(text: str) -> None:
    assert lowered_small(f"moe.overlap_shared_experts={text}").moe.has_side_stream == (
        text == "true"
    )


@pytest.mark.parametrize("text", ["0", "1", '""', "no", "on", "null"])
def test_nothing_else_is_taken_for_a_switch(text: str) -> None:
    with pytest.raises(SpecError, match="overlap_shared_experts: not a boolean"):
        lowered_small(f"moe.overlap_shared_experts={text}")


@pytest.mark.parametrize(
    ("name", "more"),
    [("no-shared-expert", ()), ("every-kind", ("moe.overlap_shared_experts=false",))],
)
def test_models_without_a_side_stream_have_no_code_for_it(name: str, more: tuple[str, ...]) -> None:
    with generated_package(lowered_variant(name, *more)) as package:
        assert not hasattr(package.model, "SideStream")
        assert not hasattr(package.ForCausalLM(), "side_stream")
