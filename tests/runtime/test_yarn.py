"""YaRN: which pairs turn slower, by how much, and what happens to the attention's scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from comparison import assert_close
from lingen.verify.package import generated_package
from reference import yarn_frequencies
from small_models import LINEAR_V2, TINY, V1, V2, lowered, yarn

ORIGINAL = 131072
POSITIONS = [0, 1, 5, 100, 4000]
PUBLISHED_WIDTHS = (
    "attention.lightning.head_dim=128",
    "attention.mla.qk_rope_head_dim=64",
    "attention.mla.qk_nope_head_dim=128",
)


@pytest.fixture(scope="module")
def flash_like() -> Iterator[ModuleType]:
    """The rotated widths, theta and scaling of Ling-2.6-flash at 256K."""
    with generated_package(lowered(*PUBLISHED_WIDTHS, *yarn(ORIGINAL, None, None))) as package:
        yield package


def frequencies(package: ModuleType, width: int) -> torch.Tensor:
    """Radians per position of each pair, as the table at position 1 has them."""
    cos, sin = package.model.rope_table(torch.tensor([1]), width)
    return torch.atan2(sin, cos).flatten().double()


def wanted(theta: float, width: int, original: int = ORIGINAL) -> torch.Tensor:
    values = yarn_frequencies(width, theta, 2.0, original, fast=32, slow=1)
    return torch.tensor(values, dtype=torch.float64)


def test_the_reference_has_the_bounds_computed_by_hand() -> None:
    # 64 ln(131072 / 64 pi) / (2 ln 6e6) = 13.3 and 64 ln(131072 / 2 pi) / (2 ln 6e6) = 20.4.
    plain = torch.tensor([6e6 ** (-i / 32) for i in range(32)], dtype=torch.float64)
    ratio = wanted(6e6, 64) / plain
    assert_close(ratio[:14], torch.ones(14), 1e-12)
    assert_close(ratio[14:21], 1 - torch.arange(1, 8, dtype=torch.float64) / 16, 1e-12)
    assert_close(ratio[21:], torch.full((11,), 0.5), 1e-12)


def test_fast_pairs_keep_their_angle_and_slow_ones_turn_half_as_far(flash_like) -> None:
    got = frequencies(flash_like, 64)
    plain = torch.tensor([6e6 ** (-i / 32) for i in range(32)], dtype=torch.float64)
    ratio = got / plain
    assert_close(ratio[:14], torch.ones(14), 1e-6)
    assert_close(ratio[21:], torch.full((11,), 0.5), 1e-6)
    between = ratio[13:22]
    assert (between[1:] < between[:-1]).all()


@pytest.mark.parametrize(
    ("spec", "theta", "width", "overrides"),
    [
        (TINY, 6e6, 64, PUBLISHED_WIDTHS),
        (TINY, 6e6, 32, ()),
        (V2, 6e5, 8, ()),
        (V1, 6e5, 16, ()),
        (LINEAR_V2, 1e6, 8, ()),
    ],
    ids=["flash", "tiny", "v2", "v1-whole-head", "linear-v2"],
)
@pytest.mark.parametrize("original", [64, 4096, ORIGINAL])
def test_tables_equal_the_float64_ones(spec, theta, width, overrides, original) -> None:
    with generated_package(lowered(*overrides, *yarn(original, None, None), spec=spec)) as package:
        cos, sin = package.model.rope_table(torch.tensor(POSITIONS), width)
    assert cos.dtype == sin.dtype == torch.float32
    positions = torch.tensor(POSITIONS, dtype=torch.float64)
    angles = positions[:, None, None] * wanted(theta, width, original)
    factor = 0.1 * math.log(2.0) + 1
    # float32 angles of some thousand radians carry errors of 2^-12.
    assert_close(cos, factor * angles.cos(), 5e-4)
    assert_close(sin, factor * angles.sin(), 5e-4)
    assert_close(cos[0], torch.full_like(cos[0], factor).double(), 1e-6)


@pytest.mark.parametrize(
    ("mscale", "mscale_all_dim", "on_tables", "on_scale"),
    [
        (None, None, 1 + 0.1 * math.log(2), 1.0),
        (1.0, 1.0, 1.0, (1 + 0.1 * math.log(2)) ** 2),
        (
            *(1.0, 0.8),
            (1 + 0.1 * math.log(2)) / (1 + 0.08 * math.log(2)),
            (1 + 0.08 * math.log(2)) ** 2,
        ),
        (None, 0.8, 1 + 0.1 * math.log(2), (1 + 0.08 * math.log(2)) ** 2),
        (0.7, None, 1 + 0.1 * math.log(2), 1.0),
    ],
    ids=["neither", "equal", "both", "all-dim", "mscale"],
)
def test_mscale_moves_from_the_tables_to_the_scale_of_mla_and_never_to_lightning(
    mscale, mscale_all_dim, on_tables, on_scale
) -> None:
    with generated_package(lowered(*yarn(ORIGINAL, mscale, mscale_all_dim))) as package:
        model = package.model
        cos, sin = model.rope_table(torch.tensor([0]), 32)
    assert_close(cos, torch.full((1, 1, 16), on_tables), 1e-6)
    assert not sin.any()
    assert math.isclose(model.MLA_SCALE, (64 + 32) ** -0.5 * on_scale, rel_tol=1e-12)
    assert model.LIGHTNING_SCALE == 64**-0.5


def test_grouped_queries_scale_by_their_head_alone() -> None:
    with generated_package(lowered(*yarn(ORIGINAL, 1.0, 0.8), spec=V2)) as package:
        assert package.model.GQA_SCALE == 16**-0.5


def test_without_scaling_there_is_nothing_of_it_in_the_package() -> None:
    for spec in (TINY, V2):
        with generated_package(lowered(spec=spec)) as package:
            names = [name for name in vars(package.model) if name.startswith("ROPE_")]
        assert names == ["ROPE_THETA"]


def test_a_factor_of_1_changes_no_angle() -> None:
    overrides = [text.replace("factor=2.0", "factor=1.0") for text in yarn(ORIGINAL, None, None)]
    positions = torch.tensor(POSITIONS)
    tables = []
    for choices in (overrides, ()):
        with generated_package(lowered(*choices, spec=V2)) as package:
            tables.append(package.model.rope_table(positions, 8))
    for scaled, plain in zip(*tables, strict=True):
        assert_close(scaled, plain.double(), 5e-4)


def test_the_longest_numbers_of_a_scaling_keep_lines_short() -> None:
    overrides = [
        text.replace("factor=2.0", "factor=1023.0625") for text in yarn(268435456, 1.0, 0.8)
    ]
    with generated_package(lowered(*overrides)) as package:
        lines = Path(package.model.__file__).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines[1:] if len(line) > 100] == []
