"""fp8 experts err as much as their quantisation does, and the kernels of many tokens agree."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from comparison import relative_error
from interpreter import IS_INTERPRETED
from test_experts_kernels import (
    DEVICE,
    HALF,
    KINDS,
    TOLERANCES,
    Case,
    indices_of,
    moe,
    row,
)
from torch import Tensor

__all__ = ["moe"]

pytestmark = [] if IS_INTERPRETED else pytest.mark.gpu
FORMS = ("fp8_channel", "fp8_block")
# Against the same numbers of fp8, multiplied exactly. The card adds products of fp8 with 14 bits:
# the largest inner value of a row, which sets the row's scale, may round to the next number of 16
# bits. Such a scale is 2^-8 off, and one in 16 of the row's values takes the next number of fp8,
# 2^-4 away: 2^-4 * sqrt(2^-4) = 2^-6 if it happens to every row; roundings to 16 bits beside it.
SAME_NUMBERS = 1.1 * 2**-6


@pytest.fixture(autouse=True)
def right_numbers_of_fp8(moe: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter forgets the carry of a mantissa that rounds up: there, torch quantises."""
    if IS_INTERPRETED:
        monkeypatch.setattr(moe, "quantize_rows", moe.quantize_rows_ref)


def stored(moe: ModuleType, form: str, weight: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Weights of experts [E, rows, columns] as an fp8 checkpoint has them."""
    if form == "fp8_channel":
        return moe.quantize_weight(weight)
    values, scales = [], []
    for half in weight.float().chunk(parts, 1):
        rows, columns = half.shape[1:]
        block = moe.FP8_BLOCK
        counts = -(-rows // block[0]), -(-columns // block[1])
        scale = half.new_empty(half.shape[0], *counts)
        spread = torch.empty_like(half)
        for i in range(counts[0]):
            for j in range(counts[1]):
                at = (..., slice(i * block[0], (i + 1) * block[0]))
                at = (*at, slice(j * block[1], (j + 1) * block[1]))
                scale[:, i, j] = half[at].abs().amax((-1, -2)) / 448
                spread[at] = scale[:, i, j, None, None]
        values.append((half / spread).to(torch.float8_e4m3fn))
        scales.append(scale)
    return torch.cat(values, 1), torch.cat(scales, 1)


class Fp8Case:
    """A case whose weights are in fp8, and two results in float64 to compare with."""

    def __init__(self, moe: ModuleType, form: str, case: Case) -> None:
        self.moe, self.form, self.case = moe, form, case
        self.gate_up, self.gate_up_scale = stored(moe, form, case.gate_up_proj, 2)
        self.down, self.down_scale = stored(moe, form, case.down_proj, 1)

    def run(self, **options: object) -> Tensor:
        case = self.case
        args = (case.hidden, self.gate_up, self.down, case.routing(self.moe))
        scales = {"gate_up_scale": self.gate_up_scale, "down_scale": self.down_scale}
        return self.moe.experts(*args, **scales, **options)

    def rounded(self, x: Tensor) -> Tensor:
        """Activations after quantisation, in float64."""
        group = self.moe.FP8_BLOCK[1] if self.form == "fp8_block" else x.shape[1]
        values, scale = self.moe.quantize_rows_ref(x, group)
        spread = scale.double().repeat_interleave(group, 1)[:, : x.shape[1]]
        return values.double() * spread

    def reference_quantisation(self) -> Tensor:
        """The same quantised numbers, multiplied exactly."""
        case, moe = self.case, self.moe
        wide = torch.float64
        gate_up = moe.dequantize_weight(self.gate_up, self.gate_up_scale, wide, parts=2)
        down = moe.dequantize_weight(self.down, self.down_scale, wide)
        hidden = self.rounded(case.hidden)
        out = torch.zeros_like(hidden)
        for expert in case.indices.unique().tolist():
            tokens, ranks = (case.indices == expert).nonzero(as_tuple=True)
            gate, up = (hidden[tokens] @ gate_up[expert].T).chunk(2, -1)
            inner = self.rounded((gate * gate.sigmoid() * up).to(case.hidden.dtype))
            share = case.weights[tokens, ranks, None].double() * (inner @ down[expert].T)
            out.index_add_(0, tokens, share)
        return out


def assert_errs_as_its_quantisation(case: Fp8Case, **options: object) -> None:
    out, same = case.run(**options), case.reference_quantisation()
    want = case.case.want()
    assert relative_error(out, same) < SAME_NUMBERS
    # Nothing is lost beside what the numbers of fp8 lose by themselves.
    assert relative_error(out, want) < 1.05 * relative_error(same, want)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 23])
def test_fp8_experts_err_as_their_quantisation_does(
    moe: ModuleType, form: str, kind: str, num_tokens: int
) -> None:
    case = Case(indices_of(kind, num_tokens, 12), 12, 208, 144, HALF)
    assert_errs_as_its_quantisation(Fp8Case(moe, form, case))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("blocks", "use_tma"), [((16, 32, 64), True), ((32, 64, 32), False), ((16, 256, 128), False)]
)
def test_any_row_serves_fp8(
    moe: ModuleType, form: str, blocks: tuple[int, int, int], use_tma: bool
) -> None:
    """128 does not divide 144: a tile of 256 rows spans blocks of scales."""
    case = Fp8Case(moe, form, Case(indices_of("random", 9, 12), 12, 160, 144, HALF))
    settings = row(*blocks, USE_TMA=use_tma)
    assert_errs_as_its_quantisation(case, up_row=settings, down_row=settings)


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter rounds to wrong numbers of fp8")
@pytest.mark.parametrize("columns", [1, 16, 130, 300])
def test_quantised_rows_equal_the_reference(moe: ModuleType, columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(5, columns, generator=generator) * torch.logspace(-3, 3, 5)[:, None]
    x[2] = 0
    for group in (128, columns):
        values, scale = moe.quantize_rows(x.to(DEVICE), group)
        want_values, want_scale = moe.quantize_rows_ref(x.to(DEVICE), group)
        torch.testing.assert_close(scale, want_scale, rtol=1e-6, atol=0)
        assert values[2].float().abs().max() == 0
        # A quotient near a tie may fall on either side of it.
        assert (values.float() != want_values.float()).float().mean() < 0.01
        torch.testing.assert_close(values.float(), want_values.float(), rtol=2**-3, atol=2**-9)


# Each has all of its tokens on few experts: blocks of up to 128, of 129 to 160, and of more rows.
COUNTS = (100, 128, 129, 160, 161, 330)


@pytest.mark.parametrize("form", ["bf16", "fp8_channel"])
@pytest.mark.parametrize("num_tokens", COUNTS)
def test_kernels_of_many_tokens_equal_the_exact_sum(
    moe: ModuleType, form: str, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    for name in ("wide_gate_up_kernel", "wide_down_kernel"):
        kernel = getattr(moe, name)
        monkeypatch.setattr(moe, name, Counted(kernel, launched))
    case = Case(indices_of("few", num_tokens, 12), 12, 64, 32, HALF)
    rows = {"up_row": row(128, 32, 64, 2, USE_TMA=True), "down_row": row(128, 64, 32, USE_TMA=True)}
    if form == "bf16":
        assert relative_error(case.run(moe, **rows), case.want()) < TOLERANCES[HALF]
    else:
        assert_errs_as_its_quantisation(Fp8Case(moe, form, case), **rows)
    assert len(launched) == 2


class Counted:
    def __init__(self, kernel: object, launched: list) -> None:
        self.kernel, self.launched = kernel, launched

    def __getitem__(self, grid: tuple[int, ...]) -> object:
        self.launched.append(grid)
        return self.kernel[grid]
