"""Grouped-query attention against a plain softmax: head sharing, pages, padding, unwritten rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from comparison import assert_close, assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from lingen.verify.package import generated_package
from plain_pools import plain_pools
from reference import grouped_attention
from small_models import lowered_variant
from torch import Tensor

HEAD_DIM = 5
PAGE_SIZE = 16
NUM_PAGES = 24
PAD_SLOT = -1
SCALE = 0.3
LAYER_IDX, POOL_IDX = 5, 1  # the second GQA layer of three, the MTP layer's included
SHARING = [(4, 2), (6, 3), (4, 1), (3, 3), (8, 2)]  # query heads on key heads


@pytest.fixture(scope="module")
def package() -> Iterator[ModuleType]:
    with generated_package(lowered_variant("linear-v2-with-mtp")) as package:
        yield package


@dataclass(frozen=True)
class Sequences:
    """Whole requests: queries, keys and values of all their tokens, and the pages they live on."""

    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    pages: list[list[int]]

    @classmethod
    def random(
        cls, lengths: Sequence[int], heads: tuple[int, int] = (4, 2), seed: int = 0
    ) -> Sequences:
        """Requests of these lengths, their pages scattered over the pool."""
        generator = torch.Generator().manual_seed(seed)

        def normal(num_heads: int) -> list[Tensor]:
            return [
                torch.randn(length, num_heads, HEAD_DIM, generator=generator) for length in lengths
            ]

        free = torch.randperm(NUM_PAGES, generator=generator).tolist()
        pages = [[free.pop() for _ in range(-(-length // PAGE_SIZE))] for length in lengths]
        return cls(normal(heads[0]), normal(heads[1]), normal(heads[1]), pages)

    def pool(self, computed: Sequence[int]) -> Tensor:
        """Three layers of NaN; the middle one holds each request's first `computed` tokens."""
        num_key_heads = self.k[0].shape[1]
        kv = torch.full((3, NUM_PAGES + 1, PAGE_SIZE, 2, num_key_heads, HEAD_DIM), torch.nan)
        for k, v, pages, done in zip(self.k, self.v, self.pages, computed, strict=True):
            for position in range(done):
                row = kv[POOL_IDX, pages[position // PAGE_SIZE], position % PAGE_SIZE]
                row[0], row[1] = k[position], v[position]
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
        q, k, v = (
            torch.cat(
                [
                    torch.full_like(whole[r][spans[r]], torch.nan)
                    if r in padded
                    else whole[r][spans[r]]
                    for r in requests
                ]
            )
            for whole in (self.q, self.k, self.v)
        )
        expected = kv.clone()
        out = backend.forward(LAYER_IDX, step, q, k, v, SCALE)
        expected[POOL_IDX] = self.pool(
            [computed[r] + (0 if r in padded else new[r]) for r in requests]
        )[POOL_IDX]
        assert_same_bits(kv[:, :NUM_PAGES], expected[:, :NUM_PAGES])
        assert_same_bits(kv[[0, 2]], expected[[0, 2]])
        return list(out.split(list(new)))

    def reference(self, request: int, span: slice) -> Tensor:
        keys, values = self.k[request][: span.stop], self.v[request][: span.stop]
        return grouped_attention(self.q[request][span], keys, values, SCALE)

    def assert_step_equals_softmax(
        self, package: ModuleType, computed: Sequence[int], new: Sequence[int], **choices: object
    ) -> None:
        outs = self.step(package, self.pool(computed), computed, new, **choices)
        for r, (out, done, count) in enumerate(zip(outs, computed, new, strict=True)):
            if r in choices.get("padded", ()):
                assert not out.any(), f"padded row {r}"
            else:
                assert_close(out, self.reference(r, slice(done, done + count)))

    def in_order(self, order: Sequence[int]) -> Sequences:
        lists = (self.q, self.k, self.v, self.pages)
        return Sequences(*([values[r] for r in order] for values in lists))


@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "prefill"])
@pytest.mark.parametrize(
    ("heads", "owners"), [((4, 2), [0, 0, 1, 1]), ((6, 3), [0, 0, 1, 1, 2, 2]), ((4, 1), [0] * 4)]
)
def test_neighbouring_query_heads_share_a_key_head(
    package: ModuleType, heads: tuple[int, int], owners: list[int], is_decode: bool
) -> None:
    """The first token attends to itself alone: each head's output is its key head's value."""
    sequences = Sequences.random([1], heads)
    [out] = sequences.step(package, sequences.pool([0]), [0], [1], is_prefill=not is_decode)
    assert_close(out[0], sequences.v[0][0, owners])


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


@given(step=ragged_steps(), heads=st.sampled_from(SHARING), seed=st.integers(0, 100))
def test_each_request_of_a_ragged_step_equals_the_softmax(
    package: ModuleType, step: dict, heads: tuple[int, int], seed: int
) -> None:
    lengths = [done + count for done, count in zip(step["computed"], step["new"], strict=True)]
    Sequences.random(lengths, heads, seed).assert_step_equals_softmax(package, **step)


@pytest.mark.parametrize("heads", SHARING, ids="{0[0]}-on-{0[1]}".format)
@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "prefill"])
def test_one_token_at_the_edges_of_a_page_equals_the_softmax(
    package: ModuleType, heads: tuple[int, int], is_decode: bool
) -> None:
    for seq_len in (1, 2, 15, 16, 17, 31, 32, 33):
        computed = [seq_len - 1, 19, seq_len - 1]
        Sequences.random([seq_len, 20, seq_len], heads).assert_step_equals_softmax(
            package, computed, [1, 1, 1], is_prefill=not is_decode
        )


@pytest.mark.parametrize("cuts", [[40], [16, 16, 8], [15, 2, 23], [1, 39], [39, 1]], ids=str)
def test_chunks_of_a_prompt_equal_the_whole(package: ModuleType, cuts: list[int]) -> None:
    sequences = Sequences.random([40])
    kv = sequences.pool([0])
    outs, done = [], 0
    for count in cuts:
        outs += sequences.step(package, kv, [done], [count])
        done += count
    assert_close(torch.cat(outs), sequences.reference(0, slice(0, 40)))


def test_every_order_of_prefills_and_decodes_gives_the_same(package: ModuleType) -> None:
    lengths, computed = [9, 21, 5, 33, 4], [0, 20, 0, 32, 4]
    new = [done_to - done for done_to, done in zip(lengths, computed, strict=True)]
    sequences = Sequences.random(lengths)
    for order in ([0, 1, 2, 3, 4], [1, 3, 0, 4, 2], [4, 3, 2, 1, 0], [0, 2, 1, 3, 4]):
        sequences.in_order(order).assert_step_equals_softmax(
            package, [computed[r] for r in order], [new[r] for r in order]
        )


def test_requests_without_tokens_between_others_change_nothing(package: ModuleType) -> None:
    sequences = Sequences.random([20, 5, 33, 4])
    sequences.assert_step_equals_softmax(package, [20, 0, 33, 0], [0, 5, 0, 4])


@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "prefill"])
def test_padded_row_with_stored_tokens_writes_no_usable_page(
    package: ModuleType, is_decode: bool
) -> None:
    Sequences.random([20, 33, 5]).assert_step_equals_softmax(
        package, [19, 32, 4], [1, 1, 1], padded=[0, 2], is_prefill=not is_decode
    )


def test_padded_row_of_several_tokens_writes_no_usable_page(package: ModuleType) -> None:
    Sequences.random([20, 18]).assert_step_equals_softmax(package, [0, 3], [20, 15], padded=[0])


@pytest.mark.parametrize(("num_reqs", "counts"), [(0, []), (2, [0, 0])], ids=["none", "empty"])
def test_step_without_tokens_is_legal(
    package: ModuleType, num_reqs: int, counts: list[int]
) -> None:
    whole = Sequences.random([20, 20])
    kv = whole.pool([20, 20])
    before = kv.clone()
    pools = plain_pools(kv=kv)
    backend = package.HybridBackend(pools)
    batch = package.ForwardBatch.from_lists(
        [[1] * n for n in counts], [20] * num_reqs, list(range(num_reqs)), whole.pages[:num_reqs]
    )
    nothing = (part[0][:0] for part in (whole.q, whole.k, whole.v))
    out = backend.forward(LAYER_IDX, backend.prepare(batch), *nothing, SCALE)
    assert out.shape == (0, 4, HEAD_DIM)
    assert_same_bits(kv, before)


def test_large_scores_stay_finite(package: ModuleType) -> None:
    sequences = Sequences.random([33, 33])
    loud = dataclasses.replace(sequences, q=[100 * q for q in sequences.q])
    for is_decode in (True, False):
        outs = loud.step(package, loud.pool([32, 32]), [32, 32], [1, 1], is_prefill=not is_decode)
        for r, out in enumerate(outs):
            # Scores near 100 carry errors of 1e-5, and so do the weights.
            assert_close(out, loud.reference(r, slice(32, 33)), 1e-4)


@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "prefill"])
def test_bfloat16_pool_and_queries_accumulate_in_float32(
    package: ModuleType, is_decode: bool
) -> None:
    rounded = Sequences.random([300])
    rounded = Sequences(
        *([part.bfloat16() for part in parts] for parts in (rounded.q, rounded.k, rounded.v)),
        rounded.pages,
    )
    kv = rounded.pool([299]).bfloat16()
    [out] = rounded.step(package, kv, [299], [1], is_prefill=not is_decode)
    assert out.dtype == torch.bfloat16
    assert_close(out, rounded.reference(0, slice(299, 300)))
