"""Decode, verify and commit never wait for the device: traced with tensors that hold no numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from lingen.verify.package import generated_package
from small_models import lowered_variant
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

# What reading a number, or a shape that depends on one, raises under fake tensors.
HOST_SYNC = (DataDependentOutputException, DynamicOutputShapeException)


KINDS = (
    *("every-kind", "all-mla", "all-lightning", "biases", "yarn"),
    *("v2-with-mtp", "linear-v2", "v1", "v2-yarn"),
)


@pytest.fixture(scope="module", params=KINDS)
def package(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    with generated_package(lowered_variant(request.param)) as package:
        yield package


def unused_fields(package: ModuleType, num_reqs: int) -> dict[str, object]:
    """What a batch without tracking and drafts holds, as far as the package has it."""
    nothing = torch.zeros(0, dtype=torch.int32)
    values = {
        "track_slots": nothing,
        "track_positions": nothing,
        "is_verify": False,
        "verify_rows": torch.full((num_reqs,), -1, dtype=torch.int32),
    }
    names = {field.name for field in dataclasses.fields(package.ForwardBatch)}
    return {name: value for name, value in values.items() if name in names}


def trace_a_step(package: ModuleType, lengths: list[int]) -> torch.Size:
    """Metadata, model, logits and, where there is an MTP layer, a draft; returns the logits' shape.

    The batch itself comes from the host: it is built before, as in a captured graph.
    """
    with FakeTensorMode(), torch.no_grad():
        model: nn.Module = package.ForCausalLM()
        backend = package.HybridBackend(package.Pools.of_size(num_slots=9, num_pages=9))
        batch = fake_batch(package, lengths)
        step = backend.prepare(batch)
        hidden = model(step, backend)
        logits = model.compute_logits(hidden)
        if getattr(model, "mtp", None):
            drafted = model.draft(logits.argmax(-1), hidden, step, backend)
            assert drafted.shape == hidden.shape
    return logits.shape


def test_decode_step_reads_no_number_on_the_host(package: ModuleType) -> None:
    assert trace_a_step(package, [1] * 5) == (5, 160)


DRAFTING = ("every-kind", "all-mla", "all-lightning-with-mtp", "linear-v2-with-mtp", "v2-with-mtp")


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
@pytest.mark.parametrize("kind", DRAFTING)
def test_verify_accept_and_commit_read_no_number_on_the_host(kind: str, verify_states: str) -> None:
    """A padded verify step, and what follows it: acceptance, drafts, commit, a tracked decode."""
    with generated_package(lowered_variant(kind)) as package, FakeTensorMode(), torch.no_grad():
        model: nn.Module = package.ForCausalLM(drafts=True)
        pools = package.Pools.of_size(9, 9, draft_tokens=3, verify_states=verify_states)
        backend = package.HybridBackend(pools)
        backend.init_cuda_graph_state(5, 4)
        step = backend.prepare_replay(fake_batch(package, [4, 1, 2], is_verify=True), 5)
        hidden = model(step, backend)
        assert model.compute_logits(hidden).shape == (20, 160)
        assert model.draft(step.batch.input_ids, hidden, step, backend).shape == hidden.shape
        if hasattr(backend, "accept"):
            backend.accept(step, torch.zeros(10, dtype=torch.int32))
            slots = torch.zeros(2, dtype=torch.int32)
            model.commit(slots, slots, backend)
            backend.copy_states(slots, slots)
        step = backend.prepare_replay(fake_batch(package, [1, 1, 1]), 5)
        if hasattr(step, "lightning"):
            assert step.lightning.track_slots.shape == (5,)
        assert model(step, backend).shape == (5, hidden.shape[1])


def fake_batch(package: ModuleType, lengths: list[int], is_verify: bool = False):
    num_reqs = len(lengths)
    return package.ForwardBatch(
        input_ids=torch.zeros(sum(lengths), dtype=torch.int64),
        query_start_loc=torch.zeros(num_reqs + 1, dtype=torch.int32),
        num_computed_tokens=torch.zeros(num_reqs, dtype=torch.int32),
        slots=torch.zeros(num_reqs, dtype=torch.int32),
        page_table=torch.zeros(num_reqs, 3, dtype=torch.int32),
        max_query_len=max(lengths),
        **(unused_fields(package, num_reqs) | ({"is_verify": True} if is_verify else {})),
    )


def test_trace_notices_that_a_prefill_reads_numbers(package: ModuleType) -> None:
    with pytest.raises(HOST_SYNC):
        trace_a_step(package, [3, 1])


def test_metadata_of_a_prefill_reads_no_number_on_the_host(package: ModuleType) -> None:
    with FakeTensorMode():
        backend = package.HybridBackend(package.Pools.of_size(num_slots=2, num_pages=2))
        ints = torch.zeros(2, dtype=torch.int32)
        batch = package.ForwardBatch(
            input_ids=torch.zeros(7, dtype=torch.int64),
            query_start_loc=torch.zeros(3, dtype=torch.int32),
            num_computed_tokens=ints,
            slots=ints,
            page_table=torch.zeros(2, 1, dtype=torch.int32),
            max_query_len=4,
            **unused_fields(package, 2),
        )
        assert backend.prepare(batch).layout.positions.shape == (7,)


@pytest.mark.parametrize("read", ["item", "tolist", "nonzero"])
def test_trace_raises_for_each_way_to_wait(read: str) -> None:
    with FakeTensorMode(), pytest.raises(HOST_SYNC):
        getattr(torch.zeros(1), read)()


def test_trace_raises_for_a_boolean_mask() -> None:
    with FakeTensorMode(), pytest.raises(HOST_SYNC):
        torch.zeros(3)[torch.zeros(3, dtype=torch.bool)]
