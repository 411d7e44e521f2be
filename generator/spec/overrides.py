"""Values given on the command line as KEY=VALUE, read into a tree that lies over the spec's.

Knows nothing of which keys exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingen.errors import Position, Problem

from .dialect import parse
from .nodes import Entry, ListNode, MappingNode, Node, ScalarNode, escaped, shortened
from .scalars import BadScalar, resolve_plain
from .source import Unreadable, clean

DISPLAY = "--set"
MAX_LEVELS = 8

_FORM = "KEY=VALUE, such as moe.num_experts=64"


def parse_overrides(overrides: Sequence[str]) -> tuple[MappingNode, list[Problem]]:
    """The tree of all overrides and what is wrong with their form."""
    root = MappingNode(Position(DISPLAY, 1, 1))
    problems: list[Problem] = []
    for text in overrides:
        problem = _add(text, root)
        if problem:
            problems.append(problem)
    return root, problems


def _add(text: str, root: MappingNode) -> Problem | None:
    start = Position(DISPLAY, 1, 1)
    key, equals, value = text.partition("=")
    key = key.strip()
    steps = key.split(".")
    if not equals or not all(steps) or len(steps) > MAX_LEVELS:
        return Problem(start, "", "not a setting", shortened(escaped(text)), _FORM)
    if key == "extends":
        return Problem(start, key, "cannot be set", expected="a change of the spec itself")
    node = _value(value, Position(DISPLAY, 1, len(text) - len(value) + 1))
    if isinstance(node, Problem):
        return Problem(
            node.position, escaped(key), node.message, node.found, node.expected, node.fix
        )
    target = root
    for step in steps[:-1]:
        entry = target.entries.setdefault(step, Entry(start, MappingNode(start)))
        if not isinstance(entry.node, MappingNode):
            return Problem(start, escaped(key), "set twice")
        target = entry.node
    if steps[-1] in target.entries:
        return Problem(start, escaped(key), "set twice")
    target.entries[steps[-1]] = Entry(start, node)
    return None


def _value(text: str, position: Position) -> Node | Problem:
    """A scalar, or a list written `[1, 2]`."""
    try:
        text = clean(text, DISPLAY).strip()
    except Unreadable as error:
        problem = error.problems[0]
        return Problem(position, "", problem.message, problem.found, problem.expected)
    if text[:1] in ("[", '"', "'"):
        tree, problems = parse(f"value: {text}", DISPLAY)
        if tree is None or problems or len(tree.entries) > 1:
            problem = problems[0] if problems else Problem(position, "", "more than one value")
            return Problem(position, "", problem.message, problem.found, problem.expected)
        return _moved(tree.entries["value"].node, position)
    value = resolve_plain(text)
    if isinstance(value, BadScalar):
        return Problem(position, "", value.message, None, value.expected, value.fix)
    return ScalarNode(position, value, text)


def _moved(node: Node, position: Position) -> Node:
    """The node with all positions at the value's place on the command line."""
    if isinstance(node, ScalarNode):
        return ScalarNode(position, node.value, node.written, node.is_quoted)
    if isinstance(node, ListNode):
        return ListNode(position, [_moved(item, position) for item in node.items])
    moved = {
        key: Entry(position, _moved(entry.node, position)) for key, entry in node.entries.items()
    }
    return MappingNode(position, moved)
