"""Which parameter of SGLang's layers a checkpoint tensor fills, and what its loader is told.

Names below a layer's module, as the templates of the `sglang` target name its attributes. Knows
tensor names only.
"""

from __future__ import annotations

# Tensor → parameter, and the shard: 0 and 1 for gate and up, w1, w3 and w2 for gate, up and down of
# an expert, top and bottom for the two row blocks of one parameter. The others are renamed at most.
_FUSED: dict[str, tuple[str, int | str]] = {
    "attention.q_a_proj.weight": ("self_attn.fused_qkv_a_proj_with_mqa.weight", "top"),
    "attention.kv_a_proj_with_mqa.weight": ("self_attn.fused_qkv_a_proj_with_mqa.weight", "bottom"),
    "mlp.gate_proj.weight": ("mlp.gate_up_proj.weight", 0),
    "mlp.up_proj.weight": ("mlp.gate_up_proj.weight", 1),
    "mlp.shared_experts.gate_proj.weight": ("mlp.shared_experts.gate_up_proj.weight", 0),
    "mlp.shared_experts.up_proj.weight": ("mlp.shared_experts.gate_up_proj.weight", 1),
    "mlp.experts.{expert}.gate_proj.weight": ("mlp.experts.w13_weight", "w1"),
    "mlp.experts.{expert}.up_proj.weight": ("mlp.experts.w13_weight", "w3"),
    "mlp.experts.{expert}.down_proj.weight": ("mlp.experts.w2_weight", "w2"),
}
_RENAMED = {"attention.dense.": "self_attn.o_proj.", "attention.": "self_attn."}
_LAYER_PARTS = ("attention.", "mlp.", "input_layernorm.", "post_attention_layernorm.")

# Layer set → its layers, in the names of the generated module.
_LAYERS = {
    "all": "range(NUM_HIDDEN_LAYERS)",
    "lightning": "LIGHTNING_LAYERS",
    "mla": "MLA_LAYERS",
    "dense": "range(FIRST_K_DENSE_REPLACE)",
    "moe": "range(FIRST_K_DENSE_REPLACE, NUM_HIDDEN_LAYERS)",
}


def engine_param(name: str) -> str:
    if name in _FUSED:
        return _FUSED[name][0]
    for prefix, replacement in _RENAMED.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def engine_shard(name: str) -> int | str | None:
    """What the parameter's loader needs to know of the tensor; None: nothing."""
    return _FUSED[name][1] if name in _FUSED else None


def is_in_decoder_layer(name: str) -> bool:
    """Whether a tensor of the MTP layer is of the decoder layer in it."""
    return name.startswith(_LAYER_PARTS)


def engine_layers(layer_set: str) -> str:
    """The layers of a set, as an expression; empty for sets that have none in the engine."""
    return _LAYERS.get(layer_set, "")
