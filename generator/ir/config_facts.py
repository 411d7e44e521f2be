"""What a checkpoint's config.json says that no tensor's shape shows. The one owner of that list.

The loader compares it: right shapes with other mathematics are another model.
"""

from __future__ import annotations

from lingen.ir.rope import rotary_dim
from lingen.spec.model import ModelSpec

# config.json key → spec keys that hold it, of which a model has the first it has.
_FACTS: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("model.num_hidden_layers",),
    "num_attention_heads": ("model.num_attention_heads",),
    "num_key_value_heads": ("attention.gqa.num_key_value_heads",),
    "head_dim": ("attention.lightning.head_dim", "attention.gqa.head_dim"),
    "rms_norm_eps": ("model.rms_norm_eps",),
    "rope_theta": ("model.rope_theta",),
    "partial_rotary_factor": (
        "attention.lightning.partial_rotary_factor",
        "attention.gqa.partial_rotary_factor",
    ),
    "layer_group_size": ("attention.pattern.layer_group_size",),
    "group_norm_size": ("attention.lightning.group_norm_size",),
    "qk_rope_head_dim": ("attention.mla.qk_rope_head_dim",),
    "num_experts_per_tok": ("moe.num_experts_per_tok",),
    "n_group": ("moe.n_group",),
    "topk_group": ("moe.topk_group",),
    "routed_scaling_factor": ("moe.routed_scaling_factor",),
    "norm_head": ("model.norm_head",),
    "hidden_act": ("model.hidden_act",),
    "linear_silu": ("attention.lightning.linear_silu",),
    "score_function": ("moe.score_function",),
}
_ROTARY_KEYS = ("attention.gqa.partial_rotary_factor", "attention.lightning.partial_rotary_factor")


def config_facts(spec: ModelSpec) -> tuple[tuple[str, int | float | bool | str], ...]:
    """Each fact under its config.json key."""
    values = spec.values()
    facts = {}
    for key, spec_keys in _FACTS.items():
        stated = [values[spec_key] for spec_key in spec_keys if spec_key in values]
        if stated:
            facts[key] = stated[0]
    halves = spec.attention.gqa or spec.attention.lightning
    if halves:
        facts["rotary_dim"] = rotary_dim(halves.head_dim, halves.partial_rotary_factor)
    if spec.moe.score_function == "softmax":
        # The one router that honours norm_topk_prob; its configs do not name the function.
        del facts["score_function"]
        facts["norm_topk_prob"] = spec.moe.renormalize
    return tuple(facts.items())


def fact_keys(fact: str) -> tuple[str, ...]:
    """Spec keys that may hold a fact; those of all facts for an empty name."""
    derived = {
        "norm_topk_prob": ("moe.renormalize",),
        "rotary_dim": (*_ROTARY_KEYS, *_FACTS["head_dim"]),
    }
    if fact:
        return {**_FACTS, **derived}.get(fact, ())
    keys = [key for keys in (*_FACTS.values(), *derived.values()) for key in keys]
    return tuple(dict.fromkeys(keys))
