"""Inheritance: which specs a spec extends, and what the merged tree holds.

Mappings merge, lists and scalars replace. Knows nothing of which keys exist but `extends`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from lingen.errors import Position, Problem

from .dialect import parse
from .names import nearest_names, specs_in
from .nodes import Entry, MappingNode, ScalarNode, described, escaped, shortened
from .source import Unreadable, read_file, shown_path

MAX_PARENTS = 8

_PARENT_NAME = re.compile(r"[^/\\\x00-\x1f]+(/[^/\\\x00-\x1f]+)*")


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of the chain: the spec itself, or something it extends.

    `folder` is where the file lies, None for text without a place.
    """

    display: str
    folder: Path | None
    root: MappingNode

    @property
    def extends(self) -> ScalarNode | None:
        """The value of `extends`, where it is a string."""
        entry = self.root.entries.get("extends")
        node = entry.node if entry else None
        return node if isinstance(node, ScalarNode) and isinstance(node.value, str) else None


@dataclass(frozen=True, slots=True)
class Chain:
    """The spec first, then each parent. With `problems` it may end early."""

    layers: tuple[Layer, ...]
    problems: tuple[Problem, ...]


def shipped_folder() -> Path:
    """Where the specs lie that come with lingen."""
    return Path(str(resources.files("lingen.specs")))


def shipped_specs() -> list[str]:
    """Names of the specs and families that come with lingen, as `extends` writes them."""
    return specs_in(shipped_folder())


def read_chain(
    text: str, display: str, path: Path | None, check: Callable[[MappingNode], list[Problem]]
) -> Chain:
    """Read a spec's text and all it extends; `check` finds more problems in each file's tree.

    `path` is where the text lies, or would lie: parents are looked up in its folder.
    """
    layers: list[Layer] = []
    problems: list[Problem] = []
    seen = {_identity(path): display} if path else {}
    while True:
        root, found = parse(text, display)
        problems += found
        if root is None:
            break
        problems += check(root)
        layer = Layer(display, path.parent if path else None, root)
        layers.append(layer)
        name = layer.extends
        if name is None:
            break
        step = _parent(name, layers)
        if isinstance(step, Problem):
            problems.append(step)
            break
        path, display = step
        loop = _why_not_go_on(name, _identity(path), display, seen)
        if loop:
            problems.append(loop)
            break
        seen[_identity(path)] = display
        try:
            text = read_file(path, display)
        except Unreadable as error:
            problems += error.problems
            break
    return Chain(tuple(layers), tuple(problems))


def _identity(path: Path) -> str:
    return os.path.realpath(path)


def _why_not_go_on(
    name: ScalarNode, identity: str, display: str, seen: dict[str, str]
) -> Problem | None:
    if identity in seen:
        chain = [*seen.values(), display]
        return Problem(
            name.position,
            "extends",
            "extends itself",
            found=" -> ".join(chain[list(seen).index(identity) :]),
            expected="a chain of specs that ends",
            fix="delete one `extends`",
        )
    if len(seen) > MAX_PARENTS:
        return Problem(
            name.position,
            "extends",
            f"more than {MAX_PARENTS} parents",
            found=" -> ".join(seen.values()),
            fix="merge some of them",
        )
    return None


def _parent(name: ScalarNode, layers: list[Layer]) -> tuple[Path, str] | Problem:
    """Path and display path of the parent: beside the extending file, the spec, then shipped."""
    text = name.value
    reason = why_not_a_parent_name(text)
    if reason:
        expected = "families/NAME or the name of another spec"
        return Problem(name.position, "extends", reason, described(name), expected)
    relative = text if text.endswith(".yaml") else f"{text}.yaml"
    for layer in (layers[-1], layers[0]):
        if layer.folder is not None and os.path.exists(layer.folder / relative):
            beside = os.path.join(os.path.dirname(layer.display), *relative.split("/"))
            return layer.folder / relative, shown_path(beside)
    shipped = shipped_folder() / relative
    if os.path.exists(shipped):
        return shipped, f"specs/{relative}"
    return _missing_parent(name, layers)


def why_not_a_parent_name(text: str) -> str | None:
    """Why `extends` refuses a text that could name a file outside the folders it looks in."""
    if text.startswith("/") or re.match("[A-Za-z]:", text):
        return "an absolute path"
    if "\\" in text:
        return "a backslash in a name"
    if not _PARENT_NAME.fullmatch(text) or len(text) > 200:
        return "not a name of a spec"
    if {".", ".."} & set(text.split("/")):
        return "a path that leaves the folder of specs" if ".." in text else "not a name of a spec"
    return None


def _missing_parent(name: ScalarNode, layers: list[Layer]) -> Problem:
    known = set(shipped_specs())
    for layer in (layers[-1], layers[0]):
        known.update(specs_in(layer.folder) if layer.folder else ())
    wanted = str(name.value).removesuffix(".yaml")
    near = [f"families/{wanted}"] if f"families/{wanted}" in known else None
    near = near or nearest_names(wanted, known, count=2) or _nearest_families(wanted, known)
    return Problem(
        name.position,
        "extends",
        "no such spec",
        found=shortened(escaped(name.written)),
        expected="a spec beside this one, or one that comes with lingen",
        fix=" or ".join(near) or None,
    )


def _nearest_families(wanted: str, known: set[str]) -> list[str]:
    """For a family named without its folder."""
    folder = "families/"
    families = {name.removeprefix(folder) for name in known if name.startswith(folder)}
    return [f"{folder}{name}" for name in nearest_names(wanted, families)]


def merge(layers: tuple[Layer, ...]) -> MappingNode:
    """One tree of all layers without `extends`; earlier layers win. Layers stay as they are.

    Where one layer has a mapping and another has none, the earlier one replaces.
    """
    merged = MappingNode(Position(layers[0].display, 1, 1))
    for layer in reversed(layers):
        _lay_over(merged, layer.root)
    merged.entries.pop("extends", None)
    return merged


def _lay_over(below: MappingNode, above: MappingNode) -> None:
    for key, entry in above.entries.items():
        old = below.entries.get(key)
        if not isinstance(entry.node, MappingNode):
            below.entries[key] = entry
            continue
        if old and isinstance(old.node, MappingNode):
            target = old.node
            below.entries[key] = Entry(entry.position, target)
        else:
            target = MappingNode(entry.node.position)
            below.entries[key] = Entry(entry.position, target)
        _lay_over(target, entry.node)
