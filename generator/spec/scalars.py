"""YAML 1.2 core scalars, decided from their text alone.

Knows nothing of files or keys. Stricter than the core schema where a spelling has two readings:
`0123`, `0x1F`, `1_000` and `.inf` are never numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_NUMBER_CHARACTERS = 40

Scalar = str | int | float | bool | None

_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_LEADING_ZERO = re.compile(r"([-+]?)0+([0-9].*)")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_FOREIGN_NUMBER = re.compile(r"[-+]?(0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+|[0-9][0-9_]*_[0-9_]*)")

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_FOREIGN_NULLS = frozenset({"none", "nil"})
_YAML_1_1_BOOLEANS = {"yes": "true", "on": "true", "y": "true"} | dict.fromkeys(
    ("no", "off", "n"), "false"
)


@dataclass(frozen=True, slots=True)
class BadScalar:
    """A plain scalar that is refused whatever key it stands at."""

    message: str
    expected: str
    fix: str | None = None


def resolve_plain(text: str) -> Scalar | BadScalar:
    """The value of an unquoted scalar; a BadScalar says why it has none."""
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        return BadScalar(f"{text} is not a finite number", "a finite number")
    if not _NUMBER.fullmatch(text):
        return text
    if len(text) > MAX_NUMBER_CHARACTERS:
        return BadScalar(
            f"a number of {len(text)} characters",
            f"a number of at most {MAX_NUMBER_CHARACTERS} characters",
        )
    zeros = _LEADING_ZERO.fullmatch(text)
    if zeros:
        return BadScalar(
            f"{text} starts with a zero, which some readers take for octal",
            "a number without leading zeros",
            f'{zeros[1]}{zeros[2]} for the number, "{text}" for the text',
        )
    if _INTEGER.fullmatch(text):
        return int(text)
    return _finite_float(text)


def _finite_float(text: str) -> float | BadScalar:
    value = float(text)
    if math.isinf(value):
        return BadScalar(f"{text} is too large for a float64", "a number below 1.8e308")
    mantissa = re.split("[eE]", text)[0]
    if value == 0.0 and re.search("[1-9]", mantissa):
        return BadScalar(
            f"{text} is too small for a float64: it reads as 0", "0, or above 4.9e-324"
        )
    # Adding zero turns -0.0 into 0.0: the two are one number and must have one hash.
    return value + 0.0


def intended_plain(text: str) -> str | None:
    """The spelling meant by a string that others take for a number, a boolean or null."""
    if _FOREIGN_NUMBER.fullmatch(text) and len(text) <= MAX_NUMBER_CHARACTERS:
        try:
            return str(int(text.rstrip("_").replace("__", "_"), 0))
        except ValueError:
            return None
    if text.lower() in _FOREIGN_NULLS:
        return "null"
    return _YAML_1_1_BOOLEANS.get(text.lower())


def needs_quotes(text: str) -> bool:
    """Whether `text`, written plain, would not read back as this string everywhere."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", text) or text in _WORDS:
        return True
    return text.lower() in _YAML_1_1_BOOLEANS
