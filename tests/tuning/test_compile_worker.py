"""A worker compiles what calls on a card ask for, with no memory for weights and no launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from lingen.tuning.rows import Shape, rows_to_try

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

PACKAGE = Path(__file__).parents[2] / "generated" / "ling_2_6_flash"
# Stands for the driver of a card, which a worker has and this machine may lack.
DRIVER = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

class Hopper:
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0
    get_active_torch_device = lambda self: torch.device("cuda", 0)

driver.set_active(Hopper())
"""
WORKER = f"{DRIVER}\nfrom lingen.tuning.worker import main\nmain()"
# The same calls on tensors that have memory, on the CPU here.
CALLER = f"""{DRIVER}
import importlib, json, sys
from pathlib import Path
from lingen.tuning import worker
from lingen.tuning.experts import Experts
from lingen.tuning.rows import Shape
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder.parent))
package = importlib.import_module(folder.name)
worker.launch_nothing(package)
experts = Experts(package, Shape(**json.loads(sys.argv[2])), "cpu")
for line in sys.stdin:
    print(worker.compile_calls(experts, json.loads(line)), flush=True)
"""


def answers(code: str, shape: Shape, jobs: list, cache: Path) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", code, str(PACKAGE), json.dumps(asdict(shape))],
        input="".join(json.dumps(job) + "\n" for job in jobs),
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return result.stdout.splitlines()


def compiled(cache: Path) -> set[str]:
    return {path.relative_to(cache).as_posix() for path in cache.rglob("*.cubin")}


@pytest.mark.parametrize(("form", "counts"), [("bf16", (1, 32)), ("fp8_block", (32,))])
def test_what_is_compiled_is_what_calls_on_real_tensors_ask_for(form, counts, tmp_path):
    shape = Shape(16, 128, 256, 8, form, (128, 128) if form == "fp8_block" else None)
    jobs = []
    for tokens in counts:
        up, down = (rows_to_try(shape, tokens, product, 1 << 20)[-1] for product in ("up", "down"))
        jobs.append([[tokens, up, down]])
    assert answers(WORKER, shape, jobs, tmp_path) == ["done"] * len(jobs)
    found = compiled(tmp_path)
    for kernel in ("gate_up_kernel", "down_kernel"):
        assert any(path.endswith(f"/{kernel}.cubin") for path in found)
    assert answers(CALLER, shape, jobs, tmp_path) == ["done"] * len(jobs)
    assert compiled(tmp_path) == found


def test_a_row_that_does_not_compile_is_answered_in_one_line_and_the_next_one_compiles(tmp_path):
    shape = Shape(16, 128, 256, 8, "bf16")
    up, down = (rows_to_try(shape, 1, product, 1 << 20)[0] for product in ("up", "down"))
    jobs = [[[1, up | {"BLOCK_SIZE_N": 24}, down]], [[1, up, down]]]
    failed, done = answers(WORKER, shape, jobs, tmp_path)
    assert failed and failed != "done"
    assert done == "done"
