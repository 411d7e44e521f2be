"""What a config does not say: a documented meaning, the family's word, or a problem.

Knows nothing of the config's text: only of what was read from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lingen.errors import Position, Problem
from lingen.hf.reading import Reading, scalar, set_leaf
from lingen.hf.rows import Absent, Generation, Nested, Row, Used
from lingen.spec.nodes import Node, plain
from lingen.spec.schema import is_legal, schema_at
from lingen.spec.wording import accepted


def assume_absent(reading: Reading) -> None:
    """Find what no key of the config says: it has a documented meaning, or it is missing."""
    generation = reading.generation
    used_keys = [row.spec_key for row in _used_rows(generation.table)]
    spec_keys = dict.fromkeys([*used_keys, *generation.absences])
    top = Position(reading.display, 1, 1)
    for key in spec_keys:
        if key in reading.keys or key in reading.overridden:
            continue
        absent = generation.absences.get(key)
        if absent is None:
            reading.problems.append(_missing(key, top, generation))
        elif not absent.from_family:
            _assume(key, absent, top, reading)


def _used_rows(rows: Mapping[str, Row]) -> Iterator[Used]:
    for row in rows.values():
        if isinstance(row, Used):
            yield row
        elif isinstance(row, Nested):
            yield from _used_rows(row.rows)


def _assume(key: str, absent: Absent, top: Position, reading: Reading) -> None:
    """Says nothing where the value follows from one that is wrong or missing itself."""
    value = absent.value
    if absent.spec_keys:
        known = reading.facts()
        sources = [known.get(name) for name in absent.spec_keys]
        if not all(map(_is_good, absent.spec_keys, sources)):
            return
        value = absent.compute(*map(plain, sources))
        top = sources[0].position
    reading.assumed[key] = (value, absent.note)
    set_leaf(reading.tree, key, scalar(top, value))


def _is_good(spec_key: str, node: Node | None) -> bool:
    return node is not None and is_legal(schema_at(spec_key), plain(node))


def _missing(spec_key: str, top: Position, generation: Generation) -> Problem:
    # The plain key before those inside objects.
    spellings = _spellings(generation)
    spelling = min((path for path, key in spellings if key == spec_key), key=_depth)
    part = schema_at(spec_key)
    message = "missing"
    if part.get("x-lingen-mathematics"):
        message = "missing, and it changes the mathematics"
    fix = f"state it in the file, or give --set {spec_key}=VALUE"
    return Problem(top, spelling, message, None, accepted(part), fix)


def _depth(path: str) -> int:
    return path.count(".")


def _spellings(generation: Generation) -> Iterator[tuple[str, str]]:
    """Config paths with the spec keys they state."""
    for key, row in generation.table.items():
        if isinstance(row, Used):
            yield key, row.spec_key
        elif isinstance(row, Nested):
            for inner, inner_row in row.rows.items():
                if isinstance(inner_row, Used):
                    yield f"{key}.{inner}", inner_row.spec_key
