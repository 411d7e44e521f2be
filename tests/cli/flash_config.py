"""A published config of each generation with changes, imported from memory.

The functions without a generation are those of Ling-2.6-flash.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lingen.errors import Problem, SpecError
from lingen.hf import Imported, import_config_data
from lingen.hf.rows import Nested, Row, Used
from lingen.hf.table import GENERATIONS

TESTS = Path(__file__).parents[1]
SPECS = TESTS.parent / "specs"
DECAY_OFFSET = "attention.lightning.decay.layer_offset"


class Published:
    """The config of one published model, and what importing it with changes gives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = TESTS / f"configs/{name}.json"
        self.config = json.loads(self.path.read_text())
        self.generation = GENERATIONS[self.config["architectures"][0]]

    def imported(self, overrides=(), drop=(), **changes) -> Imported:
        """Under the name toy, without the keys of `drop` and with `changes`."""
        config = {key: value for key, value in self.config.items() if key not in drop}
        return import_config_data({**config, **changes}, name="toy", overrides=overrides)

    def found_problems(self, overrides=(), drop=(), **changes) -> tuple[Problem, ...]:
        with pytest.raises(SpecError) as caught:
            self.imported(overrides, drop, **changes)
        return caught.value.problems

    def problems(self, overrides=(), drop=(), **changes) -> list[str]:
        """`key: message` of every problem, in order."""
        found = self.found_problems(overrides, drop, **changes)
        return [f"{each.key}: {each.message}" for each in found]

    def refusal(self, overrides=(), drop=(), **changes) -> Problem:
        """The one problem."""
        (problem,) = self.found_problems(overrides, drop, **changes)
        return problem

    def rows_of(self, kind) -> dict[str, Row]:
        """Rows of the generation's table of one kind; keys of objects as dotted paths."""
        rows = {}
        for key, row in self.generation.table.items():
            inner = row.rows if isinstance(row, Nested) else {}
            rows |= {key: row} | {f"{key}.{name}": each for name, each in inner.items()}
        return {key: row for key, row in rows.items() if isinstance(row, kind)}

    @property
    def required(self) -> dict[str, str]:
        """Config key → spec key, of what every config of the generation must say."""
        return {
            path: row.spec_key
            for path, row in self.rows_of(Used).items()
            if row.spec_key not in self.generation.absences and path in self.config
        }


def changed(path: str, value: object) -> dict[str, object]:
    """A change of one key, which may be `object.key`."""
    section, _, inner = path.rpartition(".")
    return {section: {inner: value}} if section else {path: value}


PUBLISHED = {
    "v2.5": Published("ling-2.6-flash"),
    "linear-v2": Published("ring-mini-linear-2.0"),
    "v2": Published("ling-mini-2.0"),
    "v1": Published("ling-lite-1.5"),
}
FLASH = PUBLISHED["v2.5"].path
BASE = PUBLISHED["v2.5"].config
imported = PUBLISHED["v2.5"].imported
found_problems = PUBLISHED["v2.5"].found_problems
problems = PUBLISHED["v2.5"].problems
refusal = PUBLISHED["v2.5"].refusal
