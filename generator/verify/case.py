"""One recorded case on disk: its config, weights, expected tensors and tolerances."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from lingen.errors import LingenError
from safetensors import SafetensorError, safe_open
from torch import Tensor

# What a case must hold beside the tensors of a scenario for the scenario to be run.
_NEEDED = {
    "main": ("input_ids", "logits"),
    "decode": ("tokens", "logits"),
    "padded": ("input_ids", "attention_mask", "logits"),
    "mtp": ("next_ids", "draft_next_ids", "logits", "draft_logits"),
    "alt_decay": ("logits",),
}
_TOKENS = ("input_ids", "next_ids", "draft_next_ids", "tokens")
_TOLERANCES = ("logits_atol", "hidden_atol", "state_atol", "router_weights_atol", "logits_rtol")


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
        return _has(self.golden, scenario)

    @property
    def other_lengths(self) -> list[int]:
        """n of every `len{n}.input_ids`, ascending."""
        return sorted(int(s.removeprefix("len")) for s in _lengths(self.golden))

    def check_tokens(self, vocab_size: int) -> None:
        """Raise LingenError for a token that the model has no embedding for."""
        for name, tensor in self.golden.items():
            is_tokens = name.rpartition(".")[2] in _TOKENS
            if is_tokens and tensor.numel() and not 0 <= tensor.min() <= tensor.max() < vocab_size:
                raise LingenError(
                    f"{self.folder / 'golden.safetensors'}: {name} holds tokens from "
                    f"{tensor.min()} to {tensor.max()}; the vocabulary has {vocab_size}"
                )


def load_case(folder: str | Path) -> Case:
    """Read a case but its weights. Raises LingenError naming the file at fault."""
    folder = Path(folder)
    for name in ("config.json", "expected.json", "golden.safetensors"):
        if not (folder / name).is_file():
            raise LingenError(f"{folder}: no {name}: not the folder of a recorded case")
    golden = _tensors(folder / "golden.safetensors")
    expected_file = folder / "expected.json"
    try:
        expected = json.loads(expected_file.read_bytes())
        tolerances = _tolerances(expected["suggested_tolerance_float32"])
        splits = tuple(tuple(map(_integer, split)) for split in expected["chunk_splits_checked"])
        offsets = {k: _offset(v) for k, v in expected.get("decay_layer_offset", {}).items()}
        unrecorded = sorted(expected.get("shapes", {}).keys() - golden.keys())
    except KeyError as error:
        raise LingenError(f"{expected_file}: {error.args[0]} is missing") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LingenError(f"{expected_file}: not a description of a case: {error}") from None
    if unrecorded:
        raise LingenError(f"{folder / 'golden.safetensors'}: {unrecorded[0]} is missing")
    length = golden["main.input_ids"].shape[1]
    for split in splits:
        if min(split) < 1 or sum(split) != length:
            raise LingenError(f"{expected_file}: chunks {list(split)} are not {length} tokens")
    return Case(folder, golden, tolerances, splits, offsets)


def _tolerances(suggested: dict) -> Tolerances:
    numbers = [float(suggested[name]) for name in _TOLERANCES]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a tolerance is not a finite number")
    return Tolerances(*numbers)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not an integer")
    return value


def _offset(value: object) -> int:
    if _integer(value) not in (0, -1):
        raise ValueError(f"decay_layer_offset {value} is neither 0 nor -1")
    return value


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise LingenError(f"{file}: {error}") from None
    needed = {s: parts for s, parts in _NEEDED.items() if s == "main" or _has(tensors, s)}
    needed |= dict.fromkeys(_lengths(tensors), ("input_ids", "logits"))
    for scenario, parts in needed.items():
        for part in parts:
            name = f"{scenario}.{part}"
            if name not in tensors:
                raise LingenError(f"{file}: {name} is missing")
            num_dims = 3 if part == "logits" else 2
            if tensors[name].dim() != num_dims or not tensors[name].numel():
                shape = list(tensors[name].shape)
                raise LingenError(f"{file}: {name} has shape {shape}, not {num_dims} dimensions")
    if "padded.attention_mask" in tensors and not tensors["padded.attention_mask"].bool().any():
        raise LingenError(f"{file}: padded.attention_mask masks every position")
    return tensors


def _has(golden: dict[str, Tensor], scenario: str) -> bool:
    return any(name.startswith(f"{scenario}.") for name in golden)


def _lengths(golden: dict[str, Tensor]) -> set[str]:
    """`len{n}` of every scenario of another length."""
    scenarios = {name.partition(".")[0] for name in golden}
    return {s for s in scenarios if s.startswith("len") and s.removeprefix("len").isdecimal()}
