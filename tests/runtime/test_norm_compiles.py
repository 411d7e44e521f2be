"""Every norm kernel compiles for sm_90, at the sizes of each rank of the published models."""

from __future__ import annotations

from types import ModuleType

import pytest
from interpreter import IS_INTERPRETED

pytest.importorskip("triton")
if IS_INTERPRETED:
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from ahead_of_time import GENERATED, SHARED_BYTES, checked_in, compiled

# Packages whose norm groups span ranks.
SPANNING = sorted(
    path.parents[1].name
    for path in GENERATED.glob("*/kernels/norm.py")
    if "def group_squares(" in path.read_text()
)
TYPES = {
    **dict.fromkeys(["x", "gate", "residual", "weight", "normed", "added", "out"], "*bf16"),
    **dict.fromkeys(["stride_x", "stride_gate", "stride_residual", "group", "width"], "i32"),
    "squares": "*fp32",
    "eps": "fp32",
}


@pytest.fixture(scope="module", params=SPANNING)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return checked_in(request.param)


def assert_fits(kernel: object, size: int, **constants: object) -> None:
    """Blocks and warps as the wrappers choose them for a power of two."""
    tiles = {"SIZE": size, "BLOCK": size, **constants}
    result = compiled(kernel, TYPES, tiles, num_warps=min(max(size // 512, 1), 16))
    assert result.spill_bytes == 0
    assert result.shared_bytes < SHARED_BYTES


@pytest.mark.parametrize("has_residual", [False, True])
def test_norms_do_not_spill(package: ModuleType, has_residual: bool) -> None:
    kernel = package.kernels.norm.rms_norm_kernel
    assert_fits(kernel, package.model.HIDDEN_SIZE, HAS_RESIDUAL=has_residual)


# A group 1 is a constant: Triton specializes a kernel for an integer that is 1.
@pytest.mark.parametrize("known", [{}, {"group": 1}], ids=["any-group", "group-1"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", ["group_squares_kernel", "gated_part_norm_kernel"])
def test_norms_of_parts_do_not_spill(
    package: ModuleType, name: str, parts: int, known: dict[str, int]
) -> None:
    model, kernel = package.model, getattr(package.kernels.norm, name)
    assert_fits(kernel, model.GROUP_NORM_WIDTH // parts, GROUPS=model.GROUP_NORM_SIZE, **known)
