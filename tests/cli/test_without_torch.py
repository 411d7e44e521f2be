"""What builds, checks, explains and imports never touches torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(("torch", "safetensors", "numpy", "triton")))
from lingen.cli import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "specs/ling-2.6-1t.yaml", "--out", "{out}"],
        ["check", "--all"],
        ["explain", "specs/ling-2.6-flash.yaml"],
        ["explain", "specs/ling-2.6-flash.yaml", "--json"],
        ["explain", "specs/ling-2.6-flash.yaml", "--resolved"],
        ["explain", "specs/ling-lite-1.5.yaml", "--svg", "-"],
        ["plan", "specs/ling-2.6-flash.yaml", "--cache-gib", "8", "--compat", "sglang"],
        ["diff", "specs/ling-2.6-1t.yaml", "specs/ling-2.6-1t.yaml"],
        ["trace", "generated/ling_2_6_flash/model.py:40"],
        ["new", "x", "--extends", "families/bailing-moe-v2.5", "-o", "-"],
        ["import", "tests/configs/ling-2.6-flash.json", "--name", "x", "-o", "-"],
    ],
    ids=" ".join,
)
def test_it_runs_where_torch_cannot_be_imported(arguments, tmp_path):
    arguments = [argument.format(out=tmp_path / "out") for argument in arguments]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_verify_says_what_is_missing(tmp_path):
    missing = "from lingen.cli import run; import sys; sys.exit(run(sys.argv[1:]))"
    hidden = (
        "import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda n, *a: None if n == 'torch' else find(n, *a); "
    )
    result = subprocess.run(
        [sys.executable, "-c", hidden + missing, "verify", str(ROOT / "tests/golden/bias-tiny")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3
    assert result.stderr == (
        "verify runs a generated package, and torch cannot be imported\n"
        "  fix       pip install 'lingen[runtime]'\n"
    )
