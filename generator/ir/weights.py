"""Every tensor of the checkpoint, its shape, the parameter it fills, and how tp splits it.

The one owner of checkpoint names. Names are those of the published files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from lingen.ir.parts import Gqa, Lightning, Mla, Moe, Mtp
from lingen.ir.plan import LayerPlan
from lingen.ir.types import Dimensions
from lingen.ir.weight_map import LayerSet, Weight, WeightGroup


def _linear(
    name: str,
    out_size: int,
    in_size: int,
    *,
    tp_dim: int | None,
    blocks: tuple[int, ...] = (),
    unit: int = 1,
) -> Weight:
    """A projection that may be stored in fp8. `tp_dim` 0: split by output, 1: by input."""
    name = f"{name}.weight"
    return Weight(
        name, name, (out_size, in_size), tp_dim=tp_dim, tp_blocks=blocks, tp_unit=unit,
        quantizable=True,
    )  # fmt: skip


def _vector(
    name: str,
    size: int,
    *,
    tp_dim: int | None = None,
    blocks: tuple[int, ...] = (),
    unit: int = 1,
) -> Weight:
    return Weight(name, name, (size,), tp_dim=tp_dim, tp_blocks=blocks, tp_unit=unit)


def lightning_weights(hidden: int, a: Lightning) -> list[Weight]:
    width = a.num_heads * a.head_dim
    qkv = "attention.query_key_value"
    split = {"tp_dim": 0, "blocks": (width, width, width), "unit": a.head_dim}
    weights = [_linear(qkv, 3 * width, hidden, **split)]
    if a.qkv_bias:
        weights.append(_vector(f"{qkv}.bias", 3 * width, **split))
    if a.use_qk_norm:
        weights.append(_vector("attention.query_layernorm.weight", a.head_dim))
        weights.append(_vector("attention.key_layernorm.weight", a.head_dim))
    weights.append(_linear("attention.g_proj", width, hidden, tp_dim=0))
    weights.append(_vector("attention.g_norm.weight", width, tp_dim=0))
    weights.append(_linear("attention.dense", hidden, width, tp_dim=1))
    if a.dense_bias:
        weights.append(_vector("attention.dense.bias", hidden))
    return weights


def mla_weights(hidden: int, a: Mla) -> list[Weight]:
    q_width = a.num_heads * a.qk_head_dim
    weights = []
    if a.q_lora_rank is None:
        weights.append(_linear("attention.q_proj", q_width, hidden, tp_dim=0))
    else:
        weights.append(_linear("attention.q_a_proj", a.q_lora_rank, hidden, tp_dim=None))
        if a.bias:
            weights.append(_vector("attention.q_a_proj.bias", a.q_lora_rank))
        weights.append(_vector("attention.q_a_layernorm.weight", a.q_lora_rank))
        weights.append(_linear("attention.q_b_proj", q_width, a.q_lora_rank, tp_dim=0))
    kv_a = "attention.kv_a_proj_with_mqa"
    weights.append(_linear(kv_a, a.latent_width, hidden, tp_dim=None))
    if a.bias:
        weights.append(_vector(f"{kv_a}.bias", a.latent_width))
    weights.append(_vector("attention.kv_a_layernorm.weight", a.kv_lora_rank))
    kv_b_width = a.num_heads * (a.qk_nope_head_dim + a.v_head_dim)
    weights.append(_linear("attention.kv_b_proj", kv_b_width, a.kv_lora_rank, tp_dim=0))
    weights.append(_linear("attention.dense", hidden, a.num_heads * a.v_head_dim, tp_dim=1))
    if a.bias:
        weights.append(_vector("attention.dense.bias", hidden))
    return weights


def gqa_weights(hidden: int, a: Gqa) -> list[Weight]:
    q_width, kv_width = a.num_heads * a.head_dim, a.num_key_value_heads * a.head_dim
    qkv = "attention.query_key_value"
    split = {"tp_dim": 0, "blocks": (q_width, kv_width, kv_width), "unit": a.head_dim}
    weights = [_linear(qkv, q_width + 2 * kv_width, hidden, **split)]
    if a.qkv_bias:
        weights.append(_vector(f"{qkv}.bias", q_width + 2 * kv_width, **split))
    if a.use_qk_norm:
        weights.append(_vector("attention.query_layernorm.weight", a.head_dim))
        weights.append(_vector("attention.key_layernorm.weight", a.head_dim))
    weights.append(_linear("attention.dense", hidden, q_width, tp_dim=1))
    if a.dense_bias:
        weights.append(_vector("attention.dense.bias", hidden))
    return weights


def mlp_weights(prefix: str, hidden: int, width: int, num_experts: int = 0) -> list[Weight]:
    """gate_proj over up_proj in one parameter, and down_proj; stacked where there are experts."""
    source = f"{prefix}.{{expert}}" if num_experts else prefix
    suffix = "" if num_experts else ".weight"
    gate_up, down = f"{prefix}.gate_up_proj{suffix}", f"{prefix}.down_proj{suffix}"

    def weight(name: str, param: str, shape: tuple[int, int], tp_dim: int, part: int, parts: int):
        return Weight(
            f"{source}.{name}.weight", param, shape, num_experts, part, parts, tp_dim,
            quantizable=True,
        )  # fmt: skip

    return [
        weight("gate_proj", gate_up, (width, hidden), 0, 0, 2),
        weight("up_proj", gate_up, (width, hidden), 0, 1, 2),
        weight("down_proj", down, (hidden, width), 1, 0, 1),
    ]


def moe_weights(hidden: int, moe: Moe) -> list[Weight]:
    router = "mlp.gate.weight"
    weights = [Weight(router, router, (moe.num_experts, hidden))]
    if moe.has_expert_bias:
        weights.append(_vector("mlp.gate.expert_bias", moe.num_experts))
    weights += mlp_weights("mlp.experts", hidden, moe.moe_intermediate_size, moe.num_experts)
    if moe.has_shared_experts:
        weights += mlp_weights("mlp.shared_experts", hidden, moe.shared_intermediate_size)
    return weights


def lower_weights(
    dims: Dimensions,
    plan: LayerPlan,
    lightning: Lightning | None,
    mla: Mla | None,
    gqa: Gqa | None,
    moe: Moe | None,
    mtp: Mtp | None,
) -> tuple[WeightGroup, ...]:
    hidden = dims.hidden_size
    table = (dims.vocab_size, hidden)
    norms = [
        _vector("input_layernorm.weight", hidden),
        _vector("post_attention_layernorm.weight", hidden),
    ]
    whole_model = (
        Weight("model.word_embeddings.weight", "word_embeddings.weight", table, tp_dim=0),
        Weight("model.norm.weight", "norm.weight", (hidden,)),
        Weight("lm_head.weight", "lm_head.weight", table, tp_dim=0),
    )
    groups = [
        WeightGroup("model", (), "", "", whole_model),
        _layer_group("all", tuple(layer.index for layer in plan.layers), norms),
    ]
    if lightning is not None:
        groups.append(
            _layer_group("lightning", plan.lightning, lightning_weights(hidden, lightning))
        )
    full = mla_weights(hidden, mla) if mla else gqa_weights(hidden, gqa) if gqa else []
    if plan.has_full:
        groups.append(_layer_group(plan.full_kind, plan.full, full))
    if plan.dense:
        dense = mlp_weights("mlp", hidden, dims.intermediate_size)
        groups.append(_layer_group("dense", plan.dense, dense))
    if plan.moe:
        groups.append(_layer_group("moe", plan.moe, moe_weights(hidden, moe)))
    if mtp is not None:
        own = (
            _vector("enorm.weight", hidden),
            _vector("hnorm.weight", hidden),
            _linear("eh_proj", hidden, 2 * hidden, tp_dim=None),
            *norms,
            *full,
            *moe_weights(hidden, moe),
            _vector("final_layernorm.weight", hidden),
        )
        prefix = f"model.layers.{mtp.layer_idx}."
        groups.append(WeightGroup("draft", (), prefix, "mtp.", own))
    return tuple(groups)


def _layer_group(
    layer_set: LayerSet, layers: tuple[int, ...], weights: list[Weight]
) -> WeightGroup:
    return WeightGroup(
        layer_set, layers, "model.layers.{layer}.", "layers.{layer}.", tuple(weights)
    )


def computed_weights(lightning: Lightning | None) -> tuple[str, ...]:
    """Repacked checkpoints store the slopes, which the vendor's files and this package compute."""
    return () if lightning is None else ("attention.slope",)


def weight_map_digest(groups: tuple[WeightGroup, ...]) -> str:
    """sha256 over the names, shapes and splits of the whole map."""
    text = json.dumps([asdict(group) for group in groups], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
