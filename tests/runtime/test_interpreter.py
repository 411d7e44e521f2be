"""Runs the kernel tests in Triton's interpreter, which a process must choose before it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FILES = sorted(Path(__file__).parent.glob("test_*_kernels.py"))


@pytest.mark.skipif(IS_INTERPRETED, reason="is what this test starts")
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_kernels_pass_in_the_interpreter(file: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(file)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
