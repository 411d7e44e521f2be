"""Shared experts beside routed ones: order, waits and the fallback, on recorded streams."""

from __future__ import annotations

import ast
import inspect
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from engine_stubs import StandIn


class Recorder:
    """Fake streams that write down what happens, and on which of them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.current = FakeStream("current", self)
        self.alternate = FakeStream("alternate", self)
        self.active = self.current

    @contextmanager
    def on(self, stream: FakeStream):
        before, self.active = self.active, stream
        yield
        self.active = before

    def work(self, name: str):
        def run(*_):
            self.events.append(f"{name} on {self.active.name}")
            return torch.zeros(2, 4)

        return run


class FakeStream:
    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder = name, recorder

    def wait_stream(self, other: FakeStream) -> None:
        self.recorder.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def recorder(plugin, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: recorder.current)
    monkeypatch.setattr(torch.cuda, "stream", recorder.on)
    return recorder


def capture(plugin, monkeypatch, is_capturing: bool) -> None:
    monkeypatch.setattr(plugin.model, "get_is_capture_mode", lambda: is_capturing)


def moe(plugin, monkeypatch, recorder, alt_stream):
    """The generated MoE, its parts replaced by ones that write down where they run."""
    model = plugin.model
    monkeypatch.setattr(model, "get_moe_impl_class", lambda quant_config: FakeExperts)
    monkeypatch.setattr(model.TopK, "bind_runner_backend", lambda *_, **__: None, raising=False)
    monkeypatch.setattr(model, "NUM_EXPERTS", 4)
    block = model.MoE(model.Build(None, None, alt_stream), 1, "model.layers.1.mlp")
    for name in ("gate", "topk", "experts", "shared_experts"):
        del block._modules[name]
        setattr(block, name, recorder.work(name))
    return block


class FakeExperts(StandIn):
    should_fuse_routed_scaling_factor_in_topk = False
    runner_backend = routing_method_type = None


CAPTURED = [
    "alternate waits for current",
    "shared_experts on current",
    "gate on alternate",
    "topk on alternate",
    "experts on alternate",
    "current waits for alternate",
]
SEQUENTIAL = [
    "shared_experts on current",
    "gate on current",
    "topk on current",
    "experts on current",
]


def test_a_captured_step_runs_routed_experts_beside_shared_ones(plugin, monkeypatch, recorder):
    capture(plugin, monkeypatch, True)
    block = moe(plugin, monkeypatch, recorder, recorder.alternate)
    block(torch.zeros(2, 4))
    assert recorder.events == CAPTURED


@pytest.mark.parametrize(
    ("is_capturing", "num_tokens", "has_stream"),
    [(False, 2, True), (True, 0, True), (True, 2, False)],
    ids=["no capture", "no tokens", "no stream"],
)
def test_otherwise_one_runs_after_the_other(
    plugin, monkeypatch, recorder, is_capturing, num_tokens, has_stream
):
    capture(plugin, monkeypatch, is_capturing)
    block = moe(plugin, monkeypatch, recorder, recorder.alternate if has_stream else None)
    block(torch.zeros(num_tokens, 4))
    assert recorder.events == SEQUENTIAL


@pytest.mark.parametrize("is_capturing", [True, False])
def test_the_sum_is_of_both_and_the_input_is_as_before(plugin, monkeypatch, recorder, is_capturing):
    capture(plugin, monkeypatch, is_capturing)
    block = moe(plugin, monkeypatch, recorder, recorder.alternate)
    block.shared_experts = lambda x: x + 1
    block.topk, block.gate = lambda x, logits: None, lambda x: None
    block.experts = lambda x, topk_output: 10 * x
    hidden = torch.arange(8.0).view(2, 4)
    assert torch.equal(block(hidden), 11 * torch.arange(8.0).view(2, 4) + 1)
    assert torch.equal(hidden, torch.arange(8.0).view(2, 4))


def test_the_experts_do_not_write_into_their_input(plugin, monkeypatch, recorder):
    """The shared experts read it at the same time, and the engine's default is to write there."""
    built = {}

    def remember(self, **keywords):
        built.update(keywords)
        StandIn.__init__(self)

    monkeypatch.setattr(FakeExperts, "__init__", remember)
    moe(plugin, monkeypatch, recorder, None)
    assert built["inplace"] is False


def test_every_layer_gets_the_one_stream_of_the_model(plugin, monkeypatch):
    streams, handed = iter(range(9)), []
    model = plugin.model
    stage = SimpleNamespace(is_first_rank=False, is_last_rank=False)
    monkeypatch.setattr(model, "get_parallel", lambda: SimpleNamespace(pp_group=stage))
    monkeypatch.setattr(model, "is_cuda", lambda: True)
    monkeypatch.setattr(model, "get_stream", lambda name: (name, next(streams)))
    monkeypatch.setattr(model, "layer_stages", lambda idx: ())
    monkeypatch.setattr(model, "DecoderLayer", lambda build, *_: handed.append(build.alt_stream))
    monkeypatch.setattr(
        model,
        "make_pp_layers",
        lambda number, make, **_: ([make(idx=i, prefix="") for i in range(number)], 0, number),
    )
    built = model.Model(None, None, "model")
    assert set(handed) == {("alt", 0)} and built.alt_stream == ("alt", 0)
    assert len(handed) == plugin.ir.model.num_hidden_layers


def test_there_is_no_stream_without_cuda(plugin, monkeypatch):
    model = plugin.model
    stage = SimpleNamespace(is_first_rank=False, is_last_rank=False)
    monkeypatch.setattr(model, "get_parallel", lambda: SimpleNamespace(pp_group=stage))
    monkeypatch.setattr(model, "is_cuda", lambda: False)
    monkeypatch.setattr(model, "make_pp_layers", lambda *_, **__: ([], 0, 0))
    assert model.Model(None, None, "model").alt_stream is None


def test_the_draft_model_has_a_stream_of_its_own(plugin):
    """Both classes name theirs; the engine keeps one stream per name."""
    names = {stream_name(plugin.model.Model), stream_name(plugin.draft.DraftModel)}
    assert names == {"alt", "draft_alt"}


def stream_name(cls: type) -> str:
    tree = ast.parse(inspect.getsource(cls))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (call,) = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "get_stream"]
    return call.args[0].value
