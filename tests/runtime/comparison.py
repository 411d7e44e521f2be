"""How results are compared: tolerances by dtype, and reports that name what differs."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES: dict[torch.dtype, float] = {
    # Sums of a few hundred products near 1, each rounded to 2^-24: 1e-5 leaves a factor of ten.
    torch.float32: 1e-5,
    # Results are rounded once to 8 bits of mantissa (2^-9); operands are exact in the reference.
    torch.bfloat16: 8e-3,
}


def assert_close(got: Tensor, want: Tensor, tolerance: float | None = None) -> None:
    """Each element within `tolerance` of the wanted one, relative to it, to the rms or to 1.

    Inputs are near 1 throughout, and so are the terms of a sum that cancels.

    got: any float dtype, which chooses the tolerance if none is given.  want: as exact as known.
    """
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
    if tolerance is None:
        tolerance = TOLERANCES[got.dtype]
    if got.numel() == 0:
        return
    got, want = got.double(), want.double()
    rms = want.square().mean().sqrt()
    error = (got - want).abs()
    # A NaN is no smaller than anything: it counts as bad.
    is_bad = ~(error <= tolerance * torch.maximum(want.abs(), rms).clamp(min=1))
    if is_bad.any():
        first = tuple(is_bad.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(is_bad.sum())} of {is_bad.numel()} elements differ: max abs {error.max():.3g}, "
            f"rms error / rms {(error.square().mean().sqrt() / rms):.3g}, tolerance {tolerance:g}; "
            f"first at {first}: {got[first]:.9g}, wanted {want[first]:.9g}"
        )


def relative_error(got: Tensor, want: Tensor) -> float:
    """Root mean square of the error over that of the wanted values."""
    error = (got.double() - want.double()).square().mean().sqrt()
    return float(error / want.double().square().mean().sqrt())


def assert_same_bits(got: Tensor, want: Tensor) -> None:
    """Equal byte for byte, NaN included."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
    is_same = torch.equal(
        got.contiguous().flatten().view(torch.uint8), want.contiguous().flatten().view(torch.uint8)
    )
    if not is_same:
        is_bad = ~((got == want) | (got.isnan() & want.isnan()))
        where = is_bad.nonzero()
        first = tuple(where[0].tolist()) if len(where) else "a NaN's or zero's bits"
        raise AssertionError(f"{len(where)} of {got.numel()} elements differ, first at {first}")
