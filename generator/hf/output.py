"""Writes an imported spec to its file, whole or not at all, and says what an import did.

Knows nothing of how the spec was made.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lingen.errors import LingenError
from lingen.files import replace_file
from lingen.hf.importer import Imported
from lingen.spec.source import shown_path

_LEFT_COLUMN = 40


def write_spec(path: Path, text: str, force: bool) -> None:
    """Write `text` to `path` through a temporary file beside it.

    The default folder is created. Without `force` an existing file is refused and stays.
    """
    shown = shown_path(path)
    if path.is_dir():
        raise LingenError(f"{shown}: a folder\n  expected  a file to write\nNothing was written.")
    if os.path.lexists(path) and not force:
        raise LingenError(
            f"{shown}: exists already\n  fix       --force to replace it,"
            " or another name with --name or -o\nNothing was written."
        )
    try:
        if path.parent == Path("specs"):
            path.parent.mkdir(exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise LingenError(f"{shown}: cannot be written: {error.strerror}") from None


def print_imported(imported: Imported, place: Path | None) -> None:
    """The summary on stdout; without a place the spec itself, and the summary on stderr."""
    if place is not None:
        print(summary(imported, shown_path(place)))
        return
    print(imported.text, end="")
    print(summary(imported, imported.spec.header_name), file=sys.stderr)


def summary(imported: Imported, written_to: str) -> str:
    """What a person reads after an import: the count used, all that was ignored, all else."""
    spec = imported.spec
    lines = [
        f"{written_to}: {spec.model.architectures[0]}, on top of {', '.join(spec.sources[1:])}",
        f"{_keys(len(imported.used))} of config.json used",
        f"{_keys(len(imported.ignored))} ignored:",
        *_columns(imported.ignored),
        f"{len(imported.from_family)} values from the family, since config.json cannot say them:",
        *_columns(imported.from_family),
        "notes:",
        *(f"  {note}" for note in imported.notes),
    ]
    return "\n".join(lines)


def _keys(count: int) -> str:
    return f"{count} key{'' if count == 1 else 's'}"


def _columns(rows: dict[str, str]) -> list[str]:
    width = min(_LEFT_COLUMN, max((len(key) for key in rows), default=0))
    return [f"  {key:<{width}}  {text}" for key, text in rows.items()]
