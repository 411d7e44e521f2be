"""The text of a spec file: read with limits, decoded, free of characters that mislead a reader.

Knows nothing of YAML beyond where comments and quotes are.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from lingen.errors import Position, Problem

from .nodes import escaped

MAX_FILE_BYTES = 256 * 1024
MAX_CHARACTER_PROBLEMS = 20

_BOM = "\ufeff"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Control characters, the line breaks of YAML 1.1 that editors do not count as lines, marks that
# reorder or hide text, surrogates, and non-characters.
_MISLEADING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)
_UNNAMED = {"\x00": "NUL", "\x08": "backspace", "\x1b": "escape", "\x7f": "delete"}


class Unreadable(Exception):
    """A file that gives no text; holds the problems to show."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as printed in messages and recorded as a source: one line, as the user gave it."""
    return escaped(os.fspath(path))


def read_file(path: str | os.PathLike[str], display: str) -> str:
    """The text of a regular file of at most MAX_FILE_BYTES, with line ends as `\\n`.

    Reads no more than the limit, never waits for a FIFO, follows symbolic links.

    Raises:
        Unreadable: with the reason, positioned at the byte where there is one.
    """
    top = Position(display, 1, 1)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Unreadable([Problem(top, "", f"not a regular file, but {_kind_of(path)}")])
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Unreadable([Problem(top, "", "replaced while being read")])
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise Unreadable([Problem(top, "", "no such file", fix=_nearest_file(path))]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreadable([Problem(top, "", f"cannot be read: {reason}")]) from None
    return decode(data, display)


def _kind_of(path: str | os.PathLike[str]) -> str:
    mode = os.stat(path).st_mode
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def _nearest_file(path: str | os.PathLike[str]) -> str | None:
    from .names import nearest_names, specs_in

    wanted = Path(path)
    near = nearest_names(wanted.stem, specs_in(wanted.parent))
    return f"{shown_path(wanted.parent / near[0])}.yaml is the nearest" if near else None


def decode(data: bytes, display: str) -> str:
    """UTF-8 with or without a byte order mark, any line ends."""
    top = Position(display, 1, 1)
    if len(data) > MAX_FILE_BYTES:
        problem = Problem(
            top,
            "",
            "too large for a spec",
            found=f"more than {MAX_FILE_BYTES // 1024} KiB",
            expected=f"at most {MAX_FILE_BYTES // 1024} KiB",
        )
        raise Unreadable([problem])
    if data[:2] in _UTF_16_MARKS:
        problem = Problem(
            top, "", "not UTF-8", "a UTF-16 byte order mark", "UTF-8", "save the file as UTF-8"
        )
        raise Unreadable([problem])
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable([_not_utf_8(data, error.start, display)]) from None
    return clean(text, display)


def _not_utf_8(data: bytes, offset: int, display: str) -> Problem:
    before = _lf(data[:offset].decode("utf-8").removeprefix(_BOM))
    return Problem(
        _position(before, len(before), display),
        "",
        "not UTF-8",
        found=f"byte 0x{data[offset]:02x} at offset {offset}",
        expected="UTF-8",
        fix="save the file as UTF-8",
    )


def clean(text: str, display: str) -> str:
    """`text` with line ends as `\\n` and no byte order mark.

    Raises:
        Unreadable: `text` holds tabs outside comments or characters that mislead a reader.
    """
    if len(text) > MAX_FILE_BYTES:
        # Characters are at most as many as bytes, so no legal file stops here.
        return decode(text.encode("utf-8", "surrogatepass"), display)
    text = _lf(text.removeprefix(_BOM))
    problems = [*_misleading(text, display), *_tabs(text, display)]
    if problems:
        problems.sort(key=lambda problem: problem.position)
        raise Unreadable(problems[:MAX_CHARACTER_PROBLEMS])
    return text


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _misleading(text: str, display: str) -> Iterator[Problem]:
    for count, match in enumerate(_MISLEADING.finditer(text)):
        if count == MAX_CHARACTER_PROBLEMS:
            return
        code = ord(match[0])
        name = _UNNAMED.get(match[0]) or unicodedata.name(match[0], "a control character").lower()
        yield Problem(
            _position(text, match.start(), display),
            "",
            "a character that does not show",
            found=f"U+{code:04X} ({name})",
            expected="printable text",
            fix="delete it",
        )


def _tabs(text: str, display: str) -> Iterator[Problem]:
    if "\t" not in text:
        return
    for line_number, line in enumerate(text.split("\n"), start=1):
        index = _tab_outside_comment(line) if "\t" in line else None
        if index is not None:
            where = "" if line[:index].strip() else " in the indentation"
            yield Problem(
                Position(display, line_number, index + 1),
                "",
                f"a tab{where}",
                expected="spaces",
                fix="replace the tab with spaces",
            )


def _tab_outside_comment(line: str) -> int | None:
    """Index of the first tab that no ` #` precedes; a `#` inside quotes starts no comment."""
    quote = ""
    before = " "
    for index, character in enumerate(line):
        if character == "\t":
            return index
        if quote:
            quote = "" if character == quote and before != "\\" else quote
        elif character in "\"'" and before in " [{,:":
            quote = character
        elif character == "#" and before == " ":
            return None
        before = character
    return None


def _position(text: str, index: int, display: str) -> Position:
    start = text.rfind("\n", 0, index) + 1
    return Position(display, text.count("\n", 0, index) + 1, index - start + 1)
