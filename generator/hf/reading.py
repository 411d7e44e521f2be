"""What a config says, in the spec's terms: the state that reading a config.json fills.

Knows nothing of rows and of what becomes of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lingen.errors import Position, Problem
from lingen.hf.rows import Generation
from lingen.spec.nodes import Entry, MappingNode, Node, ScalarNode, leaves, plain
from lingen.spec.wording import spelled


@dataclass(slots=True)
class Reading:
    """What a config says, in the spec's terms.

    overridden: spec keys that are set by hand; what the config says of them does not count.
    tree: the spec's sections with the config's values; each value stands where the config has it.
    keys: spec key → the config key it came from.
    used, ignored: config keys in file order; spec key, reason.
    assumed: spec keys of which the config has no word, with the value and what absence means.
    """

    display: str
    generation: Generation
    overridden: Mapping[str, Node]
    tree: MappingNode
    keys: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, tuple[object, str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def in_config_terms(self, problem: Problem) -> Problem:
        """A problem of the spec's, named after the config's key where it points at the config."""
        spec_key = problem.key.partition("[")[0]
        if problem.position.file != self.display:
            return problem
        if spec_key in self.keys:
            return replace(problem, key=self.keys[spec_key])
        section, _, last = spec_key.rpartition(".")
        if section in self.keys:
            return replace(problem, key=f"{self.keys[section]}.{last}")
        return problem

    def facts(self) -> dict[str, Node]:
        """What is known of the spec's keys: what was set by hand, and what the config says."""
        return {**dict(leaves(self.tree)), **self.overridden}

    def is_overridden(self, path: str, key: str) -> bool:
        """Whether a spec key is set by hand; the config's key is ignored then."""
        if key not in self.overridden:
            return False
        self.ignored[path] = f"--set {key} overrides it"
        return True

    def place(self, path: str, key: str, node: Node) -> None:
        """Put a value into the tree, or compare it with the same fact spelled another way."""
        self.used[path] = key
        if key not in self.keys:
            self.keys[key] = path
            set_leaf(self.tree, key, node)
            return
        first = _node_at(self.tree, key)
        if first is None or equal(plain(first), plain(node)):
            return
        found = f"{spelled(plain(node))}, but {spelled(plain(first))} at {self.keys[key]}"
        self.problems.append(
            Problem(
                node.position,
                path,
                f"disagrees with {self.keys[key]}",
                f"{found} (line {first.position.line})",
                "one value",
            )
        )


def set_leaf(tree: MappingNode, key: str, node: Node) -> None:
    """Put `node` at a dotted key, opening sections on the way."""
    *sections, last = key.split(".")
    for section in sections:
        opened = Entry(node.position, MappingNode(node.position))
        tree = tree.entries.setdefault(section, opened).node
    tree.entries[last] = Entry(node.position, node)


def _node_at(tree: MappingNode, key: str) -> Node | None:
    """What stands at a dotted key; None where its one spelling so far was refused."""
    node: Node = tree
    for step in key.split("."):
        entry = node.entries.get(step) if isinstance(node, MappingNode) else None
        if entry is None:
            return None
        node = entry.node
    return node


def scalar(position: Position, value: object) -> ScalarNode:
    """A value that the config does not spell, at a place of it."""
    return ScalarNode(position, value, spelled(value))


def equal(one: object, other: object) -> bool:
    """Whether two values are the same: 6000000 and 6000000.0 are, 1 and true are not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
