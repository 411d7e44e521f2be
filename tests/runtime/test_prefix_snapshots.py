"""Runs restored from a snapshot at a boundary give the tokens of the uninterrupted run."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_variant
from step_loop import NUM_SLOTS, Served, StepLoop, decoded_alone
from torch import nn

D = 3
KINDS = ("every-kind", "all-lightning-with-mtp", "linear-v2-with-mtp")
PAGE_SIZE = 16
PROMPT = [(7 * i * i + 3) % 160 for i in range(40)]
NUM_NEW = 30
BOUNDARIES = (16, 32, 48, 64)


@pytest.fixture(scope="module", params=KINDS)
def package(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    with generated_package(lowered_variant(request.param)) as package:
        yield package


@pytest.fixture(scope="module")
def model(package: ModuleType) -> nn.Module:
    return fill_randomly(package.ForCausalLM(drafts=True), seed=3)


@pytest.fixture(scope="module")
def output(package: ModuleType, model: nn.Module) -> list[int]:
    return decoded_alone(package, model, PROMPT, NUM_NEW)


@pytest.fixture(params=["seg_la", "minimax"])
def loop(request: pytest.FixtureRequest, package: ModuleType, model: nn.Module) -> StepLoop:
    return StepLoop(package, model, D, lightning_backend=request.param)


def new_request(slot: int = 6, row: int = 2) -> Served:
    return Served([*PROMPT], slot, row, pages=[9, 30, 4, 12, 21])


def tracked(request: Served, size: int) -> dict[int, tuple[int, int]]:
    """Track the boundary that the next `size` tokens reach, if any: snapshot i is in slot i."""
    behind = request.computed + size
    reached = [i for i, at in enumerate(BOUNDARIES) if request.computed < at <= behind]
    return {0: (reached[-1], BOUNDARIES[reached[-1]])} if reached else {}


def run_to_the_end(loop: StepLoop, request: Served) -> None:
    """Chunks of 11, so that boundaries lie inside them, then decode; each boundary is tracked."""
    while len(request.output) < NUM_NEW:
        size = min(11, len(request.tokens) - request.computed)
        loop.advance([request], [size], tracked(request, size))


def restored(loop: StepLoop, first: Served, boundary: int) -> Served:
    """A request with the same prompt, or as much of `first` as the snapshot and a token take.

    Pages of the prefix are shared, the others its own.
    """
    pages = [*first.pages[: boundary // PAGE_SIZE], 33, 34, 35, 36, 37]
    request = Served([*PROMPT], slot=5, row=0, pages=pages[:5])
    request.tokens = first.tokens[: max(boundary + 1, len(PROMPT))]
    loop.resume(request, boundary)
    return request


def test_run_from_each_snapshot_gives_the_same_tokens(loop: StepLoop, output: list[int]) -> None:
    first = new_request()
    run_to_the_end(loop, first)
    assert first.output == output
    assert loop.snapshots == dict(zip(BOUNDARIES, range(4), strict=True))
    for boundary in BOUNDARIES:
        again = restored(loop, first, boundary)
        while len(again.tokens) < len(first.tokens):
            loop.advance([again], [len(again.tokens) - again.computed])
        assert again.tokens == first.tokens


def test_snapshot_taken_while_others_draft_and_rows_are_padded(
    loop: StepLoop, output: list[int], package: ModuleType, model: nn.Module
) -> None:
    """One request prefills in chunks and is tracked; another, between and beside it, drafts."""
    other_prompt = [8, 77, 3]
    other_output = decoded_alone(package, model, other_prompt, 20)
    first, other = new_request(), Served(other_prompt, 4, 1, [0, 25])
    loop.advance([None, other], [3, 3])
    for size in (11, 11, 11, 7):
        done = len(other.output)
        loop.verify([other, None], [[other_output[done], 1, 2], [5]])
        track = tracked(first, size)
        loop.advance([first, None, other], [size, 2, 1], track)
    assert other.output == other_output[: len(other.output)]
    again = restored(loop, first, 32)
    while len(again.output) < 5:
        loop.advance([again, None], [len(again.tokens) - again.computed, 1])
    assert again.output == output[:5]


def test_preempted_request_resumes_from_its_snapshot(
    loop: StepLoop, output: list[int], package: ModuleType, model: nn.Module
) -> None:
    """It loses its slot, its row with pending drafts, and the pages behind the boundary."""
    request = new_request()
    loop.advance([request], [20], tracked(request, 20))
    loop.advance([request], [20], tracked(request, 20))
    loop.verify([request], [[*output[1:3], 159]])
    intruder = Served([8, 77, 3], request.slot, request.row, request.pages[2:])
    loop.advance([intruder], [3])
    loop.verify([intruder], [[1, 2, 3]])
    request.slot, request.row, request.pages = 5, 0, [*request.pages[:2], 33, 34, 35]
    loop.resume(request, 32)
    # What it had is fed again, its own tokens included, and it goes on drafting.
    loop.advance([request], [len(request.tokens) - request.computed])
    while len(request.output) < NUM_NEW:
        done = len(request.output)
        loop.verify([request], [[*output[done : done + 2], 159]])
    assert request.output[:NUM_NEW] == output
    assert intruder.output == decoded_alone(package, model, [8, 77, 3], len(intruder.output))


def test_snapshot_is_listed_only_when_its_step_has_returned(loop: StepLoop) -> None:
    request, listed = new_request(), []
    hook = loop.model.norm.register_forward_hook(lambda *call: listed.append({**loop.snapshots}))
    loop.advance([request], [20], tracked(request, 20))
    hook.remove()
    assert (listed, loop.snapshots) == ([{}], {16: 0})


def test_steps_without_a_boundary_write_no_snapshot(loop: StepLoop) -> None:
    request = new_request()
    loop.advance([request], [10], {0: (1, 16)})
    loop.verify([request], [[1, 2, 3]])
    kept = [slot for slot in range(NUM_SLOTS) if slot != request.slot]
    assert loop.pools.state[:, kept].isnan().all()
    assert torch.isfinite(loop.pools.state[:, request.slot]).all()
