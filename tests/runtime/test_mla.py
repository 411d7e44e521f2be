"""Latent attention against a plain softmax: decode, prefill, pages, padding and unwritten rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from comparison import assert_close, assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from plain_pools import plain_pools
from reference import causal_softmax, latent_attention
from torch import Tensor

NUM_HEADS, RANK, ROPE, NOPE, VALUE = 3, 8, 4, 6, 5
PAGE_SIZE = 16
NUM_PAGES = 24
PAD_SLOT = -1
SCALE = 0.3
LAYER_IDX, POOL_IDX = 7, 1  # the second MLA layer of three


def attend(backend: object, step: object, kv: Tensor, rows: Tensor, *inputs: Tensor) -> Tensor:
    """Store the new tokens' rows where the step says, then run the layer."""
    kv[POOL_IDX].view(-1, kv.shape[-1])[step.paged.kv_rows] = rows.to(kv.dtype)
    return backend.forward(LAYER_IDX, step, *inputs, SCALE)


@dataclass(frozen=True)
class Sequences:
    """Whole requests: queries and latent rows of all their tokens, and the pages they live on."""

    q_nope: list[Tensor]
    q_rope: list[Tensor]
    rows: list[Tensor]
    pages: list[list[int]]
    w_uk: Tensor
    w_uv: Tensor

    @classmethod
    def random(cls, lengths: Sequence[int], seed: int = 0) -> Sequences:
        """Requests of these lengths, their pages scattered over the pool."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        free = torch.randperm(NUM_PAGES, generator=generator).tolist()
        return cls(
            q_nope=[normal(length, NUM_HEADS, NOPE) for length in lengths],
            q_rope=[normal(length, NUM_HEADS, ROPE) for length in lengths],
            rows=[normal(length, RANK + ROPE) for length in lengths],
            pages=[[free.pop() for _ in range(-(-length // PAGE_SIZE))] for length in lengths],
            w_uk=normal(NUM_HEADS, NOPE, RANK) / RANK**0.5,
            w_uv=normal(NUM_HEADS, VALUE, RANK) / RANK**0.5,
        )

    def pool(self, computed: Sequence[int]) -> Tensor:
        """Three layers of NaN; the middle one holds each request's first `computed` rows."""
        kv = torch.full((3, NUM_PAGES + 1, PAGE_SIZE, RANK + ROPE), torch.nan)
        for rows, pages, done in zip(self.rows, self.pages, computed, strict=True):
            for position in range(done):
                page = pages[position // PAGE_SIZE]
                kv[POOL_IDX, page, position % PAGE_SIZE] = rows[position]
        return kv

    def step(
        self,
        package: ModuleType,
        kv: Tensor,
        computed: Sequence[int],
        new: Sequence[int],
        padded: Sequence[int] = (),
        is_prefill: bool = False,
    ) -> list[Tensor]:
        """One step of `new` tokens per request; returns each request's output.

        The page table ends in nonsense: entries behind a request's tokens mean nothing. Rows of
        requests in `padded` are padding and hold NaN. Also checks that only the new rows of the
        pool change.
        """
        pools = plain_pools(kv=kv)
        backend = package.HybridBackend(pools)
        requests = range(len(new))
        slots = [PAD_SLOT if r in padded else r for r in requests]
        pages = [[*self.pages[r], 10_000, 10_001] for r in requests]
        batch = package.ForwardBatch.from_lists(
            [[1] * count for count in new], list(computed), slots, pages
        )
        table = torch.where(batch.page_table == 10_001, -7, batch.page_table)
        batch = dataclasses.replace(batch, page_table=table)
        if is_prefill:  # even if each request has one token
            batch = dataclasses.replace(batch, max_query_len=max(2, batch.max_query_len))
        step = backend.prepare(batch)
        spans = [slice(done, done + count) for done, count in zip(computed, new, strict=True)]
        q_nope, q_rope, rows = (
            torch.cat(
                [
                    torch.full_like(whole[r][spans[r]], torch.nan)
                    if r in padded
                    else whole[r][spans[r]]
                    for r in requests
                ]
            )
            for whole in (self.q_nope, self.q_rope, self.rows)
        )
        expected = kv.clone()
        out = attend(backend, step, kv, rows, q_nope, q_rope, self.w_uk, self.w_uv)
        expected[POOL_IDX] = self.pool(
            [0 if r in padded else computed[r] + new[r] for r in requests]
        )[POOL_IDX]
        for r in padded:  # what a padded row's request stored before stays
            own = self.pages[r]
            expected[POOL_IDX, own] = self.pool(computed)[POOL_IDX, own]
        assert_same_bits(kv[:, :NUM_PAGES], expected[:, :NUM_PAGES])
        assert_same_bits(kv[[0, 2]], expected[[0, 2]])
        return list(out.split(list(new)))

    def reference(self, request: int, span: slice) -> Tensor:
        return latent_attention(
            self.q_nope[request][span],
            self.q_rope[request][span],
            self.rows[request][: span.stop],
            self.w_uk,
            self.w_uv,
            SCALE,
        )

    def assert_step_equals_softmax(
        self, package: ModuleType, computed: Sequence[int], new: Sequence[int], **choices: object
    ) -> None:
        outs = self.step(package, self.pool(computed), computed, new, **choices)
        for r, (out, done, count) in enumerate(zip(outs, computed, new, strict=True)):
            if r in choices.get("padded", ()):
                assert not out.any(), f"padded row {r}"
            else:
                assert_close(out, self.reference(r, slice(done, done + count)))


def test_the_softmax_gives_the_numbers_computed_by_hand() -> None:
    # The second query sees keys 0 and ln 3: weights 1/4 and 3/4.
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    keys = torch.tensor([0.0, 3.0], dtype=torch.float64).view(2, 1, 1)
    keys[1] = keys[1].log()
    values = torch.tensor([4.0, 8.0]).view(2, 1, 1)
    assert_close(causal_softmax(one, keys, values, 1.0).flatten(), torch.tensor([4.0, 7.0]), 1e-12)


@st.composite
def ragged_steps(draw: st.DrawFn) -> dict:
    num_reqs = draw(st.integers(1, 4))
    is_decode = draw(st.booleans())
    computed = st.sampled_from([0, 1, 3, 14, 15, 16, 17, 31, 32, 40])
    counts = st.just(1) if is_decode else st.sampled_from([0, 1, 1, 2, 15, 16, 17, 33])
    return {
        "computed": [draw(computed) for _ in range(num_reqs)],
        "new": [draw(counts) for _ in range(num_reqs)],
        "padded": [r for r in range(num_reqs) if draw(st.booleans()) and draw(st.booleans())],
    }


@given(step=ragged_steps(), seed=st.integers(0, 100))
def test_each_request_of_a_ragged_step_equals_the_softmax(
    tiny: ModuleType, step: dict, seed: int
) -> None:
    lengths = [done + count for done, count in zip(step["computed"], step["new"], strict=True)]
    Sequences.random(lengths, seed).assert_step_equals_softmax(tiny, **step)


@pytest.mark.parametrize("is_decode", [True, False], ids=["absorbed", "expanded"])
@pytest.mark.parametrize("seq_len", [1, 2, 15, 16, 17, 31, 32, 33])
def test_decode_at_the_edges_of_a_page_equals_the_softmax(
    tiny: ModuleType, seq_len: int, is_decode: bool
) -> None:
    lengths = [seq_len, 20, seq_len]
    computed = [length - 1 for length in lengths]
    Sequences.random(lengths).assert_step_equals_softmax(
        tiny, computed, [1, 1, 1], is_prefill=not is_decode
    )


@pytest.mark.parametrize("cuts", [[40], [16, 16, 8], [15, 2, 23], [1, 39], [39, 1]], ids=str)
def test_chunks_of_a_prompt_equal_the_whole(tiny: ModuleType, cuts: list[int]) -> None:
    sequences = Sequences.random([40])
    kv = sequences.pool([0])
    outs, done = [], 0
    for count in cuts:
        outs += sequences.step(tiny, kv, [done], [count])
        done += count
    assert_close(torch.cat(outs), sequences.reference(0, slice(0, 40)))


@pytest.mark.parametrize("is_decode", [True, False], ids=["absorbed", "expanded"])
def test_padded_row_with_stored_tokens_writes_no_usable_page(
    tiny: ModuleType, is_decode: bool
) -> None:
    Sequences.random([20, 33, 5]).assert_step_equals_softmax(
        tiny, [19, 32, 4], [1, 1, 1], padded=[0, 2], is_prefill=not is_decode
    )


def test_padded_row_of_several_tokens_writes_no_usable_page(tiny: ModuleType) -> None:
    Sequences.random([20, 18]).assert_step_equals_softmax(tiny, [0, 3], [20, 15], padded=[0])


@pytest.mark.parametrize("counts", [[1, 1], [2, 0]], ids=["decode", "prefill"])
def test_step_of_padding_alone_without_pages_is_zero(tiny: ModuleType, counts: list[int]) -> None:
    sequences = Sequences.random(counts)
    kv = sequences.pool([0, 0])
    pools = plain_pools(kv=kv)
    backend = tiny.HybridBackend(pools)
    step = backend.prepare(
        tiny.ForwardBatch.from_lists([[1] * n for n in counts], [0, 0], [-1, -1], [[], []])
    )
    inputs = (torch.cat(part) for part in (sequences.rows, sequences.q_nope, sequences.q_rope))
    out = attend(backend, step, kv, *inputs, sequences.w_uk, sequences.w_uv)
    assert out.shape == (2, NUM_HEADS, VALUE)
    assert not out.any()
    assert kv[:, :NUM_PAGES].isnan().all()


@pytest.mark.parametrize("num_reqs", [0, 2])
def test_step_without_tokens_is_legal(tiny: ModuleType, num_reqs: int) -> None:
    whole = Sequences.random([20, 20])
    kv = whole.pool([20, 20])
    before = kv.clone()
    pools = plain_pools(kv=kv)
    backend = tiny.HybridBackend(pools)
    batch = tiny.ForwardBatch.from_lists(
        [[]] * num_reqs, [20] * num_reqs, list(range(num_reqs)), whole.pages[:num_reqs]
    )
    nothing = (part[0][:0] for part in (whole.rows, whole.q_nope, whole.q_rope))
    out = attend(backend, backend.prepare(batch), kv, *nothing, whole.w_uk, whole.w_uv)
    assert out.shape == (0, NUM_HEADS, VALUE)
    assert_same_bits(kv, before)


def test_mixed_prefill_and_decode_does_not_depend_on_the_order(tiny: ModuleType) -> None:
    lengths, computed = [9, 21, 5, 33], [0, 20, 0, 32]
    new = [done_to - done for done_to, done in zip(lengths, computed, strict=True)]
    sequences = Sequences.random(lengths)
    for order in ([0, 1, 2, 3], [1, 3, 0, 2], [3, 2, 1, 0]):
        moved = dataclasses.replace(
            sequences,
            **{
                name: [getattr(sequences, name)[r] for r in order]
                for name in ("q_nope", "q_rope", "rows", "pages")
            },
        )
        moved.assert_step_equals_softmax(
            tiny, [computed[r] for r in order], [new[r] for r in order]
        )


def test_large_scores_stay_finite(tiny: ModuleType) -> None:
    sequences = Sequences.random([33, 33])
    loud = dataclasses.replace(sequences, q_nope=[100 * q for q in sequences.q_nope])
    for is_decode in (True, False):
        outs = loud.step(tiny, loud.pool([32, 32]), [32, 32], [1, 1], is_prefill=not is_decode)
        for r, out in enumerate(outs):
            # Scores near 100 carry errors of 1e-5, and so do the weights.
            assert_close(out, loud.reference(r, slice(32, 33)), 1e-4)
