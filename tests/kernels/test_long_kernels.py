"""Contexts of a hundred thousand tokens, beside short requests in the same batch.

The interpreter takes minutes for as many, and gets a thousand.
"""

from __future__ import annotations

import os
from types import ModuleType

import numpy as np
import pytest
import torch
from latent_calls import LatentCall, Shape

LONG = 1_103 if os.environ.get("TRITON_INTERPRET") == "1" else 100_003


def recurrence(q: np.ndarray, k: np.ndarray, v: np.ndarray, log_decay: float) -> tuple:
    """In float64, token by token.  [T, K] each -> [T, V] and [K, V]."""
    state, decay = np.zeros((k.shape[1], v.shape[1])), np.exp(log_decay)
    out = np.empty_like(v)
    for token in range(len(q)):
        state = decay * state + k[token][:, None] * v[token]
        out[token] = q[token] @ state
    return out, state


@pytest.mark.parametrize("name", ["lightning_prefill", "lightning_prefill_blocks"])
def test_lightning_prefill(kernels: ModuleType, device: str, name: str) -> None:
    """Float32 with the slope that remembers 256 tokens: error of sums of a few hundred products."""
    lengths = [1, LONG, 0, 63]
    starts = np.array([0, *lengths]).cumsum()
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, int(starts[-1]), 1, 16, generator=generator).to(device)
    state = torch.full((5, 1, 16, 16), torch.nan, device=device)
    slots, none = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([2, 0, 1, 3], []))
    log_decay = torch.full((1,), -1 / 256, device=device)
    out = getattr(kernels.lightning, name)(
        *(*qkv, state, slots, torch.zeros(4, dtype=torch.bool, device=device), none, none),
        *(torch.from_numpy(starts).int().to(device), log_decay, 1.0, 64, LONG),
    )
    for request, slot in enumerate(slots.tolist()):
        own = slice(*starts[request : request + 2])
        if not lengths[request]:
            assert state[slot].isnan().all()
            continue
        q, k, v = qkv[:, own, 0].double().cpu().numpy()
        for got, want in zip(
            (out[own, 0], state[slot, 0]), recurrence(q, k, v, -1 / 256), strict=True
        ):
            error = np.linalg.norm(got.cpu().numpy() - want) / np.linalg.norm(want)
            assert error < 2e-6, (request, error)


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
def test_latent_attention(
    kernels: ModuleType, device: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(heads=2, page_size=64)
    monkeypatch.setattr(kernels.mla, "PAGE_SIZE", shape.page_size)
    call = LatentCall.random(shape, [1, 3, 0, 2], [7, LONG, 5, 65], device=device)
    got, want = getattr(call, form)(kernels.mla), call.reference(kernels.mla)
    error = (got - want).norm() / want.norm()
    # The mixture of so many values is small beside them, and their sums' rounding is not.
    assert error < 1e-5
