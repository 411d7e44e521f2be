"""A minimal engine: greedy, steps one by one, drafts, snapshots. The host may wait here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor, nn

PAD_SLOT = -1
NUM_SLOTS, NUM_PAGES = 8, 40


@dataclass
class Served:
    """A request. `computed` tokens are in the caches; those behind them are to be fed."""

    tokens: list[int]
    slot: int
    row: int
    pages: list[int]
    num_prompt: int = field(init=False)
    computed: int = 0

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


@dataclass
class StepLoop:
    """One model and its caches, which start as NaN.

    A snapshot is taken by the step that computes the last of its tokens, and is listed in
    `snapshots`, slot by number of tokens, when that step has returned: later steps run behind it on
    the same stream, so whoever finds it there reads what was written.
    """

    package: ModuleType
    model: nn.Module
    draft_tokens: int
    verify_states: str = "replay"
    lightning_backend: str = "seg_la"
    snapshots: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.model.lm_head.weight.device
        self.pools = self.package.Pools.of_size(
            NUM_SLOTS,
            NUM_PAGES,
            device,
            **self._pool_options(),
        )
        for pool in self.pools.tensors():
            pool.fill_(torch.nan)
        self.has_states = hasattr(self.pools, "state")
        names = (self.lightning_backend,) if self.has_states else ()
        self.backend = self.package.HybridBackend(self.pools, *names)

    def _pool_options(self) -> dict[str, object]:
        options: dict[str, object] = {}
        if hasattr(self.package.cache, "DRAFT_TOKENS"):
            options |= {"draft_tokens": self.draft_tokens, "verify_states": self.verify_states}
        if hasattr(self.model, "tp"):
            options["tp"] = self.model.tp.size
        return options

    def batch(
        self,
        requests: Sequence[Served | None],
        feeds: Sequence[list[int]],
        is_verify: bool = False,
        track: dict[int, tuple[int, int]] | None = None,
    ) -> object:
        """`feeds[i]` behind the computed tokens of request i; None is a padded row.

        track: index of a request → its track slot and position.
        """
        has_drafts = hasattr(self.package.cache, "DRAFT_TOKENS")
        more: dict[str, object] = {"is_verify": is_verify} if has_drafts else {}
        if self.has_states and has_drafts:
            more["verify_rows"] = [request.row if request else PAD_SLOT for request in requests]
        if track:
            marks = [track.get(i, (PAD_SLOT, 0)) for i in range(len(requests))]
            more["track_slots"], more["track_positions"] = zip(*marks, strict=True)
        return self.package.ForwardBatch.from_lists(
            list(feeds),
            [request.computed if request else 3 for request in requests],
            [request.slot if request else PAD_SLOT for request in requests],
            [request.pages if request else [0] for request in requests],
            device=self.model.lm_head.weight.device,
            **more,
        )

    @torch.no_grad()
    def advance(
        self,
        requests: Sequence[Served | None],
        sizes: Sequence[int],
        track: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        """Prefill or decode: the next `sizes[i]` tokens; who has no token left samples one."""
        feeds = [
            request.tokens[request.computed : request.computed + size] if request else [1] * size
            for request, size in zip(requests, sizes, strict=True)
        ]
        step = self.backend.prepare(self.batch(requests, feeds, track=track))
        hidden = self.model(step, self.backend)
        for request, feed, part in zip(
            requests, feeds, hidden.split([len(feed) for feed in feeds]), strict=True
        ):
            if request and feed:
                request.computed += len(feed)
                if request.computed == len(request.tokens):
                    request.tokens.append(self.greedy(part[-1:])[0])
        for i, (slot, position) in (track or {}).items():
            if requests[i] and requests[i].computed >= position:
                self.snapshots[position] = slot

    @torch.no_grad()
    def verify(self, requests: Sequence[Served | None], drafts: Sequence[list[int]]) -> list[int]:
        """Feed each request's last token and its drafts; keep what greedy decoding would have
        chosen, and the choice behind it. Returns how many drafts were accepted."""
        feeds = [
            [request.tokens[-1], *chain] if request else [1, *chain]
            for request, chain in zip(requests, drafts, strict=True)
        ]
        step = self.backend.prepare(self.batch(requests, feeds, is_verify=True))
        hidden = self.model(step, self.backend)
        parts = hidden.split([len(feed) for feed in feeds])
        accepted = []
        for request, chain, part in zip(requests, drafts, parts, strict=True):
            choices = self.greedy(part)
            kept = 0
            while kept < len(chain) and chain[kept] == choices[kept]:
                kept += 1
            accepted.append(kept)
            if request:
                request.tokens += choices[: kept + 1]
                request.computed += kept + 1
        if self.has_states:
            counts = torch.tensor(accepted, dtype=torch.int32, device=hidden.device)
            self.backend.accept(step, counts)
        return accepted

    def greedy(self, hidden: Tensor) -> list[int]:
        return self.model.compute_logits(hidden).argmax(-1).tolist()

    def resume(self, request: Served, num_tokens: int) -> None:
        """Start the request's slot from the snapshot of its first tokens."""
        device = self.pools.state.device
        source, target = (
            torch.tensor([slot], dtype=torch.int32, device=device)
            for slot in (self.snapshots[num_tokens], request.slot)
        )
        self.backend.copy_states(source, target)
        request.computed = num_tokens


def decoded_alone(
    package: ModuleType, model: nn.Module, prompt: Sequence[int], num_new: int, **options: object
) -> list[int]:
    """Greedy output of one request without drafts, one token per step."""
    loop = StepLoop(package, model, draft_tokens=0, **options)
    request = Served([*prompt], slot=0, row=0, pages=list(range(NUM_PAGES)))
    loop.advance([request], [len(prompt)])
    while len(request.output) < num_new:
        loop.advance([request], [1])
    return request.output
