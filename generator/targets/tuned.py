"""The tuned tables that a package carries, and what its manifest says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lingen.ir.tables import TunedTable
from lingen.targets.output import DataFile, Target


def tuned_files(target: Target, ir: Any) -> tuple[DataFile, ...]:
    """The IR's tables for this target, sorted by path; none where the target carries none."""
    if not target.has_tuned_tables:
        return ()
    files = [_file(table, ir) for table in ir.tables if target.name in table.targets]
    folder = target.module_folder(ir)
    return tuple(
        replace(file, path=folder + file.path) for file in sorted(files, key=lambda f: f.path)
    )


def _file(table: TunedTable, ir: Any) -> DataFile:
    facts = {
        "E": table.num_experts,
        "N": table.width,
        "alias": table.is_alias,
        "block_shape": list(table.block_shape) if table.block_shape else None,
        "device": table.device,
        "down": table.is_down,
        "dtype": table.dtype,
        "origin": f"specs/{table.origin}",
        "per_channel_quant": table.per_channel_quant,
        "source": table.source,
        "tp": list(table.tp),
        "triton": table.triton,
        "tuned_on": table.tuned_on,
    }
    return DataFile(table.path, table.text(ir.spec).encode(), facts)
