"""Random calls of latent attention over a paged cache, poisoned where nobody may look."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

NONSENSE_PAGE = 1_000_000


@dataclasses.dataclass(frozen=True)
class Shape:
    heads: int = 4
    rank: int = 24
    rope: int = 8
    nope: int = 12
    value: int = 10
    page_size: int = 16


FLASH = Shape(heads=32, rank=512, rope=64, nope=128, value=128, page_size=64)


@dataclasses.dataclass(frozen=True)
class LatentCall:
    """Arguments of `mla_decode`; `seq_lens` 0 marks a padded row, whose queries are NaN."""

    q_nope: Tensor
    q_rope: Tensor
    kv: Tensor
    page_table: Tensor
    query_start_loc: Tensor
    token_to_req: Tensor
    seq_lens: Tensor
    w_uk: Tensor
    w_uv: Tensor
    scale: float

    @classmethod
    def random(
        cls,
        shape: Shape,
        new: Sequence[int],
        lens: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        seed: int = 0,
    ) -> LatentCall:
        """Requests of `new` tokens that are `lens` long after the step.

        Queries and weights are views with gaps, pages are scattered, and every row of the pool
        that no request wrote is NaN.
        """
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator)

        counts = [-(-length // shape.page_size) for length in lens]
        pages = torch.randperm(sum(counts) + 2, generator=generator).tolist()
        kv = torch.full((len(pages) + 1, shape.page_size, shape.rank + shape.rope), torch.nan)
        table = torch.full((len(lens), max([*counts, 1]) + 1), NONSENSE_PAGE, dtype=torch.int32)
        for request, (length, count) in enumerate(zip(lens, counts, strict=True)):
            for index in range(count):
                page = pages.pop()
                table[request, index] = page
                filled = min(shape.page_size, length - index * shape.page_size)
                kv[page, :filled] = normal(filled, kv.shape[-1])
        starts = torch.tensor([0, *new]).cumsum(0)
        num_tokens = int(starts[-1])
        token_to_req = torch.repeat_interleave(torch.arange(len(new)), torch.tensor(new))
        q = normal(num_tokens, shape.heads, shape.nope + shape.rope + 3)
        q[(torch.tensor(lens) == 0)[token_to_req]] = torch.nan
        q_nope, q_rope, _ = q.to(device, dtype).split([shape.nope, shape.rope, 3], dim=-1)
        w = normal(shape.heads, shape.nope + shape.value, shape.rank) / shape.rank**0.5
        w_uk, w_uv = w.to(device, dtype).split([shape.nope, shape.value], dim=1)
        return cls(
            q_nope=q_nope,
            q_rope=q_rope,
            kv=kv.to(device, dtype),
            page_table=table.to(device),
            query_start_loc=starts.int().to(device),
            token_to_req=token_to_req.to(device),
            seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
            w_uk=w_uk,
            w_uv=w_uv,
            scale=(shape.nope + shape.rope) ** -0.5,
        )

    @property
    def max_query_len(self) -> int:
        return int(self.query_start_loc.diff().max())

    def arguments(self, *without: str) -> list[Tensor | float]:
        names = (field.name for field in dataclasses.fields(self))
        return [getattr(self, name) for name in names if name not in without]

    def requests(self, order: Sequence[int]) -> LatentCall:
        """The same requests, those of `order` alone and in that order."""
        starts = self.query_start_loc.tolist()
        tokens = [token for r in order for token in range(starts[r], starts[r + 1])]
        new = [starts[r + 1] - starts[r] for r in order]
        device = self.kv.device
        return dataclasses.replace(
            self,
            q_nope=self.q_nope[tokens],
            q_rope=self.q_rope[tokens],
            page_table=self.page_table[list(order)],
            query_start_loc=torch.tensor([0, *new], device=device).cumsum(0).int(),
            token_to_req=torch.repeat_interleave(
                torch.arange(len(new), device=device), torch.tensor(new, device=device)
            ),
            seq_lens=self.seq_lens[list(order)],
        )

    def reference(self, mla: ModuleType) -> Tensor:
        """In float32 from the same operands; zero for padded rows."""
        wide = (
            x.float() if isinstance(x, Tensor) and x.is_floating_point() else x
            for x in self.arguments("token_to_req")
        )
        return mla.mla_prefill_ref(*wide)

    def absorbed(self, mla: ModuleType, max_query_len: int | None = None) -> Tensor:
        return mla.mla_decode(*self.arguments(), max_query_len or self.max_query_len)

    def mixed(self, mla: ModuleType) -> Tensor:
        return mla.mla_prefill(*self.arguments(), self.max_query_len)

    def expanded(self, mla: ModuleType, min_query_len: int = 1, max_rows: int = 16384) -> Tensor:
        """Requests of fewer tokens stay NaN."""
        out = self.q_nope.new_full((*self.q_nope.shape[:2], self.w_uv.shape[1]), torch.nan)
        mla.mla_expanded(*self.arguments("token_to_req"), min_query_len, out, max_rows)
        return out
