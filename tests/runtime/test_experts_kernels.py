"""The experts' kernels against float64: on a GPU, and in Triton's interpreter on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from comparison import relative_error
from interpreter import IS_INTERPRETED
from lingen.verify.package import generated_package
from small_models import lowered_small
from torch import Tensor

pytestmark = [] if IS_INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
# The interpreter's tl.dot multiplies the bits of bfloat16 as integers: float16 stands in.
HALF = torch.float16 if IS_INTERPRETED else torch.bfloat16
# float32: sums of a few hundred products. Others: the inner values and each expert's share are
# rounded to 11 or 8 bits of mantissa; inputs are exact.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
TOP_K = 4


@pytest.fixture(scope="module")
def moe() -> Iterator[ModuleType]:
    settings = ("moe.num_experts=12", "moe.n_group=3", "moe.topk_group=2")
    ir = lowered_small(*settings, f"moe.num_experts_per_tok={TOP_K}")
    with generated_package(ir) as package:
        yield package.kernels.moe


def indices_of(kind: str, num_tokens: int, num_experts: int) -> Tensor:
    """[T, TOP_K]: different experts for each token, distributed as `kind` says."""
    generator = torch.Generator().manual_seed(num_tokens)
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    if kind == "one-has-all":
        scores[:, num_experts - 1] = 2.0
    elif kind == "few":
        scores[:, TOP_K:] -= 1.0
    elif kind == "odd-only":
        scores[:, ::2] -= 1.0
    return scores.argsort(dim=-1, descending=True)[:, :TOP_K].to(torch.int32)


class Case:
    """Hidden states in a wider buffer, weights with NaN behind them, and the exact sum."""

    def __init__(
        self, indices: Tensor, num_experts: int, size: int, width: int, dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(7)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        num_tokens = indices.shape[0]
        hidden = torch.full((num_tokens, size + 8), torch.nan)
        hidden[:, :size] = normal(num_tokens, size)
        self.hidden = hidden.to(dtype).to(DEVICE)[:, :size]
        self.gate_up_proj = (normal(num_experts, 2 * width, size) / size**0.5).to(dtype).to(DEVICE)
        self.down_proj = (normal(num_experts, size, width) / width**0.5).to(dtype).to(DEVICE)
        self.indices = indices.to(DEVICE)
        self.weights = torch.rand(indices.shape, generator=generator).to(DEVICE)

    def routing(self, moe: ModuleType) -> object:
        lists = moe.sort_by_expert(self.indices, self.gate_up_proj.shape[0])
        return moe.Routing(self.weights, self.indices, *lists)

    def run(self, moe: ModuleType, **options: object) -> Tensor:
        args = (self.hidden, self.gate_up_proj, self.down_proj, self.routing(moe))
        return moe.experts(*args, **options)

    def want(self) -> Tensor:
        """In float64, expert by expert."""
        hidden = self.hidden.double()
        out = torch.zeros_like(hidden)
        for expert in self.indices.unique().tolist():
            tokens, ranks = (self.indices == expert).nonzero(as_tuple=True)
            gate, up = (hidden[tokens] @ self.gate_up_proj[expert].double().T).chunk(2, -1)
            share = (gate * gate.sigmoid() * up) @ self.down_proj[expert].double().T
            out.index_add_(0, tokens, self.weights[tokens, ranks, None].double() * share)
        return out


def row(block_m: int, block_n: int, block_k: int, group_m: int = 1, **others: bool) -> dict:
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
    return dict(zip(names, (block_m, block_n, block_k, group_m), strict=True)) | others


KINDS = ("random", "one-has-all", "few", "odd-only")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 2, 23])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_experts_equal_the_exact_sum(
    moe: ModuleType, kind: str, num_tokens: int, dtype: torch.dtype
) -> None:
    # 12 experts are no power of two; 40 columns are no multiple of a block, nor are 80.
    case = Case(indices_of(kind, num_tokens, 12), 12, 80, 40, dtype)
    out = case.run(moe)
    assert out.dtype == torch.float32
    assert relative_error(out, case.want()) < TOLERANCES[dtype]


@pytest.mark.parametrize("use_tma", [False, True])
@pytest.mark.parametrize("group_m", [1, 3])
@pytest.mark.parametrize("blocks", [(16, 32, 32), (32, 16, 64), (64, 64, 16)])
def test_any_row_of_a_table_gives_the_same_sum(
    moe: ModuleType, blocks: tuple[int, int, int], group_m: int, use_tma: bool
) -> None:
    case = Case(indices_of("random", 37, 12), 12, 96, 48, HALF)
    settings = row(*blocks, group_m, USE_TMA=use_tma)
    out = case.run(moe, up_row=settings, down_row=settings)
    assert relative_error(out, case.want()) < TOLERANCES[HALF]


def test_one_list_serves_products_of_different_blocks(moe: ModuleType) -> None:
    case = Case(indices_of("random", 37, 12), 12, 64, 32, HALF)
    out = case.run(moe, up_row=row(32, 32, 32), down_row=row(16, 32, 32))
    assert relative_error(out, case.want()) < TOLERANCES[HALF]


def test_more_experts_than_assignments(moe: ModuleType) -> None:
    case = Case(indices_of("random", 3, 50), 50, 64, 32, HALF)
    assert relative_error(case.run(moe), case.want()) < TOLERANCES[HALF]


def test_no_token_gives_no_row(moe: ModuleType) -> None:
    case = Case(indices_of("random", 0, 12), 12, 64, 32, HALF)
    out = case.run(moe)
    assert out.shape == (0, 64) and out.dtype == torch.float32


def test_hidden_states_are_not_written(moe: ModuleType) -> None:
    case = Case(indices_of("random", 5, 12), 12, 64, 32, HALF)
    before = case.hidden.clone()
    case.run(moe)
    assert torch.equal(case.hidden, before)


@pytest.mark.parametrize("num_tokens", [0, 1, 5, 600])
@pytest.mark.parametrize("kind", KINDS)
def test_assignments_are_sorted_by_expert(moe: ModuleType, kind: str, num_tokens: int) -> None:
    indices = indices_of(kind, num_tokens, 12).to(DEVICE)
    slots, starts = moe.sort_by_expert(indices, 12)
    want_slots, want_starts = moe.sort_by_expert_ref(indices, 12)
    assert torch.equal(slots.long(), want_slots) and torch.equal(starts.long(), want_starts)
