"""Small specs of every architecture the templates tell apart, and random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec
from torch import nn

TINY = Path(__file__).parents[1] / "specs" / "tiny.yaml"

# As few numbers as the rules allow, none equal to another by chance.
SMALL = (
    "parallel.tp=[1]",
    "parallel.pp=[1]",
    "model.hidden_size=32",
    "model.num_hidden_layers=4",
    "model.num_attention_heads=4",
    "attention.pattern.layer_group_size=2",
    "attention.lightning.head_dim=16",
    "attention.lightning.group_norm_size=2",
    "attention.mla.q_lora_rank=20",
    "attention.mla.kv_lora_rank=24",
    "attention.mla.qk_nope_head_dim=12",
    "attention.mla.qk_rope_head_dim=8",
    "attention.mla.v_head_dim=10",
    "mlp.intermediate_size=40",
    "moe.num_experts=8",
    "moe.num_experts_per_tok=2",
    "moe.n_group=2",
    "moe.topk_group=1",
    "moe.moe_intermediate_size=14",
    "moe.moe_shared_expert_intermediate_size=14",
    "kernels.lightning.chunk_size=16",
)

VARIANTS: dict[str, tuple[str, ...]] = {
    "every-kind": (),
    "no-mtp": ("mtp.num_nextn_predict_layers=0",),
    "all-mla": ("attention.pattern.layer_group_size=1",),
    "all-mla-without-mtp": (
        "attention.pattern.layer_group_size=1",
        "mtp.num_nextn_predict_layers=0",
    ),
    "all-lightning": (
        "attention.pattern.layer_group_size=9",
        "attention.pattern.tail=linear",
        "mtp.num_nextn_predict_layers=0",
    ),
    "all-lightning-with-mtp": (
        "attention.pattern.layer_group_size=9",
        "attention.pattern.tail=linear",
    ),
    "full-tail": ("model.num_hidden_layers=5",),
    "linear-tail": ("model.num_hidden_layers=5", "attention.pattern.tail=linear"),
    "all-dense": ("mlp.first_k_dense_replace=4", "mtp.num_nextn_predict_layers=0"),
    "all-dense-with-mtp": ("mlp.first_k_dense_replace=4",),
    "all-moe": ("mlp.first_k_dense_replace=0",),
    "no-qk-norm": ("attention.lightning.use_qk_norm=false",),
    "no-q-lora": ("attention.mla.q_lora_rank=null",),
    "biases": ("model.use_bias=true", "model.use_qkv_bias=true"),
    "no-shared-expert": ("moe.num_shared_experts=0",),
    "no-shared-expert-all-moe": ("moe.num_shared_experts=0", "mlp.first_k_dense_replace=0"),
    "two-shared-experts": ("moe.num_shared_experts=2",),
    "one-expert-per-token": ("moe.num_experts_per_tok=1",),
    "whole-head-rotated": ("attention.lightning.partial_rotary_factor=1.0",),
    "minimax": ("attention.lightning.backend=minimax",),
    "one-mla-layer": ("model.num_hidden_layers=1", "mtp.num_nextn_predict_layers=0"),
    "one-lightning-layer": (
        "model.num_hidden_layers=1",
        "attention.pattern.tail=linear",
        "mtp.num_nextn_predict_layers=0",
    ),
    "bfloat16": ("model.torch_dtype=bfloat16", "cache.kv_dtype=bfloat16"),
    # Dense: with rounded states, a token near a tie of two experts may change its mind.
    "bfloat16-state": (
        "cache.state_dtype=bfloat16",
        "mlp.first_k_dense_replace=4",
        "mtp.num_nextn_predict_layers=0",
    ),
}


def lowered(*overrides: str, spec: Path = TINY) -> ModelIR:
    return lower(load_spec(spec, overrides))


def lowered_small(*overrides: str) -> ModelIR:
    """The small model with some of its values replaced."""
    keys = {text.partition("=")[0] for text in overrides}
    kept = [text for text in SMALL if text.partition("=")[0] not in keys]
    return lowered(*kept, *overrides)


def fill_randomly(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights that keep activations near 1: norms near 1, projections scaled by width."""
    generator = torch.Generator().manual_seed(seed)
    for name, param in model.named_parameters():
        noise = torch.randn(param.shape, generator=generator)
        if "norm" in name and param.dim() == 1:
            value = 1 + 0.2 * noise
        elif param.dim() == 1:
            value = 0.05 * noise
        else:
            value = noise / param.shape[-1] ** 0.5
        param.data.copy_(value)
    return model.eval()
