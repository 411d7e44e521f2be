"""A norm group that lies on several ranks: its parts' squares, and the norm of each part.

Ranks stand in one process: the sum of their squares is the all-reduce.
"""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import assert_within, of_norm, of_rounding
from torch import Tensor

EPS = 1e-6
# One rounding of a number near 1, and a sum that is taken in another order.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture(scope="session")
def norm(kernels: ModuleType) -> ModuleType:
    return kernels.norm


def assert_close(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    unit = TOLERANCE[got.dtype]
    assert torch.allclose(got.float(), want.float(), rtol=unit, atol=unit)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same numbers with NaN between rows, NaN between columns, or columns that lie together."""
    num_rows, size = values.shape
    if layout == "columns":
        return values.T.contiguous().T
    step = 2 if layout == "spread" else 1
    wide = values.new_full((num_rows, step * size + 3), torch.nan)
    view = wide[:, : step * size : step]
    view.copy_(values)
    return view


LAYOUTS = st.sampled_from(["rows", "spread", "columns"])


@settings(max_examples=40)
@given(
    num_rows=st.sampled_from([0, 1, 2, 5, 33]),
    num_groups=st.integers(1, 5),
    parts_of_group=st.sampled_from([1, 2, 4]),
    size=st.sampled_from([1, 7, 16, 100, 1100]),
    layouts=st.tuples(LAYOUTS, LAYOUTS),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_parts_equal_their_references_and_together_the_whole(
    kernels: ModuleType,
    device: str,
    num_rows: int,
    num_groups: int,
    parts_of_group: int,
    size: int,
    layouts: tuple[str, str],
    half: bool,
    seed: int,
) -> None:
    norm = kernels.norm
    halves = torch.float16 if device == "cpu" else torch.bfloat16
    dtype = halves if half else torch.float32
    width, num_parts = parts_of_group * size, num_groups * parts_of_group
    generator = torch.Generator().manual_seed(seed)
    # Each group at a scale of its own: the squares of another one are wrong by far.
    scale = 2.0 ** torch.arange(num_groups).repeat_interleave(width)
    x, gate, weight = (
        torch.randn(*shape, num_parts * size, generator=generator).to(device, dtype)
        for shape in ((num_rows,), (num_rows,), ())
    )
    x = x * scale.to(device, dtype)
    x[1::3] = 0  # padding
    parts, gates = (
        [laid_out(part, layout) for part in whole.split(size, -1)]
        for whole, layout in zip((x, gate), layouts, strict=True)
    )
    groups = [part // parts_of_group for part in range(num_parts)]
    squares = []
    for part, group in zip(parts, groups, strict=True):
        own = norm.group_squares(part, group, num_groups)
        assert_close(own, norm.group_squares_ref(part, group, num_groups))
        assert not own[:, torch.arange(num_groups) != group].any()
        squares.append(own)
    summed = torch.stack(squares).sum(0)
    outs = []
    for part, part_gate, own_weight, group in zip(
        parts, gates, weight.split(size), groups, strict=True
    ):
        rest = (own_weight, summed, group, width, EPS)
        out = norm.gated_part_norm(part, part_gate, *rest)
        assert_close(out, norm.gated_part_norm_ref(part, part_gate, *rest))
        assert not out[1::3].any()
        outs.append(out)
    whole = kernels.lightning.gated_group_norm(x, gate, weight, num_groups, EPS)
    assert_close(torch.cat(outs, -1), whole)


def test_a_row_does_not_depend_on_the_others(norm: ModuleType, device: str) -> None:
    """Nor on rows of padding that hold anything."""
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn(2, 6, 100, generator=generator).to(device)
    weight = torch.ones(100, device=device)
    squares = norm.group_squares(x, 1, 2)
    out = norm.gated_part_norm(x, gate, weight, squares, 1, 200, EPS)
    own = slice(3, 4)
    assert torch.equal(norm.group_squares(x[own], 1, 2), squares[own])
    for padded in (x, gate):
        padded[:3] = torch.nan
        padded[4:] = torch.inf
    again = norm.group_squares(x, 1, 2)
    assert torch.equal(again[own], squares[own])
    assert torch.equal(norm.gated_part_norm(x, gate, weight, again, 1, 200, EPS)[own], out[own])


def test_a_half_is_rounded_once(norm: ModuleType, device: str) -> None:
    """Each element as near the float32 reference as its last rounding allows."""
    dtype = torch.float16 if device == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(3)
    x, gate, weight = (
        torch.randn(shape, generator=generator).to(device, dtype)
        for shape in ((7, 200), (7, 200), (200,))
    )
    wide, wide_gate, wide_weight = (part.float() for part in (x, gate, weight))
    factor = wide_weight * wide_gate.sigmoid()
    squares = sum(norm.group_squares(part, 0, 1) for part in x.split(100, -1))
    error = of_norm(wide, 0.0, factor, EPS)
    for own in (slice(100), slice(100, 200)):
        rest = (squares, 0, 200, EPS)
        got = norm.gated_part_norm(x[:, own], gate[:, own], weight[own], *rest)
        want = wide[:, own] * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * factor[:, own]
        assert_within(got, want, of_rounding(want, error[:, own], dtype), 0.5)


def test_shapes_that_do_not_fit_are_refused(norm: ModuleType, device: str) -> None:
    x, weight = torch.zeros(2, 8, device=device), torch.ones(8, device=device)
    squares = torch.zeros(2, 3, device=device)
    for change, found in (
        ({"gate": x[:1]}, r"gate is \[1, 8\], not \[2, 8\]"),
        ({"weight": weight[:4]}, r"weight is \[4\], not \[8\]"),
        ({"squares": squares[:1]}, r"squares are \[1, 3\] with strides \(3, 1\)"),
        ({"squares": squares.T.contiguous().T}, r"squares are \[2, 3\] with strides \(1, 2\)"),
    ):
        arguments = {"gate": x, "weight": weight, "squares": squares} | change
        with pytest.raises(ValueError, match=found):
            norm.gated_part_norm(x, group=0, width=16, eps=EPS, **arguments)
