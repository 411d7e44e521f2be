"""On a GPU: whole steps of models with experts, captured on two streams, have the bits of one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from captured_steps import Graph, prefilled, waiting_is_an_error
from lingen.ir import ModelIR
from lingen.verify.case import load_case
from lingen.verify.package import generated_package, load_model, lower_case
from small_models import lowered
from step_loop import Served, StepLoop
from torch import Tensor, nn

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/golden/mtp"
# Each kind of layer once, as wide as in the whole model.
FLASH = (
    *("parallel.tp=[1]", "parallel.pp=[1]", "sglang.tp_size=1", "targets=[torch]"),
    *("model.num_hidden_layers=3", "attention.pattern.layer_group_size=3"),
    *("moe.num_experts=16", "moe.n_group=4", "moe.topk_group=2"),
    "cache.speculative.num_draft_tokens=1",
)
D = 1
SIZES = (1, 4, 8)
GRAPH_PAGES = 5
NUM_REPLAYS = 200


def lowered_model(name: str) -> ModelIR:
    if name == "recorded":
        return lower_case(load_case(RECORDED), "seg_la", None)
    return lowered(*FLASH, spec=ROOT / "specs/ling-2.6-flash.yaml")


def model_of(package: ModuleType, name: str, device: str) -> nn.Module:
    if name == "recorded":
        return load_model(package, RECORDED, device)
    with torch.device(device):
        model = package.ForCausalLM(drafts=True)
    torch.manual_seed(7)
    for key, param in model.named_parameters():
        if param.dim() == 1:
            param.data.fill_(1.0 if "norm" in key else 0.0)
        else:
            param.data.normal_(std=param.shape[-1] ** -0.5)
    return model.eval()


@pytest.fixture(scope="module", params=["flash", "recorded"])
def packaged(request: pytest.FixtureRequest) -> Iterator[tuple[ModuleType, nn.Module]]:
    with generated_package(lowered_model(request.param)) as package:
        yield package, model_of(package, request.param, "cuda")


@contextmanager
def one_stream(model: nn.Module) -> Iterator[None]:
    sides = (model.side_stream, model.mtp.side_stream)
    for side in sides:
        side.takes = lambda hidden: False
    try:
        yield
    finally:
        for side in sides:
            del side.takes


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def requests_of(vocab_size: int) -> list[Served]:
    chance = random.Random(1)
    return [
        Served(
            [chance.randrange(vocab_size) for _ in range(2 + i % 3)],
            slot=7 - i,
            row=i,
            pages=list(range(5 * i, 5 * i + 5)),
        )
        for i in range(8)
    ]


@torch.no_grad()
def test_whole_steps_on_two_streams_have_the_bits_of_one(
    packaged: tuple[ModuleType, nn.Module],
) -> None:
    """Decode and verify, each with a draft; the caches' bits, too."""
    package, model = packaged
    vocab_size = package.model.VOCAB_SIZE
    requests = requests_of(vocab_size)
    loops = [StepLoop(package, model, D) for _ in range(2)]
    graphs: list[dict[tuple[int, bool], Graph]] = [{}, {}]
    for loop in loops:
        prefilled(loop, requests)
        loop.backend.init_cuda_graph_state(max(SIZES), GRAPH_PAGES)
    for request in requests:
        request.computed = len(request.tokens)
    for size in SIZES:
        for is_verify in (False, True):
            with one_stream(model):
                graphs[0][size, is_verify] = Graph.captured(loops[0], size, is_verify)
            graphs[1][size, is_verify] = Graph.captured(loops[1], size, is_verify)
    streams = [model.side_stream.stream, model.mtp.side_stream.stream]
    assert None not in streams, "no side stream was used"
    assert streams[0] != streams[1], "the model and its MTP layer use the same one"
    chance = random.Random(2)
    for replay in range(NUM_REPLAYS):
        is_verify = chance.random() < 0.6
        batch = chance.sample(requests, chance.randint(1, len(requests)))
        for request in batch:
            if request.computed > 16 * GRAPH_PAGES - D - 1:
                request.computed = 0  # a new request on the same slot, row and pages
        width = D + 1 if is_verify else 1
        feeds = [
            [chance.randrange(vocab_size) for _ in range(chance.randint(1, width))] for _ in batch
        ]
        accepted = [chance.randint(0, len(feed) - 1) for feed in feeds]
        size = min(size for size in SIZES if size >= len(batch))
        counts = torch.tensor(accepted, dtype=torch.int32, device="cuda")
        counts = torch.nn.functional.pad(counts, (0, 2 * size - len(batch)), value=D)
        lists = loops[0].batch(batch, feeds, is_verify)
        found = []
        with waiting_is_an_error():
            for loop, captured in zip(loops, graphs, strict=True):
                step = loop.backend.prepare_replay(lists, size)
                captured[size, is_verify].graph.replay()
                if is_verify and loop.has_states:
                    loop.backend.accept(step, counts)
                found.append(captured[size, is_verify].hidden)
        num_tokens = sum(len(feed) for feed in feeds)
        one, two = (hidden[:num_tokens] for hidden in found)
        assert one.isfinite().all(), replay
        assert torch.equal(one, two), replay
        for request, kept in zip(batch, accepted, strict=True):
            request.computed += 1 + kept
    for one, two in zip(*(loop.pools.tensors() for loop in loops), strict=True):
        assert torch.equal(bits(one[:, :-1]), bits(two[:, :-1]))
