"""Small specs of every architecture the templates tell apart, and random weights."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec
from torch import nn

SPECS = Path(__file__).parents[1] / "specs"
TINY = SPECS / "tiny.yaml"
V2, LINEAR_V2, V1 = (SPECS / f"small-{name}.yaml" for name in ("v2", "linear-v2", "v1"))

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

NO_MTP = ("mtp.num_nextn_predict_layers=0", "cache.speculative.num_draft_tokens=0")
MTP = ("mtp.num_nextn_predict_layers=1", "cache.speculative.num_draft_tokens=2")
BIASES = ("model.use_bias=true", "model.use_qkv_bias=true")


def yarn(original: int, mscale: float | None, mscale_all_dim: float | None) -> tuple[str, ...]:
    """Contexts twice as long as `original`."""
    values = {
        "rope_type": "yarn",
        "factor": "2.0",
        "original_max_position_embeddings": original,
        "beta_fast": "32.0",
        "beta_slow": "1.0",
        "mscale": mscale or "null",
        "mscale_all_dim": mscale_all_dim or "null",
    }
    return tuple(f"model.rope_scaling.{key}={value}" for key, value in values.items())


# Name → values that replace those of the small model with lightning and latent attention.
VARIANTS: dict[str, tuple[str, ...]] = {
    "every-kind": (),
    "no-mtp": NO_MTP,
    "mtp-without-drafting": ("cache.speculative.num_draft_tokens=0",),
    "all-mla": ("attention.pattern.layer_group_size=1",),
    "all-mla-without-mtp": ("attention.pattern.layer_group_size=1", *NO_MTP),
    "all-lightning": (
        "attention.pattern.layer_group_size=9",
        "attention.pattern.tail=linear",
        *NO_MTP,
    ),
    "all-lightning-with-mtp": (
        "attention.pattern.layer_group_size=9",
        "attention.pattern.tail=linear",
    ),
    "full-tail": ("model.num_hidden_layers=5",),
    "linear-tail": ("model.num_hidden_layers=5", "attention.pattern.tail=linear"),
    "all-dense": ("mlp.first_k_dense_replace=4", *NO_MTP),
    "all-dense-with-mtp": ("mlp.first_k_dense_replace=4",),
    "all-moe": ("mlp.first_k_dense_replace=0",),
    "lightning-without-kernels": (
        "attention.lightning.head_dim=12",
        "attention.lightning.partial_rotary_factor=0.5",
    ),
    "no-qk-norm": ("attention.lightning.use_qk_norm=false",),
    "no-q-lora": ("attention.mla.q_lora_rank=null",),
    "biases": BIASES,
    "no-shared-expert": ("moe.num_shared_experts=0",),
    "no-shared-expert-all-moe": ("moe.num_shared_experts=0", "mlp.first_k_dense_replace=0"),
    "two-shared-experts": ("moe.num_shared_experts=2",),
    "one-expert-per-token": ("moe.num_experts_per_tok=1",),
    "whole-head-rotated": ("attention.lightning.partial_rotary_factor=1.0",),
    "minimax": ("attention.lightning.backend=minimax",),
    "one-mla-layer": ("model.num_hidden_layers=1", *NO_MTP),
    "one-lightning-layer": (
        "model.num_hidden_layers=1",
        "attention.pattern.tail=linear",
        *NO_MTP,
    ),
    "bfloat16": ("model.torch_dtype=bfloat16", "cache.kv_dtype=bfloat16"),
    # Dense: with rounded states, a token near a tie of two experts may change its mind.
    "bfloat16-state": (
        "cache.state_dtype=bfloat16",
        "mlp.first_k_dense_replace=4",
        *NO_MTP,
    ),
    "yarn": yarn(24, None, None),
    "yarn-with-a-longer-mla-scale": yarn(1048576, 1.0, 0.8),
}

ALL_LIGHTNING = ("attention.pattern.layer_group_size=9", "attention.pattern.tail=linear")
# Name → spec and values that replace its own: models with grouped-query attention.
SIBLINGS: dict[str, tuple[Path, tuple[str, ...]]] = {
    "v2": (V2, ()),
    "v2-with-mtp": (V2, MTP),
    "v2-biases": (V2, (*MTP, *BIASES)),
    "v2-one-key-head": (V2, ("attention.gqa.num_key_value_heads=1",)),
    "v2-six-heads-on-three": (
        V2,
        ("model.num_attention_heads=6", "attention.gqa.num_key_value_heads=3"),
    ),
    "v2-no-qk-norm": (V2, ("attention.gqa.use_qk_norm=false",)),
    "v2-yarn": (V2, yarn(24, None, None)),
    "v2-bfloat16": (V2, ("model.torch_dtype=bfloat16", "cache.kv_dtype=bfloat16")),
    "linear-v2": (LINEAR_V2, ()),
    "linear-v2-with-mtp": (LINEAR_V2, (*MTP, *BIASES)),
    "linear-v2-tail": (LINEAR_V2, ("model.num_hidden_layers=5",)),
    "linear-v2-all-lightning": (LINEAR_V2, ALL_LIGHTNING),
    "linear-v2-all-lightning-with-mtp": (LINEAR_V2, (*ALL_LIGHTNING, *MTP)),
    "linear-v2-whole-head-rotated": (
        LINEAR_V2,
        (
            "attention.lightning.partial_rotary_factor=1.0",
            "attention.gqa.partial_rotary_factor=1.0",
        ),
    ),
    "v1": (V1, ()),
    "v1-normed-head": (V1, ("model.norm_head=true", "mlp.first_k_dense_replace=1")),
    "v1-raw-scores": (V1, ("moe.renormalize=false", *BIASES)),
    "v1-one-expert-per-token": (V1, ("moe.num_experts_per_tok=1", "moe.num_shared_experts=0")),
}


def lowered(*overrides: str, spec: Path = TINY) -> ModelIR:
    return lower(load_spec(spec, overrides))


def lowered_small(*overrides: str) -> ModelIR:
    """The small model with some of its values replaced."""
    keys = {text.partition("=")[0] for text in overrides}
    kept = [text for text in SMALL if text.partition("=")[0] not in keys]
    return lowered(*kept, *overrides)


def lowered_variant(name: str, *overrides: str) -> ModelIR:
    """The variant of that name, of VARIANTS or SIBLINGS, with more values replaced."""
    if name in SIBLINGS:
        spec, own = SIBLINGS[name]
        return lowered(*own, *overrides, spec=spec)
    return lowered_small(*VARIANTS[name], *overrides)


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


def new_moe(package: ModuleType) -> nn.Module:
    """A block of experts of its own, with a side stream of its own where the model has one."""
    model = package.model
    return model.MoE(*([model.SideStream()] if hasattr(model, "SideStream") else []))
