"""Which sections a model has: some belong to some architectures only.

The schema's x-lingen-sections owns the table. Knows nothing of what the sections hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from lingen.errors import Problem

from .nodes import Entry, MappingNode, plain
from .schema import schema
from .wording import listed

ARCHITECTURES = "model.architectures"


def foreign_sections(merged: MappingNode) -> Iterator[tuple[str, ...]]:
    """Paths of the conditional sections that the spec's architecture does not have."""
    architecture = architecture_of(merged)
    own = schema()["x-lingen-sections"].get(architecture, ())
    for section in _conditional_sections():
        if section not in own:
            yield tuple(section.split("."))


def misplaced_sections(merged: MappingNode) -> list[Problem]:
    """A problem for each section that is stated and that the architecture does not have."""
    architecture = architecture_of(merged)
    if architecture not in schema()["x-lingen-sections"]:
        return []
    problems = []
    for path in foreign_sections(merged):
        entry = _entry_at(merged, path)
        if entry:
            key = ".".join(path)
            having = [name for name, own in schema()["x-lingen-sections"].items() if key in own]
            message = f"{architecture} has no such section"
            expected = f"only with {listed(having)}"
            problems.append(Problem(entry.position, key, message, None, expected))
    return problems


def architecture_of(merged: MappingNode) -> str | None:
    """The one name under `model.architectures`, if it is stated."""
    entry = _entry_at(merged, tuple(ARCHITECTURES.split(".")))
    names = plain(entry.node) if entry else None
    return names[0] if isinstance(names, list) and len(names) == 1 else None


def _conditional_sections() -> list[str]:
    """In the order of the schema, each once."""
    return list(dict.fromkeys(s for own in schema()["x-lingen-sections"].values() for s in own))


def _entry_at(node: MappingNode, path: tuple[str, ...]) -> Entry | None:
    entry = None
    for step in path:
        if not isinstance(node, MappingNode):
            return None
        entry = node.entries.get(step)
        if entry is None:
            return None
        node = entry.node
    return entry
