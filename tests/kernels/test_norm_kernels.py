"""RMS norms equal their references for any row length, stride and dtype."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

# One rounding of a number near 1, and a sum that is taken in another order.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture(scope="session")
def norm(kernels: ModuleType) -> ModuleType:
    return kernels.norm


def assert_close(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    unit = TOLERANCE[got.dtype]
    assert torch.allclose(got.float(), want.float(), rtol=unit, atol=unit)


@settings(max_examples=20)
@given(
    leading=st.sampled_from([(), (0,), (1,), (5,), (3, 4)]),
    size=st.sampled_from([1, 7, 64, 100]),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_norms_equal_their_references(
    norm: ModuleType, device: str, leading: tuple, size: int, half: bool, seed: int
) -> None:
    halves = torch.float16 if device == "cpu" else torch.bfloat16
    dtype = halves if half else torch.float32
    generator = torch.Generator().manual_seed(seed)

    def rows_with_gaps() -> Tensor:
        wide = torch.full((*leading, size + 3), torch.nan)
        wide[..., :size] = torch.randn(*leading, size, generator=generator)
        return wide.to(device, dtype)[..., :size]

    x, residual = rows_with_gaps(), rows_with_gaps()
    weight = torch.randn(size, generator=generator).to(device, dtype)
    assert_close(norm.rms_norm(x, weight, 1e-6), norm.rms_norm_ref(x, weight, 1e-6))
    normed, added = norm.add_rms_norm(x, residual, weight, 1e-6)
    want_normed, want_added = norm.add_rms_norm_ref(x, residual, weight, 1e-6)
    assert torch.equal(added, want_added)
    assert torch.equal(normed, norm.rms_norm(added, weight, 1e-6)), "the sum is rounded first"
    assert_close(normed, want_normed)


def test_a_row_does_not_depend_on_the_others(norm: ModuleType, device: str) -> None:
    x = torch.randn(6, 100, generator=torch.Generator().manual_seed(0)).to(device)
    weight = torch.ones(100, device=device)
    whole = norm.rms_norm(x, weight, 1e-6)
    assert torch.equal(norm.rms_norm(x[3:4], weight, 1e-6), whole[3:4])


def test_a_residual_of_another_shape_is_refused(norm: ModuleType, device: str) -> None:
    x = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match=r"residual is \[1, 8\]"):
        norm.add_rms_norm(x, x[:1], torch.ones(8, device=device), 1e-6)
    with pytest.raises(ValueError, match=r"weight is \[4\], not \[8\]"):
        norm.rms_norm(x, torch.ones(4, device=device), 1e-6)
