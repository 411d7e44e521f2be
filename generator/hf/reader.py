"""Applies the table to a config's tree: every key is used, ignored with a reason, or a problem.

Knows nothing of families and of how specs are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from lingen.errors import Position, Problem
from lingen.hf.absences import assume_absent
from lingen.hf.reading import Reading, equal, scalar
from lingen.hf.rows import Agrees, Generation, Ignored, Nested, NotUsed, Only, Refused, Row, Used
from lingen.hf.table import GENERATIONS
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
from lingen.spec.schema import check_tree
from lingen.spec.wording import listed, spelled


def read_config(
    config: MappingNode, display: str, generation: Generation, overridden: Mapping[str, Node]
) -> Reading:
    """Read every key. Values of `overridden` spec keys are not looked at: something else counts."""
    reading = Reading(display, generation, overridden, MappingNode(config.position))
    rows = list(_rows(config, generation.table, "", None))
    for path, row, node, position in rows:
        if row is None:
            reading.problems.append(_unknown(path, position, generation))
        elif isinstance(row, Used):
            _use(path, row, node, reading)
        elif isinstance(row, Ignored):
            reading.ignored[path] = row.reason
        elif isinstance(row, Only):
            _accept(path, row.values, _spelled_all(row.values), row.reason, node, reading)
    _check_agreement(rows, reading)
    assume_absent(reading)
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


def _unknown(path: str, position: Position, generation: Generation) -> Problem:
    others = [other.architecture for other in GENERATIONS.values() if path in known_keys(other)]
    if others:
        mine = generation.architecture
        expected = f"no such key with {mine}: it is one of {', '.join(others)}"
        return Problem(position, path, "a key of another generation", expected=expected)
    near = nearest_names(path, known_keys(generation))
    return Problem(
        position,
        path,
        "unknown key",
        expected="a key whose effect on the model is known",
        fix=f"{near[0]} is the nearest known key" if near else None,
    )


def known_keys(generation: Generation) -> list[str]:
    """Every config key of a generation; keys of objects as dotted paths."""
    keys = []
    for key, row in generation.table.items():
        nested = row.rows if isinstance(row, Nested) else {}
        keys += [key, *(f"{key}.{inner}" for inner in nested)]
    return keys


def _use(path: str, row: Used, node: Node, reading: Reading) -> None:
    key = row.spec_key
    if reading.is_overridden(path, key):
        return
    absent = reading.generation.absences.get(key)
    if absent and absent.is_null and isinstance(node, ScalarNode) and node.value is None:
        reading.ignored[path] = "null, which is the same as absent"
        return
    try:
        value = row.convert(plain(node))
    except NotUsed as reason:
        reading.ignored[path] = reason.reason
        return
    except Refused as why:
        _refuse(path, key, node, why, reading)
        return
    if isinstance(value, dict):
        value = _completed(row, value, node, reading)
    else:
        value = _converted(node, value)
    reading.place(path, key, value)


def _refuse(path: str, key: str, node: Node, why: Refused, reading: Reading) -> None:
    problem = Problem(node.position, path, why.message, described(node), why.expected, why.fix)
    reading.problems.append(problem)
    # The key is there: it must not be reported as missing too.
    reading.keys.setdefault(key, path)


def _converted(node: Node, value: object) -> Node:
    """A node with the value, at the place and with the spelling of the config's."""
    if plain(node) == value:
        return node
    written = node.written if isinstance(node, ScalarNode) else spelled(plain(node))
    return ScalarNode(node.position, value, written)


def _completed(row: Used, values: Mapping[str, object], node: Node, reading: Reading) -> Node:
    """A section of the values; those that the config's object does not state are assumed."""
    stated = node.entries if isinstance(node, MappingNode) else {}
    section = MappingNode(node.position)
    for name, value in values.items():
        key, entry = f"{row.spec_key}.{name}", stated.get(name)
        if entry and equal(plain(entry.node), value):
            section.entries[name] = entry
            continue
        section.entries[name] = Entry(node.position, scalar(node.position, value))
        if name in row.completion and key not in reading.overridden:
            reading.assumed[key] = (value, row.completion[name])
    return section


def _check_agreement(rows: list[_Step], reading: Reading) -> None:
    stated = {key: plain(node) for key, node in leaves(reading.tree)}
    known = {key: plain(node) for key, node in reading.facts().items()}
    for path, row, node, _ in rows:
        if not isinstance(row, Agrees):
            continue
        facts = [stated.get(key) for key in row.spec_keys]
        others = [known.get(key) for key in row.spec_keys[:-1]]
        if row.gives and row.spec_keys[-1] not in known and all(map(_is_number, others)):
            _give(path, row, node, others, reading)
        elif not all(map(_is_number, facts)):
            reading.ignored[path] = row.reason
        else:
            _accept(path, row.expected(*facts), row.words, row.reason, node, reading)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _give(path: str, row: Agrees, node: Node, facts: list[object], reading: Reading) -> None:
    """Take the fact that the config does not state from this value."""
    key = row.spec_keys[-1]
    try:
        value = row.gives(plain(node), *facts)
    except Refused as why:
        _refuse(path, key, node, why, reading)
        return
    reading.place(path, key, scalar(node.position, value))


def _accept(
    path: str, values: tuple[object, ...], words: str, reason: str, node: Node, reading: Reading
) -> None:
    value = plain(node)
    if any(equal(value, each) for each in values):
        shown = spelled(value) if isinstance(node, ScalarNode) else "its value"
        reading.ignored[path] = f"{shown}: {reason}"
        return
    expected = _spelled_all(dict.fromkeys(values))
    if words != expected:
        expected = f"{expected}: {words}"
    message = "not supported" if words == _spelled_all(values) else "contradicts other keys"
    reading.problems.append(Problem(node.position, path, message, described(node), expected))


def _spelled_all(values: Collection[object]) -> str:
    return listed([spelled(value) for value in values])
