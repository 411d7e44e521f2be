"""On a GPU: captured decode and verify steps replay as eager ones run, and nothing waits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from captured_steps import Graph, prefilled, run, waiting_is_an_error
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_variant
from step_loop import Served, StepLoop
from torch import nn

D = 3
SIZES = (1, 2, 4, 8)
GRAPH_PAGES = 5
NUM_REQS = 8
NUM_REPLAYS = 1000
# Layers with sums in another order, over steps that build on each other.
TOLERANCE = 1e-4

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["all-dense-with-mtp", "every-kind"])
def package(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Dense MLPs, and experts beside a shared one; heads as kernels want."""
    overrides = ("attention.lightning.head_dim=64",)
    with generated_package(lowered_variant(request.param, *overrides)) as package:
        yield package


@pytest.fixture(scope="module")
def model(package: ModuleType) -> nn.Module:
    return fill_randomly(package.ForCausalLM(drafts=True), seed=3).cuda()


def new_loop(package: ModuleType, model: nn.Module, verify_states: str) -> StepLoop:
    for layer in model.layers:
        if hasattr(layer.attention, "reset_log_decay"):
            layer.attention.reset_log_decay()
    return StepLoop(package, model, D, verify_states)


def served() -> list[Served]:
    """One per slot; the slot of the last is taken by whoever is tracked."""
    return [
        Served(
            [5 + i, 9, 2, 77][: 2 + i % 3], slot=7 - i, row=i, pages=[5 * i + p for p in range(5)]
        )
        for i in range(NUM_REQS - 1)
    ]


def padded_to(size: int, width: int, batch: list[Served], feeds: list[list[int]]) -> tuple:
    """The same requests with rows of padding behind them, `size * width` tokens in all.

    Products of as many rows have the same bits: no token's experts are others by rounding.
    """
    missing = size * width - sum(len(feed) for feed in feeds)
    rows = [[1] * min(width, missing - done) for done in range(0, missing, width)]
    return [*batch, *[None] * len(rows)], [*feeds, *rows]


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
@torch.no_grad()
def test_a_thousand_replays_agree_with_eager_steps(
    package: ModuleType, model: nn.Module, verify_states: str
) -> None:
    chance = random.Random(5)
    eager, loop = (new_loop(package, model, verify_states) for _ in range(2))
    loop.backend.init_cuda_graph_state(max(SIZES), GRAPH_PAGES)
    graphs = {
        (size, is_verify): Graph.captured(loop, size, is_verify)
        for size in SIZES
        for is_verify in (False, True)
    }
    requests = served()
    for each in (eager, loop):
        prefilled(each, requests)
    for request in requests:
        request.computed = len(request.tokens)
    for _ in range(NUM_REPLAYS):
        is_verify = chance.random() < 0.6
        batch = chance.sample(requests, chance.randint(1, len(requests)))
        for request in batch:
            if request.computed > 16 * GRAPH_PAGES - D - 1:
                request.computed = 0  # a new request on the same slot, row and pages
        width = D + 1 if is_verify else 1
        feeds = [[chance.randrange(160) for _ in range(chance.randint(1, width))] for _ in batch]
        num_tokens = sum(len(feed) for feed in feeds)
        accepted = [chance.randint(0, len(feed) - 1) for feed in feeds]
        track = None if is_verify else {0: (0, batch[0].computed + 1)}
        lists = eager.batch(batch, feeds, is_verify, track)
        size = min(size for size in SIZES if size >= len(batch))
        padded_lists = eager.batch(*padded_to(size, width, batch, feeds), is_verify, track)
        counts = torch.tensor(accepted, dtype=torch.int32, device="cuda")
        padded = torch.nn.functional.pad(counts, (0, 2 * size - len(batch)), value=D)
        eager_rows = padded_lists.slots.shape[0]
        eager_counts = torch.nn.functional.pad(counts, (0, eager_rows - len(batch)), value=D)
        with waiting_is_an_error():
            step = eager.backend.prepare(padded_lists)
            want = run(eager, step)[:num_tokens]
            static = loop.backend.prepare_replay(lists, size)
            graph = graphs[size, is_verify]
            graph.graph.replay()
            got = graph.hidden[:num_tokens]
            if is_verify:
                eager.backend.accept(step, eager_counts)
                loop.backend.accept(static, padded)
        torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)
        for request, kept in zip(batch, accepted, strict=True):
            request.computed += 1 + kept
    for pool, padded_pool in zip(eager.pools.tensors(), loop.pools.tensors(), strict=True):
        torch.testing.assert_close(
            *(pool[:, :-1], padded_pool[:, :-1]), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
        )


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
@torch.no_grad()
def test_decode_verify_commit_and_copies_never_wait(
    package: ModuleType, model: nn.Module, verify_states: str
) -> None:
    loop, requests = new_loop(package, model, verify_states), served()
    prefilled(loop, requests)
    for request in requests:
        request.computed = len(request.tokens)
    verify = loop.batch(requests, [[1, 2, 3, 4]] * len(requests), is_verify=True)
    decode = loop.batch(requests, [[1]] * len(requests), track={1: (0, requests[1].computed + 1)})
    counts = torch.full((len(requests),), 2, dtype=torch.int32, device="cuda")
    slots, rows = verify.slots.clone(), verify.verify_rows.clone()
    spare = torch.full_like(slots, -1)
    for _ in range(2):  # the first compiles
        with waiting_is_an_error():
            step = loop.backend.prepare(verify)
            hidden = model(step, loop.backend)
            loop.backend.accept(step, counts)
            model.commit(slots, rows, loop.backend)
            loop.backend.copy_states(spare, spare)
            decoded = run(loop, loop.backend.prepare(decode))
            logits = model.compute_logits(torch.cat([hidden, *decoded.chunk(2, dim=-1)]))
        assert logits.isfinite().all()
    assert loop.pools.state[:, 0].isfinite().all()
