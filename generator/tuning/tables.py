"""What a finished search writes: an up table, a `_down` table, and what was measured.

The measured times come first and the up table, which the lookup asks for, last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from lingen.emit.selection import SPECS_FOLDER, shipped_folder
from lingen.errors import LingenError
from lingen.files import is_temporary, replace_file
from lingen.spec.source import shown_path
from lingen.tuned.lookup import Row, TableKey, version_folder
from lingen.tuned.rows import TMA, disagreement
from lingen.tuning.state import Choice, Key

SOURCE = "lingen tune"
"""What a spec states as the source of these tables."""


class Files:
    """Names of what belongs to one table below a folder."""

    def __init__(self, folder: Path, key: TableKey, triton: str) -> None:
        self.folder = folder / version_folder(triton)
        self.up = self.folder / key.file_name()
        self.down = self.folder / key.file_name(is_down=True)
        stem = self.up.name.removesuffix(".json")
        self.measured = self.folder / f"{stem}.measured.json"
        self.state = self.folder / f"{stem}.state"

    @property
    def written(self) -> tuple[Path, ...]:
        """In the order in which they are written."""
        return self.measured, self.down, self.up

    def make_folder(self) -> None:
        """Without what a killed run left of a file that it was writing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in list(self.folder.iterdir()):
                if is_temporary(path, (*self.written, self.state)):
                    path.unlink()
        except OSError as error:
            place = shown_path(error.filename or self.folder)
            raise LingenError(f"{place}: cannot be written: {error.strerror}") from None

    def refuse_to_replace(self) -> None:
        """LingenError where a finished table stands."""
        for path in (self.up, self.down):
            if path.exists():
                raise LingenError(
                    f"{shown_path(path)}: exists already\n"
                    "  fix       --force to replace it, or another folder with -o\n"
                    "Nothing was written."
                )


def folder_beside(spec: Path) -> Path:
    """Where the tables of a spec belong; for one that comes with lingen, below `specs` here."""
    beside = spec.parent
    if beside.resolve() == shipped_folder().resolve() != Path.cwd().resolve() / SPECS_FOLDER:
        beside = SPECS_FOLDER
    return beside / "tuned" / "lingen"


def write_tables(
    files: Files, choices: Mapping[int, Choice], key: Key, facts: Mapping[str, object]
) -> None:
    """`facts`: what else the measured times are to be read with."""
    up: dict[int, Row] = {tokens: choice.up for tokens, choice in choices.items()}
    # Without a word on TMA in the down table, the rules take one in the up table for a mistake.
    down: dict[int, Row] = {
        tokens: {**choice.down, TMA: choice.down.get(TMA, False)}
        for tokens, choice in choices.items()
    }
    differs = disagreement(up, down)
    if differs:
        raise AssertionError(f"up and down differ in BLOCK_SIZE_M: {differs}")
    measured = {
        **asdict(key),
        **facts,
        "tokens": {str(tokens): _measured(choice) for tokens, choice in choices.items()},
    }
    replace_file(files.measured, json.dumps(measured, indent=1) + "\n")
    replace_file(files.down, _text(down))
    replace_file(files.up, _text(up))


def _measured(choice: Choice) -> dict[str, object]:
    return {
        "table_microseconds": choice.microseconds,
        "default_microseconds": choice.default_microseconds,
        "is_default": choice.is_default,
    }


def _text(rows: Mapping[int, Row]) -> str:
    return json.dumps({str(tokens): dict(row) for tokens, row in rows.items()}, indent=4) + "\n"


def entry(files: Files, key: TableKey, dtype: str, triton: str) -> str:
    """What a spec lists to have the tables shipped, where their folder is in its `tuned/`."""
    shape = list(key.block_shape) if key.block_shape else "null"
    lines = [
        f'- file: "{"/".join(files.up.parts[-3:])}"',
        f"  device: {key.device}",
        f"  dtype: {dtype}",
        f"  block_shape: {shape}",
        *(["  per_channel_quant: true"] if key.per_channel_quant else []),
        f"  triton: {triton}",
        f"  source: {SOURCE}",
        "  targets: [torch]",
    ]
    return "\n".join(lines)
