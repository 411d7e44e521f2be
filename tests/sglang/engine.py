"""Runs the real engine in its own environment and process group; at most one on this machine."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment
import pytest
from plugins import Plugin

DRIVER = environment.HERE / "engine_driver.py"
PLATFORM = "lingen_cpu"
TIMEOUT = 600  # seconds; a run takes 35 to 130 on 2 idle cores

COMMON = {
    "skip_tokenizer_init": True,
    "device": "cpu",
    "dtype": "float32",
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.3,
    "max_total_tokens": 2048,
    "max_running_requests": 4,
    "context_length": 256,
}


@dataclass(frozen=True)
class Request:
    """One prompt; log-probabilities are wanted from prompt position `from_position` on."""

    input_ids: list[int]
    new_tokens: int
    from_position: int = 0


@dataclass(frozen=True)
class Answer:
    """What the engine gave: see `engine_driver.py`."""

    tokens: list[int]
    cached: int
    drafts: int | None  # proposed
    accepted: int | None  # of them
    log_probs: list[list[float]]


@dataclass(frozen=True)
class Run:
    answers: list[list[Answer]]  # by batch and request
    models: list[dict[str, Any]]  # one per loaded model: see `platform_plugin/…/report.py`
    draft_passes: list[dict[str, Any]]  # one per pass of the draft model


def serve(
    plugin: Plugin,
    checkpoint: Path,
    batches: list[list[Request]],
    scratch: Path,
    draft_hints: Sequence[list[int]] = (),
    **arguments: Any,
) -> Run:
    """Serve the batches in turn with one engine; fails the test if the engine fails or hangs.

    scratch: a folder to make, for the job, its answers and the log. draft_hints: see
    `platform_plugin/…/draft_passes.py`. arguments: for `sglang.Engine`, over `COMMON`.
    """
    reports = scratch / "reports"
    reports.mkdir(parents=True)
    engine = COMMON | {"model_path": str(checkpoint)} | arguments
    job = {
        "engine": engine,
        "vocabulary": json.loads((checkpoint / "config.json").read_text())["vocab_size"],
        "batches": [[vars(request) for request in batch] for batch in batches],
    }
    (scratch / "job.json").write_text(json.dumps(job))
    (scratch / "hints.json").write_text(json.dumps(draft_hints))
    variables = _variables(plugin, scratch, engine.get("tp_size", 1))
    command = [environment.python(), DRIVER, scratch / "job.json", scratch / "result.json"]
    _run(command, variables, scratch)
    answers = [
        [Answer(**answer) for answer in batch]
        for batch in json.loads((scratch / "result.json").read_text())
    ]
    models = [json.loads(file.read_text()) for file in sorted(reports.glob("*.json"))]
    passes = [
        json.loads(line)
        for file in sorted(reports.glob("*.drafts"))
        for line in file.read_text().splitlines()
    ]
    return Run(answers, models, passes)


def _variables(plugin: Plugin, scratch: Path, tp: int) -> dict[str, str]:
    own_cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    cores = [str(core) for core in itertools.islice(own_cores, tp)]
    inherited = {
        key: value
        for key, value in environment.clean_environment().items()
        if not key.startswith(("SGLANG_", "TRITON_", "HF_"))
    }
    return inherited | {
        "PYTHONPATH": str(plugin.overlay),
        "PYTHONDONTWRITEBYTECODE": "1",  # the environment stays as it is
        "OMP_NUM_THREADS": "1",  # of each process; the tensors are small
        "TRITON_INTERPRET": "1",
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "SGLANG_PLATFORM": PLATFORM,
        "SGLANG_PLUGINS": f"{PLATFORM},{PLATFORM}_hooks,{plugin.name}",
        # A core for each rank; else ranks go to NUMA nodes.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(cores) if tp > 1 else "",
        "LINGEN_REPORT_FOLDER": str(scratch / "reports"),
        "LINGEN_DRAFT_HINTS": str(scratch / "hints.json"),
    }


def _run(command: list[object], variables: dict[str, str], scratch: Path) -> None:
    """Run it to its end; the whole process group is gone when this returns or raises."""
    output = scratch / "engine.log"
    lock = environment.cache_folder() / "engine.lock"
    with environment.locked(lock, "another engine run on this machine"), output.open("w") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=variables,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill_session(process.pid)
            process.wait()
    text = output.read_text(errors="replace")
    if code != 0:
        tail = "\n".join(text.splitlines()[-40:])
        what = f"ran longer than {TIMEOUT} s" if code is None else f"ended with status {code}"
        pytest.fail(f"{tail}\n\nthe engine {what}; above, the end of {output}", pytrace=False)


def _kill_session(leader: int) -> None:
    """End every process of the session that `leader` started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue
