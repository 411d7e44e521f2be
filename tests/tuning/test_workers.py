"""Workers hand every variant on once, whatever becomes of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_card import FakeMeasurer, default_rows, request, tuned
from lingen.tuning.search import Variant
from lingen.tuning.workers import Workers

ROW = default_rows(1)[0]
VARIANTS = [Variant("up", ROW | {"num_stages": n}, (1, 512)) for n in (2, 3)]
VARIANTS += [Variant("down", ROW | {"num_stages": n}, (64,)) for n in (2, 3, 4)]
# Writes what it is asked to a file of its own, and answers; or ends before, or amid.
WORKER = """
import json, os, sys, time
log, ends_after, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
folder, shape = sys.argv[4], json.loads(sys.argv[5])
for number, line in enumerate(sys.stdin):
    if number == ends_after:
        sys.exit(1)
    with open(os.path.join(log, str(os.getpid())), "a") as file:
        file.write(line)
    time.sleep(pause)
    print("done", flush=True)
"""


def workers(log: Path, count: int, ends_after: int = 100, pause: float = 0.0) -> Workers:
    command = (sys.executable, "-c", WORKER, str(log), str(ends_after), str(pause))
    return Workers(count, Path("package"), request().shape, default_rows, command)


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("ends_after", [0, 1, 100])
def test_each_variant_comes_once_even_from_workers_that_die(count, ends_after, tmp_path):
    found = list(workers(tmp_path, count, ends_after)(VARIANTS))
    assert sorted(map(VARIANTS.index, found)) == [0, 1, 2, 3, 4]


def test_a_worker_is_asked_for_the_calls_that_are_measured(tmp_path):
    list(workers(tmp_path, 2)(VARIANTS))
    lines = [line for log in tmp_path.iterdir() for line in log.read_text().splitlines()]
    asked = [json.loads(line) for line in lines]
    measured = FakeMeasurer()
    for variant in VARIANTS:
        calls = []
        for tokens in variant.token_counts:
            up, down = default_rows(tokens)
            pair = (variant.row, down) if variant.product == "up" else (up, variant.row)
            calls.append([tokens, *pair])
        assert calls in asked
    assert len(asked) == len(VARIANTS) and not measured.calls


def test_no_worker_outlives_a_search_that_is_given_up(tmp_path):
    ready = workers(tmp_path, 2, pause=0.5)(VARIANTS * 50)
    next(ready)
    start = time.monotonic()
    ready.close()
    assert time.monotonic() - start < 5
    for pid in (int(log.name) for log in tmp_path.iterdir()):
        give_up = time.monotonic() + 10
        while Path("/proc", str(pid)).exists() and time.monotonic() < give_up:
            time.sleep(0.01)
        assert not Path("/proc", str(pid)).exists()


def test_nothing_is_started_where_nothing_is_left(tmp_path):
    assert list(workers(tmp_path, 3)([])) == []
    assert not list(tmp_path.iterdir())


def test_workers_change_nothing_of_what_is_written(tmp_path):
    """They hand rows on in another order than they are asked."""
    tuned(tmp_path / "alone", FakeMeasurer())
    log = tmp_path / "log"
    log.mkdir()
    tuned(tmp_path / "helped", FakeMeasurer(), prepare=workers(log, 2))
    alone, helped = (
        {path.name: path.read_text() for path in (tmp_path / name).rglob("*.json")}
        for name in ("alone", "helped")
    )
    assert alone == helped


def test_a_worker_ends_with_its_input(tmp_path):
    """A killed search leaves none behind."""
    command = workers(tmp_path, 1).command
    process = subprocess.Popen([*command, "package", "{}"], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(10) == 0
