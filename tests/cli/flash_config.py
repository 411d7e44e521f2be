"""The published config of Ling-2.6-flash with changes, imported from memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lingen.errors import Problem, SpecError
from lingen.hf import Imported, import_config_data
from lingen.hf.rows import Nested, Row, Used
from lingen.hf.table import ABSENCES, TABLE

TESTS = Path(__file__).parents[1]
SPECS = TESTS.parent / "specs"
FLASH = TESTS / "configs/ling-2.6-flash.json"
BASE = json.loads(FLASH.read_text())
DECAY_OFFSET = "attention.lightning.decay.layer_offset"


def imported(overrides=(), drop=(), **changes) -> Imported:
    """The import of BASE under the name toy, without the keys of `drop` and with `changes`."""
    config = {key: value for key, value in BASE.items() if key not in drop}
    return import_config_data({**config, **changes}, name="toy", overrides=overrides)


def found_problems(overrides=(), drop=(), **changes) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        imported(overrides, drop, **changes)
    return caught.value.problems


def problems(overrides=(), drop=(), **changes) -> list[str]:
    """`key: message` of every problem, in order."""
    return [f"{each.key}: {each.message}" for each in found_problems(overrides, drop, **changes)]


def refusal(overrides=(), drop=(), **changes) -> Problem:
    """The one problem."""
    (problem,) = found_problems(overrides, drop, **changes)
    return problem


def rows_of(kind) -> dict[str, Row]:
    """Rows of the table of one kind; keys of objects as dotted paths."""
    rows = {}
    for key, row in TABLE.items():
        inner = row.rows if isinstance(row, Nested) else {}
        rows |= {key: row} | {f"{key}.{name}": each for name, each in inner.items()}
    return {key: row for key, row in rows.items() if isinstance(row, kind)}


# Config key → spec key, of what every config must say.
REQUIRED = {
    path: row.spec_key
    for path, row in rows_of(Used).items()
    if row.spec_key not in ABSENCES and path in BASE
}
