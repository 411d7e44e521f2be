"""Each lightning kernel against its reference: on a GPU, and in Triton's interpreter on a CPU.

Reference and kernel get the same inputs: views into buffers full of NaN, pools full of NaN but for
the slots that hold a state, and index tensors of any order. Results and whole pools are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, permutations
from types import ModuleType

import pytest
import torch
from comparison import assert_same_bits, relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning_calls import PAD_SLOT, Inputs
from test_interpreter import IS_INTERPRETED
from torch import Tensor

pytestmark = [] if IS_INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
# In the interpreter float16 stands in for bfloat16, whose bits tl.dot multiplies as integers there,
# and to which float32 is cut off instead of rounded.
HALF = torch.float16 if IS_INTERPRETED else torch.bfloat16
# Relative to the root mean square. float32: sums of a few hundred products. Others: inputs are
# exact in both; scores, states in products and outputs are rounded to 8 bits of mantissa.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
EXAMPLES = 12 if IS_INTERPRETED else 60


@pytest.fixture(scope="module")
def kernels(tiny: ModuleType) -> ModuleType:
    return tiny.kernels.lightning


@pytest.fixture(autouse=True)
def short_segments(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short requests have several."""
    monkeypatch.setattr(kernels, "MIN_SEGMENT", 32)


def index(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def flags(values: list[bool]) -> Tensor:
    return torch.tensor(values, dtype=torch.bool, device=DEVICE)


def starts_of(lengths: list[int]) -> Tensor:
    return index([0, *accumulate(lengths)])


class Case:
    """Inputs of T tokens on DEVICE, and a pool whose listed slots hold a state."""

    def __init__(
        self,
        num_tokens: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        held: list[int],
        num_slots: int,
        *,
        seed: int = 0,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        inputs = Inputs.random(num_tokens, num_heads, head_dim, seed=seed).to(dtype)
        qkv = torch.stack([inputs.q, inputs.k, inputs.v], dim=1).to(DEVICE)
        buffer = torch.full(
            (num_tokens + 3, 3, num_heads + 1, head_dim + 16),
            torch.nan,
            dtype=dtype,
            device=DEVICE,
        )
        self.qkv = buffer[1 : num_tokens + 1, :, :num_heads, :head_dim].copy_(qkv)
        self.q, self.k, self.v = self.qkv.unbind(1)
        self.log_decay, self.scale = inputs.log_decay.to(DEVICE), inputs.scale
        generator = torch.Generator().manual_seed(seed)
        shape = (num_heads, head_dim, head_dim)
        self.state = torch.full(
            (num_slots + 1, *shape), torch.nan, dtype=state_dtype, device=DEVICE
        )
        for slot in held:
            self.state[slot] = torch.randn(shape, generator=generator)


def assert_pools_agree(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Close where the reference holds numbers, NaN elsewhere; the spare entry may hold anything."""
    got, want = got[:-1].double(), want[:-1].double()
    assert torch.equal(got.isnan(), want.isnan()), "other places are NaN"
    assert_near(got.nan_to_num(), want.nan_to_num(), tolerance)


def assert_near(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    if want.any():
        error = relative_error(got, want)
        assert error <= tolerance, f"relative error {error:.3g}, tolerance {tolerance:g}"
    else:
        assert not got.any()


@st.composite
def batches(draw: st.DrawFn, lengths: st.SearchStrategy[int]) -> dict:
    """Requests with slots in any order, some padded, some with a state, some tracked."""
    num_reqs = draw(st.integers(1, 4))
    slots = draw(st.permutations(range(2 * num_reqs + 1)))
    is_padding = [draw(st.integers(0, 4)) == 0 for _ in range(num_reqs)]
    tracked = [not pad and draw(st.booleans()) for pad in is_padding]
    return {
        "lengths": [draw(lengths) for _ in range(num_reqs)],
        "slots": [PAD_SLOT if pad else slots[r] for r, pad in enumerate(is_padding)],
        "has_initial": [not pad and draw(st.booleans()) for pad in is_padding],
        "track_slots": [slots[num_reqs + r] if t else PAD_SLOT for r, t in enumerate(tracked)],
        "track_at": [draw(st.integers(0, 1000)) for _ in range(num_reqs)],
        "has_track": draw(st.booleans()),
        "num_slots": 2 * num_reqs + 1,
    }


def held_slots(batch: dict) -> list[int]:
    pairs = zip(batch["slots"], batch["has_initial"], strict=True)
    return [slot for slot, has_initial in pairs if has_initial]


def tracking(batch: dict) -> tuple[Tensor, Tensor]:
    if not batch["has_track"]:
        return index([]), index([])
    slots, lens = [], []
    for slot, at, length in zip(
        batch["track_slots"], batch["track_at"], batch["lengths"], strict=True
    ):
        slots.append(slot if length else PAD_SLOT)
        lens.append(at % length + 1 if length else 0)
    return index(slots), index(lens)


SIZES = {
    "num_heads": st.sampled_from([1, 3, 6]),
    "head_dim": st.sampled_from([16, 32] if IS_INTERPRETED else [16, 32, 64, 128]),
    "seed": st.integers(0, 100),
}


def run_both(
    call: Callable[[Case], Tensor | None], reference: Callable[[Case], Tensor | None], case: Case
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Outputs and pools of both, each on its own copy of the pool."""
    before = case.state
    case.state = before.clone()
    want = reference(case)
    want_state, case.state = case.state, before.clone()
    got = call(case)
    return got, want, case.state, want_state


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("state_dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(batch=batches(st.just(1)), **SIZES)
def test_decode(
    kernels: ModuleType,
    batch: dict,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    num_reqs = len(batch["lengths"])
    sizes = (num_reqs, num_heads, head_dim, dtype, held_slots(batch), batch["num_slots"])
    case = Case(*sizes, seed=seed, state_dtype=state_dtype)
    rows = (index(batch["slots"]), flags(batch["has_initial"]), tracking(batch)[0])

    def run(name: str) -> Callable[[Case], Tensor]:
        return lambda c: getattr(kernels, name)(
            c.q, c.k, c.v, c.state, *rows, c.log_decay, c.scale
        )

    got, want, state, want_state = run_both(
        run("lightning_decode"), run("lightning_decode_ref"), case
    )
    assert_near(got, want, TOLERANCES[dtype])
    assert_pools_agree(state, want_state, TOLERANCES[state_dtype])


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(batch=batches(st.just(1)), group_size=st.sampled_from([1, 2, 3]), **SIZES)
def test_fused_decode(
    kernels: ModuleType,
    batch: dict,
    dtype: torch.dtype,
    group_size: int,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    num_reqs, num_groups = len(batch["lengths"]), num_heads
    num_heads *= group_size
    sizes = (num_reqs, num_heads, head_dim, dtype, held_slots(batch), batch["num_slots"])
    case = Case(*sizes, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    width = num_heads * head_dim

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    angles = random(num_reqs, 1, head_dim // 4).to(DEVICE)
    gate = random(num_reqs, width + 16).to(DEVICE, dtype)[:, :width]
    weights = [random(dim).to(DEVICE, dtype) for dim in (head_dim, head_dim, width)]
    rows = (index(batch["slots"]), flags(batch["has_initial"]), tracking(batch)[0])

    def run(name: str) -> Callable[[Case], Tensor]:
        return lambda c: getattr(kernels, name)(
            *(c.qkv, gate, angles.cos(), angles.sin(), *weights, num_groups, 1e-6),
            *(c.state, *rows, c.log_decay, c.scale),
        )

    got, want, state, want_state = run_both(
        run("lightning_decode_fused"), run("lightning_decode_fused_ref"), case
    )
    assert_near(got, want, TOLERANCES[dtype])
    assert_pools_agree(state, want_state, TOLERANCES[dtype])
    assert not kernels.counters(1, got.device).any(), "counters are not back to zero"


PREFILLS = ["lightning_prefill", "lightning_prefill_blocks"]
BLOCK_EDGES = [0, 0, 1, 2, 15, 31, 32, 33, 63, 64, 65, 127, 129, 200]


def run_prefill(kernels: ModuleType, name: str, batch: dict, chunk_size: int = 64) -> Callable:
    return lambda c: getattr(kernels, name)(
        *(c.q, c.k, c.v, c.state, index(batch["slots"]), flags(batch["has_initial"])),
        *(*tracking(batch), starts_of(batch["lengths"])),
        *(c.log_decay, c.scale, chunk_size, max(batch["lengths"])),
    )


@pytest.mark.parametrize("name", PREFILLS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(
    batch=batches(st.sampled_from(BLOCK_EDGES)), chunk_size=st.sampled_from([16, 64, 256]), **SIZES
)
def test_prefill(
    kernels: ModuleType,
    name: str,
    batch: dict,
    dtype: torch.dtype,
    chunk_size: int,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    num_tokens = sum(batch["lengths"])
    sizes = (num_tokens, num_heads, head_dim, dtype, held_slots(batch), batch["num_slots"])
    got, want, state, want_state = run_both(
        run_prefill(kernels, name, batch, chunk_size),
        run_prefill(kernels, "lightning_prefill_ref", batch, chunk_size),
        Case(*sizes, seed=seed),
    )
    assert_near(got, want, TOLERANCES[dtype])
    assert_pools_agree(state, want_state, TOLERANCES[dtype])
