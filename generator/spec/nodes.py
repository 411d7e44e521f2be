"""The tree a spec file is read into: every key and value knows its place in the file.

Knows nothing of YAML syntax, nor of which keys exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lingen.errors import Position

from .scalars import Scalar

MAX_SHOWN_CHARACTERS = 60


class Refused:
    """Stands for a value that was refused already, so that nobody reports it again."""

    def __repr__(self) -> str:
        return "REFUSED"


REFUSED = Refused()


@dataclass(slots=True)
class ScalarNode:
    """One value. `written` is its text in the file, quotes included."""

    position: Position
    value: Scalar | Refused
    written: str
    is_quoted: bool = False


@dataclass(slots=True)
class ListNode:
    position: Position
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Entry:
    """A key of a mapping, where it stands, and what it holds."""

    position: Position
    node: Node


@dataclass(slots=True)
class MappingNode:
    position: Position
    entries: dict[str, Entry] = field(default_factory=dict)


Node = ScalarNode | ListNode | MappingNode

_TYPE_WORDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    type(None): "null",
}


def plain(node: Node) -> object:
    """The tree as dicts, lists and scalars, without positions."""
    if isinstance(node, MappingNode):
        return {key: plain(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, ListNode):
        return [plain(item) for item in node.items]
    return node.value


def find(node: Node, path: list[str | int]) -> Node:
    """The node at `path`: keys of mappings and indices of lists."""
    for step in path:
        node = node.items[step] if isinstance(node, ListNode) else node.entries[step].node
    return node


def leaves(node: MappingNode, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Every scalar and list with its dotted key, in file order."""
    for key, entry in node.entries.items():
        dotted = f"{prefix}{key}"
        if isinstance(entry.node, MappingNode):
            yield from leaves(entry.node, f"{dotted}.")
        else:
            yield dotted, entry.node


def origins(node: MappingNode, prefix: str = "") -> Iterator[tuple[str, Position]]:
    """Where each of `leaves` has its value; its key, where the value starts on a later line."""
    for key, entry in node.entries.items():
        dotted = f"{prefix}{key}"
        if isinstance(entry.node, MappingNode):
            yield from origins(entry.node, f"{dotted}.")
        else:
            is_below = entry.node.position.line > entry.position.line
            yield dotted, entry.position if is_below else entry.node.position


def dotted_key(path: list[str | int]) -> str:
    """`["parallel", "tp", 1]` as a person writes it: `parallel.tp[1]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{shown_key(step)}" if text else shown_key(step)
    return text


def shown_key(key: str) -> str:
    """A key as printed in messages: escaped and short, whatever the file holds."""
    if key and all(c.isalnum() or c in "_-/" for c in key):
        return shortened(key)
    return shortened(escaped(f'"{key}"'))


def described(node: Node) -> str:
    """What stands in the file, with its YAML type: `"8"`, a string."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    words = _TYPE_WORDS.get(type(node.value), "a value")
    if node.value is None:
        return "null" if not node.written else f"{shortened(node.written)} (null)"
    return f"{shortened(escaped(node.written))}, {words}"


def written(node: ListNode) -> str:
    """A list on one line, its scalars as in the file."""
    items = [item.written if isinstance(item, ScalarNode) else "..." for item in node.items[:20]]
    return shortened(escaped(f"[{', '.join(items)}]"))


def escaped(text: str) -> str:
    """`text` on one line: characters that do not print become escapes."""
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    code = ord(character)
    return named or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def shortened(text: str) -> str:
    """`text`, cut to the length a message can carry."""
    if len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."
