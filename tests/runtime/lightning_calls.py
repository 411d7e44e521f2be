"""Runs lightning attention of a generated package on inputs of any size, over a pool of NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from comparison import assert_same_bits
from lingen.ir.decay import head_slopes
from plain_pools import plain_pools
from reference import lightning_recurrence
from torch import Tensor

LAYER_IDX = 1  # the second lightning layer of three: those around it must not change
NUM_STATE_LAYERS = 3
PAD_SLOT = -1
NO_SLOTS = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True)
class Inputs:
    """q, k, v of T tokens [T, H, K] and the decay of their heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    scale: float

    @classmethod
    def random(
        cls, num_tokens: int, num_heads: int = 3, head_dim: int = 8, *, seed: int = 0
    ) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_tokens, num_heads, head_dim)
        q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
        slopes = torch.tensor(head_slopes(num_heads), dtype=torch.float64)
        return cls(q, k, v, (-slopes).float(), head_dim**-0.5)

    def in_nan_filled_buffers(self) -> Inputs:
        """The same numbers as views with gaps in every dimension but the last, NaN between them."""

        def spread(tensor: Tensor) -> Tensor:
            num_tokens, num_heads, head_dim = tensor.shape
            buffer = torch.full((2 * num_tokens + 3, 3 * num_heads, head_dim + 5), torch.nan)
            view = buffer[2 : 2 + 2 * num_tokens : 2, 1 : 1 + 2 * num_heads : 2, 3 : 3 + head_dim]
            return view.copy_(tensor)

        return Inputs(spread(self.q), spread(self.k), spread(self.v), self.log_decay, self.scale)

    def to(self, dtype: torch.dtype) -> Inputs:
        q, k, v = (tensor.to(dtype) for tensor in (self.q, self.k, self.v))
        return Inputs(q, k, v, self.log_decay, self.scale)

    def tokens(self, of: slice | list[int]) -> Inputs:
        return Inputs(self.q[of], self.k[of], self.v[of], self.log_decay, self.scale)

    def new_pool(self, num_slots: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """[layers, num_slots + 1, H, K, V], all NaN."""
        head_dim = self.q.shape[-1]
        shape = (NUM_STATE_LAYERS, num_slots + 1, self.q.shape[1], head_dim, head_dim)
        return torch.full(shape, torch.nan, dtype=dtype)

    def recurrence(self, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return lightning_recurrence(self.q, self.k, self.v, state, self.log_decay, self.scale)


def worked_example(scale: float) -> tuple[Inputs, Tensor, Tensor]:
    """Decay 1/2 and two dimensions, by hand: inputs, outputs and the last state (rows: key)."""

    def rows(values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).unsqueeze(1)

    inputs = Inputs(
        q=rows([[1, 1], [1, 1], [1, 1]]),
        k=rows([[1, 0], [0, 1], [1, 1]]),
        v=rows([[1, 2], [4, 0], [0, 2]]),
        log_decay=torch.tensor([0.5]).log(),
        scale=scale,
    )
    out = scale * rows([[1, 2], [4.5, 1], [2.25, 4.5]])
    return inputs, out, torch.tensor([[[0.25, 2.5], [2, 2]]])


@dataclass(frozen=True)
class Calls:
    """One backend, `seg_la` or `minimax`, of one package."""

    package: ModuleType
    name: str

    def run(
        self,
        inputs: Inputs,
        pool: Tensor,
        *,
        lengths: Sequence[int],
        slots: Sequence[int],
        computed: Sequence[int] | None = None,
    ) -> Tensor:
        """One step of `len(lengths)` requests, through the batch's metadata as a model does it.

        Also checks what no call may do: touch another layer, or a slot that is not listed or whose
        request has no tokens.
        """
        backend = self.package.backend.HybridBackend(plain_pools(state=pool), self.name)
        computed = [0] * len(lengths) if computed is None else computed
        pages = [
            [0] * ((length + done) // 16 + 1)
            for length, done in zip(lengths, computed, strict=True)
        ]
        batch = self.package.ForwardBatch.from_lists(
            [[1] * length for length in lengths], list(computed), list(slots), pages
        )
        before = pool.clone()
        out = backend.forward(
            LAYER_IDX,
            backend.prepare(batch),
            *(inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.scale),
        )
        written = {slot for slot, length in zip(slots, lengths, strict=True) if length}
        kept = [slot for slot in range(pool.shape[1] - 1) if slot not in written]
        assert_same_bits(pool[LAYER_IDX, kept], before[LAYER_IDX, kept])
        others = [layer for layer in range(NUM_STATE_LAYERS) if layer != LAYER_IDX]
        assert_same_bits(pool[others], before[others])
        return out
