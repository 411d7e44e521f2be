"""Lightning attention where numbers get large, long or coarse: decay bounds, state dtypes."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from comparison import assert_close, relative_error
from lightning_calls import NO_SLOTS, Inputs
from torch import Tensor

SMALLEST_SLOPE = 1 / 256


def prefill(
    package: ModuleType, inputs: Inputs, chunk_size: int, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One new request over a slot of NaN: its output and its state."""
    state = inputs.new_pool(1)[0]
    out = package.kernels.lightning.lightning_prefill_ref(
        *(inputs.q, inputs.k, inputs.v, state),
        slots=torch.tensor([0], dtype=torch.int32),
        has_initial_state=torch.tensor([False]),
        track_slots=NO_SLOTS,
        track_lens=NO_SLOTS,
        query_start_loc=torch.tensor([0, inputs.q.shape[0]], dtype=torch.int32),
        log_decay=inputs.log_decay if log_decay is None else log_decay,
        scale=inputs.scale,
        chunk_size=chunk_size,
        max_query_len=inputs.q.shape[0],
    )
    return out, state[0]


def with_slope(inputs: Inputs, slope: float) -> Inputs:
    log_decay = torch.full_like(inputs.log_decay, -slope)
    return Inputs(inputs.q, inputs.k, inputs.v, log_decay, inputs.scale)


@pytest.mark.parametrize("chunk_size", [64, 128, 256, 512])
def test_no_chunk_size_overflows_for_the_steepest_of_32_heads(
    tiny: ModuleType, chunk_size: int
) -> None:
    inputs = Inputs.random(1024, num_heads=32)
    large = Inputs(
        *((4 * tensor).clamp(-10, 10) for tensor in (inputs.q, inputs.k, inputs.v)),
        inputs.log_decay,
        inputs.scale,
    ).to(torch.bfloat16)
    assert float(large.log_decay.min()) * chunk_size < -53, "a split exponential would be large"
    out, state = prefill(tiny, large, chunk_size)
    assert out.isfinite().all() and state.isfinite().all()
    want_out, want_state = large.recurrence()
    for head in (0, 15, 31):
        assert relative_error(out[:, head], want_out[:, head]) < 4e-3  # bfloat16 output: 2^-9
        assert relative_error(state[head], want_state[head]) < 1e-5


@pytest.mark.parametrize("num_tokens", [4096, pytest.param(65536, marks=pytest.mark.long)])
def test_long_prompt_with_the_smallest_slope_equals_the_recurrence(
    tiny: ModuleType, num_tokens: int
) -> None:
    inputs = with_slope(Inputs.random(num_tokens, num_heads=1), SMALLEST_SLOPE)
    out, state = prefill(tiny, inputs, 64)
    want_out, want_state = inputs.recurrence()
    assert relative_error(out, want_out) < 1e-5
    assert relative_error(state, want_state) < 1e-5


def test_state_that_does_not_decay_is_a_plain_sum(tiny: ModuleType) -> None:
    inputs = Inputs.random(100)
    no_decay = torch.zeros(3)
    out, state = prefill(tiny, inputs, 32, no_decay)
    want = torch.einsum("thk,thv->hkv", inputs.k.double(), inputs.v.double())
    assert_close(state, want)
    assert out.isfinite().all()


def test_state_that_decays_at_once_holds_only_the_last_token(tiny: ModuleType) -> None:
    inputs = Inputs.random(100)
    out, state = prefill(tiny, inputs, 32, torch.full((3,), -1e4))
    last = inputs.tokens([99])
    assert_close(state, torch.einsum("thk,thv->hkv", last.k.double(), last.v.double()))
    own = torch.einsum("thk,thk->th", inputs.q.double(), inputs.k.double())
    assert_close(out, inputs.scale * own[..., None] * inputs.v.double())


# Root mean square error of outputs and state over 4096 decode steps at slope 1/256, and of the last
# state, measured: 1.8e-6 in float32 and 2.0e-2 in bfloat16. A rounding is remembered for 256 steps:
# 2^-9 * sqrt(256 / 2) at worst in bfloat16; in float32 the rounding of exp(-1/256) counts as well.
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 4e-6), (torch.bfloat16, 3e-2)], ids=["float32", "bfloat16"]
)
def test_error_after_4096_decode_steps_is_that_of_the_state_dtype(
    tiny: ModuleType, dtype: torch.dtype, most: float
) -> None:
    inputs = with_slope(Inputs.random(4096, num_heads=2), SMALLEST_SLOPE)
    state = inputs.new_pool(1, dtype)[0]
    slots = torch.tensor([0], dtype=torch.int32)
    outs = []
    for step in range(4096):
        token = inputs.tokens([step])
        outs.append(
            tiny.kernels.lightning.lightning_decode_ref(
                *(token.q, token.k, token.v, state, slots),
                has_initial_state=torch.tensor([step > 0]),
                track_slots=NO_SLOTS,
                log_decay=inputs.log_decay,
                scale=inputs.scale,
            )
        )
    want_out, want_state = inputs.recurrence()
    errors = relative_error(state[0], want_state), relative_error(torch.cat(outs), want_out)
    assert most / 10 < max(errors) < most


def test_decay_is_not_rounded_to_the_dtype_of_the_activations(tiny: ModuleType) -> None:
    # exp(-1/1024) = 0.99902 is 1 in bfloat16.
    inputs = with_slope(Inputs.random(512, num_heads=1), 1 / 1024).to(torch.bfloat16)
    _, state = prefill(tiny, inputs, 64)
    _, want_state = inputs.recurrence()
    assert relative_error(state, want_state) < 1e-5
