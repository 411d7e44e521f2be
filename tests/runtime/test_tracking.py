"""States at track positions land in the slots of the batch, and runs continue from them."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
import torch
from chains import NUM_SLOTS, Chain, Runner, decoded
from comparison import assert_close, assert_same_bits
from lightning_calls import LAYER_IDX, PAD_SLOT, Inputs

D = 3


@pytest.fixture(params=["seg_la", "minimax"])
def runner(request: pytest.FixtureRequest, tiny: ModuleType) -> Runner:
    return new_runner(tiny, request.param)


def new_runner(package: ModuleType, name: str = "seg_la", num_tokens: int = 700) -> Runner:
    return Runner(package, name, "replay", Inputs.random(num_tokens, 2, head_dim=16), D)


def prefilled(runner: Runner, tokens: range) -> torch.Tensor:
    """State behind these tokens, prefilled alone by the same backend."""
    alone, chain = new_runner(runner.package, runner.name), Chain(slot=0, row=0)
    alone.run([chain], [tokens])
    return alone.state(chain)


def test_masked_snapshot_of_two_prefills_is_that_of_a_fresh_run(runner: Runner) -> None:
    chains = [Chain(slot=3, row=0), Chain(slot=5, row=1)]
    tokens = [range(300), range(300, 600)]
    runner.run(chains, tokens, track_slots=[1, PAD_SLOT], track_positions=[256, 256])
    assert_close(runner.pool[LAYER_IDX, 1], prefilled(runner, range(256)))
    for chain, part in zip(chains, tokens, strict=True):
        assert_close(runner.state(chain), prefilled(runner, part))
    kept = [slot for slot in range(NUM_SLOTS) if slot not in (1, 3, 5)]
    assert runner.pool[LAYER_IDX, kept].isnan().all()


@pytest.mark.parametrize("position", [1, 15, 16, 17, 63, 64, 65, 99, 100])
def test_boundary_may_lie_anywhere_in_a_chunk(runner: Runner, position: int) -> None:
    """A second chunk of 60 on 40 tokens, beside a decode and a padded row that claim to track."""
    chain, other = Chain(slot=3, row=0), Chain(slot=5, row=1)
    runner.run([chain, other], [range(40), range(200, 205)])
    chain.computed, other.computed = 40, 5
    runner.run(
        [None, chain, other],
        [[0, 0], range(40, 100), [205]],
        track_slots=[0, 1, 2],
        track_positions=[4, position, 6],
    )
    tracked = runner.pool[LAYER_IDX, 1]
    if position <= 40:
        assert tracked.isnan().all()
    else:
        assert_close(tracked, prefilled(runner, range(position)))
    assert_close(runner.state(chain), prefilled(runner, range(100)))
    assert_close(runner.pool[LAYER_IDX, 2], runner.state(other))
    assert runner.pool[LAYER_IDX, 0].isnan().all()


def test_decode_tracks_the_state_behind_its_token_and_only_at_the_position(runner: Runner) -> None:
    chains = [Chain(slot=3, row=0), Chain(slot=5, row=1), None]
    for token in range(6):
        runner.run(
            chains,
            [[token], [100 + token], [7]],
            track_slots=[1, PAD_SLOT, 2],
            track_positions=[4, 4, 4],
        )
        for chain in chains[:2]:
            chain.computed += 1
    assert_same_bits(runner.pool[LAYER_IDX, 1], decoded(runner, [*range(4)])[1])
    assert_same_bits(runner.state(chains[1]), decoded(runner, [*range(100, 106)])[1])
    assert runner.pool[LAYER_IDX, [0, 2, 4, 6]].isnan().all()


def test_second_run_from_the_snapshot_gives_the_first_runs_outputs(runner: Runner) -> None:
    """Decode over further boundaries at 64, then the same tokens once more from each snapshot."""
    chain = Chain(slot=6, row=0)
    runner.run([chain], [range(60)])
    chain.computed = 60
    outs = {}
    for token in range(60, 200):
        slot = token // 64  # of the boundary that comes next
        outs[token] = runner.run(
            [chain], [[token]], track_slots=[slot], track_positions=[64 * (slot + 1)]
        )[1][0]
        chain.computed += 1
    for boundary in (64, 128, 192):
        sources = torch.tensor([boundary // 64 - 1], dtype=torch.int32)
        runner.backend.copy_states(sources, torch.tensor([5], dtype=torch.int32))
        again = Chain(slot=5, row=1, computed=boundary)
        for token in range(boundary, 200):
            assert_same_bits(runner.run([again], [[token]])[1][0], outs[token])
            again.computed += 1


def test_prefill_with_tracking_then_verify_then_decode_equals_plain_decoding(
    runner: Runner,
) -> None:
    """The track fields of one step have no say in the next: nothing is written by verify."""
    runner = new_runner(runner.package, runner.name, num_tokens=1100)
    chains = [Chain(slot=3, row=0), Chain(slot=5, row=1)]
    runner.run(chains, [range(1000), range(7)], track_slots=[1, 2], track_positions=[960, 4])
    snapshots = runner.pool[LAYER_IDX, [1, 2]].clone()
    chains[0].computed, chains[1].computed = 1000, 7
    runner.verify_step(chains, [range(1000, 1004), range(7, 11)], [3, 0])
    runner.run(chains, [[1004], [8]])
    assert_close(runner.state(chains[0]), decoded(runner, [*range(1005)])[1])
    assert_close(runner.state(chains[1]), decoded(runner, [*range(9)])[1])
    assert_same_bits(runner.pool[LAYER_IDX, [1, 2]], snapshots)
    assert_close(snapshots[0], decoded(runner, [*range(960)])[1])


@pytest.mark.parametrize("length", [1, 8], ids=["decode", "prefill"])
def test_snapshot_of_a_request_with_pending_drafts_holds_the_accepted_ones(
    runner: Runner, length: int
) -> None:
    chain = Chain(slot=3, row=0)
    runner.verify_step([chain], [[0, 1, 2, 3]], [2])
    runner.run([chain], [range(3, 3 + length)], track_slots=[1], track_positions=[4])
    assert_close(runner.pool[LAYER_IDX, 1], decoded(runner, [0, 1, 2, 3])[1])


def test_slot_that_becomes_a_snapshot_forgets_its_pending_drafts(runner: Runner) -> None:
    """Slot 1 belonged to a request that ended inside its drafts."""
    runner.verify_step([Chain(slot=1, row=2)], [[50, 51, 52]], [2])
    chain = Chain(slot=3, row=0)
    runner.run([chain], [range(6)], track_slots=[1], track_positions=[4])
    resumed = Chain(slot=1, row=2, computed=4)
    runner.run([resumed], [[4]])
    assert_close(runner.state(resumed), decoded(runner, [*range(5)])[1])


def test_random_mixed_steps_track_every_boundary(tiny: ModuleType) -> None:
    chance = random.Random(3)
    for name in ("seg_la", "minimax"):
        runner = new_runner(tiny, name)
        chains = [Chain(slot=slot, row=slot) for slot in range(3)]
        for _ in range(12):
            order = chance.sample(range(3), 3)
            lengths = [chance.choice([0, 1, 1, 5, 17]) for _ in order]
            starts = [200 * i + chains[i].computed for i in order]
            cuts = [chains[i].computed + chance.randint(0, 18) for i in order]
            slots = [3 + i if chance.random() < 0.7 else PAD_SLOT for i in order]
            before = runner.pool.clone()
            runner.run(
                [chains[i] for i in order],
                [range(start, start + n) for start, n in zip(starts, lengths, strict=True)],
                track_slots=slots,
                track_positions=cuts,
            )
            for i, n, cut, slot in zip(order, lengths, cuts, slots, strict=True):
                is_tracked = chains[i].computed < cut <= chains[i].computed + n
                if slot != PAD_SLOT and is_tracked:
                    want = prefilled(runner, range(200 * i, 200 * i + cut))
                    assert_close(runner.pool[LAYER_IDX, slot], want)
                elif slot != PAD_SLOT:
                    assert_same_bits(runner.pool[LAYER_IDX, slot], before[LAYER_IDX, slot])
                chains[i].computed += n


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"track_slots": [2], "track_positions": [1, 1]},
            "1 track slots and 2 track positions for 2 requests: "
            "each needs one of each, or none does",
        ),
        (
            {"track_slots": [2, 1], "track_positions": [1, 1]},
            "track_slots [2, 1]: taken, by another or by [0, 1]",
        ),
        (
            {"track_slots": [2, 2], "track_positions": [1, 1]},
            "track_slots [2, 2]: taken, by another or by [0, 1]",
        ),
    ],
    ids=["too-few", "active", "twice"],
)
def test_tracking_that_cannot_be_is_refused(tiny: ModuleType, wrong: dict, message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        tiny.ForwardBatch.from_lists([[1], [3]], [0, 0], [0, 1], [[0], [1]], **wrong)
    assert str(refusal.value) == message
