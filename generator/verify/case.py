"""One recorded case on disk: its config, weights, expected tensors and tolerances."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lingen.errors import LingenError
from safetensors import SafetensorError, safe_open
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tolerances:
    """`abs(got - want) <= atol + rtol * abs(want)`; router weights have no relative part."""

    logits_atol: float
    hidden_atol: float
    state_atol: float
    router_weights_atol: float
    rtol: float


@dataclass(frozen=True, slots=True)
class Case:
    """`golden` maps the names of golden.safetensors to CPU tensors."""

    folder: Path
    golden: dict[str, Tensor]
    tolerances: Tolerances
    chunk_splits: tuple[tuple[int, ...], ...]
    decay_layer_offset: dict[str, int]

    @property
    def name(self) -> str:
        return self.folder.name

    def has(self, scenario: str) -> bool:
        return any(name.startswith(f"{scenario}.") for name in self.golden)

    @property
    def other_lengths(self) -> list[int]:
        """n of every `len{n}.input_ids`, ascending."""
        found = (name.removeprefix("len").partition(".") for name in self.golden)
        return sorted({int(n) for n, _, rest in found if rest == "input_ids" and n.isdecimal()})


def load_case(folder: str | Path) -> Case:
    """Read a case but its weights. Raises LingenError naming the file at fault."""
    folder = Path(folder)
    for name in ("config.json", "expected.json", "golden.safetensors"):
        if not (folder / name).is_file():
            raise LingenError(f"{folder}: no {name}: not the folder of a recorded case")
    expected_file = folder / "expected.json"
    try:
        expected = json.loads(expected_file.read_bytes())
        suggested = expected["suggested_tolerance_float32"]
        tolerances = Tolerances(
            logits_atol=float(suggested["logits_atol"]),
            hidden_atol=float(suggested["hidden_atol"]),
            state_atol=float(suggested["state_atol"]),
            router_weights_atol=float(suggested["router_weights_atol"]),
            rtol=float(suggested["logits_rtol"]),
        )
        splits = tuple(tuple(map(int, split)) for split in expected.get("chunk_splits_checked", ()))
        offsets = {str(k): int(v) for k, v in expected.get("decay_layer_offset", {}).items()}
    except KeyError as error:
        raise LingenError(f"{expected_file}: {error.args[0]} is missing") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LingenError(f"{expected_file}: not a description of a case: {error}") from None
    return Case(folder, _tensors(folder), tolerances, splits, offsets)


def _tensors(folder: Path) -> dict[str, Tensor]:
    file = folder / "golden.safetensors"
    try:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise LingenError(f"{file}: {error}") from None
    for name in ("main.input_ids", "main.logits"):
        if name not in tensors:
            raise LingenError(f"{file}: {name} is missing")
    return tensors
