"""Every launch of latent attention and of the norms, flash's and 1T's, compiles for sm_90.

Wrappers run on `meta` tensors of full size; what they would launch is compiled instead.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from interpreter import IS_INTERPRETED
from torch import Tensor

pytest.importorskip("triton")
if IS_INTERPRETED:
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from ahead_of_time import SHARED_BYTES, Compiled, checked_in, compiled

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
OPTIONS = {"num_warps", "num_stages"}
NUM_DRAFTS = 4


class Recorder:
    """Stands for a kernel: keeps what each launch is given."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.calls: list[tuple[tuple, dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **constants: self.calls.append((arguments, constants))

    def compile(self) -> list[Compiled]:
        results = []
        for arguments, keywords in self.calls:
            names = self.kernel.arg_names[: len(arguments)]
            types = {
                name: TYPES[value.dtype]
                if isinstance(value, Tensor)
                else {int: "i32", float: "fp32"}[type(value)]
                for name, value in zip(names, arguments, strict=True)
            }
            constants = {name: value for name, value in keywords.items() if name not in OPTIONS}
            options = {name: value for name, value in keywords.items() if name in OPTIONS}
            results.append(compiled(self.kernel, types, constants, **options))
        return results


@pytest.fixture(params=["ling_2_6_flash", "ling_2_6_1t"])
def package(request: pytest.FixtureRequest) -> ModuleType:
    return checked_in(request.param)


@pytest.fixture
def recorders(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorder]:
    """Recorders in place of the kernels that a host launches, by name."""
    found = {}
    for module in (package.kernels.mla, package.kernels.norm):
        monkeypatch.setattr(module, "uses_kernels", lambda tensor: True)
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            found[name] = Recorder(getattr(module, name))
            monkeypatch.setattr(module, name, found[name])
    return found


def attend(package: ModuleType, function: str, num_reqs: int, query_len: int, tp: int) -> None:
    model, cache = package.model, package.cache
    heads, num_tokens = model.NUM_ATTENTION_HEADS // tp, num_reqs * query_len
    width = model.KV_LORA_RANK + model.QK_ROPE_HEAD_DIM

    def empty(*shape: int, dtype: torch.dtype = model.DTYPE) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    q = empty(num_tokens, heads, model.QK_HEAD_DIM)
    weight = empty(heads, model.QK_NOPE_HEAD_DIM + model.V_HEAD_DIM, model.KV_LORA_RANK)
    getattr(package.kernels.mla, function)(
        *q.split([model.QK_NOPE_HEAD_DIM, model.QK_ROPE_HEAD_DIM], dim=-1),
        empty(100, cache.PAGE_SIZE, width),
        empty(num_reqs, 64, dtype=torch.int32),
        empty(num_reqs + 1, dtype=torch.int32),
        empty(num_tokens, dtype=torch.int64),
        empty(num_reqs, dtype=torch.int32),
        *weight.split([model.QK_NOPE_HEAD_DIM, model.V_HEAD_DIM], dim=1),
        model.MLA_SCALE,
        query_len,
    )


def assert_compiles(recorders: dict[str, Recorder], launched: set[str], may_spill: bool) -> None:
    assert {name for name, recorder in recorders.items() if recorder.calls} == launched
    for name in launched:
        for result in recorders[name].compile():
            assert result.shared_bytes < SHARED_BYTES, name
            assert may_spill or result.spill_bytes == 0, f"{name}: {result}"


@pytest.mark.parametrize("query_len", [1, 1 + NUM_DRAFTS], ids=["decode", "verify"])
@pytest.mark.parametrize("tp", [1, 8])
def test_decode_kernels_do_not_spill(
    package: ModuleType, recorders: dict[str, Recorder], query_len: int, tp: int
) -> None:
    attend(package, "mla_decode", 32, query_len, tp)
    launched = {"mla_absorb_kernel", "mla_split_kernel", "mla_combine_kernel", "mla_values_kernel"}
    assert_compiles(recorders, launched, may_spill=False)


def test_prefill_kernels_fit_a_multiprocessor(
    package: ModuleType, recorders: dict[str, Recorder]
) -> None:
    attend(package, "mla_prefill", 1, 1024, 1)
    assert_compiles(recorders, {"mla_expand_kernel", "mla_prefill_kernel"}, may_spill=False)


def test_writes_and_norms_do_not_spill(package: ModuleType, recorders: dict[str, Recorder]) -> None:
    model = package.model

    def empty(*shape: int, dtype: torch.dtype = model.DTYPE) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rope = model.QK_ROPE_HEAD_DIM
    angles = empty(32, 1, rope // 2, dtype=torch.float32)
    package.kernels.mla.mla_write(
        empty(32, model.KV_LORA_RANK + rope),
        empty(model.KV_LORA_RANK),
        model.LORA_NORM_EPS,
        empty(32, model.NUM_ATTENTION_HEADS, model.QK_HEAD_DIM)[..., -rope:],
        angles,
        angles,
        empty(100, package.cache.PAGE_SIZE, model.KV_LORA_RANK + rope),
        empty(32, dtype=torch.int64),
    )
    hidden, weight = empty(32, model.HIDDEN_SIZE), empty(model.HIDDEN_SIZE)
    package.kernels.norm.rms_norm(hidden, weight, model.RMS_NORM_EPS)
    package.kernels.norm.add_rms_norm(hidden, hidden, weight, model.RMS_NORM_EPS)
    assert_compiles(recorders, {"mla_write_kernel", "rms_norm_kernel"}, may_spill=False)
