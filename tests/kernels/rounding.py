"""How far a kernel may be from the float32 reference: what its roundings can add up to.

An operand that a kernel rounds to 16 bits is off by at most `UNIT` of itself. Errors travel to the
result with the magnitudes of the terms that they are in: the same formula over absolute values.
Sums of n float32 products, in any order, are off by n * 2^-24 of their terms' magnitudes, in the
kernel and in the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT32 = 2.0**-24
# Half the distance between neighbours, relative: 8 bits of significand, and 11.
UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# The same among the smallest numbers, absolute.
TINY = {torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25}


def of_sum(num_terms: int, magnitude: Tensor) -> Tensor:
    """Of kernel and reference together."""
    return 2 * (num_terms + 8) * FLOAT32 * magnitude


def of_rounding(value: Tensor, before: Tensor | float, dtype: torch.dtype) -> Tensor:
    """The error `before` rounding `value`, and that of the rounding."""
    return before + UNIT[dtype] * (value.abs() + before) + TINY[dtype]


def of_norm(x: Tensor, before: Tensor | float, factor: Tensor, eps: float) -> Tensor:
    """From errors `before` of x [..., D] to those of x / rms(x) * factor."""
    before = before + torch.zeros_like(x)
    rrms = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    relative = before.square().mean(-1, keepdim=True).sqrt() * rrms
    relative = relative / (1 - relative) + 2 * (x.shape[-1] + 8) * FLOAT32
    return factor.abs() * rrms * (before + (x.abs() + before) * relative)


def of_roundings(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Of many independent ones: six standard deviations, from the sum of their terms' squares.

    A rounding is off by up to UNIT of its term, anything between as likely.
    """
    return 6 * UNIT[dtype] * (squares / 3).sqrt()


def assert_within(got: Tensor, want: Tensor, error: Tensor, least: float = 0.05) -> None:
    """Each element within its error; the bound is worth something: `least` of it is used."""
    assert got.shape == want.shape and got.isfinite().all()
    off = (got.double() - want.double()).abs()
    share = (off / (error.double() + 1e-300)).max().item()
    assert (off <= error.double()).all(), f"{share:.2f} times the error that rounding allows"
    assert share >= least, f"the bound is {1 / max(share, 1e-9):.0f} times the largest error"
