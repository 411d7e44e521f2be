"""Runs kernels of the flash package once each, for a profiler: what limits them on one GPU.

    ncu --clock-control none --profile-from-start off --section SpeedOfLight --section Occupancy \\
        --section WarpStateStats --section SchedulerStats --section InstructionStats \\
        python bench/limits.py

Only the last of three calls of each is profiled: prefill of 8192 tokens with both lightning
backends, decode and verify of 32 requests, latent decode of 32 requests over 4096 tokens, and
router and experts in bf16 of 32 and of 4096 tokens.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import lightning
import mla
import torch

moe = importlib.import_module(f"{lightning.PACKAGE}.kernels.moe")
model = lightning.model
NUM_REQS = 32
NUM_TOKENS = 8192


def main() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for call in (*prefills(), *decodes(), latent_decode(), *experts()):
            call()
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def prefills() -> list[Callable[[], object]]:
    q, k, v = lightning.tokens(NUM_TOKENS).unbind(1)
    state, rows = lightning.pools(1)[0], lightning.index(range(1))
    is_old = torch.zeros(1, dtype=torch.bool, device="cuda")
    starts = lightning.index([0, NUM_TOKENS])
    scales = (lightning.LOG_DECAY, lightning.SCALE, 64, NUM_TOKENS)
    call = (q, k, v, state, rows, is_old, rows[:0], rows[:0], starts, *scales)
    kernels = lightning.kernels
    runs = (kernels.lightning_prefill, kernels.lightning_prefill_blocks)
    return [lambda run=run: run(*call) for run in runs]


def decodes() -> list[Callable[[], object]]:
    width = lightning.NUM_DRAFTS + 1
    state, rows = lightning.pools(NUM_REQS)[0], lightning.index(range(NUM_REQS))
    is_old = torch.ones(NUM_REQS, dtype=torch.bool, device="cuda")
    q, k, v = lightning.tokens(NUM_REQS * width).unbind(1)
    scales = (lightning.LOG_DECAY, lightning.SCALE)
    starts = lightning.index(range(0, NUM_REQS * width + 1, width))
    shape = (NUM_REQS + 1, lightning.NUM_DRAFTS, lightning.HEADS, 2 * lightning.HEAD_DIM)
    drafts = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    pending = lightning.index([request % width for request in range(NUM_REQS)])
    first = [x[:NUM_REQS] for x in (q, k, v)]
    kernels = lightning.kernels
    return [
        lambda: kernels.lightning_decode(*first, state, rows, is_old, rows[:0], *scales),
        lambda: kernels.lightning_verify(
            q, k, v, state, rows, is_old, starts, drafts, rows, pending, *scales
        ),
    ]


def latent_decode() -> Callable[[], object]:
    call = mla.requests(NUM_REQS, 1, mla.CACHED)
    q_latent = mla.normal(NUM_REQS, mla.HEADS, mla.RANK)
    return lambda: mla.attention(q_latent, call, 1)


def experts() -> list[Callable[[], object]]:
    num_experts, width, hidden = model.NUM_EXPERTS, model.MOE_INTERMEDIATE_SIZE, model.HIDDEN_SIZE
    gate_up = mla.normal(num_experts, 2 * width, hidden) / hidden**0.5
    down = mla.normal(num_experts, hidden, width) / width**0.5
    router = torch.randn(num_experts, hidden, device="cuda") / hidden**0.5
    bias = torch.zeros(num_experts, device="cuda")

    def run(tokens: torch.Tensor) -> torch.Tensor:
        return moe.experts(tokens, gate_up, down, moe.route(tokens, router, bias))

    inputs = [mla.normal(count, hidden) for count in (32, 4096)]
    return [lambda tokens=tokens: run(tokens) for tokens in inputs]


if __name__ == "__main__":
    main()
