"""Every lightning kernel that the flash and 1T packages use compiles for sm_90."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from interpreter import IS_INTERPRETED

pytest.importorskip("triton")
if IS_INTERPRETED:
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from ahead_of_time import GENERATED, SHARED_BYTES, Compiled, checked_in, compiled

NUM_DRAFTS = 4
TYPES = {
    **dict.fromkeys(["q_ptr", "k_ptr", "v_ptr", "out_ptr", "gate_ptr", "mixed_ptr"], "*bf16"),
    **dict.fromkeys(["q_weight_ptr", "k_weight_ptr", "norm_weight_ptr", "verify_ptr"], "*bf16"),
    **dict.fromkeys(["state_ptr", "segments_ptr", "log_decay_ptr"], "*fp32"),
    **dict.fromkeys(["cos_ptr", "sin_ptr"], "*fp32"),
    **dict.fromkeys(["slots_ptr", "track_slots_ptr", "track_lens_ptr", "starts_ptr"], "*i32"),
    **dict.fromkeys(["verify_rows_ptr", "num_pending_ptr", "turns_ptr", "arrived_ptr"], "*i32"),
    **dict.fromkeys(["num_reqs", "segment_size", "relief"], "i32"),
    **dict.fromkeys(["scale", "eps"], "fp32"),
    "has_initial_ptr": "*i1",
}


@pytest.fixture(scope="module", params=["ling_2_6_flash", "ling_2_6_1t"])
def package(request: pytest.FixtureRequest) -> ModuleType:
    return checked_in(request.param)


def compile_for(package: ModuleType, name: str, **constants: Any) -> Compiled:
    model, kernels = package.model, package.kernels.lightning
    kernel = getattr(kernels, name)
    tiles = {
        "NUM_HEADS": model.NUM_ATTENTION_HEADS,
        "NUM_GROUPS": model.GROUP_NORM_SIZE,
        "K": model.HEAD_DIM,
        "V": model.HEAD_DIM,
        "ROTARY": model.ROTARY_DIM,
        "BLOCK_V": kernels.ROW_BLOCK_V,
        "ROW_BLOCK_V": kernels.ROW_BLOCK_V,
        "BLOCK_GROUP": model.NUM_ATTENTION_HEADS // model.GROUP_NORM_SIZE * model.HEAD_DIM,
        "NUM_DRAFTS": NUM_DRAFTS,
        "BLOCK_D": NUM_DRAFTS,
        "CHUNK": kernels.MAX_CHUNK,
        "BLOCK": 1024,
        "PRECISION": "tf32",
        "STARTS_EARLY": True,
        **constants,
    }
    constants = {name: tiles[name] for name in kernel.arg_names if name in tiles}
    types = {name: TYPES.get(name, "i32") for name in kernel.arg_names}
    options = {"num_warps": kernels.ROW_NUM_WARPS}
    if name == "lightning_verify_kernel":
        options["maxnreg"] = kernels.VERIFY_REGISTERS
        constants["BLOCK_V"] = kernels.VERIFY_BLOCK_V
    return compiled(kernel, types, constants, **options)


@pytest.mark.parametrize("has_track", [False, True])
@pytest.mark.parametrize("name", ["lightning_decode_kernel", "lightning_decode_fused_kernel"])
def test_decode_kernels_do_not_spill(package: ModuleType, name: str, has_track: bool) -> None:
    result = compile_for(package, name, HAS_TRACK=has_track)
    assert result.spill_bytes == 0
    assert result.shared_bytes < SHARED_BYTES


@pytest.mark.parametrize("is_snapshot", [False, True])
@pytest.mark.parametrize("step", ["verify", "commit"])
def test_verify_kernels_do_not_spill(package: ModuleType, step: str, is_snapshot: bool) -> None:
    name = f"lightning_{step}{'_snapshot' if is_snapshot and step == 'verify' else ''}_kernel"
    pool = {"verify_ptr": "*fp32"} if is_snapshot else {}
    unused = {"log_decay_ptr": None} if is_snapshot and step == "commit" else {}
    with pytest.MonkeyPatch.context() as patch:
        for argument, kind in pool.items():
            patch.setitem(TYPES, argument, kind)
        result = compile_for(package, name, IS_SNAPSHOT=is_snapshot, **unused)
    assert result.spill_bytes == 0
    assert result.shared_bytes < SHARED_BYTES


@pytest.mark.parametrize("has_track", [False, True])
@pytest.mark.parametrize("is_chained", [True, False])
def test_prefill_kernels_fit_twice_on_a_processor(
    package: ModuleType, is_chained: bool, has_track: bool
) -> None:
    unused = {"segments_ptr": None} if is_chained else {"turns_ptr": None}
    result = compile_for(
        package,
        "lightning_prefill_kernel",
        IS_CHAINED=is_chained,
        HAS_TRACK=has_track,
        **unused,
    )
    assert result.shared_bytes < SHARED_BYTES // 2


@pytest.mark.parametrize(
    "name", ["lightning_segment_sums_kernel", "lightning_segment_states_kernel"]
)
def test_kernels_between_segments(package: ModuleType, name: str) -> None:
    assert compile_for(package, name).shared_bytes < SHARED_BYTES


HYBRIDS = sorted(path.parents[1].name for path in GENERATED.glob("*/kernels/lightning.py"))


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_largest_slope_times_a_chunk_stays_within_float32(name: str) -> None:
    """Exponents of a chunk lie between -slope * CHUNK and 0: none overflows or is flushed to 0."""
    package = checked_in(name)
    slopes = [
        slope * factor
        for slope in package.model.HEAD_SLOPES
        for factor in package.model.LAYER_FACTORS
    ]
    assert min(slopes) > 0
    assert max(slopes) * package.kernels.lightning.MAX_CHUNK < 87.3  # -ln of the least normal
