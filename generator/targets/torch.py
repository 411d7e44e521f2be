"""The `torch` target: a package that needs only torch, triton and safetensors."""

from __future__ import annotations

from lingen.targets.output import OutputFile, Target

FILES: tuple[OutputFile, ...] = (
    OutputFile("__init__.py", "torch/__init__.py.j2"),
    OutputFile("backend.py", "torch/backend.py.j2"),
    OutputFile("cache.py", "torch/cache.py.j2"),
    OutputFile("kernels/__init__.py", "torch/kernels/__init__.py.j2"),
    OutputFile("kernels/dispatch.py", "torch/kernels/dispatch.py.j2"),
    OutputFile("kernels/gqa.py", "torch/kernels/gqa.py.j2", lambda ir: ir.gqa is not None),
    OutputFile(
        "kernels/lightning.py", "torch/kernels/lightning.py.j2", lambda ir: ir.plan.has_lightning
    ),
    OutputFile("kernels/mla.py", "torch/kernels/mla.py.j2", lambda ir: ir.mla is not None),
    OutputFile("kernels/moe.py", "torch/kernels/moe.py.j2", lambda ir: ir.moe is not None),
    OutputFile("kernels/norm.py", "torch/kernels/norm.py.j2"),
    OutputFile("kernels/rope.py", "torch/kernels/rope.py.j2"),
    OutputFile("model.py", "torch/model.py.j2"),
    OutputFile("parallel.py", "torch/parallel.py.j2", lambda ir: ir.parallel.is_split),
    OutputFile("planner.py", "torch/planner.py.j2"),
    OutputFile("tables.py", "torch/tables.py.j2", lambda ir: ir.has_tables),
    OutputFile("weights.py", "torch/weights.py.j2"),
)

TARGET = Target("torch", package_suffix="", files=FILES, has_tuned_tables=True)
