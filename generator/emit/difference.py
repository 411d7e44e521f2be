"""The text of a difference between a file on disk and the file that a build would write.

Knows nothing of packages or folders.
"""

from __future__ import annotations

from dataclasses import dataclass

from lingen.emit.header import lf

LINE_ENDINGS_ONLY = "line endings only"


@dataclass(frozen=True, slots=True)
class TextDifference:
    """`text`: a unified diff from disk to generated, `+` being what a build would write; never
    empty. `line`: the first line on disk that differs, from 1."""

    text: str
    line: int
    added: int
    removed: int


def compare(path: str, disk: bytes, generated: bytes) -> TextDifference:
    """The difference between two contents that are not equal."""
    if lf(disk) == lf(generated):
        return TextDifference(LINE_ENDINGS_ONLY, 1, 0, 0)
    old, new = _lines(disk), _lines(generated)
    import difflib

    hunks = list(difflib.unified_diff(old, new, path, f"{path} (lingen build)"))
    text = "".join(line if line.endswith("\n") else _incomplete(line) for line in hunks)
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    body = hunks[2:]
    return TextDifference(
        text,
        line=_first_difference(old, new),
        added=sum(line.startswith("+") for line in body),
        removed=sum(line.startswith("-") for line in body),
    )


def _lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _incomplete(line: str) -> str:
    return f"{line}\n\\ No newline at end of file\n"


def _first_difference(old: list[str], new: list[str]) -> int:
    for number, (before, after) in enumerate(zip(old, new, strict=False), start=1):
        if before != after:
            return number
    return max(1, min(len(old), len(new) + 1))
