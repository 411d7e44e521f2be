"""Lightning attention fed with chains of drafts, next to plain decoding of what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

import torch
from lightning_calls import LAYER_IDX, NUM_STATE_LAYERS, PAD_SLOT, Inputs
from plain_pools import plain_pools
from torch import Tensor

NUM_SLOTS, NUM_ROWS = 7, 5


@dataclass
class Chain:
    """A request on its slot and verify row, and which token of its sequence comes next."""

    slot: int
    row: int
    computed: int = 0


@dataclass
class Runner:
    """One backend over pools that start as NaN; a step takes tokens of `inputs` by their index.

    Slots and rows are scattered, so that a slip between request, slot and row shows.
    """

    package: ModuleType
    name: str
    verify_states: str
    inputs: Inputs
    num_drafts: int
    state_dtype: torch.dtype = torch.float32
    backend: object = field(init=False)

    def __post_init__(self) -> None:
        _, num_heads, head_dim = self.inputs.q.shape
        widths = (head_dim, head_dim) if self.verify_states == "snapshot" else (2 * head_dim,)
        self.pool = self.inputs.new_pool(NUM_SLOTS, self.state_dtype)
        self.verify = torch.full(
            (NUM_STATE_LAYERS, NUM_ROWS + 1, self.num_drafts, num_heads, *widths),
            torch.nan,
            dtype=self.state_dtype if len(widths) == 2 else self.inputs.q.dtype,
        )
        pools = plain_pools(state=self.pool, verify=self.verify, verify_states=self.verify_states)
        self.backend = self.package.HybridBackend(pools, self.name)

    def batch(
        self, chains: Sequence[Chain | None], lengths: Sequence[int], **more: object
    ) -> object:
        """`lengths[i]` tokens of chain i; None is padding that claims to be in the middle."""
        computed = [chain.computed if chain else 3 for chain in chains]
        longest = [
            (done + length) // 16 + 1 for done, length in zip(computed, lengths, strict=True)
        ]
        return self.package.ForwardBatch.from_lists(
            [[1] * length for length in lengths],
            computed,
            [chain.slot if chain else PAD_SLOT for chain in chains],
            [[0] * pages for pages in longest],
            verify_rows=[chain.row if chain else PAD_SLOT for chain in chains],
            **more,
        )

    def run(
        self,
        chains: Sequence[Chain | None],
        tokens: Sequence[Sequence[int]],
        **more: object,
    ) -> tuple[object, list[Tensor]]:
        """One step of given tokens; counts stay as they are. Returns it and each chain's output."""
        lengths = [len(part) for part in tokens]
        flat = self.inputs.tokens([token for part in tokens for token in part])
        step = self.backend.prepare(self.batch(chains, lengths, **more))
        self.backend.apply_pending(step, self.log_decays)
        out = self.backend.forward(
            LAYER_IDX, step, flat.q, flat.k, flat.v, flat.log_decay, flat.scale
        )
        self.backend.finish(step)
        return step, list(out.split(lengths))

    def verify_step(
        self,
        chains: Sequence[Chain | None],
        tokens: Sequence[Sequence[int]],
        accepted: Sequence[int],
    ) -> list[Tensor]:
        """A certain token and drafts per chain; the first `accepted` drafts are kept."""
        step, outs = self.run(chains, tokens, is_verify=True)
        self.backend.accept(step, torch.tensor(accepted, dtype=torch.int32))
        for chain, part, kept in zip(chains, tokens, accepted, strict=True):
            if chain and part:
                chain.computed += 1 + kept
        return outs

    def commit(self, chains: Sequence[Chain | None]) -> None:
        slots, rows = (
            torch.tensor(
                [getattr(chain, name) if chain else PAD_SLOT for chain in chains],
                dtype=torch.int32,
            )
            for name in ("slot", "row")
        )
        self.backend.commit(slots, rows, self.log_decays)

    @property
    def log_decays(self) -> list[Tensor]:
        """Another decay in the layers around the one that runs."""
        log_decay = self.inputs.log_decay
        return [log_decay * (1 + layer - LAYER_IDX) for layer in range(NUM_STATE_LAYERS)]

    def state(self, chain: Chain) -> Tensor:
        return self.pool[LAYER_IDX, chain.slot]


def decoded(runner: Runner, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What decoding these tokens one by one, alone, gives: outputs and state."""
    plain = Runner(
        runner.package,
        runner.name,
        "replay",
        runner.inputs,
        runner.num_drafts,
        runner.state_dtype,
    )
    chain, outs = Chain(slot=1, row=0), []
    for token in tokens:
        outs += plain.run([chain], [[token]])[1]
        chain.computed += 1
    return torch.cat(outs), plain.state(chain)
