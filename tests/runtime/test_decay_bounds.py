"""Exponents of every shipped and every published model with lightning attention stay in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lingen.hf import import_config
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec
from lingen.verify.package import generated_package
from small_models import lowered

ROOT = Path(__file__).parents[2]
# -ln of float32's least normal number, 2^-126: exp of less is flushed to zero or denormal.
LEAST_EXPONENT = 126 * math.log(2)


def hybrids() -> dict[str, ModelIR]:
    irs = {path.stem: lower(load_spec(path)) for path in (ROOT / "specs").glob("*.yaml")}
    for path in (ROOT / "tests/configs").glob("*.json"):
        if not path.stem.startswith("ling-3"):  # another kind of linear attention
            irs[path.name] = lower(import_config(path, name="published").spec)
    return {name: ir for name, ir in sorted(irs.items()) if ir.lightning}


HYBRIDS = hybrids()


@pytest.fixture(scope="module")
def lightning() -> Iterator[ModuleType]:
    with generated_package(lowered()) as package:
        yield package.kernels.lightning


def test_the_models_are_there() -> None:
    names = {"ling-2.6-flash", "ling-2.6-1t", "ring-2.5-1t", "ring-mini-linear-2.0"}
    assert names <= HYBRIDS.keys() and len(HYBRIDS) >= 10


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_largest_slope_times_a_block_stays_within_float32(
    name: str, lightning: ModuleType
) -> None:
    """Exponents of a chunk lie between -slope * MAX_CHUNK and 0: none overflows, none is flushed.

    A chunk of prefill is the largest block whose decay is taken in one exponential and multiplied
    with what is not decayed to nothing.
    """
    decay = HYBRIDS[name].lightning.decay
    slopes = [slope * factor for slope in decay.head_slopes for _, factor in decay.layer_factors]
    assert min(slopes) > 0
    assert max(slopes) * lightning.MAX_CHUNK < LEAST_EXPONENT
    assert HYBRIDS[name].lightning.chunk_size <= lightning.MAX_CHUNK
    largest = torch.tensor(-max(slopes) * lightning.MAX_CHUNK, dtype=torch.float32)
    assert largest.exp() >= 2.0**-126
