"""What PyYAML's scanner and parser say, turned into problems for people.

Knows nothing of keys; needs only the exception and the text it was raised on.
"""

from __future__ import annotations

import re

import yaml
from lingen.errors import Position, Problem

from .nodes import escaped, shortened

_QUOTE_CONTEXTS = ("while scanning a quoted scalar", "while scanning a double-quoted scalar")


def syntax_problem(error: Exception, text: str, display: str) -> Problem:
    """The problem behind an exception of the scanner or parser, at the place to look at."""
    if not isinstance(error, yaml.MarkedYAMLError):
        # An escape such as \\UFFFFFFFF, or a %YAML directive with a huge number.
        return Problem(Position(display, 1, 1), "", "not valid YAML: a number out of range")
    mark = error.problem_mark or error.context_mark
    what = error.problem or ""
    context = error.context or ""
    opened = re.match("while parsing a flow (mapping|sequence)", context)
    if opened and error.context_mark:
        bracket = "{" if opened[1] == "mapping" else "["
        return _unclosed(bracket, error.context_mark, mark, text, display)
    if context in _QUOTE_CONTEXTS and "unexpected" in what and error.context_mark:
        return Problem(
            _at(error.context_mark, display), "", "a quote that is never closed", fix="close it"
        )
    if "could not find expected ':'" in what and error.context_mark:
        return Problem(
            _at(error.context_mark, display),
            "",
            _NO_COLON,
            found=_line_at(error.context_mark, text),
            expected="key: value",
        )
    if "mapping values are not allowed" in what:
        above = _line_above(mark, text)
        if above and ":" not in above[1]:
            position = Position(display, above[0], len(above[1]) - len(above[1].lstrip()) + 1)
            found = shortened(escaped(above[1].strip()))
            return Problem(position, "", _NO_COLON, found, "key: value")
    for pattern, message, expected in _MESSAGES:
        match = re.search(pattern, what)
        if match:
            return Problem(_at(mark, display), "", message, _found_at(mark, text), expected)
    return Problem(
        _at(mark, display), "", f"not valid YAML: {escaped(what)}", _found_at(mark, text)
    )


_NO_COLON = "a line without a colon where a key should be"

_MESSAGES = (
    (
        "mapping values are not allowed here",
        "a colon where no key can end",
        "a key in the column of its siblings, or quotes around a text that holds `: `",
    ),
    ("cannot start any token", "a character that cannot start a value", "quotes around the text"),
    (
        "expected <block end>, but found",
        "does not line up with what is above",
        "a key in the column of its siblings",
    ),
    (
        "expected '<document start>'",
        "text after the end of the spec",
        "one mapping of keys, its keys in one column",
    ),
    (
        "sequence entries are not allowed here",
        "a list item where no list can start",
        "`- ` at the start of a line",
    ),
    ("unknown escape character", "an unknown escape in double quotes", "single quotes, or `\\\\`"),
    ("incompatible YAML document", "another version of YAML", "YAML 1.2, or no %YAML line"),
)


def _unclosed(bracket: str, opened: yaml.Mark, mark: yaml.Mark, text: str, display: str) -> Problem:
    closing = {"[": "]", "{": "}"}[bracket]
    found = _found_at(mark, text)
    if mark.line != opened.line and text[mark.index :].strip():
        line = text.split("\n")[mark.line].strip()
        found = f"line {mark.line + 1}, {shortened(escaped(line))}"
    return Problem(
        _at(opened, display),
        "",
        f"`{bracket}` is not closed where it should be",
        found=found,
        expected=f"`,` or `{closing}`",
    )


def _at(mark: yaml.Mark, display: str) -> Position:
    return Position(display, mark.line + 1, mark.column + 1)


def _found_at(mark: yaml.Mark, text: str) -> str:
    """The word at `mark`, or the end of the file."""
    rest = text[mark.index : mark.index + 80]
    if not rest.strip():
        return "the end of the file"
    word = rest.split(None, 1)[0] if not rest[0].isspace() else "the end of the line"
    return shortened(escaped(word))


def _line_at(mark: yaml.Mark, text: str) -> str:
    line = text[mark.index : mark.index + 200].split("\n", 1)[0]
    return shortened(escaped(line.strip()))


def _line_above(mark: yaml.Mark, text: str) -> tuple[int, str] | None:
    """Number and text of the last line before `mark`'s that holds more than a comment."""
    lines = text.split("\n")[: mark.line]
    for number in range(len(lines), 0, -1):
        content = re.sub("(^| )#.*", "", lines[number - 1]).rstrip()
        if content:
            return number, content
    return None
