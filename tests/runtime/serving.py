"""Requests served by a generated package step by step, over pools that start as NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor, nn

PAD_SLOT = -1
NUM_SLOTS = 8
NUM_PAGES = 24


@dataclass
class Request:
    """A token sequence, where its caches are, and how much of it they hold."""

    tokens: list[int]
    slot: int
    pages: list[int]
    computed: int = 0


def requests_of(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[Request]:
    """Requests with random tokens on scattered slots and pages, equal for equal arguments."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(NUM_SLOTS, generator=generator).tolist()
    pages = torch.randperm(NUM_PAGES, generator=generator).tolist()
    requests = []
    for length in lengths:
        tokens = torch.randint(vocab_size, (length,), generator=generator).tolist()
        num_pages = length // 16 + 1
        requests.append(Request(tokens, slots.pop(), [pages.pop() for _ in range(num_pages)]))
    return requests


@dataclass
class Server:
    """One model and its pools, by default those that the package makes without being asked.

    A step takes (request, number of tokens); None is a padded row.
    """

    package: ModuleType
    model: nn.Module
    pools: object = None
    backend: object = field(init=False)

    def __post_init__(self) -> None:
        self.pools = self.pools or self.package.Pools.of_size(NUM_SLOTS, NUM_PAGES)
        for pool in self.pools.tensors():
            pool.fill_(torch.nan)
        self.backend = self.package.HybridBackend(self.pools)

    def prepare(self, chunks: Sequence[tuple[Request | None, int]]):
        """The step of these chunks. Padded rows claim to hold tokens on a page that is in use."""
        batch = self.package.ForwardBatch.from_lists(
            [
                request.tokens[request.computed : request.computed + count]
                if request
                else [1] * count
                for request, count in chunks
            ],
            [request.computed if request else 3 for request, _ in chunks],
            [request.slot if request else PAD_SLOT for request, _ in chunks],
            [request.pages if request else [0] for request, _ in chunks],
        )
        return self.backend.prepare(batch)

    @torch.no_grad()
    def step(self, *chunks: tuple[Request | None, int]) -> list[Tensor]:
        """Run one step; returns each chunk's hidden states [its tokens, D]."""
        hidden = self.model(self.prepare(chunks), self.backend)
        for request, count in chunks:
            if request:
                request.computed += count
        return list(hidden.split([count for _, count in chunks]))

    @torch.no_grad()
    def step_and_draft(
        self, next_ids: Sequence[int], *chunks: tuple[Request | None, int]
    ) -> list[Tensor]:
        """Run one step and the MTP layer over it; returns each chunk's drafted hidden states."""
        step = self.prepare(chunks)
        hidden = self.model(step, self.backend)
        out = self.model.draft(torch.tensor(next_ids), hidden, step, self.backend)
        for request, count in chunks:
            if request:
                request.computed += count
        return list(out.split([count for _, count in chunks]))

    def snapshot(self) -> list[Tensor]:
        return [pool.clone() for pool in self.pools.tensors()]

    def usable_without(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """All usable cache memory that belongs to none of these requests."""
        memory = {}
        if hasattr(self.pools, "state"):
            slots = {request.slot for request in requests}
            kept = [slot for slot in range(NUM_SLOTS) if slot not in slots]
            memory["state"] = self.pools.state[:, kept]
        if hasattr(self.pools, "kv"):
            pages = {page for request in requests for page in request.pages}
            kept = [page for page in range(NUM_PAGES) if page not in pages]
            memory["kv"] = self.pools.kv[:, kept]
        return memory
