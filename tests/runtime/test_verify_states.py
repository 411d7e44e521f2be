"""Drafts leave the state of plain decoding, to the bit, whichever of them are accepted."""

from __future__ import annotations

import random
from itertools import permutations, product
from types import ModuleType

import pytest
import torch
from chains import NUM_ROWS, NUM_SLOTS, Chain, Runner, decoded
from comparison import assert_close, assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from lightning_calls import LAYER_IDX, Inputs, worked_example

D = 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(params=list(product(["seg_la", "minimax"], ["replay", "snapshot"])), ids="-".join)
def runner(request: pytest.FixtureRequest, tiny: ModuleType) -> Runner:
    return new_runner(tiny, *request.param)


def new_runner(
    package: ModuleType,
    name: str = "seg_la",
    verify_states: str = "replay",
    dtype: torch.dtype = torch.float32,
    num_tokens: int = 64,
) -> Runner:
    return Runner(package, name, verify_states, Inputs.random(num_tokens, head_dim=16), D, dtype)


def assert_decoded(runner: Runner, chain: Chain, tokens: list[int]) -> None:
    assert_same_bits(runner.state(chain), decoded(runner, tokens)[1])


@pytest.mark.parametrize("accepted", range(D + 1))
def test_each_number_of_accepted_drafts_gives_the_state_of_decoding(
    runner: Runner, accepted: int
) -> None:
    chain = Chain(slot=4, row=2)
    runner.run([chain], [[0]])
    chain.computed = 1
    runner.verify_step([chain], [[1, 2, 3, 4]], [accepted])
    runner.commit([chain])
    assert_decoded(runner, chain, [0, *range(1, 2 + accepted)])
    before = runner.state(chain).clone()
    runner.commit([chain])
    assert_same_bits(runner.state(chain), before)


@pytest.mark.parametrize("scale", [1.0, 2**-0.5])
def test_drafts_give_the_numbers_computed_by_hand(runner: Runner, scale: float) -> None:
    inputs, out, state = worked_example(scale)
    runner = Runner(runner.package, runner.name, runner.verify_states, inputs, D)
    chain = Chain(slot=4, row=2)
    assert_close(runner.verify_step([chain], [[0, 1, 2]], [2])[0], out, 1e-6)
    runner.commit([chain])
    assert_close(runner.state(chain), state, 1e-6)


def test_drafts_see_the_same_outputs_as_when_they_are_decoded(runner: Runner) -> None:
    chain = Chain(slot=4, row=2)
    first = runner.verify_step([chain], [[0, 1, 2, 3]], [2])[0]
    second = runner.verify_step([chain], [[4, 5, 6, 7]], [0])[0]
    want = decoded(runner, [0, 1, 2, 3])[0], decoded(runner, [0, 1, 2, 4, 5, 6, 7])[0][3:]
    assert_close(first, want[0])
    assert_close(second, want[1])


def test_batch_of_all_outcomes_and_padding_in_any_order(runner: Runner) -> None:
    """0 to D accepted, one chain without drafts, one without tokens, a padded row, side by side."""
    slots, rows = [6, 0, 3, 5, 1], [1, 4, 0, 3, 2]
    tokens = {0: [0, 1, 2, 3], 1: [10, 11, 12, 13], 2: [20, 21, 22], 3: [30], None: [7, 8, 9]}
    accepted = {0: 3, 1: 0, 2: 1, 3: 0, None: 2}
    for order in list(permutations([0, 1, 2, 3, None]))[::17]:
        fresh = new_runner(runner.package, runner.name, runner.verify_states)
        chains = {i: Chain(slots[i], rows[i]) for i in range(4)} | {None: None}
        idle = Chain(slots[4], rows[4], computed=5)
        outs = fresh.verify_step(
            [*(chains[i] for i in order), idle],
            [*(tokens[i] for i in order), []],
            [*(accepted[i] for i in order), 0],
        )
        assert not outs[order.index(None)].any()
        fresh.commit([*(chains[i] for i in order), idle])
        for i in range(4):
            assert_decoded(fresh, chains[i], tokens[i][: 1 + accepted[i]])
            assert_close(outs[order.index(i)], decoded(fresh, tokens[i])[0])
        untouched = sorted({*range(NUM_SLOTS)} - set(slots[:4]))
        assert fresh.pool[LAYER_IDX, untouched].isnan().all()
        unused_rows = sorted({*range(NUM_ROWS)} - set(rows[:3]))
        assert fresh.verify[LAYER_IDX, unused_rows].isnan().all()
        others = [layer for layer in range(fresh.pool.shape[0]) if layer != LAYER_IDX]
        assert fresh.pool[others].isnan().all() and fresh.verify[others].isnan().all()


@pytest.mark.parametrize("following", ["decode", "prefill", "mixed", "verify", "no drafts"])
def test_any_step_after_drafts_continues_from_the_accepted_ones(
    runner: Runner, following: str
) -> None:
    chain, other = Chain(slot=2, row=3), Chain(slot=5, row=0)
    runner.verify_step([chain], [[0, 1, 2, 3]], [2])
    if following == "decode":
        runner.run([chain], [[4]])
    elif following == "prefill":
        runner.run([chain], [[4, 5, 6]])
    elif following == "mixed":
        runner.run([other, chain], [[9, 9, 9], [4]])
    else:
        drafts = {"verify": [4, 5, 6], "no drafts": [4]}[following]
        runner.verify_step([chain], [drafts], [0])
    tokens = [4, 5, 6] if following == "prefill" else [4]
    want = decoded(runner, [0, 1, 2, *tokens])[1]
    # A prefill sums several tokens at once: equal but for rounding.
    compare = assert_close if following in ("prefill", "mixed") else assert_same_bits
    compare(runner.state(chain), want)


def test_fresh_request_goes_straight_to_verify_over_a_slot_with_pending_drafts(
    runner: Runner,
) -> None:
    """The slot's last owner ended inside its drafts: neither they nor its state reach the next."""
    chain = Chain(slot=2, row=3)
    runner.verify_step([chain], [[0, 1, 2, 3]], [3])
    fresh = Chain(slot=2, row=1)
    runner.verify_step([fresh], [[20, 21, 22]], [1])
    runner.commit([fresh])
    assert_decoded(runner, fresh, [20, 21])


def test_request_goes_from_prefill_to_verify_without_a_decode_between(runner: Runner) -> None:
    chain = Chain(slot=2, row=3)
    runner.run([chain], [[0, 1, 2, 3, 4]])
    chain.computed = 5
    runner.verify_step([chain], [[5, 6, 7, 8]], [2])
    runner.verify_step([chain], [[9, 10]], [1])
    runner.commit([chain])
    assert_close(runner.state(chain), decoded(runner, [*range(8), 9, 10])[1])


def test_step_that_leaves_a_request_out_keeps_its_pending_drafts(runner: Runner) -> None:
    chain, other = Chain(slot=2, row=3), Chain(slot=5, row=0)
    runner.verify_step([chain, other], [[0, 1, 2, 3], [10, 11]], [2, 1])
    # What padding seems to accept goes nowhere, either.
    runner.verify_step([other, chain, None], [[12, 13], [], [7, 8]], [0, 0, 1])
    runner.run([chain, other], [[], [14]])
    runner.commit([chain])
    assert_decoded(runner, chain, [0, 1, 2])
    assert_close(runner.state(other), decoded(runner, [10, 11, 12, 14])[1])


def test_state_that_starts_from_a_copy_has_nothing_pending(runner: Runner) -> None:
    chain = Chain(slot=2, row=3)
    runner.verify_step([chain], [[0, 1, 2, 3]], [2])
    runner.commit([chain])
    stale = Chain(slot=4, row=1)
    runner.verify_step([stale], [[30, 31, 32]], [2])
    slots = [torch.tensor([slot, -1], dtype=torch.int32) for slot in (chain.slot, stale.slot)]
    runner.backend.copy_states(*slots)
    copy = Chain(slot=4, row=1, computed=3)
    runner.run([copy], [[4]])
    assert_decoded(runner, copy, [0, 1, 2, 4])


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_hundred_tokens_of_random_drafts_and_acceptance(
    tiny: ModuleType, verify_states: str, dtype: str
) -> None:
    """Three chains that verify, decode and pause at random, until each has kept 200 tokens."""
    chance = random.Random(7)
    runner = new_runner(tiny, "seg_la", verify_states, DTYPES[dtype], num_tokens=3 * 200 + D)
    chains = [Chain(slot=slot, row=row) for slot, row in ((3, 4), (0, 1), (6, 2))]
    ends = [200, 400, 600]
    while any(chain.computed < 200 for chain in chains):
        order = chance.sample(range(3), 3)
        lengths = [
            min(chance.choice([0, 1, 2, D + 1, D + 1]), 200 - chains[i].computed) for i in order
        ]
        parts = []
        for i, length in zip(order, lengths, strict=True):
            start = ends[i] - 200 + chains[i].computed
            parts.append([*range(start, start + length)])
        batch = [chains[i] for i in order]
        if all(length == 1 for length in lengths):
            runner.run(batch, parts)
            for chain in batch:
                chain.computed += 1
            continue
        accepted = [chance.randint(0, max(length - 1, 0)) for length in lengths]
        # Rejected drafts are other tokens: those of another chain.
        for part, kept in zip(parts, accepted, strict=True):
            part[1 + kept :] = [chance.randrange(600) for _ in part[1 + kept :]]
        runner.verify_step(batch, parts, accepted)
    runner.commit(chains)
    for chain, end in zip(chains, ends, strict=True):
        assert_decoded(runner, chain, [*range(end - 200, end)])


@given(data=st.data())
def test_drafts_of_any_shape_leave_the_state_of_decoding(tiny: ModuleType, data: st.DataObject):
    draw = data.draw
    verify_states = draw(st.sampled_from(["replay", "snapshot"]))
    runner = new_runner(tiny, draw(st.sampled_from(["seg_la", "minimax"])), verify_states)
    slots, rows = draw(st.permutations(range(NUM_SLOTS))), draw(st.permutations(range(NUM_ROWS)))
    chains = [Chain(slots[i], rows[i]) for i in range(3)]
    kept: list[list[int]] = [[], [], []]
    for _ in range(draw(st.integers(1, 4))):
        order = draw(st.permutations([0, 1, 2, None]))
        lengths = [draw(st.integers(0, D + 1)) for _ in order]
        tokens = [[draw(st.integers(0, 63)) for _ in range(length)] for length in lengths]
        accepted = [draw(st.integers(0, max(length - 1, 0))) for length in lengths]
        runner.verify_step([None if i is None else chains[i] for i in order], tokens, accepted)
        for i, part, count in zip(order, tokens, accepted, strict=True):
            if i is not None and part:
                kept[i] += part[: 1 + count]
    runner.commit(chains)
    for chain, tokens in zip(chains, kept, strict=True):
        if tokens:
            assert_decoded(runner, chain, tokens)
        else:
            assert runner.state(chain).isnan().all()


def test_more_drafts_than_the_pools_hold_are_refused(tiny: ModuleType) -> None:
    runner = new_runner(tiny)
    with pytest.raises(ValueError, match="4 drafts: the pools are for 3 per request"):
        runner.run([Chain(0, 0)], [[0, 1, 2, 3, 4]], is_verify=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"verify_rows": [0, 0]}, "verify_rows [0, 0]: two requests on one row"),
        ({"verify_rows": [0]}, "1 verify rows for 2 requests"),
        ({"verify_rows": [0, -1]}, "slot 1: 1 drafts and no verify row"),
        ({}, "slot 0: 1 drafts and no verify row"),
        (
            {"verify_rows": [0, 1], "track_slots": [2, -1], "track_positions": [1, 0]},
            "a verify step tracks nothing: its tokens may be rejected",
        ),
    ],
    ids=["same-row", "too-few-rows", "no-row", "no-rows", "tracking"],
)
def test_verify_batch_that_cannot_be_is_refused(
    tiny: ModuleType, wrong: dict, message: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        tiny.ForwardBatch.from_lists(
            [[1, 2], [3, 4]], [0, 0], [0, 1], [[0], [1]], is_verify=True, **wrong
        )
    assert str(refusal.value) == message


@pytest.mark.parametrize("verify_states", ["replay", "snapshot"])
def test_one_call_serves_all_layers(
    tiny: ModuleType, monkeypatch: pytest.MonkeyPatch, verify_states: str
) -> None:
    """Applying what is pending, accepting and committing do not go layer by layer."""
    calls: list[str] = []

    def counted(name: str) -> None:
        function = getattr(tiny.backend, name)
        monkeypatch.setattr(
            tiny.backend, name, lambda *arguments: (calls.append(name), function(*arguments))
        )

    counted("lightning_commit")
    counted("lightning_accept")
    runner = new_runner(tiny, verify_states=verify_states)
    chain = Chain(slot=4, row=2)
    runner.verify_step([chain], [[0, 1, 2, 3]], [2])
    assert calls == ([] if verify_states == "replay" else ["lightning_accept"])
    calls.clear()
    runner.run([chain], [[4]])
    runner.commit([chain])
    assert calls == (["lightning_commit"] * 2 if verify_states == "replay" else [])
