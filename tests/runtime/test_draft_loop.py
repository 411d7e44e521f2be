"""Greedy output with drafts is that without, whatever the drafts, the batch and the mode."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from types import ModuleType

import pytest
import torch
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_variant
from step_loop import Served, StepLoop, decoded_alone
from torch import nn

D = 3
KINDS = ("every-kind", "all-lightning-with-mtp", "all-mla", "linear-v2-with-mtp", "v2-with-mtp")
PROMPTS = [[5, 9, 2, 77, 31], [8], list(range(40, 75))]
NUM_NEW = 24


@pytest.fixture(scope="module", params=KINDS)
def package(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    with generated_package(lowered_variant(request.param)) as package:
        yield package


@pytest.fixture(scope="module")
def model(package: ModuleType) -> nn.Module:
    return fill_randomly(package.ForCausalLM(drafts=True), seed=3)


@pytest.fixture(scope="module")
def outputs(package: ModuleType, model: nn.Module) -> list[list[int]]:
    """Without drafts, each request alone; longer than what is drafted."""
    outputs = [decoded_alone(package, model, prompt, NUM_NEW + D + 1) for prompt in PROMPTS]
    assert len({tuple(output) for output in outputs}) == len(outputs)
    return outputs


def served() -> list[Served]:
    return [
        Served([*prompt], slot=slot, row=row, pages=pages)
        for prompt, slot, row, pages in zip(
            PROMPTS, [6, 1, 4], [2, 5, 0], [[9, 2, 30], [17, 3, 8], [0, 11, 25, 7, 1]], strict=True
        )
    ]


def spoilt(chance: random.Random, drafts: list[int]) -> list[int]:
    """Some of the right drafts, then maybe a wrong one and others."""
    drafts = drafts[: chance.choice([0, 1, D, D])]
    wrong = chance.choice([0, 1, 2, 2, 9])
    return [*drafts[:wrong], *(chance.randrange(160) for _ in drafts[wrong:])]


@pytest.mark.parametrize(
    ("verify_states", "lightning_backend"),
    product(["replay", "snapshot"], ["seg_la", "minimax"]),
)
def test_guessed_drafts_do_not_change_the_output(
    package: ModuleType,
    model: nn.Module,
    outputs: list[list[int]],
    verify_states: str,
    lightning_backend: str,
) -> None:
    """Right and wrong drafts of changing numbers, padded rows, and steps without drafts between."""
    chance = random.Random(11)
    loop = StepLoop(package, model, D, verify_states, lightning_backend)
    requests = served()
    loop.advance([*requests, None], [*map(len, PROMPTS), 4])
    counts = set()
    while min(len(request.output) for request in requests) < NUM_NEW:
        order = chance.sample(range(3), chance.choice([2, 3, 3]))
        batch = [requests[i] for i in order]
        batch = [request for request in batch if len(request.output) <= NUM_NEW]
        if chance.random() < 0.25:
            loop.advance([None, *batch], [1] * (1 + len(batch)))
            continue
        drafts = []
        for request in batch:
            output = outputs[requests.index(request)]
            done = len(request.output)
            drafts.append(spoilt(chance, output[done : done + D]))
        counts |= set(loop.verify([*batch, None], [*drafts, [3, 3]])[:-1])
    assert counts == set(range(D + 1))
    for request, output in zip(requests, outputs, strict=True):
        assert request.output[:NUM_NEW] == output[:NUM_NEW]


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
def test_drafts_of_the_mtp_layer_do_not_change_the_output(
    package: ModuleType, model: nn.Module, outputs: list[list[int]], verify_states: str
) -> None:
    loop, requests = StepLoop(package, model, D, verify_states), served()
    drafts = prefill_and_draft(loop, requests)
    while min(len(request.output) for request in requests) < NUM_NEW:
        drafts = verify_and_draft(loop, requests, drafts)
    for request, output in zip(requests, outputs, strict=True):
        assert request.output[:NUM_NEW] == output[:NUM_NEW]


@torch.no_grad()
def prefill_and_draft(loop: StepLoop, requests: list[Served]) -> list[list[int]]:
    feeds = [request.tokens for request in requests]
    step = loop.backend.prepare(loop.batch(requests, feeds))
    hidden = loop.model(step, loop.backend)
    ends = torch.tensor([len(feed) for feed in feeds]).cumsum(0) - 1
    for request, token in zip(requests, loop.greedy(hidden[ends]), strict=True):
        request.computed = len(request.tokens)
        request.tokens.append(token)
    next_ids = [token for request in requests for token in request.tokens[1:]]
    drafted = loop.model.draft(torch.tensor(next_ids), hidden, step, loop.backend)
    return draft_chains(loop, requests, drafted[ends])


@torch.no_grad()
def verify_and_draft(
    loop: StepLoop, requests: list[Served], drafts: list[list[int]]
) -> list[list[int]]:
    seen: dict[str, torch.Tensor] = {}
    hook = loop.model.norm.register_forward_hook(lambda *call: seen.update(hidden=call[2]))
    feeds = [[request.tokens[-1], *chain] for request, chain in zip(requests, drafts, strict=True)]
    step = loop.backend.prepare(loop.batch(requests, feeds, is_verify=True))
    accepted = loop.verify(requests, drafts)
    hook.remove()
    # The same positions once more: what the model chose there is the token after each.
    next_ids = loop.model.compute_logits(seen["hidden"]).argmax(-1)
    drafted = loop.model.draft(next_ids, seen["hidden"], step, loop.backend)
    starts = torch.tensor([0, *map(len, feeds)]).cumsum(0)[:-1]
    return draft_chains(loop, requests, drafted[starts + torch.tensor(accepted)])


def draft_chains(loop: StepLoop, requests: list[Served], drafted: torch.Tensor) -> list[list[int]]:
    """D drafts per request, each from the MTP layer's output at the place before."""
    chains = [[token] for token in loop.greedy(drafted)]
    for place in range(D - 1):
        ahead = [Served(r.tokens, r.slot, r.row, r.pages, r.computed + place) for r in requests]
        last = [chain[-1] for chain in chains]
        step = loop.backend.prepare(loop.batch(ahead, [[token] for token in last]))
        drafted = loop.model.draft(torch.tensor(last), drafted, step, loop.backend)
        for chain, token in zip(chains, loop.greedy(drafted), strict=True):
            chain.append(token)
    return chains


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
def test_request_that_ends_inside_its_drafts_leaves_nothing_to_the_next(
    package: ModuleType, model: nn.Module, outputs: list[list[int]], verify_states: str
) -> None:
    """Its slot, row and pages go to a request that prefills, and to one that starts with drafts."""
    loop = StepLoop(package, model, D, verify_states)
    first, other, last = served()
    loop.advance([first, other], [len(PROMPTS[0]), 1])
    loop.verify([first, other], [outputs[0][1 : 1 + D], outputs[1][1 : 1 + D]])
    # The end of `first` is the second of its three drafts: it leaves with drafts pending.
    heir = Served([*PROMPTS[2]], first.slot, first.row, last.pages)
    loop.advance([heir, other], [len(PROMPTS[2]), 1])
    # One token of prompt: the first step of this request is a verify step.
    fresh = Served([*PROMPTS[1]], slot=3, row=3, pages=[20, 21, 22])
    loop.verify([fresh, heir], [outputs[1][:2], outputs[2][1:3]])
    for _ in range(3):
        loop.advance([heir, fresh, other], [1, 1, 1])
    assert heir.output == outputs[2][: len(heir.output)] and len(heir.output) == 7
    assert fresh.output == outputs[1][: len(fresh.output)] and len(fresh.output) == 6
    assert other.output == outputs[1][: len(other.output)] and len(other.output) == 9


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
def test_states_after_drafts_are_those_of_plain_decoding(
    package: ModuleType, model: nn.Module, outputs: list[list[int]], verify_states: str
) -> None:
    if not hasattr(StepLoop(package, model, D).pools, "state"):
        assert not hasattr(package.HybridBackend, "accept")
        return
    loop, requests = StepLoop(package, model, D, verify_states), served()
    plain, alike = StepLoop(package, model, D, verify_states), served()
    for these, each in ((loop, requests), (plain, alike)):
        these.advance(each, [*map(len, PROMPTS)])
    loop.verify(requests, [outputs[0][1:4], [-1 % 160, 4, 4], outputs[2][1:2]])
    for request, same in zip(requests, alike, strict=True):
        while same.computed < request.computed:
            plain.advance([same], [1])
    slots, rows = (
        torch.tensor([getattr(r, name) for r in requests], dtype=torch.int32)
        for name in ("slot", "row")
    )
    loop.model.commit(slots, rows, loop.backend)
    torch.testing.assert_close(
        loop.pools.state[:, slots.long()], plain.pools.state[:, slots.long()], rtol=1e-4, atol=1e-4
    )
