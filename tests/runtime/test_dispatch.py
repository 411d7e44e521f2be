"""Who runs a kernel and who a reference, and that a package needs no triton on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lingen.emit.render import render
from lingen.ir import ModelIR
from lingen.verify.package import generated_package
from small_models import lowered_small, lowered_variant

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


def lightning_text(ir: ModelIR) -> str:
    return render(ir, "torch")["kernels/lightning.py"].decode()


@pytest.mark.parametrize("head_dim", [8, 24])
def test_head_dimension_that_kernels_do_not_take_leaves_references_alone(head_dim: int) -> None:
    ir = lowered_small(f"attention.lightning.head_dim={head_dim}")
    assert "lightning" in ir.kernels.in_torch
    text = lightning_text(ir)
    assert "triton" not in text and "uses_kernels" not in text
    assert f"and this one is {head_dim}." in text
    with generated_package(ir) as package:
        lightning, backend = package.kernels.lightning, package.backend
        for name in ("decode", "decode_fused", "verify", "verify_snapshot", "commit", "accept"):
            reference = getattr(lightning, f"lightning_{name}_ref")
            assert getattr(backend, f"lightning_{name}") is reference
        assert set(backend.LIGHTNING_PREFILLS.values()) == {lightning.lightning_prefill_ref}


def test_other_head_dimensions_are_never_left_to_references_on_a_device() -> None:
    ir = lowered_variant("every-kind")
    assert "lightning" in ir.kernels.in_triton
    text = lightning_text(ir)
    wrappers = text.count('"""As `lightning_')
    assert wrappers == 8 and text.count("if not uses_kernels(") == wrappers
