"""The engine's own lookup finds the tables that the packages ship."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import environment
import pytest

pytestmark = pytest.mark.sglang

GENERATED = environment.HERE.parents[1] / "generated"
EXPERTS = 256
# The width of an expert; the packages' tables are for widths of 512 and 256 on a rank.
WIDTHS = {"ling_2_6_flash_sglang": 1024, "ling_2_6_1t_sglang": 2048}
DEVICES = ("NVIDIA H20", "NVIDIA H20-3e", "NVIDIA H200")
FP8 = ("fp8_w8a8", [128, 128])
BF16 = (None, None)


def shipped() -> list[dict]:
    """A query for each shipped (device, dtype, tp), and for one tp that has no table."""
    queries = []
    for (package, width), device, down in itertools.product(WIDTHS.items(), DEVICES, (False, True)):
        for (dtype, block), part in ((BF16, 512), (FP8, 512), (FP8, 256), (BF16, 128)):
            queries.append(
                {
                    "folder": str(GENERATED / package / package / "tuned"),
                    "device": device,
                    "E": EXPERTS,
                    "N": part,
                    "dtype": dtype,
                    "block": block,
                    "down": down,
                    "tp": width // part,
                }
            )
    return queries


def table(query: dict) -> dict | None:
    """The shipped table: the one for the second product if there is one, else that of the first."""
    device = query["device"].replace(" ", "_")
    kind = f",dtype={query['dtype']},block_shape={query['block']}" if query["dtype"] else ""
    name = f"E={query['E']},N={query['N']},device_name={device}{kind}"
    for suffix in ("_down", "")[not query["down"] :]:
        for folder in Path(query["folder"], "configs").iterdir():
            if (folder / f"{name}{suffix}.json").is_file():
                return json.loads((folder / f"{name}{suffix}.json").read_text())
    return None


def test_the_engine_finds_every_shipped_table(sglang_python: Path) -> None:
    queries = shipped()
    result = subprocess.run(
        [sglang_python, environment.HERE / "table_lookup.py"],
        input=json.dumps(queries),
        env=environment.clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    for query, found in zip(queries, json.loads(result.stdout), strict=True):
        assert found == table(query), query
        assert (found is None) == (query["N"] == 128), query
