"""A recorded model runs in pools of exactly its plan, which have no room for one request more."""

from __future__ import annotations

import math
from pathlib import Path

import lingen.verify.scenarios
import pytest
import torch
from lingen.verify.case import load_case
from lingen.verify.package import generated_package, lower_case
from lingen.verify.session import Session
from lingen.verify.verifier import verify_case

CASE = Path(__file__).parents[1] / "golden/mtp"


def exact_plan(package: object, num_requests: int, num_pages: int, states: str) -> object:
    """The plan of the budget that is as many slots, rows and pages, counted from the shapes."""
    cache = package.cache
    layers = cache.LAYER_KINDS.count(cache.LIGHTNING)
    heads, width = cache.NUM_HEADS, cache.HEAD_DIM
    state = layers * heads * width * width * 4
    row = 2 * (state if states == "snapshot" else layers * heads * 2 * width * 4)
    kv_layers = cache.LAYER_KINDS.count(cache.MLA) + 1
    page = kv_layers * package.PAGE_SIZE * cache.LATENT_WIDTH * 4
    options = package.Options(
        budget_bytes=(num_requests + 1) * (state + row) + (num_pages + 1) * page,
        page_size=package.PAGE_SIZE,
        prefix_cache=False,
        draft_tokens=2,
        verify_states=states,
        max_running_requests=num_requests,
    )
    plan = package.plan_cache(package.GEOMETRY, options)
    assert (plan.max_state_slots, plan.verify_rows, plan.kv_pages) == (
        num_requests, num_requests, num_pages,
    )  # fmt: skip
    assert (plan.state_bytes, plan.verify_bytes) == (
        (num_requests + 1) * state, (num_requests + 1) * row,
    )  # fmt: skip
    assert plan.unused_bytes == 0
    return plan


class PlannedSession(Session):
    """A session whose pools are those of a plan, with slots and pages from their allocator."""

    verify_states = "replay"
    runs = 0

    def __init__(self, package: object, model: object, num_requests: int, max_tokens: int) -> None:
        super().__init__(package, model, num_requests, max_tokens)
        pages_each = -(-max_tokens // package.PAGE_SIZE)
        plan = exact_plan(
            package, num_requests, num_requests * pages_each, type(self).verify_states
        )
        self.pools = package.Pools(plan)
        assert [tensor.nbytes for tensor in self.pools.tensors()] == [
            plan.state_bytes, plan.verify_bytes, plan.kv_bytes,
        ]  # fmt: skip
        for tensor in self.pools.tensors():
            tensor.fill_(torch.nan)
        self.backend = package.HybridBackend(self.pools)
        held = [self.pools.allocator.admit(max_tokens) for _ in range(num_requests)]
        self.slots = [allocation.slots[0] for allocation in held]
        self.pages = [allocation.pages for allocation in held]
        type(self).runs += 1


@pytest.mark.parametrize("states", ["replay", "snapshot"])
def test_a_golden_runs_in_exactly_its_plan(states: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Planned(PlannedSession):
        pass

    Planned.verify_states = states
    monkeypatch.setattr(lingen.verify.scenarios, "Session", Planned)
    result = verify_case(CASE)
    assert result.passed, result.first_off
    assert any(check.name == "decode.tokens" for check in result.checks)
    assert Planned.runs > 5


def test_one_request_more_is_refused_before_anything_is_written() -> None:
    with generated_package(lower_case(load_case(CASE), "seg_la", -1)) as package:
        pools = package.Pools(exact_plan(package, 2, 2 * 3, "replay"))
        for tensor in pools.tensors():
            tensor.copy_(torch.arange(math.prod(tensor.shape)).view(tensor.shape))
        before = [tensor.clone() for tensor in pools.tensors()]
        for _ in range(2):
            pools.allocator.admit(3 * package.PAGE_SIZE)
        with pytest.raises(package.PoolsFull, match="2 requests run, as many as the plan has"):
            pools.allocator.admit(1)
        assert all(map(torch.equal, pools.tensors(), before))
