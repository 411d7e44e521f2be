"""Lightning attention against the recurrence: prefill, decode and mixed batches, slots, padding."""

from __future__ import annotations

from itertools import permutations
from types import ModuleType

import pytest
import torch
from comparison import assert_close
from hypothesis import given
from hypothesis import strategies as st
from lightning_calls import LAYER_IDX, NO_SLOTS, PAD_SLOT, Calls, Inputs, worked_example
from reference import lightning_recurrence

BLOCK_EDGES = [1, 31, 32, 33, 63, 64, 65, 255, 256, 257]


@pytest.fixture(scope="module", params=["seg_la", "minimax"])
def calls(request: pytest.FixtureRequest, tiny: ModuleType) -> Calls:
    return Calls(tiny, request.param)


@pytest.mark.parametrize("scale", [1.0, 2**-0.5])
def test_the_recurrence_gives_the_numbers_computed_by_hand(scale: float) -> None:
    inputs, out, state = worked_example(scale)
    got_out, got_state = inputs.recurrence()
    assert_close(got_out, out, 1e-6)
    assert_close(got_state, state, 1e-6)


@pytest.mark.parametrize("scale", [1.0, 2**-0.5])
def test_prefill_gives_the_numbers_computed_by_hand(calls: Calls, scale: float) -> None:
    inputs, out, state = worked_example(scale)
    pool = inputs.new_pool(2)
    assert_close(calls.run(inputs, pool, lengths=[3], slots=[1]), out, 1e-6)
    assert_close(pool[LAYER_IDX, 1], state, 1e-6)


@pytest.mark.parametrize("scale", [1.0, 2**-0.5])
def test_decode_gives_the_numbers_computed_by_hand(calls: Calls, scale: float) -> None:
    inputs, out, state = worked_example(scale)
    pool = inputs.new_pool(2)
    for step in range(3):
        got = calls.run(inputs.tokens([step]), pool, lengths=[1], slots=[1], computed=[step])
        assert_close(got, out[[step]], 1e-6)
    assert_close(pool[LAYER_IDX, 1], state, 1e-6)


@st.composite
def ragged_batches(draw: st.DrawFn) -> dict:
    num_reqs = draw(st.integers(1, 5))
    is_decode = draw(st.booleans())
    lengths = st.just(1) if is_decode else st.sampled_from([0, 0, 1, 2, 7, 31, 32, 33, 70])
    slots = draw(st.permutations(range(num_reqs + 2)))[:num_reqs]
    is_padding = [draw(st.booleans()) for _ in range(num_reqs)]
    return {
        "lengths": [draw(lengths) for _ in range(num_reqs)],
        "slots": [PAD_SLOT if pad else slot for slot, pad in zip(slots, is_padding, strict=True)],
        "computed": [draw(st.sampled_from([0, 5])) for _ in range(num_reqs)],
    }


@given(
    batch=ragged_batches(),
    num_heads=st.sampled_from([1, 3, 6, 8]),
    head_dim=st.sampled_from([8, 16, 32, 128]),
    is_strided=st.booleans(),
    seed=st.integers(0, 100),
)
def test_each_request_of_a_ragged_batch_equals_the_recurrence(
    calls: Calls, batch: dict, num_heads: int, head_dim: int, is_strided: bool, seed: int
) -> None:
    lengths, slots, computed = batch["lengths"], batch["slots"], batch["computed"]
    owned = [slice(sum(lengths[:r]), sum(lengths[: r + 1])) for r in range(len(lengths))]
    plain = Inputs.random(sum(lengths), num_heads, head_dim, seed=seed)
    pool = plain.new_pool(len(slots) + 2)
    for slot, done in zip(slots, computed, strict=True):
        if slot != PAD_SLOT and done:
            pool[LAYER_IDX, slot].normal_(generator=torch.Generator().manual_seed(slot))
    before = pool.clone()
    inputs = plain.in_nan_filled_buffers() if is_strided else plain
    for own, slot in zip(owned, slots, strict=True):
        if slot == PAD_SLOT:
            for tensor in (inputs.q, inputs.k, inputs.v):
                tensor[own] = torch.nan
    out = calls.run(inputs, pool, **batch)
    for own, length, slot, done in zip(owned, lengths, slots, computed, strict=True):
        if slot == PAD_SLOT:
            assert not out[own].any()
        elif length:
            initial = before[LAYER_IDX, slot] if done else None
            want_out, want_state = plain.tokens(own).recurrence(initial)
            assert_close(out[own], want_out)
            assert_close(pool[LAYER_IDX, slot], want_state)


def assert_every_order_equals_single_calls(
    calls: Calls, lengths: list[int], computed: list[int]
) -> None:
    """Each permutation of the requests, in outputs and states.

    Bit for bit where all are prefills; a lone decode is summed in another order than one in a batch
    of prefills.
    """
    tolerance = 1e-6 if 1 in lengths else 0.0
    inputs = Inputs.random(sum(lengths), num_heads=2)
    starts = [sum(lengths[:request]) for request in range(len(lengths))]
    owned = [list(range(start, start + n)) for start, n in zip(starts, lengths, strict=True)]
    initial = inputs.new_pool(len(lengths) + 1)
    for request, done in enumerate(computed):
        if done:
            initial[:, request] = request + 1.0
    alone, states = [], []
    for request, length in enumerate(lengths):
        pool = initial.clone()
        single = {"lengths": [length], "slots": [request], "computed": [computed[request]]}
        alone.append(calls.run(inputs.tokens(owned[request]), pool, **single))
        states.append(pool[LAYER_IDX, request])
    for order in permutations(range(len(lengths))):
        pool = initial.clone()
        out = calls.run(
            inputs.tokens([token for request in order for token in owned[request]]),
            pool,
            lengths=[lengths[request] for request in order],
            slots=order,
            computed=[computed[request] for request in order],
        )
        assert_close(out, torch.cat([alone[request] for request in order]), tolerance)
        for request in order:
            if lengths[request]:
                assert_close(pool[LAYER_IDX, request], states[request], tolerance)


def test_every_order_of_prefills_equals_single_calls(calls: Calls) -> None:
    assert_every_order_equals_single_calls(calls, [5, 0, 33, 70], [0, 3, 0, 8])


def test_every_order_of_prefills_and_decodes_equals_single_calls(calls: Calls) -> None:
    assert_every_order_equals_single_calls(calls, [5, 9, 1, 1, 1], [0, 0, 4, 7, 0])


@pytest.mark.parametrize("num_tokens", BLOCK_EDGES)
def test_tail_of_a_block_contributes_nothing(calls: Calls, num_tokens: int) -> None:
    plain = Inputs.random(num_tokens)
    pool = plain.new_pool(2)
    out = calls.run(plain.in_nan_filled_buffers(), pool, lengths=[num_tokens], slots=[0])
    want_out, want_state = plain.recurrence()
    assert_close(out, want_out)
    assert_close(pool[LAYER_IDX, 0], want_state)


@pytest.mark.parametrize("chunk_size", [1, 3, 16, 64, 300])
@pytest.mark.parametrize("num_tokens", BLOCK_EDGES)
def test_chunk_size_changes_nothing_but_rounding(
    tiny: ModuleType, chunk_size: int, num_tokens: int
) -> None:
    inputs = Inputs.random(num_tokens, num_heads=2)
    state = torch.ones(3, 2, 8, 8)
    out = tiny.kernels.lightning.lightning_prefill_ref(
        *(inputs.q, inputs.k, inputs.v, state),
        slots=torch.tensor([1], dtype=torch.int32),
        has_initial_state=torch.tensor([True]),
        track_slots=NO_SLOTS,
        track_lens=NO_SLOTS,
        query_start_loc=torch.tensor([0, num_tokens], dtype=torch.int32),
        log_decay=inputs.log_decay,
        scale=inputs.scale,
        chunk_size=chunk_size,
        max_query_len=num_tokens,
    )
    want_out, want_state = inputs.recurrence(torch.ones(2, 8, 8))
    assert_close(out, want_out)
    assert_close(state[1], want_state)


@pytest.mark.parametrize("leftover", [1e3, torch.nan])
@pytest.mark.parametrize("num_tokens", [7, 1], ids=["prefill", "decode-as-first-step"])
def test_new_request_ignores_what_its_slot_held(
    calls: Calls, leftover: float, num_tokens: int
) -> None:
    inputs = Inputs.random(num_tokens)
    pool = inputs.new_pool(4)
    pool[:, 2] = leftover
    out = calls.run(inputs, pool, lengths=[num_tokens], slots=[2])
    want_out, want_state = inputs.recurrence()
    assert_close(out, want_out)
    assert_close(pool[LAYER_IDX, 2], want_state)


@pytest.mark.parametrize("cuts", [[4, 4, 3], [8, 3], [10, 1], [1] * 11], ids=str)
def test_chunks_of_a_prompt_equal_one_call(calls: Calls, cuts: list[int]) -> None:
    inputs = Inputs.random(11)
    pool = inputs.new_pool(3)
    pool[:, 1] = 1e3
    outs, done = [], 0
    for length in cuts:
        chunk = inputs.tokens(slice(done, done + length))
        outs.append(calls.run(chunk, pool, lengths=[length], slots=[1], computed=[done]))
        done += length
    want_out, want_state = inputs.recurrence()
    assert_close(torch.cat(outs), want_out)
    assert_close(pool[LAYER_IDX, 1], want_state)


def test_state_restored_into_another_slot_continues_its_request(calls: Calls) -> None:
    inputs = Inputs.random(11)
    pool = inputs.new_pool(4)
    calls.run(inputs.tokens(slice(8)), pool, lengths=[8], slots=[3])
    pool[:, 0] = pool[:, 3]
    pool[:, 3] = torch.nan
    out = calls.run(inputs.tokens(slice(8, 11)), pool, lengths=[3], slots=[0], computed=[8])
    want_out, want_state = inputs.recurrence()
    assert_close(out, want_out[8:])
    assert_close(pool[LAYER_IDX, 0], want_state)


def test_padded_decode_rows_leave_every_slot_untouched_for_50_steps(calls: Calls) -> None:
    slots = [5, 0, 2, -1, -1, -1, -1, -1]
    steps = [Inputs.random(8, seed=step) for step in range(50)]
    pool = steps[0].new_pool(7)
    alone = {slot: steps[0].new_pool(7) for slot in slots[:3]}
    for step, inputs in enumerate(steps):
        out = calls.run(inputs, pool, lengths=[1] * 8, slots=slots, computed=[step] * 8)
        assert not out[3:].any()
        for row, slot in enumerate(slots[:3]):
            single = calls.run(
                inputs.tokens([row]), alone[slot], lengths=[1], slots=[slot], computed=[step]
            )
            assert_close(out[[row]], single, 1e-6)
    for slot in slots[:3]:
        assert_close(pool[LAYER_IDX, slot], alone[slot][LAYER_IDX, slot], 1e-6)


def test_requests_without_tokens_write_nothing(calls: Calls) -> None:
    inputs = Inputs.random(9)
    pool = inputs.new_pool(5)
    out = calls.run(inputs, pool, lengths=[0, 5, 0, 4], slots=[3, 1, 2, 0], computed=[2, 0, 0, 0])
    for own, slot in ((slice(5), 1), (slice(5, 9), 0)):
        want_out, want_state = inputs.tokens(own).recurrence()
        assert_close(out[own], want_out)
        assert_close(pool[LAYER_IDX, slot], want_state)


@pytest.mark.parametrize("num_reqs", [0, 2])
def test_step_without_tokens_is_legal(calls: Calls, num_reqs: int) -> None:
    inputs = Inputs.random(0)
    pool = inputs.new_pool(3)
    out = calls.run(inputs, pool, lengths=[0] * num_reqs, slots=[1, 0][:num_reqs])
    assert out.shape == (0, 3, 8)
    assert pool[:, :3].isnan().all()


def test_decode_without_rows_is_legal(tiny: ModuleType) -> None:
    inputs = Inputs.random(0)
    out = tiny.kernels.lightning.lightning_decode_ref(
        *(inputs.q, inputs.k, inputs.v, inputs.new_pool(2)[0]),
        slots=torch.empty(0, dtype=torch.int32),
        has_initial_state=torch.empty(0, dtype=torch.bool),
        track_slots=NO_SLOTS,
        log_decay=inputs.log_decay,
        scale=inputs.scale,
    )
    assert out.shape == (0, 3, 8)


def test_unknown_backend_is_refused_with_the_known_names(tiny: ModuleType) -> None:
    pools = tiny.Pools.of_size(num_slots=1, num_pages=1)
    with pytest.raises(ValueError) as refusal:
        tiny.HybridBackend(pools, "triton")
    message = "lightning backend 'triton' is unknown: one of seg_la, minimax"
    assert str(refusal.value) == message


def test_recurrence_starts_from_the_state_it_is_given() -> None:
    one = torch.ones(1, 1, 1)
    log_decay = torch.tensor([0.5], dtype=torch.float64).log()
    out, state = lightning_recurrence(one, one, one, 8 * one, log_decay, 1.0)
    assert (float(out), float(state)) == (5.0, 5.0)
