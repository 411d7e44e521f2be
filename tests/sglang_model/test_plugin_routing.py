"""The plugin's router in float32 and its one owner of the routed scaling factor."""

from __future__ import annotations

import pytest
import torch
from engine_stubs import StandIn


@pytest.fixture
def router(plugin, monkeypatch):
    monkeypatch.setattr(plugin.model, "NUM_EXPERTS", 8)
    monkeypatch.setattr(plugin.model, "HIDDEN_SIZE", 64)
    torch.set_default_dtype(torch.bfloat16)
    try:
        router = plugin.model.Router()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    return router


def test_logits_are_float32_from_the_product_on(router):
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits = router(hidden)
    assert logits.dtype == router.weight.dtype == router.expert_bias.dtype == torch.float32
    want = hidden.double() @ router.weight.double().T
    assert (logits - want).abs().max() < 1e-5


def test_near_ties_that_bfloat16_would_merge_are_kept_apart(router):
    with torch.no_grad():
        router.weight.zero_()
        router.weight[2, 0], router.weight[5, 0] = 1.0, 1.0 + 2**-12
    logits = router(torch.ones(1, 64).bfloat16())
    assert logits.argmax().item() == 5
    assert (logits.bfloat16()[0, 2] == logits.bfloat16()[0, 5]).item()


@pytest.mark.parametrize("top_k_scales", [True, False])
def test_top_k_scales_exactly_where_the_experts_kernel_does_not(plugin, monkeypatch, top_k_scales):
    class Experts(StandIn):
        should_fuse_routed_scaling_factor_in_topk = top_k_scales
        runner_backend, routing_method_type = "runner", "method"

    bound = {}
    model = plugin.model
    monkeypatch.setattr(model, "NUM_EXPERTS", 4)
    monkeypatch.setattr(model, "get_moe_impl_class", lambda quant_config: Experts)
    monkeypatch.setattr(
        model.TopK,
        "bind_runner_backend",
        lambda self, *a, **k: bound.update(a=a, k=k),
        raising=False,
    )
    block = model.MoE(model.Build(None, None, None), 1, "model.layers.1.mlp")
    topk, experts = block.topk.keywords, block.experts.keywords
    assert topk["apply_routed_scaling_factor_on_output"] is top_k_scales
    assert topk["routed_scaling_factor"] == experts["routed_scaling_factor"] == 2.5
    assert bound == {"a": ("runner",), "k": {"routing_method_type": "method"}}


def test_top_k_chooses_as_the_spec_says(plugin, monkeypatch):
    class Experts(StandIn):
        should_fuse_routed_scaling_factor_in_topk = False
        runner_backend = routing_method_type = None

    model = plugin.model
    monkeypatch.setattr(model, "NUM_EXPERTS", 4)
    monkeypatch.setattr(model, "get_moe_impl_class", lambda quant_config: Experts)
    monkeypatch.setattr(model.TopK, "bind_runner_backend", lambda *_, **__: None, raising=False)
    block = model.MoE(model.Build(None, None, None), 5, "model.layers.5.mlp")
    expected = {
        "top_k": 8,
        "layer_id": 5,
        "use_grouped_topk": True,
        "num_expert_group": 8,
        "topk_group": 4,
        "renormalize": True,
        "scoring_func": "sigmoid",
    }
    assert {key: block.topk.keywords[key] for key in expected} == expected
    bias = block.topk.keywords["correction_bias"]
    assert bias.data_ptr() == block.gate.expert_bias.data_ptr()


def test_the_block_returns_one_rank_s_part(plugin, monkeypatch):
    """The boundary behind it adds up the ranks: nothing inside may."""
    import inspect

    for cls in (plugin.model.MoE, plugin.model.DenseMLP):
        source = inspect.getsource(cls)
        assert "all_reduce" not in source
        assert "reduce_results=True" not in source
    assert "reduce_results=False" in inspect.getsource(plugin.model.DenseMLP)
