"""Writes trees as YAML that this package, and other YAML readers, read back as the same values.

Knows nothing of which keys exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from .scalars import MAX_NUMBER_CHARACTERS, needs_quotes

Tree = Mapping[str, object]

ITEM = "  - "
"""What a line of a list of mappings starts with, behind its key's indentation."""


def dump_yaml(tree: Tree, comments: Mapping[str, str] | None = None) -> str:
    """A spec's text: two spaces of indentation, keys in the tree's order, lists on one line.

    A list of mappings has a line for each of them.

    `comments` maps dotted keys to text put on lines of its own above the key.

    Raises:
        ValueError: a value that no spec can hold, such as infinity or a lone surrogate.
    """
    if not tree:
        return "{}\n"
    lines: list[str] = []
    _dump_mapping(tree, "", 0, comments or {}, lines)
    return "\n".join(lines) + "\n"


def _dump_mapping(
    tree: Tree, prefix: str, depth: int, comments: Mapping[str, str], lines: list[str]
) -> None:
    indent = "  " * depth
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        lines.extend(f"{indent}# {line}".rstrip() for line in comments.get(dotted, "").splitlines())
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{_string(key)}:")
            _dump_mapping(value, f"{dotted}.", depth + 1, comments, lines)
        elif is_list_of_mappings(value):
            lines.append(f"{indent}{_string(key)}:")
            lines.extend(f"{indent}{ITEM}{flow(item)}" for item in value)
        else:
            lines.append(f"{indent}{_string(key)}: {flow(value)}")


def is_list_of_mappings(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)


def flow(value: object) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_string(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return _string(value)
    return _number(value)


def _number(value: int | float) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a spec holds finite numbers only")
        mantissa, e, exponent = repr(value).partition("e")
        # YAML 1.1 readers take 1e-06 for a string, 1.0e-06 for a float.
        return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{e}{exponent}"
    if value.bit_length() > 4 * MAX_NUMBER_CHARACTERS or len(str(value)) > MAX_NUMBER_CHARACTERS:
        raise ValueError(f"a spec holds numbers of at most {MAX_NUMBER_CHARACTERS} characters")
    return str(value)


def _string(text: str) -> str:
    if not needs_quotes(text):
        return text
    return '"' + "".join(_quoted(character) for character in text) + '"'


def _quoted(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        raise ValueError("a spec holds no lone surrogates")
    if character in '"\\':
        return f"\\{character}"
    if 0x20 <= code < 0x7F:
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
