"""Rotary embedding: which dimensions turn, with which partner, by which angle."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from comparison import assert_close
from hypothesis import given
from hypothesis import strategies as st
from lingen.verify.package import generated_package
from reference import rotated
from small_models import lowered, lowered_small

SPECS = Path(__file__).parents[2] / "specs"


@pytest.mark.parametrize(
    ("spec", "overrides", "widths"),
    [
        ("tiny", ["attention.lightning.partial_rotary_factor=0.5"], (32, 64, 32)),
        ("tiny", ["attention.lightning.partial_rotary_factor=0.25"], (16, 64, 32)),
        ("ling-2.6-1t", [], (64, 128, 64)),
        ("ling-2.6-flash", [], (64, 128, 64)),
    ],
    ids=["tiny-half", "tiny-quarter", "1t", "flash"],
)
def test_partial_factor_narrows_lightning_and_never_mla(
    spec: str, overrides: list[str], widths: tuple[int, int, int]
) -> None:
    folder = Path(__file__).parents[1] / "specs" if spec == "tiny" else SPECS
    with generated_package(lowered(*overrides, spec=folder / f"{spec}.yaml")) as package:
        model = package.model
        rope = model.rope_table(torch.tensor([3]), model.QK_ROPE_HEAD_DIM)
        # Every pair of the MLA part turns: 1, 0 becomes cos, sin and no cosine of these is 1.
        x = torch.tensor([1.0, 0.0]).repeat(model.QK_ROPE_HEAD_DIM // 2)[None, None]
        turned = package.kernels.rope.rotate_pairs_ref(x, *rope)
    assert widths == (model.ROTARY_DIM, model.HEAD_DIM, model.QK_ROPE_HEAD_DIM)
    assert_close(turned[0, 0, ::2], rope[0][0, 0])
    assert_close(turned[0, 0, 1::2], rope[1][0, 0])
    assert rope[1].all()


def quarter_turn() -> tuple[torch.Tensor, torch.Tensor]:
    """Tables of tiny's 32 rotated dimensions with angle 90 degrees in the first pair, else 0."""
    angles = torch.zeros(1, 1, 16)
    angles[..., 0] = math.pi / 2
    return angles.cos(), angles.sin()


def test_lightning_turns_dimension_0_into_half_of_the_rotated_part(tiny: ModuleType) -> None:
    x = torch.zeros(1, 1, 64)
    x[..., 0] = 1.0
    want = torch.zeros(1, 1, 64)
    want[..., 16] = 1.0
    assert_close(tiny.model.rotate_halves(x, quarter_turn()), want, 1e-6)


def test_mla_turns_dimension_0_into_dimension_1(tiny: ModuleType) -> None:
    x = torch.zeros(1, 1, 32)
    x[..., 0] = 1.0
    want = torch.zeros(1, 1, 32)
    want[..., 1] = 1.0
    assert_close(tiny.kernels.rope.rotate_pairs_ref(x, *quarter_turn()), want, 1e-6)


POSITIONS = st.lists(st.integers(0, 5000), min_size=1, max_size=4)


@given(positions=POSITIONS, seed=st.integers(0, 100))
def test_lightning_rotation_equals_the_reference_and_keeps_norms(
    tiny: ModuleType, positions: list[int], seed: int
) -> None:
    model = tiny.model
    x = torch.randn(len(positions), 2, 64, generator=torch.Generator().manual_seed(seed))
    out = model.rotate_halves(x, model.rope_table(torch.tensor(positions), model.ROTARY_DIM))
    want = rotated(x, positions, model.ROPE_THETA, [(i, i + 16) for i in range(16)])
    # float32 angles of some thousand radians carry errors of 2^-12.
    assert_close(out, want, 1e-3)
    assert_close(out.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(out[..., 32:], x[..., 32:])


@given(positions=POSITIONS, seed=st.integers(0, 100))
def test_mla_rotation_equals_the_reference_and_keeps_norms(
    tiny: ModuleType, positions: list[int], seed: int
) -> None:
    model = tiny.model
    x = torch.randn(len(positions), 2, 32, generator=torch.Generator().manual_seed(seed))
    rope = model.rope_table(torch.tensor(positions), model.QK_ROPE_HEAD_DIM)
    out = tiny.kernels.rope.rotate_pairs_ref(x, *rope)
    want = rotated(x, positions, model.ROPE_THETA, [(2 * i, 2 * i + 1) for i in range(16)])
    assert_close(out, want, 1e-3)
    assert_close(out.norm(dim=-1), x.norm(dim=-1))


def test_first_position_is_not_turned(tiny: ModuleType) -> None:
    cos, sin = tiny.model.rope_table(torch.tensor([0]), 32)
    assert cos.shape == sin.shape == (1, 1, 16)
    assert (cos == 1).all() and not sin.any()


def test_scores_depend_on_the_distance_alone(tiny: ModuleType) -> None:
    model = tiny.model
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 32, generator=generator) for _ in range(2))

    def score(of_q: int, of_k: int) -> torch.Tensor:
        tables = [model.rope_table(torch.tensor([place]), 32) for place in (of_q, of_k)]
        turned = (
            tiny.kernels.rope.rotate_pairs_ref(x, *table)
            for x, table in zip((q, k), tables, strict=True)
        )
        return math.prod(turned).sum()

    assert_close(score(109, 100), score(9, 0).double(), 1e-4)


def test_rotation_of_bfloat16_returns_what_the_next_step_takes() -> None:
    """Lightning stays in float32 until its caller rounds; MLA returns its input's dtype."""
    with generated_package(lowered_small()) as package:
        model = package.model
        positions = torch.tensor([1, 2])
        halves = model.rotate_halves(
            torch.ones(2, 4, 16, dtype=torch.bfloat16), model.rope_table(positions, 8)
        )
        pairs = package.kernels.rope.rotate_pairs_ref(
            torch.ones(2, 4, 8, dtype=torch.bfloat16), *model.rope_table(positions, 8)
        )
    assert halves.dtype == torch.float32
    assert pairs.dtype == torch.bfloat16
