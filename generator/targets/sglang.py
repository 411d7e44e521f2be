"""The `sglang` target: a distribution that plugs the model into an unmodified SGLang."""

from __future__ import annotations

from lingen.ir.sglang import PACKAGE_SUFFIX
from lingen.targets.output import OutputFile, Target

OUTER_FILES: tuple[OutputFile, ...] = (OutputFile("pyproject.toml", "sglang/pyproject.toml.j2"),)

FILES: tuple[OutputFile, ...] = (
    OutputFile("__init__.py", "sglang/__init__.py.j2"),
    OutputFile("check.py", "sglang/check.py.j2"),
    OutputFile("launch.py", "sglang/launch.py.j2"),
    OutputFile("pinned.py", "sglang/pinned.py.j2"),
    OutputFile("plugin.py", "sglang/plugin.py.j2"),
    OutputFile("tables.py", "sglang/tables.py.j2"),
    OutputFile("models/__init__.py", "sglang/models/__init__.py.j2"),
    OutputFile("models/bailing_moe_v2_5.py", "sglang/models/bailing_moe_v2_5.py.j2"),
    OutputFile(
        "models/bailing_moe_nextn.py",
        "sglang/models/bailing_moe_nextn.py.j2",
        lambda ir: ir.mtp is not None,
    ),
)

TARGET = Target(
    "sglang",
    package_suffix=PACKAGE_SUFFIX,
    files=FILES,
    outer_files=OUTER_FILES,
    is_distribution=True,
    has_tuned_tables=True,
)
