"""Writes one file whole, or not at all.

Knows nothing of what is in it; packages of many files are `emit/atomic.py`'s.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

_SUFFIX = ".tmp"


def replace_file(path: Path, text: str, is_lasting: bool = True) -> None:
    """Put `text` at `path` through a temporary file beside it, on the disk before it has the name.

    is_lasting: wait for the disk. Without, the file survives a kill, and not a loss of power.
    Raises OSError, and then leaves what was there.
    """
    handle, temporary = tempfile.mkstemp(prefix=_prefix(path), suffix=_SUFFIX, dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            if is_lasting:
                os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def is_temporary(found: Path, paths: Iterable[Path]) -> bool:
    """Whether a write of one of `paths` that was killed left `found`."""
    name = found.name
    return name.endswith(_SUFFIX) and any(name.startswith(_prefix(path)) for path in paths)


def _prefix(path: Path) -> str:
    return f".{path.name}."
