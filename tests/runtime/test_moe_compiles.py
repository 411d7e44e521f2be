"""Every launch of routing and experts, flash's and 1T's, compiles for sm_90.

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
from triton.tools.tensor_descriptor import TensorDescriptor

FP8 = torch.float8_e4m3fn
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", FP8: "fp8e4nv"}
OPTIONS = {"num_warps", "num_stages"}
FORMS = ("bf16", "fp8_channel", "fp8_block")
# Tokens of a step, one for each default row.
NUM_TOKENS = (1, 32, 128, 512, 4096)


def type_of(value: object) -> str:
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{value.block_shape}>"
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    return {int: "i32", float: "fp32"}[type(value)]


class Recorder:
    """Stands for a kernel: keeps what each launch is given."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.calls: list[tuple[tuple, dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(size > 0 for size in grid)
        return lambda *arguments, **constants: self.calls.append((arguments, constants))

    def compile(self) -> list[Compiled]:
        results = []
        for arguments, keywords in self.calls:
            names = self.kernel.arg_names[: len(arguments)]
            types = dict(zip(names, map(type_of, arguments), strict=True))
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
    moe, found = package.kernels.moe, {}
    monkeypatch.setattr(moe, "uses_kernels", lambda tensor: True)
    for name in [name for name in vars(moe) if name.endswith("_kernel")]:
        found[name] = Recorder(getattr(moe, name))
        monkeypatch.setattr(moe, name, found[name])
    return found


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def run_experts(package: ModuleType, form: str, num_tokens: int, tp: int) -> None:
    model, moe = package.model, package.kernels.moe
    num_experts, size = model.NUM_EXPERTS, model.HIDDEN_SIZE
    width, top_k = model.MOE_INTERMEDIATE_SIZE // tp, moe.NUM_EXPERTS_PER_TOK
    up, down = (num_experts, 2 * width, size), (num_experts, size, width)
    scales: dict[str, Tensor] = {}
    for name, shape in (("gate_up_scale", up), ("down_scale", down)):
        if form == "fp8_block":
            shape = (shape[0], shape[1] // 128, shape[2] // 128)
        if form != "bf16":
            scales[name] = empty(*shape[: 3 if form == "fp8_block" else 2], dtype=torch.float32)
    dtype = torch.bfloat16 if form == "bf16" else FP8
    ints = {"dtype": torch.int32}
    routing = moe.Routing(
        empty(num_tokens, top_k, dtype=torch.float32),
        empty(num_tokens, top_k, **ints),
        empty(num_tokens * top_k, **ints),
        empty(num_experts + 1, **ints),
    )
    weights = empty(*up, dtype=dtype), empty(*down, dtype=dtype)
    moe.experts(empty(num_tokens, size), *weights, routing, **scales)


def assert_compiles(recorders: dict[str, Recorder], launched: set[str]) -> None:
    assert {name for name, recorder in recorders.items() if recorder.calls} == launched
    for name in launched:
        for result in recorders[name].compile():
            assert result.shared_bytes < SHARED_BYTES, f"{name}: {result}"
            assert result.spill_bytes == 0, f"{name}: {result}"


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("form", FORMS)
def test_experts_fit_a_multiprocessor_and_do_not_spill(
    package: ModuleType, recorders: dict[str, Recorder], form: str, num_tokens: int
) -> None:
    run_experts(package, form, num_tokens, 1)
    wide = "wide_" if num_tokens == 4096 and form != "fp8_block" else ""
    launched = {f"{wide}gate_up_kernel", f"{wide}down_kernel", "sum_parts_kernel"}
    assert_compiles(recorders, launched | ({"quantize_rows_kernel"} if form != "bf16" else set()))


@pytest.mark.parametrize("num_tokens", [1, 64, 65, 512, 4096])
def test_router_does_not_spill(
    package: ModuleType, recorders: dict[str, Recorder], num_tokens: int
) -> None:
    model = package.model
    weight = empty(model.NUM_EXPERTS, model.HIDDEN_SIZE, dtype=torch.float32)
    hidden = empty(num_tokens, model.HIDDEN_SIZE)
    package.kernels.moe.route(hidden, weight, empty(model.NUM_EXPERTS, dtype=torch.float32))
    launched = {"router_logits_kernel", "choose_experts_kernel"}
    sorts = num_tokens > 64  # in at most two launches for up to 64 tokens
    assert_compiles(recorders, launched | ({"sort_by_expert_kernel"} if sorts else set()))
    assert all(len(recorders[name].calls) == 1 for name in launched)
