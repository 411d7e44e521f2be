"""Decay, heads and norms of the plugin's attention over tensor-parallel ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from engine_stubs import plugin_ir, plugin_modules
from lingen.ir.decay import decay

HEADS, WIDTH = 32, 128  # of flash


def on_rank(flash, monkeypatch, rank: int, size: int) -> None:
    parallel = SimpleNamespace(attn_tp_rank=rank, attn_tp_size=size)
    monkeypatch.setattr(flash.model, "get_parallel", lambda: parallel)
    monkeypatch.setattr(flash.model, "get_device", lambda: SimpleNamespace(device="cpu"))
    for name in ("query_layernorm", "key_layernorm"):
        monkeypatch.setattr(flash.model, name, None, raising=False)


def lightning(flash, monkeypatch, layer: int, rank: int, size: int):
    on_rank(flash, monkeypatch, rank, size)
    build = flash.model.Build(None, None, None)
    return flash.model.LightningAttention(build, layer, f"model.layers.{layer}.attention")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_the_ranks_hold_the_slopes_of_their_heads_in_float32(flash, monkeypatch, dtype, size):
    """Counted over the whole model, and never rounded to the dtype that the engine builds in."""
    ir, layer = flash.ir.lightning.decay, 3
    torch.set_default_dtype(dtype)
    try:
        slopes = [lightning(flash, monkeypatch, layer, rank, size).slopes for rank in range(size)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert {s.dtype for s in slopes} == {torch.float32}
    assert {tuple(s.shape) for s in slopes} == {(HEADS // size, 1, 1)}
    whole = torch.cat(slopes).flatten()
    want = torch.tensor([decay(ir, layer, head) for head in range(HEADS)], dtype=torch.float64)
    assert torch.allclose((-whole.double()).exp(), want, rtol=1e-7, atol=0)


def test_the_offset_of_the_spec_decides(tmp_path, monkeypatch):
    """-1 is not what the engine's backend would compute: the slopes are this model's own."""
    ir = plugin_ir("ling-2.6-flash", "attention.lightning.decay.layer_offset=-1")
    with plugin_modules(ir, tmp_path) as shifted:
        slopes = lightning(shifted, monkeypatch, 3, 0, 1).slopes.flatten().double()
    factor = 1 - 2 / 31 + 1e-5
    want = torch.tensor([2.0 ** (-(h + 1) / 4) * factor for h in range(HEADS)], dtype=torch.float64)
    assert torch.allclose(slopes, want, rtol=1e-7, atol=0)


class Backend:
    """The engine's: slopes of its own, and a pool [slots, heads, K, V] per layer."""

    def __init__(self, heads: int) -> None:
        self.linear_attn_backend = self
        self.kv_cache_dtype_str, self.kv_cache_dtype = "auto", torch.float32
        self.tp_slope = [torch.zeros(heads, 1, 1) for _ in range(32)]
        pool = SimpleNamespace(temporal=torch.zeros(3, heads, 2, 2))
        self.req_to_token_pool = SimpleNamespace(mamba2_layer_cache=lambda layer: pool)


def test_every_backend_is_given_the_slopes_of_the_model(flash, monkeypatch):
    layer = lightning(flash, monkeypatch, 3, rank=1, size=4)
    for _ in range(2):
        backend = Backend(8)
        others = backend.tp_slope[:3] + backend.tp_slope[4:]
        monkeypatch.setattr(flash.model, "get_attn_backend", lambda backend=backend: backend)
        for _ in range(2):
            layer.bind_slopes()
            assert backend.tp_slope[3] is layer.slopes
        assert all(
            a is b for a, b in zip(others, backend.tp_slope[:3] + backend.tp_slope[4:], strict=True)
        )


def test_heads_that_disagree_stop_the_first_step(flash, monkeypatch):
    layer = lightning(flash, monkeypatch, 3, rank=1, size=4)
    monkeypatch.setattr(flash.model, "get_attn_backend", lambda: Backend(32))
    with pytest.raises(RuntimeError) as caught:
        layer.bind_slopes()
    assert str(caught.value) == (
        "ling-2.6-flash: layer 3 on attention-tp rank 1 of 4 has 8 query heads, 32 in the state "
        "pool, 8 slopes"
    )


@pytest.mark.parametrize(
    ("name", "dtype", "passes"),
    [
        ("auto", torch.float8_e4m3fn, True),
        ("float32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
        ("fp8_e4m3", torch.float8_e4m3fn, False),
    ],
)
def test_a_cache_dtype_that_queries_would_be_rounded_to_is_refused(
    flash, monkeypatch, name, dtype, passes
):
    layer = lightning(flash, monkeypatch, 3, rank=0, size=4)
    backend = Backend(8)
    backend.kv_cache_dtype_str, backend.kv_cache_dtype = name, dtype
    monkeypatch.setattr(flash.model, "get_attn_backend", lambda: backend)
    if passes:
        layer.bind_slopes()
        return
    with pytest.raises(RuntimeError) as caught:
        layer.bind_slopes()
    assert str(caught.value) == (
        f"ling-2.6-flash: --kv-cache-dtype is '{name}', expected 'auto': lightning layers decode "
        "with queries of that type, and the weights are torch.float32"
    )


@pytest.mark.parametrize("counts", [(8, 4, 8), (8, 8, 4), (4, 8, 8)])
def test_each_of_the_three_counts_is_compared(flash, monkeypatch, counts):
    on_rank(flash, monkeypatch, 0, 4)
    query, state, slopes = counts
    numbers = f"has {query} query heads, {state} in the state pool, {slopes} slopes"
    with pytest.raises(RuntimeError, match=numbers):
        flash.model.require_equal_heads(3, *counts)


def whole_norm(x, gate, weight):
    """Straight from the formula, in float64."""
    groups = x.double().unflatten(-1, (4, 1024))
    groups = groups / (groups.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return groups.flatten(-2) * weight.double() * gate.double().sigmoid()


@pytest.mark.parametrize("size", [8, 16, 32])
def test_groups_that_span_ranks_are_normed_as_a_whole(flash, monkeypatch, size):
    """Each rank adds its sum of squares to its group's; weights are cut by heads."""
    generator = torch.Generator().manual_seed(size)
    x, gate = torch.randn(2, 5, HEADS * WIDTH, generator=generator).unbind(0)
    x = x * torch.linspace(0.1, 5, HEADS * WIDTH)  # groups differ
    weight = torch.rand(HEADS * WIDTH, generator=generator)
    norms, sums = [], []
    for rank in range(size):
        on_rank(flash, monkeypatch, rank, size)
        norms.append(flash.model.GatedGroupRMSNorm())
        norms[-1].weight.weight_loader(norms[-1].weight, weight)
    parts = list(zip(norms, x.chunk(size, -1), gate.chunk(size, -1), strict=True))
    monkeypatch.setattr(flash.model, "attn_tp_all_reduce", lambda t: sums.append(t) or t)
    for norm, own, own_gate in parts:
        norm(own, own_gate)
    total = torch.stack(sums).sum(0)
    assert total.shape == (5, 4) and total.dtype == torch.float32
    monkeypatch.setattr(flash.model, "attn_tp_all_reduce", lambda t: total)
    out = torch.cat([norm(own, own_gate) for norm, own, own_gate in parts], -1)
    assert (out - whole_norm(x, gate, weight)).abs().max() < 1e-5


def test_whole_groups_take_the_engines_kernel(flash, monkeypatch):
    on_rank(flash, monkeypatch, 1, 4)
    norm = flash.model.GatedGroupRMSNorm()
    calls = []
    monkeypatch.setattr(flash.model, "layernorm_fn", lambda *a, **k: calls.append((a, k)) or a[0])
    x, gate = torch.randn(2, 5, 1024).unbind(0)
    norm(x, gate)
    ((_, keywords),) = calls
    assert keywords["z"] is gate
    expected = {"eps": 1e-6, "group_size": 1024, "is_rms_norm": True, "activation": "sigmoid"}
    assert {key: keywords[key] for key in expected} == expected


@pytest.mark.parametrize("size", [3, 6])
def test_ranks_and_groups_that_do_not_divide_are_refused(flash, monkeypatch, size):
    on_rank(flash, monkeypatch, 0, size)
    with pytest.raises(ValueError, match=f"attention tp {size} and group_norm_size 4: neither"):
        flash.model.GatedGroupRMSNorm()


# ------------------------------------------------ latent attention


@pytest.mark.parametrize("form", ["plain", "channel", "block", "block under the channel's name"])
def test_the_absorbed_factors_are_those_of_the_unquantised_projection(flash, form):
    model, heads, latent = flash.model, 2, 512
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(heads * 256, latent, generator=generator)
    scale = (
        torch.rand(heads * 256, 1) + 0.5 if form == "channel" else torch.rand(heads * 2, 4) + 0.5
    )
    proj = torch.nn.Module()
    if form != "plain":
        weight = weight.to(torch.float8_e4m3fn)
        name = "weight_scale_inv" if form == "block" else "weight_scale"
        proj.register_parameter(name, torch.nn.Parameter(scale, requires_grad=False))
    proj.weight = torch.nn.Parameter(weight, requires_grad=False)
    attention = SimpleNamespace(
        kv_b_proj=proj,
        kv_a_layernorm=SimpleNamespace(weight=torch.zeros(1)),
        w_kc=None,
        w_vc=None,
    )
    attention.unquantised_kv_b = lambda: model.LatentAttention.unquantised_kv_b(attention)
    model.bind_or_assign = lambda target, source: source
    model.block_quant_dequant = blockwise
    model.LatentAttention.absorb(attention)
    if form == "plain":
        whole = weight
    elif form == "channel":
        whole = weight.float() * scale
    else:
        whole = blockwise(weight, scale, [128, 128], torch.float32)
    whole = whole.view(heads, 256, latent)
    assert torch.equal(attention.w_kc, whole[:, :128])
    assert torch.equal(attention.w_vc, whole[:, 128:].transpose(1, 2))


def blockwise(weight, scale, block, dtype):
    assert block == [128, 128]
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (weight.float() * wide).to(dtype)


def test_the_lora_norms_have_their_own_epsilon(tmp_path, monkeypatch):
    """The engine's block takes rms_norm_eps for them, whatever the reference does."""
    ir = plugin_ir("ling-2.6-flash", "model.rms_norm_eps=1e-5")
    with plugin_modules(ir, tmp_path) as other:
        norm = lambda *_, **__: SimpleNamespace(variance_epsilon=1e-5)  # noqa: E731
        base = other.model.DeepseekV2AttentionMLA
        monkeypatch.setattr(base, "q_a_layernorm", norm(), raising=False)
        monkeypatch.setattr(base, "kv_a_layernorm", norm(), raising=False)
        built = other.model.LatentAttention(other.model.Build(None, None, None), 7, "p")
    assert built.q_a_layernorm.variance_epsilon == built.kv_a_layernorm.variance_epsilon == 1e-6
    assert built.keywords["rope_scaling"] is None
    assert built.keywords["reduce_results"] is False
