"""Rules between the keys of grouped-query attention, and of rotary scaling."""

from __future__ import annotations

from collections.abc import Sequence

from .rule import Refusal, Rule, join
from .rules_model import even_rotary_factors, why_not_rotary_width
from .schema import schema


def why_not_model_type(model_type: str, architectures: Sequence[str]) -> Refusal | None:
    """Generations share a model_type, so `architectures` decides and model_type must agree."""
    expected = schema()["x-lingen-model-types"][architectures[0]]
    if model_type == expected:
        return None
    return Refusal("model_type contradicts architectures", f"{expected} with {architectures[0]}")


def model_types(model_type: str, architectures: Sequence[str]) -> list[str]:
    return [schema()["x-lingen-model-types"][architectures[0]]]


def why_not_query_heads_per_key_head(
    num_key_value_heads: int, num_attention_heads: int
) -> Refusal | None:
    if num_attention_heads % num_key_value_heads == 0:
        return None
    return Refusal(
        "num_attention_heads is not a multiple of num_key_value_heads",
        "num_key_value_heads that divides num_attention_heads",
    )


def why_not_key_heads_per_tp(num_key_value_heads: int, tp: Sequence[int]) -> Refusal | None:
    """Ranks hold whole key heads; where there are fewer heads than ranks, copies of one."""
    bad = [size for size in tp if num_key_value_heads % size and size % num_key_value_heads]
    if not bad:
        return None
    return Refusal(
        f"neither num_key_value_heads nor tp {join(bad)} divides the other",
        "one of the two divides the other, for each size in parallel.tp",
    )


def why_not_gqa_rotary_width(partial_rotary_factor: float, head_dim: int) -> Refusal | None:
    return why_not_rotary_width(partial_rotary_factor, head_dim)


def why_not_one_head_dim(gqa_head_dim: int, lightning_head_dim: int) -> Refusal | None:
    """config.json has one key for both kinds of layers."""
    if gqa_head_dim == lightning_head_dim:
        return None
    return Refusal("gqa.head_dim is not lightning.head_dim", "the same in both sections")


def lightnings_head_dim(gqa_head_dim: int, lightning_head_dim: int) -> list[int]:
    return [lightning_head_dim]


def why_not_one_rotary_factor(
    gqa_partial_rotary_factor: float, lightning_partial_rotary_factor: float
) -> Refusal | None:
    """config.json has one key for both kinds of layers."""
    if gqa_partial_rotary_factor == lightning_partial_rotary_factor:
        return None
    return Refusal(
        "gqa.partial_rotary_factor is not lightning.partial_rotary_factor",
        "the same in both sections",
    )


def lightnings_rotary_factor(
    gqa_partial_rotary_factor: float, lightning_partial_rotary_factor: float
) -> list[float]:
    return [lightning_partial_rotary_factor]


def why_not_lightning_layers(layer_group_size: int, architectures: Sequence[str]) -> Refusal | None:
    """A group of more than one layer holds lightning layers."""
    if layer_group_size == 1 or LIGHTNING in schema()["x-lingen-sections"][architectures[0]]:
        return None
    return Refusal(
        f"groups of layers, but {architectures[0]} has no lightning layers",
        "layer_group_size 1: every layer is full attention",
    )


def no_groups(layer_group_size: int, architectures: Sequence[str]) -> list[int]:
    return [1]


def why_not_yarn_betas(beta_fast: float, beta_slow: float) -> Refusal | None:
    if beta_fast > beta_slow:
        return None
    return Refusal(
        "beta_fast is not above beta_slow", "more rotations for beta_fast than for beta_slow"
    )


def larger_beta_fast(beta_fast: float, beta_slow: float) -> list[float]:
    return [32.0, 2 * beta_slow]


def smaller_beta_slow(beta_fast: float, beta_slow: float) -> list[float]:
    return [1.0, beta_fast / 2]


GQA = "attention.gqa"
LIGHTNING = "attention.lightning"
KEY_HEADS = f"{GQA}.num_key_value_heads"
GQA_HEAD_DIM = f"{GQA}.head_dim"
GQA_ROTARY = f"{GQA}.partial_rotary_factor"
HEAD_DIM = f"{LIGHTNING}.head_dim"
ROTARY = f"{LIGHTNING}.partial_rotary_factor"
GROUP_SIZE = "attention.pattern.layer_group_size"
ARCHITECTURES = "model.architectures"
MODEL_TYPE = "model.model_type"
BETA_FAST = "model.rope_scaling.beta_fast"
BETA_SLOW = "model.rope_scaling.beta_slow"

ATTENTION_RULES = (
    Rule((MODEL_TYPE, ARCHITECTURES), why_not_model_type, {MODEL_TYPE: model_types}),
    Rule((GROUP_SIZE, ARCHITECTURES), why_not_lightning_layers, {GROUP_SIZE: no_groups}),
    Rule((KEY_HEADS, "model.num_attention_heads"), why_not_query_heads_per_key_head),
    Rule((KEY_HEADS, "parallel.tp"), why_not_key_heads_per_tp),
    Rule(
        (GQA_ROTARY, GQA_HEAD_DIM),
        why_not_gqa_rotary_width,
        {GQA_ROTARY: even_rotary_factors, GQA_HEAD_DIM: lambda *_: ()},
    ),
    Rule(
        (GQA_HEAD_DIM, HEAD_DIM),
        why_not_one_head_dim,
        {GQA_HEAD_DIM: lightnings_head_dim, HEAD_DIM: lambda *_: ()},
    ),
    Rule(
        (GQA_ROTARY, ROTARY),
        why_not_one_rotary_factor,
        {GQA_ROTARY: lightnings_rotary_factor, ROTARY: lambda *_: ()},
    ),
    Rule(
        (BETA_FAST, BETA_SLOW),
        why_not_yarn_betas,
        {BETA_FAST: larger_beta_fast, BETA_SLOW: smaller_beta_slow},
    ),
)
