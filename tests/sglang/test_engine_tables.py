"""The engine's own lookup finds the tables that the packages ship."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from glob import escape
from pathlib import Path

import environment
import pytest
from lingen.tuned.lookup import TableKey
from lingen.tuned.names import parse_name

pytestmark = pytest.mark.sglang

GENERATED = environment.HERE.parents[1] / "generated"
PACKAGES = ("ling_2_6_flash_sglang", "ling_2_6_1t_sglang")
NO_TABLE_WIDTH = 128  # of an expert on a rank


def configs(package: str) -> Path:
    return GENERATED / package / package / "tuned/configs"


def shipped(package: str) -> list[TableKey]:
    """What each shipped table of a first product is for."""
    names = [parse_name(file.name) for file in sorted(configs(package).glob("*/*.json"))]
    assert all(names)
    return [name.key for name in names if not name.is_down]


def query(package: str, key: TableKey, down: bool) -> dict:
    return {
        "folder": str(configs(package).parent),
        "device": key.device.replace("_", " "),
        "E": key.num_experts,
        "N": key.width,
        "dtype": key.dtype,
        "block": key.block_shape,
        "down": down,
    }


def table(package: str, key: TableKey, down: bool) -> dict | None:
    """The one file of that name; for the second product, that of the first where it has none."""
    for is_down in (True, False) if down else (False,):
        found = list(configs(package).glob(f"*/{escape(key.file_name(is_down))}"))
        assert len(found) <= 1
        if found:
            return json.loads(found[0].read_text())
    return None


def test_the_engine_finds_every_shipped_table(sglang_python: Path) -> None:
    keys = [(package, key) for package in PACKAGES for key in shipped(package)]
    assert {package for package, _ in keys} == {*PACKAGES}
    keys += [(package, replace(key, width=NO_TABLE_WIDTH)) for package, key in keys]
    cases = [(package, key, down) for package, key in keys for down in (False, True)]
    result = subprocess.run(
        [sglang_python, environment.HERE / "table_lookup.py"],
        input=json.dumps([query(*case) for case in cases]),
        env=environment.clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    for case, found in zip(cases, json.loads(result.stdout), strict=True):
        assert found == table(*case), case
        assert (found is None) == (case[1].width == NO_TABLE_WIDTH), case
