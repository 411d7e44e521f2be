"""Reads a JSON file into a tree whose keys and values know their places.

Stricter than JSON where a file has two readings: no key twice, no NaN or Infinity. Knows nothing of
which keys exist.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from lingen.errors import Position, Problem, SpecError
from lingen.spec.nodes import (
    REFUSED,
    Entry,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    escaped,
    shortened,
    shown_key,
)

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 32
MAX_NUMBER_CHARACTERS = 40

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"|[-+.0-9A-Za-z_]+')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_WORDS = {"true": True, "false": False, "null": None}


def read_json(path: str | os.PathLike[str], display: str) -> MappingNode:
    """The object in a JSON file.

    Raises:
        SpecError: the file cannot be read, or is not one strict JSON object in UTF-8.
    """
    top = Position(display, 1, 1)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            fix = f"{display}/config.json" if Path(path, "config.json").is_file() else None
            raise SpecError([Problem(top, "", "not a regular file", fix=fix)])
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SpecError([Problem(top, "", "no such file")]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError([Problem(top, "", f"cannot be read: {reason}")]) from None
    if len(data) > MAX_FILE_BYTES:
        limit = f"at most {MAX_FILE_BYTES // 1024} KiB"
        raise SpecError([Problem(top, "", "too large for a config.json", expected=limit)])
    return parse_json(_decoded(data, display), display)


def _decoded(data: bytes, display: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        place = _Reader(before, display).position(len(before))
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        problem = Problem(place, "", "not UTF-8", found, "UTF-8", "save the file as UTF-8")
        raise SpecError([problem]) from None


def parse_json(text: str, display: str) -> MappingNode:
    """The object that `text` holds, or SpecError with everything wrong with its form."""
    reader = _Reader(text, display)
    try:
        root = reader.document()
    except _Stop:
        root = None
    if reader.problems:
        raise SpecError(reader.problems)
    if not isinstance(root, MappingNode):
        raise SpecError(
            [Problem(Position(display, 1, 1), "", "not a config", expected="a JSON object")]
        )
    return root


class _Stop(Exception):
    """Reading on makes no sense; the problem is recorded."""


@dataclass(slots=True)
class _Reader:
    text: str
    display: str
    problems: list[Problem] = field(default_factory=list)
    index: int = 0
    line_starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", self.text))]

    def position(self, index: int) -> Position:
        line = bisect_right(self.line_starts, index)
        return Position(self.display, line, index - self.line_starts[line - 1] + 1)

    def document(self) -> Node:
        self._space()
        if self.index == len(self.text):
            self._stop("empty", "a JSON object")
        root = self._value(0)
        self._space()
        if self.index < len(self.text):
            self._stop("text after the end of the object", "one JSON object")
        return root

    def _value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self._stop(f"nested more than {MAX_DEPTH} levels deep", None)
        start = self._next()
        if start == "{":
            return self._object(depth)
        if start == "[":
            return self._list(depth)
        return self._scalar("a value")

    def _object(self, depth: int) -> MappingNode:
        node = MappingNode(self.position(self.index))
        self.index += 1
        if self._next() == "}":
            self.index += 1
            return node
        while True:
            if self._next() != '"':
                self._stop("not a key", "a key in double quotes")
            key = self._scalar("a key in double quotes")
            if self._next() != ":":
                self._stop("no colon after a key", "`:`")
            self.index += 1
            value = self._value(depth + 1)
            self._enter(node, key, value)
            if self._comma_or("}"):
                return node

    def _enter(self, node: MappingNode, key: ScalarNode, value: Node) -> None:
        first = node.entries.get(key.value)
        if first is None:
            node.entries[key.value] = Entry(key.position, value)
            return
        found = f"first at line {first.position.line}, again at line {key.position.line}"
        name = shown_key(key.value)
        self.problems.append(
            Problem(key.position, name, "written twice", found, fix="delete one of them")
        )

    def _list(self, depth: int) -> ListNode:
        node = ListNode(self.position(self.index))
        self.index += 1
        if self._next() == "]":
            self.index += 1
            return node
        while True:
            node.items.append(self._value(depth + 1))
            if self._comma_or("]"):
                return node

    def _comma_or(self, closing: str) -> bool:
        """Pass a comma, False, or the closing bracket, True."""
        found = self._next()
        if found not in (",", closing):
            self._stop("no comma between two entries", f"`,` or `{closing}`")
        self.index += 1
        if found == "," and self._next() == closing:
            self._stop("a comma without an entry behind it", "an entry, or no comma")
        return found == closing

    def _scalar(self, expected: str) -> ScalarNode:
        match = _SCALAR.match(self.text, self.index)
        if match is None:
            quote = self.text.startswith('"', self.index)
            message = "a string that is not closed on its line" if quote else "not valid JSON"
            self._stop(message, expected)
        position, written = self.position(self.index), match[0]
        if written.startswith('"'):
            value = self._string(written)
        elif written in _WORDS:
            value = _WORDS[written]
        else:
            value = self._number(written)
        self.index = match.end()
        return ScalarNode(position, value, written, is_quoted=written.startswith('"'))

    def _string(self, written: str) -> str:
        try:
            value = json.loads(written)
        except ValueError:
            self._stop("an unknown escape in a string", r"\n, \", \\ or \u and four hex digits")
        if any("\ud800" <= character <= "\udfff" for character in value):
            self._stop("half of a surrogate pair", "both halves")
        return value

    def _number(self, written: str) -> object:
        if written in _NOT_FINITE:
            return self._refused(f"{written} is not a finite number", "a finite number")
        if not _NUMBER.fullmatch(written):
            self._stop("not a JSON value", "a number, true, false, null, or text in double quotes")
        if len(written) > MAX_NUMBER_CHARACTERS:
            limit = f"a number of at most {MAX_NUMBER_CHARACTERS} characters"
            return self._refused(f"a number of {len(written)} characters", limit)
        value = json.loads(written)
        if isinstance(value, float) and math.isinf(value):
            return self._refused(f"{written} is too large for a float64", "a number below 1.8e308")
        # Adding zero turns -0.0 into 0.0.
        return value + 0

    def _refused(self, message: str, expected: str) -> object:
        """Record a problem that reading on survives."""
        place = self.position(self.index)
        self.problems.append(Problem(place, "", message, expected=expected))
        return REFUSED

    def _space(self) -> None:
        self.index = _SPACE.match(self.text, self.index).end()

    def _next(self) -> str:
        """The next character that is no space, "" at the end."""
        self._space()
        return self.text[self.index : self.index + 1]

    def _stop(self, message: str, expected: str | None) -> NoReturn:
        word = re.match(r"[^\s,:{}\[\]]+|.", self.text[self.index : self.index + 100])
        found = shortened(escaped(word[0])) if word else "the end of the file"
        place = self.position(self.index)
        self.problems.append(Problem(place, "", message, found, expected))
        raise _Stop
