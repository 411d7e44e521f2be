"""Who runs a kernel and who a reference, and that a package needs no triton on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GENERATED = Path(__file__).parents[2] / "generated"

SCRIPT = """
import json, sys
if sys.argv[1] == "absent":
    sys.modules["triton"] = None
import torch
import {package} as package
batch = package.ForwardBatch.from_lists([[1]], [0], [0], [[0]])
dispatch = package.kernels.dispatch
print(json.dumps([dispatch.HAS_TRITON, dispatch.uses_kernels(torch.empty(0))]))
"""


def run(package: str, triton: str, **env: str) -> list[bool]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(package=package), triton],
        cwd=GENERATED,
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("package", ["ling_2_6_flash", "ring_mini_linear_2_0", "ling_mini_2_0"])
def test_package_imports_without_triton_and_runs_references(package: str) -> None:
    assert run(package, "absent") == [False, False]
    assert run(package, "absent", TRITON_INTERPRET="1") == [False, False]


def test_kernels_run_on_a_cpu_only_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    assert run("ling_2_6_flash", "present") == [True, False]
    assert run("ling_2_6_flash", "present", TRITON_INTERPRET="0") == [True, False]
    assert run("ling_2_6_flash", "present", TRITON_INTERPRET="1") == [True, True]
