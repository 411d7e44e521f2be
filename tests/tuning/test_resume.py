"""An interrupted search goes on where it was, and what it writes is whole or not there."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_card
import pytest
from fake_card import FakeMeasurer, request, tuned
from hypothesis import given, settings
from hypothesis import strategies as st
from lingen.errors import LingenError
from lingen.tuning.state import row_key

STEM = "E=256,N=1024,device_name=NVIDIA_H200"
FINISHED = {f"{STEM}.json", f"{STEM}_down.json", f"{STEM}.measured.json"}


@pytest.fixture(autouse=True, scope="module")
def no_wait_for_the_disk():
    """What a killed process wrote is there without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lingen.files.os.fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, str]:
    """What a run that nobody interrupts writes."""
    folder = tmp_path_factory.mktemp("whole")
    tuned(folder, FakeMeasurer())
    return contents(folder)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}


def interrupted(folder: Path, after: int) -> FakeMeasurer:
    measurer = FakeMeasurer(stop_after=after)
    with pytest.raises(KeyboardInterrupt):
        tuned(folder, measurer)
    return measurer


def test_what_is_known_is_neither_compiled_nor_counted_again(tmp_path):
    interrupted(tmp_path, 20)
    known = {
        (time["product"], time["tokens"], row_key(time["row"]))
        for time in json.loads(state_of(tmp_path).read_text())["times"]
    }
    asked = []

    def prepare(variants):
        asked.extend((v.product, n, row_key(v.row)) for v in variants for n in v.token_counts)
        return variants

    tuned(tmp_path, FakeMeasurer(), prepare=prepare)
    assert known and asked and not known & set(asked)


def test_an_interrupted_run_says_where_it_goes_on(tmp_path):
    lines = []
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, FakeMeasurer(stop_after=7), report=lines.append)
    known = len(json.loads(state_of(tmp_path).read_text())["times"])
    assert 7 <= known <= 14  # a default pair gives two
    assert lines[-1] == f"{known} times are kept in {state_of(tmp_path)}: the same command goes on"


def state_of(folder: Path) -> Path:
    return folder / "triton_3_6_0" / f"{STEM}.state"


def test_a_finished_run_leaves_the_tables_and_the_times(whole):
    assert set(whole) == FINISHED


@settings(max_examples=12, deadline=None)
@given(st.tuples(st.integers(0, 45), st.integers(0, 45)))
def test_interrupted_twice_and_resumed_it_writes_the_same(whole, tmp_path_factory, stops):
    folder = tmp_path_factory.mktemp("stopped")
    calls = []
    for stop in stops:
        calls += interrupted(folder, stop).calls
        assert set(contents(folder)) <= {f"{STEM}.state"}
    last = FakeMeasurer()
    tuned(folder, last)
    assert contents(folder) == whole
    calls += last.calls
    assert len(set(calls)) == len(calls), "something was measured twice"


def test_an_interrupt_while_rows_are_compared_with_the_default_is_no_loss_either(whole, tmp_path):
    everything = FakeMeasurer()
    tuned(tmp_path / "count", everything)
    interrupted(tmp_path / "late", len(everything.calls) - 2)
    last = FakeMeasurer()
    tuned(tmp_path / "late", last)
    assert [call[1] for call in last.calls] == ["alternately", "alternately"]
    assert contents(tmp_path / "late") == whole


def test_killed_twice_and_resumed_it_writes_the_same(whole, tmp_path):
    for times_known in (3, 12):
        process = subprocess.Popen([sys.executable, fake_card.__file__, str(tmp_path), "0.02"])
        state = state_of(tmp_path)
        give_up = time.monotonic() + 60
        while not (state.exists() and len(json.loads(state.read_text())["times"]) > times_known):
            assert process.poll() is None and time.monotonic() < give_up
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(json.loads(state.read_text())["times"]) < 60, "not written after each row"
        names = {name for name in contents(tmp_path) if not name.endswith(".tmp")}
        assert names == {f"{STEM}.state"}
    (state.parent / f".{STEM}.json.a1b2c3.tmp").write_text("{")  # a kill amid a write
    tuned(tmp_path, FakeMeasurer())
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("missing", sorted(FINISHED))
def test_a_kill_between_two_of_its_files_is_made_good(missing, whole, tmp_path, monkeypatch):
    written = []

    def dies(path, text):
        written.append(path.name)
        if path.name == missing:
            raise KeyboardInterrupt
        replace(path, text)

    replace = fake_card.tune.__globals__["write_tables"].__globals__["replace_file"]
    monkeypatch.setattr("lingen.tuning.tables.replace_file", dies)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, FakeMeasurer())
    assert missing not in contents(tmp_path)
    monkeypatch.undo()
    last = FakeMeasurer()
    tuned(tmp_path, last)
    assert not last.calls
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    ("changed", "found", "expected"),
    [
        ({"kernels": "1" * 64}, "kernels " + "0" * 64, "kernels " + "1" * 64),
        ({"triton": "3.6.1"}, None, None),
        ({"device": "NVIDIA H20"}, None, None),
    ],
)
def test_times_of_other_kernels_are_refused_and_others_have_states_of_their_own(
    changed, found, expected, tmp_path
):
    interrupted(tmp_path, 5)
    before = contents(tmp_path)
    if found is None:
        measurer = FakeMeasurer()
        tuned(tmp_path, measurer, **changed)
        assert before.items() <= contents(tmp_path).items()
        return
    with pytest.raises(LingenError) as refused:
        tuned(tmp_path, FakeMeasurer(), **changed)
    assert str(refused.value) == (
        f"{state_of(tmp_path)}: of another search than this one would be\n"
        f"  found     {found}\n"
        f"  expected  {expected}\n"
        "  fix       --restart to drop it and measure everything anew\n"
        "Nothing was written."
    )
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["hidden", "top_k", "dtype", "device", "triton", "num_experts"])
def test_a_state_under_the_name_of_another_search_is_refused(name, tmp_path):
    interrupted(tmp_path, 5)
    state = json.loads(state_of(tmp_path).read_text())
    state["key"][name] = 7
    state_of(tmp_path).write_text(json.dumps(state))
    with pytest.raises(LingenError, match=f"found     {name} 7\n"):
        tuned(tmp_path, FakeMeasurer())


def test_a_restart_drops_what_is_stale(whole, tmp_path):
    interrupted(tmp_path, 5)
    state_of(tmp_path).write_text("{}")
    measurer = FakeMeasurer()
    tuned(tmp_path, measurer, restart=True)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"key": {}, "times": [], "choices": {}}', '{"key": 3}'],
)
def test_what_is_no_state_is_refused_and_stays(text, tmp_path):
    interrupted(tmp_path, 5)
    state_of(tmp_path).write_text(text)
    with pytest.raises(LingenError, match=r"\.state: (not the state|of another)"):
        tuned(tmp_path, FakeMeasurer())
    assert contents(tmp_path) == {f"{STEM}.state": text}


@pytest.mark.parametrize(
    "damage",
    [
        {"product": "sideways"},
        {"tokens": "many"},
        {"row": 3},
        {"microseconds": "fast"},
    ],
    ids=str,
)
def test_a_damaged_time_is_refused(damage, tmp_path):
    interrupted(tmp_path, 5)
    state = json.loads(state_of(tmp_path).read_text())
    state["times"][2] |= damage
    state_of(tmp_path).write_text(json.dumps(state))
    with pytest.raises(LingenError, match="not the state of a search"):
        tuned(tmp_path, FakeMeasurer())


def test_finished_tables_are_replaced_by_force_alone(whole, tmp_path):
    tuned(tmp_path, FakeMeasurer())
    measurer = FakeMeasurer()
    with pytest.raises(LingenError, match="exists already\n  fix       --force"):
        tuned(tmp_path, measurer)
    assert not measurer.calls
    tuned(tmp_path, measurer, force=True)
    assert measurer.calls and contents(tmp_path) == whole


def test_a_spent_budget_gives_a_table_and_the_next_run_goes_on(whole, tmp_path):
    """Time passes with every row; after it no row is tried, but all are compared."""
    hurried = FakeMeasurer()
    outcome = tuned(tmp_path, hurried, seconds=0)
    assert outcome.skipped > 10
    assert all(choice.is_default for choice in outcome.choices.values())
    assert {call[1] for call in hurried.calls} == {"alternately"}
    assert set(contents(tmp_path)) == {*FINISHED, f"{STEM}.state"}
    assert tuned(tmp_path, FakeMeasurer()).skipped == 0
    assert contents(tmp_path) == whole


def test_other_token_counts_go_on_from_the_same_state(whole, tmp_path):
    tuned(tmp_path, FakeMeasurer(), request(counts="1,64"), seconds=0)
    measurer = FakeMeasurer()
    tuned(tmp_path, measurer, request(counts="8,64,512"), seconds=1000)
    shutil.rmtree(tmp_path)
    tuned(tmp_path, FakeMeasurer())
    assert contents(tmp_path) == whole


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LingenError, match="file/triton_3_6_0: cannot be written: Not a directory"):
        tuned(tmp_path / "file", FakeMeasurer())
