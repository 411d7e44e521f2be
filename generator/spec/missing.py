"""Finds what a merged spec leaves open: nothing in lingen has a default in code.

The schema's x-lingen-required says what must be stated, x-lingen-mathematics why it matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from lingen.errors import Position, Problem

from .extends import Layer
from .nodes import MappingNode
from .schema import Schema, schema
from .sections import foreign_sections
from .wording import accepted, listed


def missing_keys(merged: MappingNode, layers: tuple[Layer, ...]) -> list[Problem]:
    """A problem for each required key, or whole section, that no layer states."""
    foreign = list(foreign_sections(merged))
    return [
        _problem(path, part, layers)
        for path, part in _missing(merged, schema(), ())
        if not any(path[: len(section)] == section for section in foreign)
    ]


def _missing(
    node: MappingNode, part: Schema, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Schema]]:
    for name in part.get("x-lingen-required", ()):
        child = part["properties"][name]
        entry = node.entries.get(name)
        if entry is None:
            yield (*path, name), child
        elif isinstance(entry.node, MappingNode):
            yield from _missing(entry.node, child, (*path, name))


def _problem(path: tuple[str, ...], part: Schema, layers: tuple[Layer, ...]) -> Problem:
    key = ".".join(path)
    message = "missing"
    if _changes_mathematics(part):
        message = "missing, and it changes the mathematics"
    section = ".".join(path[:-1])
    fix = f"state `{path[-1]}:` under `{section}:`" if section else f"state `{path[-1]}:`"
    if len(layers) == 1 and layers[0].extends is None:
        fix += ", or extend a family that states it"
    expected = f"{accepted(part)}, {_where(layers)}"
    return Problem(_nearest_section(path, layers[0]), key, message, None, expected, fix)


def _changes_mathematics(part: Schema) -> bool:
    children = part.get("properties", {}).values()
    return part.get("x-lingen-mathematics", False) or any(map(_changes_mathematics, children))


def _where(layers: tuple[Layer, ...]) -> str:
    """`in this file or in families/x.yaml (extended at line 2)`"""
    places = ["in this file"]
    for child, parent in pairwise(layers):
        line = child.extends.position.line
        where = f"line {line}" if child is layers[0] else f"{child.display}:{line}"
        places.append(f"in {parent.display} (extended at {where})")
    return listed(places)


def _nearest_section(path: tuple[str, ...], layer: Layer) -> Position:
    """Where the spec itself has the innermost section that the key belongs to."""
    node, position = layer.root, Position(layer.display, 1, 1)
    for step in path[:-1]:
        entry = node.entries.get(step)
        if entry is None or not isinstance(entry.node, MappingNode):
            break
        node, position = entry.node, entry.position
    return position
