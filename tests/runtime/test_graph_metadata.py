"""Metadata for captured graphs: the same addresses, other numbers, padding that does nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from comparison import assert_same_bits
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_variant
from step_loop import Served, StepLoop
from torch import Tensor, nn

D = 3
MAX_REQS, GRAPH_PAGES = 5, 6
# Layers with sums in another order, over steps that build on each other; measured: up to 2e-5.
TOLERANCE = 1e-4
KINDS = ("every-kind", "all-lightning-with-mtp", "all-mla", "v2-with-mtp")


@pytest.fixture(scope="module", params=KINDS)
def package(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    with generated_package(lowered_variant(request.param)) as package:
        yield package


@pytest.fixture(scope="module")
def model(package: ModuleType) -> nn.Module:
    return fill_randomly(package.ForCausalLM(drafts=True), seed=3)


@pytest.fixture
def loop(package: ModuleType, model: nn.Module) -> StepLoop:
    loop = StepLoop(package, model, D)
    loop.backend.init_cuda_graph_state(MAX_REQS, GRAPH_PAGES)
    return loop


def tensors_of(step: object) -> dict[str, Tensor]:
    """Every tensor of a step by its name."""
    return {
        f"{part}.{name}": tensor
        for part, metadata in vars(step).items()
        for name, tensor in vars(metadata).items()
        if isinstance(tensor, Tensor)
    }


def served(num_reqs: int) -> list[Served]:
    return [
        Served([5 + i, 9, 2, 77][: 2 + i % 3], slot=7 - i, row=i, pages=[3 * i, 3 * i + 1])
        for i in range(num_reqs)
    ]


@pytest.mark.parametrize("is_verify", [False, True], ids=["decode", "verify"])
def test_replay_puts_another_batch_at_the_captured_addresses(
    loop: StepLoop, is_verify: bool
) -> None:
    captured = {
        num_reqs: tensors_of(loop.backend.prepare_capture(num_reqs, is_verify))
        for num_reqs in (MAX_REQS, 2, 4)
    }
    feeds = [[1, 2, 3], [4], [5, 6]] if is_verify else [[1], [2], [3]]
    for num_live in (3, 0, 2, 1):
        batch = loop.batch(served(num_live), feeds[:num_live], is_verify)
        for num_reqs in (4, MAX_REQS):
            replayed = loop.backend.prepare_replay(batch, num_reqs)
            fresh = tensors_of(loop.backend.prepare(loop.backend.graph_batch(batch, num_reqs)))
            for name, tensor in tensors_of(replayed).items():
                assert tensor.data_ptr() == captured[num_reqs][name].data_ptr(), name
                assert_same_bits(tensor, fresh[name])
                assert_same_bits(captured[num_reqs][name], fresh[name])
            assert replayed.batch.is_decode is not is_verify
            assert replayed.batch.is_verify is is_verify


@torch.no_grad()
def test_padded_steps_equal_those_of_the_batch_alone(loop: StepLoop, package: ModuleType) -> None:
    """Random decode and verify steps: once as they are, once padded at the fixed addresses."""
    chance = random.Random(5)
    plain = StepLoop(package, loop.model, D)
    requests = served(4)
    for each in (plain, loop):
        step = each.backend.prepare(each.batch(requests, [r.tokens for r in requests]))
        each.model(step, each.backend)
    for request in requests:
        request.computed = len(request.tokens)
    for _ in range(12):
        is_verify = chance.random() < 0.6
        batch = chance.sample(requests, chance.randint(1, 4))
        width = D + 1 if is_verify else 1
        feeds = [[chance.randrange(160) for _ in range(chance.randint(1, width))] for _ in batch]
        accepted = [chance.randint(0, len(feed) - 1) for feed in feeds]
        lists = plain.batch(batch, feeds, is_verify)
        num_tokens = sum(map(len, feeds))
        outs = []
        for each in (plain, loop):
            if each is plain:
                step = each.backend.prepare(lists)
            else:
                step = each.backend.prepare_replay(lists, MAX_REQS)
            outs.append(each.model(step, each.backend)[:num_tokens])
            if is_verify and each.has_states:
                counts = [*accepted, *[D] * (step.batch.slots.shape[0] - len(batch))]
                each.backend.accept(step, torch.tensor(counts, dtype=torch.int32))
        torch.testing.assert_close(*outs, rtol=TOLERANCE, atol=TOLERANCE)
        for request, kept in zip(batch, accepted, strict=True):
            request.computed += 1 + kept
    for pool, padded in zip(plain.pools.tensors(), loop.pools.tensors(), strict=True):
        torch.testing.assert_close(
            pool[:, :-1], padded[:, :-1], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
        )


def test_padded_rows_take_the_tokens_that_short_chains_leave_over(loop: StepLoop) -> None:
    """No row is longer than the graph expects, however short the live chains are."""
    batch = loop.batch(served(MAX_REQS), [[1]] * MAX_REQS, is_verify=True)
    step = loop.backend.prepare_replay(batch, MAX_REQS)
    lengths = step.batch.query_start_loc.diff()
    assert lengths.tolist() == [1] * MAX_REQS + [D + 1] * 3 + [D, 0]
    assert lengths.sum() == step.batch.input_ids.shape[0] == MAX_REQS * (D + 1)
    assert step.batch.max_query_len == D + 1


@pytest.mark.parametrize(
    ("feeds", "num_reqs", "message"),
    [
        ([[1], [2], [3]], 2, "3 requests of up to 1 tokens, 3 in all, on 2 pages do not fit 2 of"),
        ([[1, 2]], 2, "a graph runs decode and verify steps: this batch is a prefill"),
    ],
    ids=["too-many", "prefill"],
)
def test_batch_that_no_graph_can_run_is_refused(
    loop: StepLoop, feeds: list[list[int]], num_reqs: int, message: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        loop.backend.prepare_replay(loop.batch(served(len(feeds)), feeds), num_reqs)
    assert str(refusal.value).startswith(message)


def test_model_without_drafts_captures_decode_steps() -> None:
    with generated_package(lowered_variant("no-mtp")) as package:
        backend = package.HybridBackend(package.Pools.of_size(num_slots=4, num_pages=4))
        backend.init_cuda_graph_state(4, 2)
        captured = tensors_of(backend.prepare_capture(3))
        batch = package.ForwardBatch.from_lists([[1], [2]], [3, 0], [2, 0], [[1], [2]])
        replayed = backend.prepare_replay(batch, 3)
        assert replayed.batch.slots.tolist() == [2, 0, -1]
        assert replayed.lightning.has_initial_state.tolist() == [True, False, False]
        for name, tensor in tensors_of(replayed).items():
            assert tensor.data_ptr() == captured[name].data_ptr(), name
        with pytest.raises(ValueError, match="a graph runs decode steps: this batch is a prefill"):
            backend.prepare_replay(package.ForwardBatch.from_lists([[1, 2]], [0], [0], [[0]]), 3)
