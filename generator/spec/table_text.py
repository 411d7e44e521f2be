"""The text of one tuned table: strict JSON, each fault at its line.

Knows nothing of the entries that list tables. What rows may say: `lingen.tuned.rows`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lingen.errors import Position, Problem
from lingen.tuned.lookup import Rows
from lingen.tuned.rows import TMA, Fault, Limits, disagreement, table_faults

from .dialect import parse
from .nodes import MappingNode, dotted_key, escaped, shortened
from .source import Unreadable, read_file


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table as read. `rows` is None where the text has `problems`."""

    display: str
    text: str
    rows: Rows | None
    problems: tuple[Problem, ...] = ()

    @property
    def uses_tma(self) -> bool:
        """Whether its rows say for themselves how weights are read."""
        return self.rows is not None and any(TMA in row for row in self.rows.values())

    def place_of(self, *path: str) -> Position:
        """Where the key at a path stands."""
        # Numbers of lines are needed in messages only, and finding them takes long.
        root, _ = parse(self.text, self.display)
        position, node = Position(self.display, 1, 1), root
        for step in path:
            entry = node.entries.get(step) if isinstance(node, MappingNode) else None
            if entry is None:
                break
            position, node = entry.position, entry.node
        return position


def read_table(path: Path, display: str, limits: Limits, may_use_tma: bool) -> TableFile:
    """The rows of a table's file, or everything wrong with it."""
    try:
        text = read_file(path, display)
    except Unreadable as error:
        return TableFile(display, "", None, tuple(error.problems))
    try:
        is_doubled: list[bool] = []
        table = json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, is_doubled))
    except json.JSONDecodeError as error:
        place = Position(display, error.lineno, error.colno)
        return TableFile(display, text, None, (Problem(place, "", f"not JSON: {error.msg}"),))
    except (ValueError, RecursionError):
        place = Position(display, 1, 1)
        return TableFile(display, text, None, (Problem(place, "", "not a table"),))
    if is_doubled:
        # The dialect of specs refuses a key written twice and names both lines.
        return TableFile(display, text, None, tuple(parse(text, display)[1]))
    file = TableFile(display, text, None)
    problems = tuple(_problem(file, fault) for fault in table_faults(table, limits, may_use_tma))
    if problems:
        return TableFile(display, text, None, problems)
    return TableFile(display, text, {int(count): row for count, row in table.items()})


def _object(pairs: list[tuple[str, object]], is_doubled: list[bool]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        is_doubled.append(True)
    return found


def _problem(file: TableFile, fault: Fault) -> Problem:
    place, key = file.place_of(*fault.path), dotted_key(list(fault.path))
    found = None if fault.found is None else shortened(escaped(fault.found))
    return Problem(place, key, fault.message, found, fault.expected)


def pair_problem(up: TableFile, down: TableFile) -> Problem | None:
    """Why an up and a down table without problems of their own do not go together."""
    if up.rows is None or down.rows is None:
        return None
    found = disagreement(up.rows, down.rows)
    if found is None:
        return None
    key = "BLOCK_SIZE_M"
    place = up.place_of(str(found.up), key)
    return Problem(
        down.place_of(str(found.down), key),
        f"{found.down}.{key}",
        f"not the up table's at M = {found.num_tokens}: both products share one sorted list",
        f"{found.down_block}, but {found.up_block} in row {found.up} of {place.file}:{place.line}",
        f"one {key} for each number of tokens from 1 to 4096",
    )
