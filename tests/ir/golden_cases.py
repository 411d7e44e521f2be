"""The recorded cases of the supported families, as specs, IRs and expectations."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from lingen.hf import import_config
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"
CASES = tuple(
    sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "ling3-kda")
)
OFFSET = "attention.lightning.decay.layer_offset"
SHIPPED = tuple(sorted(path.stem for path in (ROOT / "specs").glob("*.yaml")))


@cache
def expected(case: str) -> dict:
    return json.loads((GOLDEN / case / "expected.json").read_text())


def has_lightning(case: str) -> bool:
    return "linear" in expected(case)["layer_kinds"]


# Cases with lightning layers: those of Ling 2.5 / 2.6 and of linear v2.
LIGHTNING_CASES = tuple(case for case in CASES if has_lightning(case))
# Cases whose full layers are GQA: the siblings.
GQA_CASES = tuple(case for case in CASES if case.split("-")[0] in ("v1", "v2", "linear"))
MLA_CASES = tuple(case for case in CASES if case not in GQA_CASES)


@cache
def golden_ir(case: str, layer_offset: int | None = None) -> ModelIR:
    settings = [] if layer_offset is None else [f"{OFFSET}={layer_offset}"]
    return lower(import_config(GOLDEN / case / "config.json", overrides=settings).spec)


@cache
def shipped_ir(name: str, *settings: str) -> ModelIR:
    return lower(load_spec(ROOT / f"specs/{name}.yaml", settings))


def tensor_shapes(case: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the header of the case's weights, read without any library."""
    with open(GOLDEN / case / "weights.safetensors", "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: tuple(entry["shape"]) for name, entry in header.items()}
