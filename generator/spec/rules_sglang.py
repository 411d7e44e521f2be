"""What the `sglang` target cannot be made of. Asked when it is built, not when a spec is read.

Each is a limit of SGLang 0.5.23's layers, or a variant that no published model of the architecture
has and that was never run in the engine. Refused here, it cannot become a server that fails at
start, or one that answers wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence

from .rule import Refusal, Rule
from .rules_model import HEAD_DIM, LAYERS, TARGETS

Targets = Sequence[str]


def why_not_engine_tail(
    targets: Targets, tail: str, layer_group_size: int, num_hidden_layers: int
) -> Refusal | None:
    """The engine lays out its caches by the modulus alone."""
    if tail == "linear" or num_hidden_layers % layer_group_size == 0:
        return None
    return Refusal(
        "SGLang makes the layers after the last whole group lightning layers",
        "tail linear, or num_hidden_layers that layer_group_size divides",
    )


def why_not_engine_kinds(
    targets: Targets, layer_group_size: int, num_hidden_layers: int
) -> Refusal | None:
    if 1 < layer_group_size <= num_hidden_layers:
        return None
    return Refusal(
        "SGLang serves this architecture with both kinds of layers",
        "layer_group_size above 1, and a whole group of layers",
    )


def why_not_engine_head_dim(targets: Targets, head_dim: int) -> Refusal | None:
    """Its kernel cuts the key dimension into blocks of 128 and takes no fewer than one."""
    if head_dim == 128:
        return None
    return Refusal("SGLang's lightning kernel takes heads of 128", "head_dim 128")


def why_not_engine_backend(targets: Targets, backend: str) -> Refusal | None:
    if backend == "seg_la":
        return None
    return Refusal("only seg_la was run in SGLang", "backend seg_la")


def why_not_engine_query(targets: Targets, q_lora_rank: int | None) -> Refusal | None:
    if q_lora_rank is not None:
        return None
    return Refusal("a whole query projection was never run in SGLang", "a number")


def why_not_engine_bias(targets: Targets, use_bias: bool, use_qkv_bias: bool) -> Refusal | None:
    if not use_bias and not use_qkv_bias:
        return None
    return Refusal("SGLang's latent attention has no biases", "false for both")


def why_not_engine_rope(targets: Targets, rope_type: str) -> Refusal | None:
    return Refusal(f"{rope_type} was never run in SGLang with this model", "rope_scaling null")


def why_not_engine_experts(
    targets: Targets, num_shared_experts: int, first_k_dense_replace: int, num_hidden_layers: int
) -> Refusal | None:
    if num_shared_experts > 0 and first_k_dense_replace < num_hidden_layers:
        return None
    return Refusal(
        "a model without experts, or without shared ones, was never run in SGLang",
        "a shared expert, and a layer of experts",
    )


SGLANG_RULES = (
    Rule(
        (TARGETS, "attention.pattern.tail", "attention.pattern.layer_group_size", LAYERS),
        why_not_engine_tail,
    ),
    Rule((TARGETS, "attention.pattern.layer_group_size", LAYERS), why_not_engine_kinds),
    Rule((TARGETS, HEAD_DIM), why_not_engine_head_dim),
    Rule((TARGETS, "attention.lightning.backend"), why_not_engine_backend),
    Rule((TARGETS, "attention.mla.q_lora_rank"), why_not_engine_query),
    Rule((TARGETS, "model.use_bias", "model.use_qkv_bias"), why_not_engine_bias),
    Rule((TARGETS, "model.rope_scaling.rope_type"), why_not_engine_rope),
    Rule(
        (TARGETS, "moe.num_shared_experts", "mlp.first_k_dense_replace", LAYERS),
        why_not_engine_experts,
    ),
)
