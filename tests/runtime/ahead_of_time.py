"""Compiles Triton kernels for sm_90 on a machine without a GPU, and reads what they take."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
HOPPER = GPUTarget("cuda", 90, 32)
# What one block may have on sm_90.
SHARED_BYTES = 227 * 1024
GENERATED = Path(__file__).parents[2] / "generated"


def checked_in(name: str) -> ModuleType:
    """A package of `generated/`, as it is in the tree."""
    sys.path.insert(0, str(GENERATED))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(GENERATED))


@dataclass(frozen=True)
class Compiled:
    """registers per thread, spill_bytes per thread, shared_bytes per block."""

    registers: int
    spill_bytes: int
    shared_bytes: int


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: int
) -> Compiled:
    """Compile with `types` of run-time arguments by name (`*bf16`, `i32`, …) and constants.

    Pointers, strides and sizes count as multiples of 16, as they are in published models.
    """
    signature = {
        name: "constexpr" if name in constants else types[name] for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or "stride" in name or "size" in name
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places, aligned)
    result = triton.compile(source, target=HOPPER, options=options)
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder, "kernel.ptx")
        ptx.write_text(result.asm["ptx"])
        command = [str(PTXAS), "-v", "--gpu-name=sm_90a", str(ptx), "-o", os.devnull]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = [int(count) for count in re.findall(r"(\d+) bytes spill", report)]
    registers = re.search(r"Used (\d+) registers", report)
    assert registers, report
    return Compiled(int(registers[1]), sum(spills), result.metadata.shared)
