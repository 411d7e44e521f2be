"""Applies the table to a config's tree: every key is used, ignored with a reason, or a problem.

Knows nothing of families and of how specs are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lingen.errors import Position, Problem
from lingen.hf.rows import Absent, Agrees, Ignored, Nested, NotUsed, Only, Refused, Row, Used
from lingen.hf.table import ABSENCES, TABLE
from lingen.spec.names import nearest_names
from lingen.spec.nodes import (
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    described,
    leaves,
    plain,
    shown_key,
)
from lingen.spec.schema import check_tree, schema_at
from lingen.spec.wording import accepted, listed, spelled


@dataclass(slots=True)
class Reading:
    """What a config says, in the spec's terms.

    tree: the spec's sections with the config's values; each value stands where the config has it.
    keys: spec key → the config key it came from.
    used, ignored: config keys in file order; spec key, reason.
    assumed: spec keys of which the config has no word, with the value and what absence means.
    """

    display: str
    tree: MappingNode
    keys: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, tuple[object, str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def in_config_terms(self, problem: Problem) -> Problem:
        """A problem of the spec's, named after the config's key where it points at the config."""
        key = self.keys.get(problem.key.partition("[")[0])
        if problem.position.file != self.display or key is None:
            return problem
        return replace(problem, key=key)


def read_config(config: MappingNode, display: str, overridden: Collection[str]) -> Reading:
    """Read every key. Values of `overridden` spec keys are not looked at: something else counts."""
    reading = Reading(display, MappingNode(config.position))
    rows = list(_rows(config, TABLE, "", None))
    for path, row, node, position in rows:
        if row is None:
            reading.problems.append(_unknown(path, position))
        elif isinstance(row, Used):
            _use(path, row, node, overridden, reading)
        elif isinstance(row, Ignored):
            reading.ignored[path] = row.reason
        elif isinstance(row, Only):
            _accept(path, row.values, _spelled_all(row.values), row.reason, node, reading)
    _check_agreement(rows, reading)
    _assume_absent(overridden, reading)
    refused = check_tree(reading.tree)
    reading.problems += [reading.in_config_terms(problem) for problem in refused]
    return reading


_Step = tuple[str, Row | None, Node, Position]


def _rows(
    node: MappingNode, rows: Mapping[str, Row], prefix: str, rest: Row | None
) -> Iterator[_Step]:
    """Every key with its dotted path and its row, `rest` for keys that have none."""
    for key, entry in node.entries.items():
        path, row = f"{prefix}{shown_key(key)}", rows.get(key, rest)
        if not isinstance(row, Nested):
            yield path, row, entry.node, entry.position
        elif isinstance(entry.node, MappingNode) and not entry.node.entries:
            yield path, Ignored("empty"), entry.node, entry.position
        elif isinstance(entry.node, MappingNode):
            yield from _rows(entry.node, row.rows, f"{path}.", row.rest)
        elif isinstance(entry.node, ScalarNode) and entry.node.value is None:
            yield path, Ignored("null"), entry.node, entry.position
        else:
            yield path, Only((None,), ""), entry.node, entry.position


def _unknown(path: str, position: Position) -> Problem:
    near = nearest_names(path, known_keys())
    return Problem(
        position,
        path,
        "unknown key",
        expected="a key whose effect on the model is known",
        fix=f"{near[0]} is the nearest known key" if near else None,
    )


def known_keys() -> list[str]:
    """Every config key of the table; keys of objects as dotted paths."""
    keys = []
    for key, row in TABLE.items():
        nested = row.rows if isinstance(row, Nested) else {}
        keys += [key, *(f"{key}.{inner}" for inner in nested)]
    return keys


def _use(path: str, row: Used, node: Node, overridden: Collection[str], reading: Reading) -> None:
    key = row.spec_key
    if key in overridden:
        reading.ignored[path] = f"--set {key} overrides it"
        return
    absent = ABSENCES.get(key)
    if absent and absent.is_null and isinstance(node, ScalarNode) and node.value is None:
        reading.ignored[path] = "null, which is the same as absent"
        return
    try:
        value = row.convert(plain(node))
    except NotUsed as reason:
        reading.ignored[path] = reason.reason
        return
    except Refused as why:
        place, found = node.position, described(node)
        problem = Problem(place, path, why.message, found, why.expected, why.fix)
        reading.problems.append(problem)
        # The key is there: it must not be reported as missing too.
        reading.keys.setdefault(key, path)
        return
    _place(path, key, _converted(node, value), reading)


def _converted(node: Node, value: object) -> Node:
    """A node with the value, at the place and with the spelling of the config's."""
    if plain(node) == value and not isinstance(node, MappingNode):
        return node
    written = node.written if isinstance(node, ScalarNode) else spelled(plain(node))
    return ScalarNode(node.position, value, written)


def _place(path: str, key: str, node: Node, reading: Reading) -> None:
    """Put a value into the tree, or compare it with the same fact spelled another way."""
    reading.used[path] = key
    values = dict(leaves(reading.tree))
    if key not in values:
        reading.keys[key] = path
        set_leaf(reading.tree, key, node)
    elif not _equal(plain(values[key]), plain(node)):
        first = values[key]
        found = f"{spelled(plain(node))}, but {spelled(plain(first))} at {reading.keys[key]}"
        problem = Problem(
            node.position,
            path,
            f"disagrees with {reading.keys[key]}",
            f"{found} (line {first.position.line})",
            "one value",
        )
        reading.problems.append(problem)


def set_leaf(tree: MappingNode, key: str, node: Node) -> None:
    """Put `node` at a dotted key, opening sections on the way."""
    *sections, last = key.split(".")
    for section in sections:
        opened = Entry(node.position, MappingNode(node.position))
        tree = tree.entries.setdefault(section, opened).node
    tree.entries[last] = Entry(node.position, node)


def _check_agreement(rows: list[_Step], reading: Reading) -> None:
    values = {key: plain(node) for key, node in leaves(reading.tree)}
    for path, row, node, _ in rows:
        if not isinstance(row, Agrees):
            continue
        facts = [values.get(key) for key in row.spec_keys]
        if not all(type(fact) in (int, float) for fact in facts):
            reading.ignored[path] = row.reason
            continue
        _accept(path, row.expected(*facts), row.words, row.reason, node, reading)


def _accept(
    path: str, values: tuple[object, ...], words: str, reason: str, node: Node, reading: Reading
) -> None:
    value = plain(node)
    if any(_equal(value, each) for each in values):
        shown = spelled(value) if isinstance(node, ScalarNode) else "its value"
        reading.ignored[path] = f"{shown}: {reason}"
        return
    expected = _spelled_all(dict.fromkeys(values))
    if words != expected:
        expected = f"{expected}: {words}"
    message = "not supported" if words == _spelled_all(values) else "contradicts other keys"
    reading.problems.append(Problem(node.position, path, message, described(node), expected))


def _equal(one: object, other: object) -> bool:
    """Whether two values are the same: 6000000 and 6000000.0 are, 1 and true are not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _spelled_all(values: Collection[object]) -> str:
    return listed([spelled(value) for value in values])


def _assume_absent(overridden: Collection[str], reading: Reading) -> None:
    """Find what no key of the config says: it has a documented meaning, or it is missing."""
    spec_keys = dict.fromkeys(row.spec_key for row in _used_rows(TABLE))
    top = Position(reading.display, 1, 1)
    for key in spec_keys:
        if key in reading.keys or key in overridden:
            continue
        absent = ABSENCES.get(key)
        if absent is None:
            reading.problems.append(_missing(key, top))
        elif not absent.from_family:
            _assume(key, absent, top, reading)


def _used_rows(rows: Mapping[str, Row]) -> Iterator[Used]:
    for row in rows.values():
        if isinstance(row, Used):
            yield row
        elif isinstance(row, Nested):
            yield from _used_rows(row.rows)


def _assume(key: str, absent: Absent, top: Position, reading: Reading) -> None:
    value = absent.value
    if absent.copy_of:
        source = dict(leaves(reading.tree)).get(absent.copy_of)
        if source is None:
            return
        value = plain(source)
        top = source.position
    reading.assumed[key] = (value, absent.note)
    set_leaf(reading.tree, key, ScalarNode(top, value, spelled(value)))


def _missing(spec_key: str, top: Position) -> Problem:
    # The plain key before those inside objects.
    spelling = min((path for path, key in _spellings() if key == spec_key), key=_depth)
    part = schema_at(spec_key)
    message = "missing"
    if part.get("x-lingen-mathematics"):
        message = "missing, and it changes the mathematics"
    fix = f"state it in the file, or give --set {spec_key}=VALUE"
    return Problem(top, spelling, message, None, accepted(part), fix)


def _depth(path: str) -> int:
    return path.count(".")


def _spellings() -> Iterator[tuple[str, str]]:
    """Config paths with the spec keys they state."""
    for key, row in TABLE.items():
        if isinstance(row, Used):
            yield key, row.spec_key
        elif isinstance(row, Nested):
            for inner, inner_row in row.rows.items():
                if isinstance(inner_row, Used):
                    yield f"{key}.{inner}", inner_row.spec_key
