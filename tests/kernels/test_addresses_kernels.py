"""Pools and inputs of more than 2^31 elements: places far out give the same bits as near ones.

The memory is asked for and, but for a few rows, never touched.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

FAR = 2**31
HEAD_DIM = 16
NUM_DRAFTS = 2
TILE = HEAD_DIM * HEAD_DIM


@pytest.fixture
def empty(device: str) -> Callable[..., Tensor]:
    """Memory of any size, which costs nothing where nobody writes."""
    # Otherwise torch would fill it.
    torch.use_deterministic_algorithms(False)

    def allocate(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if device == "cuda":
            return torch.empty(shape, dtype=dtype, device=device)
        no_reserve = 0x4000  # of Linux; Python 3.11 has no name for it
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=flags)
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    return allocate


class Tokens:
    """Inputs of T tokens, one head; the same numbers far apart or side by side."""

    def __init__(self, num_tokens: int, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (num_tokens, 3, 1, HEAD_DIM)
        self.qkv = torch.randn(shape, generator=generator).to(device, torch.float16)
        self.state = torch.randn(1, HEAD_DIM, HEAD_DIM, generator=generator).to(device)
        self.log_decay = torch.tensor([-0.25], device=device)
        self.device = device

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def spread(self, empty: Callable[..., Tensor]) -> Tensor:
        num_tokens, *rest = self.qkv.shape
        stride = -(-FAR // (num_tokens - 1))
        far = empty(num_tokens, stride, dtype=torch.float16)[:, : 3 * HEAD_DIM]
        return far.copy_(self.qkv.flatten(1)).unflatten(1, rest)


def runs_of(lightning: ModuleType, tokens: Tokens) -> dict[str, Callable]:
    """Each takes qkv, a pool and a slot, and returns what it computes beside the state."""
    is_old, none = torch.tensor([True], device=tokens.device), tokens.ints()
    rest = (tokens.log_decay, 1.0)
    starts = tokens.ints(0, tokens.qkv.shape[0])
    length = tokens.qkv.shape[0]

    def prefill(name: str) -> Callable:
        def run(qkv: Tensor, pool: Tensor, slot: Tensor) -> Tensor:
            inputs = (*qkv.unbind(1), pool, slot, is_old, none, none, starts)
            return getattr(lightning, name)(*inputs, *rest, 64, length)

        return run

    def decode(qkv: Tensor, pool: Tensor, slot: Tensor) -> Tensor:
        return lightning.lightning_decode(*qkv[-1:].unbind(1), pool, slot, is_old, none, *rest)

    def fused(qkv: Tensor, pool: Tensor, slot: Tensor) -> Tensor:
        ones = torch.ones(HEAD_DIM, dtype=qkv.dtype, device=tokens.device)
        angles = torch.full((1, 1, 4), 0.5, device=tokens.device)
        gate = ones[None]
        norms = (ones, ones, ones, 1, 1e-6)
        return lightning.lightning_decode_fused(
            qkv[-1:], gate, angles, angles, *norms, pool, slot, is_old, none, *rest
        )

    return {
        "decode": decode,
        "fused": fused,
        "prefill": prefill("lightning_prefill"),
        "prefill_blocks": prefill("lightning_prefill_blocks"),
    }


@pytest.mark.parametrize("name", ["decode", "fused", "prefill", "prefill_blocks"])
def test_a_far_slot_and_tokens_far_apart(
    kernels: ModuleType, device: str, empty: Callable[..., Tensor], name: str
) -> None:
    tokens = Tokens(160, device)
    run = runs_of(kernels.lightning, tokens)[name]
    near, far = empty(2, 1, HEAD_DIM, HEAD_DIM), empty(FAR // TILE + 3, 1, HEAD_DIM, HEAD_DIM)
    near[0] = far[-2] = tokens.state
    want = run(tokens.qkv, near, tokens.ints(0))
    got = run(tokens.spread(empty), far, tokens.ints(FAR // TILE + 1))
    assert got.isfinite().all()
    assert torch.equal(got, want)
    assert torch.equal(far[-2], near[0]) and not torch.equal(near[0], tokens.state)


@pytest.mark.parametrize("is_snapshot", [False, True], ids=["replay", "snapshot"])
def test_a_far_verify_row(
    kernels: ModuleType, device: str, empty: Callable[..., Tensor], is_snapshot: bool
) -> None:
    """Two layers: in the second, layer and row together lead far out."""
    lightning, tokens = kernels.lightning, Tokens(NUM_DRAFTS + 1, device)
    is_old = torch.tensor([True], device=device)
    width = (HEAD_DIM, HEAD_DIM) if is_snapshot else (2 * HEAD_DIM,)
    size = NUM_DRAFTS * math.prod(width)
    dtype = torch.float32 if is_snapshot else torch.float16
    name = "lightning_verify_snapshot" if is_snapshot else "lightning_verify"
    pending = () if is_snapshot else (tokens.ints(0),)
    results = []
    for last_slot, last_row in ((1, 1), (FAR // TILE // 2 + 2, FAR // size // 2 + 2)):
        states = empty(2, last_slot + 1, 1, HEAD_DIM, HEAD_DIM)
        rows = empty(2, last_row + 1, NUM_DRAFTS, 1, *width, dtype=dtype)
        slot, row = tokens.ints(last_slot - 1), tokens.ints(last_row - 1)
        outs = []
        for layer in range(2):
            states[layer, -2] = (1 + layer) * tokens.state
            outs.append(
                getattr(lightning, name)(
                    *(*tokens.qkv.unbind(1), states[layer], slot, is_old),
                    *(tokens.ints(0, NUM_DRAFTS + 1), rows[layer], row, *pending),
                    *(tokens.log_decay, 1.0),
                )
            )
        accepted = tokens.ints(2)
        if is_snapshot:
            lightning.lightning_accept(states, slot, rows, row, accepted)
        else:
            decays = torch.stack([tokens.log_decay] * 2)
            lightning.lightning_commit(states, slot, rows, row, accepted, decays)
        results.append((torch.stack(outs), states[:, -2].clone(), rows[:, -2].clone()))
    for got, want in zip(results[1], results[0], strict=True):
        assert want.isfinite().all()
        assert torch.equal(got, want)


def test_a_row_far_out_in_one_layers_verify_rows(
    kernels: ModuleType, device: str, empty: Callable[..., Tensor]
) -> None:
    """The row alone leads beyond 2^31 elements."""
    tokens = Tokens(NUM_DRAFTS + 1, device)
    is_old = torch.tensor([True], device=device)
    size = NUM_DRAFTS * 2 * HEAD_DIM
    kept = []
    for last_row in (1, FAR // size + 2):
        state = tokens.state.repeat(2, 1, 1, 1)
        rows = empty(last_row + 1, NUM_DRAFTS, 1, 2 * HEAD_DIM, dtype=torch.float16)
        slot, row = tokens.ints(0), tokens.ints(last_row - 1)
        kernels.lightning.lightning_verify(
            *(*tokens.qkv.unbind(1), state, slot, is_old, tokens.ints(0, NUM_DRAFTS + 1)),
            *(rows, row, tokens.ints(0), tokens.log_decay, 1.0),
        )
        arguments = (tokens.ints(2), tokens.log_decay[None])
        kernels.lightning.lightning_commit(state[None], slot, rows[None], row, *arguments)
        kept.append((state[0], rows[-2].clone()))
    assert all(map(torch.equal, *kept))


@pytest.mark.parametrize("new", [1, 20], ids=["absorbed", "expanded"])
def test_far_pages(
    kernels: ModuleType,
    device: str,
    empty: Callable[..., Tensor],
    new: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Written, then attended to: 40 tokens on three pages, the second beyond 2^31 elements."""
    mla, heads, rank, rope = kernels.mla, 2, 24, 8
    monkeypatch.setattr(mla, "PAGE_SIZE", 16)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.float16)

    compressed, q_rope = random(40, rank + rope), random(40, heads, rope)
    q_nope, weight, w_uk, w_uv = (
        random(*shape)
        for shape in ((new, heads, 12), (rank,), (heads, 12, rank), (heads, 10, rank))
    )
    angles = torch.ones(40, 1, rope // 2, device=device)
    results = []
    for pages in ([0, 1, 2], [3, FAR // (16 * (rank + rope)) + 5, 1]):
        kv = empty(max(pages) + 2, 16, rank + rope, dtype=torch.float16)
        place = torch.arange(40, device=device)
        table = torch.tensor([pages], device=device)
        kv_rows = table[0, place // 16] * 16 + place % 16
        rotated = mla.mla_write(compressed, weight, 1e-6, q_rope, angles, angles, kv, kv_rows)
        starts, seq_lens = (
            torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, new], [40])
        )
        attend = mla.mla_decode if new == 1 else mla.mla_prefill
        out = attend(
            *(q_nope, rotated[40 - new :], kv, table.int(), starts),
            *(torch.zeros(new, dtype=torch.int64, device=device), seq_lens, w_uk, w_uv, 0.2, new),
        )
        results.append((kv[pages].clone()[:, :8], out))
    for got, want in zip(results[1], results[0], strict=True):
        assert want.isfinite().all()
        assert torch.equal(got, want)


def test_norms_of_rows_far_apart(
    kernels: ModuleType, device: str, empty: Callable[..., Tensor]
) -> None:
    near = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(device).half()
    far = empty(4, FAR // 2, dtype=torch.float16)[:, :8].copy_(near)
    weight = torch.ones(8, device=device, dtype=torch.float16)
    norm = kernels.norm
    assert torch.equal(norm.rms_norm(far, weight, 1e-6), norm.rms_norm(near, weight, 1e-6))
    for got, want in zip(
        norm.add_rms_norm(far, far, weight, 1e-6),
        norm.add_rms_norm(near, near, weight, 1e-6),
        strict=True,
    ):
        assert torch.equal(got, want)
