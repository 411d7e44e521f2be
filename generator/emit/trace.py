"""`lingen trace`: which template line and which spec keys made a line of a generated file.

Reads the file and the `trace.json` of its package, and nothing else: neither templates nor specs
need to be there. JSON, for a whole file and for one line alike:

    {"file": as given, "lines": [{"line": 17, "template": "templates/torch/model/rope.j2",
     "template_line": 3, "spec": [{"file": "specs/x.yaml", "line": 9, "key": "model.name"}]}]}

`template` and `template_line` are null, and `spec` is empty, for the header and for blank lines.
Keys that a line prints come before those that decide whether it is there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lingen.emit.header import content_hash, lf, read_header
from lingen.emit.sidecar import TRACE, Sidecar, TracedLine, read_sidecar
from lingen.emit.text_lines import lines_of
from lingen.errors import LingenError

_FIX = "\n  fix       run `lingen build`, with --force if the file was edited"
_PLACE = re.compile(r"(?P<file>.+):(?P<line>[0-9]+)")


class Untraceable(LingenError):
    """There is no such line, or nothing tells where it comes from."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Lines of one file, named as the user did. `texts`: of the same lines. `is_whole`: all."""

    file: str
    lines: tuple[TracedLine, ...]
    texts: tuple[str, ...]
    is_whole: bool


def trace(place: str) -> Trace:
    """The origins of the lines of `FILE`, or of the one at `FILE:LINE`. Raises Untraceable."""
    match = None if Path(place).exists() else _PLACE.fullmatch(place)
    file = match["file"] if match else place
    data = _read(file)
    lines, texts = _traced(file, data), lines_of(lf(data).decode())
    if match is None:
        return Trace(file, tuple(lines), tuple(texts), is_whole=True)
    number = int(match["line"])
    if not 1 <= number <= len(lines):
        raise Untraceable(f"{place}: no such line\n  expected  a line from 1 to {len(lines)}")
    return Trace(file, (lines[number - 1],), (texts[number - 1],), is_whole=False)


def as_text(found: Trace) -> str:
    """For people: one paragraph for one line, one line each for a whole file."""
    if found.is_whole:
        return "\n".join(map(_row, found.lines, found.texts))
    [line], [text] = found.lines, found.texts
    shown = f"{found.file}:{line.line}: {text.strip()}".rstrip(" ")
    keys = _labelled("spec", [str(key) for key in line.spec])
    return "\n".join([shown, *_labelled("template", [_origin(line, text)]), *keys])


def as_json(found: Trace) -> str:
    """For programs; the layout is in this module's docstring."""
    lines = [
        {
            "line": line.line,
            "template": line.template,
            "template_line": line.template_line,
            "spec": [{"file": key.file, "line": key.line, "key": key.key} for key in line.spec],
        }
        for line in found.lines
    ]
    return json.dumps({"file": found.file, "lines": lines}, indent=2, ensure_ascii=False)


def _row(line: TracedLine, text: str) -> str:
    return f"{line.line:>5}  {_origin(line, text)}  {', '.join(map(str, line.spec))}".rstrip(" ")


def _origin(line: TracedLine, text: str) -> str:
    if line.template:
        return f"{line.template}:{line.template_line}"
    return "header: written by lingen" if text.strip() else "blank"


def _labelled(label: str, texts: Sequence[str]) -> list[str]:
    labels = [label, *("" for _ in texts[1:])]
    return [f"  {label:<10}{text}" for label, text in zip(labels, texts, strict=False)]


def _read(file: str) -> bytes:
    path = Path(file)
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise Untraceable(f"{file}: no such file") from None
    except IsADirectoryError:
        raise Untraceable(f"{file}: a folder\n  expected  FILE or FILE:LINE") from None
    except OSError as error:
        raise Untraceable(f"{file}: cannot be read: {error.strerror}") from error


def _traced(file: str, data: bytes) -> list[TracedLine]:
    path = Path(os.path.abspath(file))
    folders = [folder for folder in path.parents if (folder / TRACE).is_file()]
    reason = _why_no_sidecar(file, data)
    for folder in folders:
        shown = Path(os.path.relpath(folder / TRACE)).as_posix()
        sidecar = read_sidecar(_read(shown))
        name = path.relative_to(folder).as_posix()
        content = sidecar.content_of(name) if sidecar else None
        if sidecar and content == content_hash(lf(data)):
            return _lines(sidecar, name, lf(data).decode(), shown)
        if content:
            reason = f"{file}: changed since {shown} was written{_FIX}"
        elif sidecar:
            reason = f"{file}: not among the files whose lines {shown} tells"
        elif read_header(data):
            reason = f"{shown}: not a trace of this version of lingen{_FIX}"
    raise Untraceable(reason)


def _lines(sidecar: Sidecar, name: str, text: str, shown: str) -> list[TracedLine]:
    try:
        return sidecar.lines_of(name, text)
    except ValueError:
        raise Untraceable(f"{shown}: not a trace of this version of lingen{_FIX}") from None


def _why_no_sidecar(file: str, data: bytes) -> str:
    if read_header(data) is None:
        return f"{file}: not a file that lingen generated"
    return f"{file}: no {TRACE} in its package{_FIX}"
