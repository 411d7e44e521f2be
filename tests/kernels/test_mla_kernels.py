"""Latent attention: each formulation equals the reference, whatever a batch looks like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from latent_calls import FLASH, LatentCall, Shape
from torch import Tensor

# Relative to the whole result's norm. float32: sums of a few hundred products, rounded to 2^-24
# each. bfloat16: queries in the latent space, weights, expanded keys and values and the mixture
# are each rounded to 8 bits (2^-9 = 0.002), and their errors add as squares. float16: 2^-11.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}


def assert_close(got: Tensor, want: Tensor) -> None:
    assert got.isfinite().all()
    error = (got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-30)
    assert error <= TOLERANCE[got.dtype], f"error {error:.2e}"


def assert_same_bits(got: Tensor, want: Tensor) -> None:
    """On a card. The interpreter multiplies with numpy, whose sums depend on a row's place."""
    if got.is_cuda:
        assert torch.equal(got, want)
    else:
        assert_close(got, want)


@contextmanager
def pages_of(mla: ModuleType, page_size: int) -> Iterator[None]:
    before, mla.PAGE_SIZE = mla.PAGE_SIZE, page_size
    try:
        yield
    finally:
        mla.PAGE_SIZE = before


@pytest.fixture(scope="session")
def mla(kernels: ModuleType) -> ModuleType:
    return kernels.mla


@pytest.fixture(scope="session")
def dtypes(device: str) -> list[torch.dtype]:
    """The interpreter multiplies no bfloat16."""
    halves = torch.float16 if device == "cpu" else torch.bfloat16
    return [torch.float32, halves]


SHAPES = st.sampled_from(
    [
        Shape(),
        Shape(heads=3, value=20, page_size=5),
        Shape(heads=6, rank=32, nope=16, value=16, page_size=1),
        Shape(heads=17, rank=40, rope=12, page_size=64),
    ]
)


@st.composite
def steps(draw: st.DrawFn, most: int) -> tuple[list[int], list[int]]:
    """New tokens and lengths of a few requests; a length of 0 is a padded row."""
    new = draw(st.lists(st.sampled_from([0, 1, 1, 2, most]), min_size=1, max_size=4))
    before = [draw(st.sampled_from([0, 0, 1, 15, 16, 17, 63])) for _ in new]
    lens = [
        0 if draw(st.integers(0, 4)) == 0 else old + count
        for old, count in zip(before, new, strict=True)
    ]
    return new, lens


@settings(max_examples=12)
@given(shape=SHAPES, step=steps(most=5), half=st.booleans(), seed=st.integers(0, 100))
@example(shape=Shape(), step=([0, 0], [0, 0]), half=False, seed=0)
@example(shape=Shape(), step=([1, 1], [0, 0]), half=False, seed=0)
@example(shape=Shape(page_size=1), step=([3], [290]), half=False, seed=0)  # last split at 288
def test_absorbed_attention_equals_the_reference(
    mla: ModuleType, device: str, dtypes: list, shape: Shape, step: tuple, half: bool, seed: int
) -> None:
    call = LatentCall.random(shape, *step, dtypes[half], device, seed)
    with pages_of(mla, shape.page_size):
        assert_close(call.absorbed(mla), call.reference(mla))


@settings(max_examples=6)
@given(
    shape=SHAPES,
    step=steps(most=20),
    half=st.booleans(),
    max_rows=st.sampled_from([16, 64, 16384]),
    seed=st.integers(0, 100),
)
@example(shape=Shape(), step=([33, 1], [33, 70]), half=False, max_rows=16, seed=0)
def test_expanded_attention_equals_the_reference(
    mla: ModuleType,
    device: str,
    dtypes: list,
    shape: Shape,
    step: tuple,
    half: bool,
    max_rows: int,
    seed: int,
) -> None:
    call = LatentCall.random(shape, *step, dtypes[half], device, seed)
    if call.q_nope.shape[0] == 0:
        return
    with pages_of(mla, shape.page_size):
        assert_close(call.expanded(mla, max_rows=max_rows), call.reference(mla))


@settings(max_examples=4)
@given(step=steps(most=33), half=st.booleans(), seed=st.integers(0, 100))
@example(step=([17, 16, 1, 0], [40, 16, 33, 5]), half=False, seed=0)
def test_prefills_and_decodes_in_one_step_equal_the_reference(
    mla: ModuleType, device: str, dtypes: list, step: tuple, half: bool, seed: int
) -> None:
    call = LatentCall.random(Shape(), *step, dtypes[half], device, seed)
    with pages_of(mla, 16):
        assert_close(call.mixed(mla), call.reference(mla))


def test_chunks_of_what_is_cached_change_no_bit(mla: ModuleType, device: str) -> None:
    call = LatentCall.random(Shape(heads=2), [20, 3], [50, 40], device=device)
    with pages_of(mla, 16):
        assert torch.equal(call.expanded(mla, max_rows=64), call.expanded(mla))


@pytest.mark.parametrize("kind", ["absorbed", "expanded"])
def test_a_request_gets_the_same_bits_in_every_batch(
    mla: ModuleType, device: str, kind: str
) -> None:
    call = LatentCall.random(
        Shape(heads=2, page_size=4), [2, 1, 0, 3], [70, 5, 9, 16], device=device
    )
    with pages_of(mla, 4):
        whole = getattr(call, kind)(mla)
        rows = list(whole.split(call.query_start_loc.diff().tolist()))
        for order in ([3, 1, 0, 2], [0], [1]):
            part = getattr(call.requests(order), kind)(mla)
            assert_same_bits(part, torch.cat([rows[r] for r in order]))


def test_a_verified_token_gets_the_bits_of_its_decode(mla: ModuleType, device: str) -> None:
    # Both use one column per head and token, and splits begin at the same pages.
    call = LatentCall.random(Shape(heads=16, page_size=4), [3, 3], [20, 83], device=device)
    with pages_of(mla, 4):
        whole = call.absorbed(mla)
        for index in range(3):
            one = LatentCall(
                q_nope=call.q_nope[index::3],
                q_rope=call.q_rope[index::3],
                kv=call.kv,
                page_table=call.page_table,
                query_start_loc=torch.arange(3, dtype=torch.int32, device=device),
                token_to_req=torch.arange(2, device=device),
                seq_lens=call.seq_lens - 2 + index,
                w_uk=call.w_uk,
                w_uv=call.w_uv,
                scale=call.scale,
            )
            assert_same_bits(one.absorbed(mla), whole[index::3])


def test_requests_of_other_lengths_stay_as_they_are(mla: ModuleType, device: str) -> None:
    call = LatentCall.random(Shape(), [1, 20, 2], [30, 50, 9], device=device)
    with pages_of(mla, 16):
        want = call.reference(mla)
        out = call.expanded(mla, min_query_len=3)
        assert out[[0, 21, 22]].isnan().all()
        mla.mla_absorbed(*call.arguments("token_to_req"), 2, out)
        assert_close(out, want)


def test_wrong_shapes_are_refused(mla: ModuleType, device: str) -> None:
    call = LatentCall.random(Shape(), [1], [9], device=device)
    with pages_of(mla, 16):
        arguments = call.arguments()
        arguments[1] = call.q_rope[:, :3]
        with pytest.raises(ValueError, match=r"q_rope is \[1, 3, 8\], not \[1, 4, 8\]"):
            mla.mla_decode(*arguments, 1)
        arguments = call.arguments()
        arguments[2] = call.kv.transpose(1, 2).contiguous().transpose(1, 2)
        with pytest.raises(ValueError, match="kv: the last dimension has stride 16, not 1"):
            mla.mla_decode(*arguments, 1)
    with (
        pages_of(mla, 8),
        pytest.raises(ValueError, match=r"kv is \[4, 16, 32\], not \[4, 8, 32\]"),
    ):
        call.absorbed(mla)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="full size: needs a CUDA device")
@pytest.mark.parametrize("new", [[1, 1, 1, 1], [5, 5, 1, 5], [1, 200, 3, 17]], ids=str)
def test_full_size_equals_the_reference(mla: ModuleType, device: str, new: list[int]) -> None:
    call = LatentCall.random(FLASH, new, [100, 1000, 0, 5000], torch.bfloat16, device)
    with pages_of(mla, 64):
        want = call.reference(mla)
        for got in (call.absorbed(mla), call.expanded(mla), call.mixed(mla)):
            assert_close(got, want)


# The write to the cache


@settings(max_examples=10)
@given(
    shape=SHAPES, num_tokens=st.sampled_from([0, 1, 7]), half=st.booleans(), seed=st.integers(0, 99)
)
def test_the_cache_write_equals_the_reference(
    mla: ModuleType,
    device: str,
    dtypes: list,
    shape: Shape,
    num_tokens: int,
    half: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = dtypes[half]

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    width = shape.rank + shape.rope
    compressed = normal(num_tokens, width + 5).to(dtype)[:, :width]
    q_rope = normal(num_tokens, shape.heads, 9 + shape.rope).to(dtype)[..., 9:]
    cos, sin = normal(2, num_tokens, 1, shape.rope // 2)
    weight = normal(shape.rank).to(dtype)
    num_pages = 9
    pool = torch.full((2, num_pages + 1, shape.page_size, width), torch.nan).to(device, dtype)
    rows = torch.randperm(num_pages * shape.page_size, generator=generator)[:num_tokens]
    rows[num_tokens // 2 : num_tokens // 2 + 1] = num_pages * shape.page_size  # padding
    results = []
    for write in (mla.mla_write, mla.mla_write_ref):
        kv = pool.clone()
        with pages_of(mla, shape.page_size):
            rotated = write(compressed, weight, 1e-6, q_rope, cos, sin, kv[0], rows.to(device))
        assert kv[1].isnan().all()
        kv = kv[0, :num_pages]
        results.append((rotated, kv.isnan(), kv.nan_to_num()))
    (rotated, holes, kv), (want_rotated, want_holes, want_kv) = results
    assert torch.equal(holes, want_holes)
    if num_tokens:
        # Rounded once in both, from float32 numbers that differ in their last bit.
        unit = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
        assert torch.allclose(rotated.float(), want_rotated.float(), rtol=unit, atol=unit)
        assert torch.allclose(kv.float(), want_kv.float(), rtol=unit, atol=unit)
