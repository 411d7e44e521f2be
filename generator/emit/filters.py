"""The filters that templates may use, and what may be printed without one.

Pure functions of their argument; they know nothing of the IR.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any

from jinja2 import Undefined

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def py(value: object) -> str:
    """A Python expression equal to `value`, the same on every platform.

    Takes None, bool, int, float, str, tuple, list and dict, nested as needed; an enum member
    stands for its value. Raises TypeError for anything else: a set has no order, and the repr of
    an object is not source code.
    """
    if isinstance(value, Undefined):
        return str(value)  # raises, and names the variable
    if isinstance(value, Enum):
        return py(value.value)
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(py, value))}{comma})"
    if isinstance(value, list):
        return f"[{', '.join(map(py, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{py(key)}: {py(item)}' for key, item in value.items())}}}"
    raise TypeError(f"py cannot write {_described(value)} as source")


def _float(value: float) -> str:
    text = float.__repr__(value)
    return f'float("{text}")' if text.lstrip("-") in ("inf", "nan") else text


def _string(value: str) -> str:
    return '"' + "".join(_character(char) for char in value) + '"'


def _character(char: str) -> str:
    if char == "'":
        return char
    if char == '"':
        return '\\"'
    return repr(char)[1:-1]


def ident(value: str) -> str:
    """`value` as a Python identifier: `-` and `.` become `_`. ValueError if that is none."""
    name = str(value).replace("-", "_").replace(".", "_")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{value!r} does not make a Python identifier")
    return name


def bytes_text(value: int) -> str:
    """A byte count for people: `56 MiB`, or one decimal (`1.5 GiB`) where it is not whole."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"bytes needs a count of bytes, found {_described(value)}")
    power = 0
    while power + 1 < len(_UNITS) and value >= 1024 ** (power + 1):
        power += 1
    size = 1024**power
    tenths = (value * 10 + size // 2) // size
    if tenths >= 10240 and power + 1 < len(_UNITS):
        return f"1.0 {_UNITS[power + 1]}"
    if value % size == 0:
        return f"{value // size} {_UNITS[power]}"
    return f"{tenths // 10}.{tenths % 10} {_UNITS[power]}"


def printable(value: object) -> object:
    """What `{{ value }}` prints without a filter: str or int as they are, nothing else.

    Raises TypeError for bool, float, None and the rest: how they look is a decision (`| py`).
    """
    if isinstance(value, Undefined):
        return value  # printing it raises, and names the variable
    is_plain_enum = isinstance(value, Enum) and not isinstance(value, StrEnum)
    if isinstance(value, str | int) and not isinstance(value, bool) and not is_plain_enum:
        return value
    raise TypeError(f"{_described(value)} is printed without a filter; `| py` writes it as source")


def _described(value: object) -> str:
    return f"{value!r:.60} ({type(value).__name__})"


FILTERS: dict[str, Callable[[Any], str]] = {"py": py, "ident": ident, "bytes": bytes_text}
