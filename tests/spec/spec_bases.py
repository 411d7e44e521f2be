"""One spec of each architecture, and one with scaled rotary frequencies."""

from __future__ import annotations

from pathlib import Path

from lingen.spec import ModelSpec, load_spec
from lingen.spec.schema import known_keys

SPECS = Path(__file__).parent.parent.parent / "specs"
YARN = {
    "rope_type": "yarn",
    "factor": 2,
    "original_max_position_embeddings": 131072,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": None,
    "mscale_all_dim": None,
}
FLASH = load_spec(SPECS / "ling-2.6-flash.yaml")
# Together they have every key.
BASES: dict[str, ModelSpec] = {
    "v2.5": FLASH,
    "linear-v2": load_spec(SPECS / "ring-mini-linear-2.0.yaml"),
    "v2": load_spec(SPECS / "ling-mini-2.0.yaml"),
    "v1": load_spec(SPECS / "ling-lite-1.5.yaml"),
    "yarn": load_spec(
        SPECS / "ling-2.6-flash.yaml",
        [f"model.rope_scaling.{key}={'null' if v is None else v}" for key, v in YARN.items()],
    ),
}
LEAVES = {key: part for key, part in known_keys().items() if "properties" not in part}
del LEAVES["extends"]
