"""Finds the kernel table of a shape on a device, and the row for a number of tokens.

Format, file names and choices are those of SGLang 0.5.23, so that one table serves both targets.
Generated packages carry this text. Knows nothing of torch or triton: the caller says what runs.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Row = Mapping[str, int | bool]
Rows = Mapping[int, Row]
"""Kernel settings by token count, in the order of the file."""

VERSION_FOLDER = re.compile(r"triton_([0-9]+(?:_[0-9]+)*)")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableKey:
    """What a table is for.

    num_experts, width: E and N of the rank's down weight [E, hidden, N].  device: as the driver
    names it.  dtype: None for 16-bit weights, else the engine's word, such as `fp8_w8a8`.
    block_shape: rows and columns that share a weight scale, None where they are not in blocks.
    """

    num_experts: int
    width: int
    device: str
    dtype: str | None = None
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False

    def file_name(self, is_down: bool = False) -> str:
        parts = [f"E={self.num_experts}", f"N={self.width}"]
        parts.append(f"device_name={self.device.replace(' ', '_')}")
        if self.dtype:
            parts.append(f"dtype={self.dtype}")
        if self.block_shape:
            parts.append(f"block_shape={list(self.block_shape)}")
        if self.per_channel_quant:
            parts.append("per_channel_quant=True")
        return f"{','.join(parts)}{'_down' if is_down else ''}.json"


@dataclass(frozen=True, slots=True)
class MoeTables:
    """Rows of the gate_up product, and of the down product where it has a table of its own.

    `triton` is the version that they were tuned with.
    """

    up: Rows
    down: Rows | None
    triton: str

    def up_row(self, num_tokens: int) -> Row:
        return nearest_row(self.up, num_tokens)

    def down_row(self, num_tokens: int) -> Row:
        """The up table's row where the down product has no table."""
        return nearest_row(self.down or self.up, num_tokens)


def nearest_row(rows: Rows, num_tokens: int) -> Row:
    return rows[nearest_count(rows, num_tokens)]


def nearest_count(counts: Iterable[int], num_tokens: int) -> int:
    """The token count of the row to use: the nearest, and of two as near the first listed."""
    return min(counts, key=lambda count: abs(count - num_tokens))


def find_tables(folder: Path, key: TableKey, triton_version: str) -> MoeTables | None:
    """The tables of `key` below `folder`, which holds one folder per Triton version.

    The running version's come first, then those of the newest other version, with one warning that
    names both. None, logged once with the looked-up name, where no version has one. The down table
    is the one beside the up table, if there is one.
    """
    name = key.file_name()
    for version in _versions_to_try(folder, triton_version):
        versioned = folder / version_folder(version)
        if not (versioned / name).is_file():
            continue
        if version != triton_version:
            _warn_once(
                f"no MoE tables of the running Triton {triton_version}:"
                f" those tuned with Triton {version} are used"
            )
        down = versioned / key.file_name(is_down=True)
        rows = _read_rows(down) if down.is_file() else None
        return MoeTables(_read_rows(versioned / name), rows, version)
    _warn_once(f"no MoE table {name}: default kernel settings are used")
    return None


def version_folder(version: str) -> str:
    """`3.5.1` → `triton_3_5_1`"""
    return f"triton_{version.replace('.', '_')}"


def version_number(version: str) -> tuple[int, ...]:
    """Sorts as people count: 3.10.0 is newer than 3.9.0."""
    return tuple(map(int, version.split(".")))


def _versions_to_try(folder: Path, running: str) -> list[str]:
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    matches = [VERSION_FOLDER.fullmatch(entry.name) for entry in entries]
    versions = [match[1].replace("_", ".") for match in matches if match]
    newest_first = sorted(versions, key=version_number, reverse=True)
    return sorted(newest_first, key=lambda version: version != running)


def _read_rows(path: Path) -> Rows:
    return {int(count): row for count, row in json.loads(path.read_text("utf-8")).items()}


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)
