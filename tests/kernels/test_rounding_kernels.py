"""In bfloat16 each element is as close to the float32 reference as the kernel's roundings allow.

In the interpreter float16 stands in, where tl.dot multiplies bfloat16 by its bits.
"""

from __future__ import annotations

import os
from types import ModuleType

import pytest
import torch
from latent_calls import FLASH, LatentCall, Shape
from rounding import UNIT, assert_within, of_norm, of_rounding, of_roundings, of_sum
from torch import Tensor

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HALVES = [torch.float16] if IS_INTERPRETED else [torch.float16, torch.bfloat16]
# Heads and their dimension.
SIZES = [(3, 32)] if IS_INTERPRETED else [(3, 64), (32, 128)]
EPS = 1e-6
PAD_SLOT = -1

pytestmark = [
    pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: str(dtype).split(".")[-1]),
]
of_sizes = pytest.mark.parametrize(("num_heads", "head_dim"), SIZES)


class Lightning:
    """Random requests of lightning attention, one of them padding; every second has a state."""

    def __init__(
        self, lengths: list[int], num_heads: int, head_dim: int, dtype: torch.dtype, device: str
    ) -> None:
        self.generator, self.device = torch.Generator().manual_seed(1), device
        self.dtype, self.width = dtype, num_heads * head_dim
        self.qkv = self.random(sum(lengths), 3, num_heads, head_dim).to(dtype)
        num_reqs = len(lengths)
        self.state = self.random(num_reqs + 2, num_heads, head_dim, head_dim)
        self.slots = self.ints([*range(num_reqs - 1, 0, -1), PAD_SLOT])
        self.has_initial = torch.arange(num_reqs, device=device) % 2 == 0
        self.starts = self.ints([0, *torch.tensor(lengths).cumsum(0).tolist()])
        self.none = self.ints([])
        self.log_decay = -0.8 * 2.0 ** -torch.arange(num_heads, device=device).float()
        self.scale = head_dim**-0.5
        self.max_len = max(lengths)
        # Terms of a sum: of a query's product, then of tokens.
        self.terms = head_dim + self.max_len

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def both(self, function: object, *rest: object, **more: object) -> list[Tensor]:
        """Output and used slots' states of the float32 reference, then their magnitudes."""
        results = []
        for change in (torch.Tensor.float, lambda x: x.float().abs()):
            state = change(self.state).clone()
            q, k, v = (change(x) for x in self.qkv.unbind(1))
            out = function(q, k, v, state, self.slots, self.has_initial, *rest, **more)
            results += [out, state[self.used]]
        return results

    @property
    def used(self) -> Tensor:
        return self.slots[:-1].long()


@of_sizes
def test_lightning_decode(
    kernels: ModuleType, device: str, dtype: torch.dtype, num_heads: int, head_dim: int
) -> None:
    """Float32 but for its output; a 16-bit pool is rounded to, too."""
    case = Lightning([1] * 5, num_heads, head_dim, dtype, device)
    rest = (case.none, case.log_decay, case.scale)
    for state_dtype in (torch.float32, dtype):
        case.state = case.state.to(state_dtype)
        want, want_state, size, state_size = case.both(
            kernels.lightning.lightning_decode_ref, *rest
        )
        state = case.state.clone()
        got = kernels.lightning.lightning_decode(
            *case.qkv.unbind(1), state, case.slots, case.has_initial, *rest
        )
        assert_within(got, want, of_rounding(want, of_sum(case.terms, size), dtype), 0.5)
        error = of_sum(1, state_size)
        if state_dtype == dtype:
            error = of_rounding(want_state, error, dtype)
        assert_within(state[case.used], want_state, error, 0.02)


@of_sizes
def test_fused_lightning_decode(
    kernels: ModuleType, device: str, dtype: torch.dtype, num_heads: int, head_dim: int
) -> None:
    """Rounded: queries, keys, the output before its norm, and the result."""
    lightning, unit = kernels.lightning, UNIT[dtype]
    case = Lightning([1] * 5, num_heads, head_dim, dtype, device)
    # From nothing, the output is q k v: near 0 if q and k are orthogonal, and its norm any large.
    case.has_initial[:] = True
    angles = case.random(5, 1, head_dim // 4)
    rope = (angles.cos(), angles.sin())
    gate = case.random(5, case.width).to(dtype)
    weights = [case.random(size).to(dtype) for size in (head_dim, head_dim, case.width)]
    rest = (case.slots, case.has_initial, case.none, case.log_decay, case.scale)
    state = case.state.clone()
    got = lightning.lightning_decode_fused(
        case.qkv, gate, *rope, *weights, num_heads, EPS, state, *rest
    )
    want_state = case.state.clone()
    wide = [x.float() for x in (case.qkv, gate, *rope, *weights)]
    want = lightning.lightning_decode_fused_ref(*wide, num_heads, EPS, want_state, *rest)
    queries, keys, values = wide[0].unbind(1)
    turned = [
        lightning.rotate_halves(lightning.rms_norm_ref(x, weight, EPS), rope)
        for x, weight in zip((queries, keys), wide[4:6], strict=True)
    ]
    case.qkv = torch.stack([*turned, values], 1)
    x, _, size, state_size = case.both(lightning.lightning_decode_ref, *rest[2:])
    both_rounded = (1 + unit) ** 2 - 1
    error = of_rounding(x, both_rounded * size + of_sum(case.terms, size), dtype).flatten(1)
    factor = (wide[6] * wide[1].sigmoid()).unflatten(-1, (num_heads, -1))
    x, error = (part.unflatten(-1, (num_heads, -1)) for part in (x.flatten(1), error))
    error = of_norm(x, error, factor, EPS).flatten(1)
    is_live = case.slots != PAD_SLOT
    assert not got[~is_live].any()
    assert_within(got[is_live], want[is_live], of_rounding(want, error, dtype)[is_live])
    error = unit * state_size + of_sum(head_dim, state_size)
    assert_within(state[case.used], want_state[case.used], error)


@pytest.mark.parametrize("name", ["lightning_prefill", "lightning_prefill_blocks"])
@of_sizes
def test_lightning_prefill(
    kernels: ModuleType,
    device: str,
    dtype: torch.dtype,
    name: str,
    num_heads: int,
    head_dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounded in products: scores, the carried state, and what a token brings to the state."""
    lightning, unit = kernels.lightning, UNIT[dtype]
    monkeypatch.setattr(lightning, "MIN_SEGMENT", 64)
    lengths = [200, 33, 1, 64, 7]
    case = Lightning(lengths, num_heads, head_dim, dtype, device)
    rest = (case.none, case.none, case.starts, case.log_decay, case.scale, 64, case.max_len)
    want, want_state, size, state_size = case.both(lightning.lightning_prefill_ref, *rest)
    state = case.state.clone()
    got = getattr(lightning, name)(*case.qkv.unbind(1), state, case.slots, case.has_initial, *rest)
    error = ((1 + unit) ** 2 - 1) * size + of_sum(case.terms, size)
    assert_within(got, want, of_rounding(want, error, dtype))
    error = unit * state_size + of_sum(case.terms, state_size)
    assert_within(state[case.used], want_state, error, 0.02)


@pytest.mark.parametrize("is_snapshot", [False, True], ids=["replay", "snapshot"])
@of_sizes
def test_lightning_verify_and_commit(
    kernels: ModuleType,
    device: str,
    dtype: torch.dtype,
    is_snapshot: bool,
    num_heads: int,
    head_dim: int,
) -> None:
    """Float32 but for the output; then the states behind two accepted drafts."""
    lightning = kernels.lightning
    lengths = [5, 3, 1, 4, 2]
    case = Lightning(lengths, num_heads, head_dim, dtype, device)
    width = (head_dim, head_dim) if is_snapshot else (2 * head_dim,)
    rows = case.ints([4, 2, PAD_SLOT, 0, 1])
    accepted = case.ints([2, 2, 0, 2, 1])
    idle = [] if is_snapshot else [case.ints([0] * 5)]
    rest = (case.log_decay, case.scale)
    name = "lightning_verify" + "_snapshot" * is_snapshot
    finish = "lightning_accept" if is_snapshot else "lightning_commit"
    decays = () if is_snapshot else (case.log_decay[None],)
    row_dtype = torch.float32 if is_snapshot else dtype

    def run(suffix: str, q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> list[Tensor]:
        verify = torch.full(
            (6, 4, num_heads, *width),
            torch.nan,
            dtype=torch.float32 if suffix else row_dtype,
            device=device,
        )
        state = state.clone()
        out = getattr(lightning, name + suffix)(
            q, k, v, state, case.slots, case.has_initial, case.starts, verify, rows, *idle, *rest
        )
        certain = state[case.used]
        getattr(lightning, finish + suffix)(
            state[None], case.slots, verify[None], rows, accepted, *decays
        )
        return [out, certain, state[case.used]]

    got = run("", *case.qkv.unbind(1), case.state)
    wide = [x.float() for x in (*case.qkv.unbind(1), case.state)]
    want = run("_ref", *wide)
    size = run("_ref", *(x.abs() for x in wide))
    error = of_rounding(want[0], of_sum(case.terms + 5, size[0]), dtype)
    assert_within(got[0], want[0], error, 0.5)
    for place in (1, 2):
        assert_within(got[place], want[place], of_sum(5, size[place]), 0.01)


# Latent attention

LATENT = [Shape()] if IS_INTERPRETED else [Shape(), FLASH]
LENS = [40, 33, 20, 5] if IS_INTERPRETED else [1000, 333, 100, 5]
of_shapes = pytest.mark.parametrize("shape", LATENT, ids=lambda shape: f"{shape.heads}heads")


def latent_errors(call: LatentCall, dtype: torch.dtype, page_size: int) -> tuple[Tensor, Tensor]:
    """Errors of the absorbed and of the expanded form, each [T, H, V].

    Bounds of hundreds of roundings that add up would be far from what happens: these are squared
    errors of independent roundings.
    """
    w_uk, w_uv, kv = (x.float() for x in (call.w_uk, call.w_uv, call.kv))
    rank, terms = w_uk.shape[-1], sum(w_uk.shape[1:]) + int(call.seq_lens.max())
    starts = call.query_start_loc.tolist()
    absorbed, expanded = [], []
    for request, seq_len in enumerate(call.seq_lens.tolist()):
        pages = call.page_table[request, : -(-seq_len // page_size)].long()
        latent, rope = kv[pages].flatten(0, 1)[:seq_len].tensor_split([rank], dim=-1)
        keys = torch.einsum("sc,hnc->shn", latent, w_uk)
        values = torch.einsum("sc,hvc->shv", latent, w_uv)
        for token in range(starts[request], starts[request + 1]):
            seen = seq_len - starts[request + 1] + token + 1
            rows, keys_seen, values_seen = latent[:seen], keys[:seen], values[:seen]
            q, q_rope = call.q_nope[token].float(), call.q_rope[token].float()
            q_latent = torch.einsum("hn,hnc->hc", q, w_uk)
            scores = torch.einsum("hn,shn->hs", q, keys_seen) + q_rope @ rope[:seen].T
            probs = (call.scale * scores).softmax(-1)
            out = torch.einsum("hs,shv->hv", probs, values_seen)
            # How the result moves with a score, and with a query's latent dimension.
            by_score = probs[..., None] * (values_seen.transpose(0, 1) - out[:, None])
            by_latent = call.scale * torch.einsum("sc,hsv->hcv", rows, by_score)
            of_weights = torch.einsum("hs,shv->hv", probs.square(), values_seen.square())
            mixture = torch.einsum("hs,sc->hc", probs, rows)
            of_mixture = torch.einsum("hc,hvc->hv", mixture.square(), w_uv.square())
            of_query = torch.einsum("hc,hcv->hv", q_latent.square(), by_latent.square())
            by_key = call.scale**2 * torch.einsum("hn,shn->hs", q.square(), keys_seen.square())
            of_keys = torch.einsum("hs,hsv->hv", by_key, by_score.square())
            magnitude = torch.einsum("hs,sc,hvc->hv", probs, rows.abs(), w_uv.abs())
            summed = of_sum(terms, magnitude)
            # Absorbed: the query, weights, the mixture. Expanded: keys, weights and values.
            squares = ((absorbed, of_query + of_weights + of_mixture),)
            squares += ((expanded, of_keys + 2 * of_weights),)
            for errors, square in squares:
                errors.append(of_rounding(out, of_roundings(square, dtype) + summed, dtype))
    return torch.stack(absorbed), torch.stack(expanded)


@of_shapes
def test_latent_attention_in_both_forms(
    kernels: ModuleType,
    device: str,
    dtype: torch.dtype,
    shape: Shape,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each form against the reference, and so against the other."""
    mla = kernels.mla
    monkeypatch.setattr(mla, "PAGE_SIZE", shape.page_size)
    call = LatentCall.random(shape, [1, 5, 17, 4], LENS, dtype, device)
    want = call.reference(mla)
    absorbed, expanded = latent_errors(call, dtype, shape.page_size)
    outs = [call.absorbed(mla), call.expanded(mla), call.mixed(mla)]
    assert_within(outs[0], want, absorbed, 0.15)
    assert_within(outs[1], want, expanded, 0.15)
    assert_within(outs[2], want, torch.maximum(absorbed, expanded), 0.15)
    assert_within(outs[0], outs[1], absorbed + expanded, 0.1)


@of_shapes
def test_latent_cache_write(
    kernels: ModuleType,
    device: str,
    dtype: torch.dtype,
    shape: Shape,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each number is rounded once."""
    monkeypatch.setattr(kernels.mla, "PAGE_SIZE", shape.page_size)
    generator = torch.Generator().manual_seed(2)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    compressed, q_rope, weight = (
        random(*size).to(dtype)
        for size in ((9, shape.rank + shape.rope), (9, shape.heads, shape.rope), (shape.rank,))
    )
    angles = random(9, 1, shape.rope // 2)
    kv = random(2, shape.page_size, shape.rank + shape.rope)
    rows = torch.arange(9, device=device)
    outs = []
    for write, of_type in ((kernels.mla.mla_write, dtype), (kernels.mla.mla_write_ref, None)):
        inputs = (x.to(of_type or torch.float32) for x in (compressed, weight, q_rope, kv))
        compressed_in, weight_in, q_in, pool = inputs
        rotated = write(compressed_in, weight_in, EPS, q_in, angles.cos(), angles.sin(), pool, rows)
        outs.append((pool.flatten(0, 1)[:9].float(), rotated.float()))
    (got, got_rotated), (want, want_rotated) = outs
    latent = compressed[:, : shape.rank].float()
    error = of_norm(latent, 0.0, weight.float(), EPS)
    error = of_rounding(want[:, : shape.rank], error, dtype)
    assert_within(got[:, : shape.rank], want[:, : shape.rank], error, 0.5)

    def turned(x: Tensor) -> Tensor:
        pairs = x.float().abs().unflatten(-1, (-1, 2)).sum(-1, keepdim=True)
        return of_sum(2, pairs.expand(*pairs.shape[:-1], 2).flatten(-2))

    for got_part, want_part, x in (
        (got[:, shape.rank :], want[:, shape.rank :], compressed[:, shape.rank :]),
        (got_rotated, want_rotated, q_rope),
    ):
        assert_within(got_part, want_part, of_rounding(want_part, turned(x), dtype), 0.5)


@pytest.mark.parametrize("size", [100] if IS_INTERPRETED else [100, 4096])
def test_norms(kernels: ModuleType, device: str, dtype: torch.dtype, size: int) -> None:
    """Rounded: the result; with a residual, the sum before it."""
    generator = torch.Generator().manual_seed(3)
    x, residual, weight = (
        torch.randn(shape, generator=generator).to(device, dtype)
        for shape in ((7, size), (7, size), (size,))
    )
    wide, wide_residual, wide_weight = (part.float() for part in (x, residual, weight))
    want = kernels.norm.rms_norm_ref(wide, wide_weight, EPS)
    error = of_norm(wide, 0.0, wide_weight, EPS)
    got = kernels.norm.rms_norm(x, weight, EPS)
    assert_within(got, want, of_rounding(want, error, dtype), 0.5)

    want, want_sum = kernels.norm.add_rms_norm_ref(wide, wide_residual, wide_weight, EPS)
    got, got_sum = kernels.norm.add_rms_norm(x, residual, weight, EPS)
    error = of_rounding(want_sum, 0.0, dtype)
    assert_within(got_sum, want_sum, error, 0.5)
    error = of_norm(want_sum, error, wide_weight, EPS)
    assert_within(got, want, of_rounding(want, error, dtype), 0.2)
