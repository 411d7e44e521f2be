"""Which spec keys decide the shape of each checkpoint tensor, and whether it is there.

Rows beside `weights.py`: a tensor that is added there gets one here. `provenance.py` says how facts
are named and tested.
"""

from __future__ import annotations

Keys = tuple[str, ...]

_LAYERS = "model.num_hidden_layers"
_HEADS = "model.num_attention_heads"
_HIDDEN = "model.hidden_size"
_VOCAB = "model.vocab_size"
_QKV_BIAS = "model.use_qkv_bias"
_BIAS = "model.use_bias"
_DENSE = "mlp.first_k_dense_replace"
_MTP = "mtp.num_nextn_predict_layers"
_EXPERTS = "moe.num_experts"
_NUM_SHARED = "moe.num_shared_experts"
_LIGHTNING = "attention.lightning."
_MLA = "attention.mla."
_GQA = "attention.gqa."

_PLAN: Keys = ("attention.pattern.layer_group_size", "attention.pattern.tail", _LAYERS)
_WIDTH: Keys = (_HEADS, f"{_LIGHTNING}head_dim")
_Q_LORA: Keys = (f"{_MLA}q_lora_rank",)
_KV_LORA: Keys = (f"{_MLA}kv_lora_rank",)
_LATENT: Keys = (f"{_MLA}kv_lora_rank", f"{_MLA}qk_rope_head_dim")
_QK_WIDTH: Keys = (_HEADS, f"{_MLA}qk_nope_head_dim", f"{_MLA}qk_rope_head_dim")
_KV_B: Keys = (_HEADS, f"{_MLA}qk_nope_head_dim", f"{_MLA}v_head_dim")
_GQA_Q: Keys = (_HEADS, f"{_GQA}head_dim")
_GQA_QKV: Keys = (*_GQA_Q, f"{_GQA}num_key_value_heads")
_MLP: Keys = (_HIDDEN, "mlp.intermediate_size")
_EXPERT: Keys = (_HIDDEN, "moe.moe_intermediate_size")
_SHARED: Keys = (_HIDDEN, "moe.moe_shared_expert_intermediate_size", _NUM_SHARED)

# Layer set → tensor → what decides its shape.
_SHAPES: dict[str, dict[str, Keys]] = {
    "model": {
        "model.word_embeddings.weight": (_VOCAB, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
        "lm_head.weight": (_VOCAB, _HIDDEN),
    },
    "all": {
        "input_layernorm.weight": (_HIDDEN,),
        "post_attention_layernorm.weight": (_HIDDEN,),
    },
    "lightning": {
        "attention.query_key_value.weight": (*_WIDTH, _HIDDEN),
        "attention.query_key_value.bias": _WIDTH,
        "attention.query_layernorm.weight": (f"{_LIGHTNING}head_dim",),
        "attention.key_layernorm.weight": (f"{_LIGHTNING}head_dim",),
        "attention.g_proj.weight": (*_WIDTH, _HIDDEN),
        "attention.g_norm.weight": _WIDTH,
        "attention.dense.weight": (_HIDDEN, *_WIDTH),
        "attention.dense.bias": (_HIDDEN,),
    },
    "mla": {
        "attention.q_proj.weight": (*_QK_WIDTH, _HIDDEN),
        "attention.q_a_proj.weight": (*_Q_LORA, _HIDDEN),
        "attention.q_a_proj.bias": _Q_LORA,
        "attention.q_a_layernorm.weight": _Q_LORA,
        "attention.q_b_proj.weight": (*_QK_WIDTH, *_Q_LORA),
        "attention.kv_a_proj_with_mqa.weight": (*_LATENT, _HIDDEN),
        "attention.kv_a_proj_with_mqa.bias": _LATENT,
        "attention.kv_a_layernorm.weight": _KV_LORA,
        "attention.kv_b_proj.weight": (*_KV_B, *_KV_LORA),
        "attention.dense.weight": (_HIDDEN, _HEADS, f"{_MLA}v_head_dim"),
        "attention.dense.bias": (_HIDDEN,),
    },
    "gqa": {
        "attention.query_key_value.weight": (*_GQA_QKV, _HIDDEN),
        "attention.query_key_value.bias": _GQA_QKV,
        "attention.query_layernorm.weight": (f"{_GQA}head_dim",),
        "attention.key_layernorm.weight": (f"{_GQA}head_dim",),
        "attention.dense.weight": (_HIDDEN, *_GQA_Q),
        "attention.dense.bias": (_HIDDEN,),
    },
    "dense": {
        "mlp.gate_proj.weight": _MLP,
        "mlp.up_proj.weight": _MLP,
        "mlp.down_proj.weight": _MLP,
    },
    "moe": {
        "mlp.gate.weight": (_EXPERTS, _HIDDEN),
        "mlp.gate.expert_bias": (_EXPERTS,),
        "mlp.experts.{expert}.gate_proj.weight": _EXPERT,
        "mlp.experts.{expert}.up_proj.weight": _EXPERT,
        "mlp.experts.{expert}.down_proj.weight": _EXPERT,
        "mlp.shared_experts.gate_proj.weight": _SHARED,
        "mlp.shared_experts.up_proj.weight": _SHARED,
        "mlp.shared_experts.down_proj.weight": _SHARED,
    },
    "draft": {
        "enorm.weight": (_HIDDEN,),
        "hnorm.weight": (_HIDDEN,),
        "eh_proj.weight": (_HIDDEN,),
        "final_layernorm.weight": (_HIDDEN,),
    },
}

# Layer set → what decides that it has layers.
_PRESENCE: dict[str, Keys] = {
    "model": (),
    "all": (),
    "lightning": _PLAN,
    "mla": _PLAN,
    "gqa": _PLAN,
    "dense": (_DENSE,),
    "moe": (_DENSE, _LAYERS),
    "draft": (_MTP,),
}

# Layer set → what decides which layers those are.
_LAYER_LISTS: dict[str, Keys] = {
    "all": (_LAYERS,),
    "lightning": _PLAN,
    "mla": _PLAN,
    "gqa": _PLAN,
    "dense": (_DENSE,),
    "moe": (_DENSE, _LAYERS),
}

# Layer set and tensor → what decides that the tensor is there, given its layers.
_CONDITIONS: dict[tuple[str, str], Keys] = {
    ("lightning", "attention.query_key_value.bias"): (_QKV_BIAS,),
    ("lightning", "attention.query_layernorm.weight"): (f"{_LIGHTNING}use_qk_norm",),
    ("lightning", "attention.key_layernorm.weight"): (f"{_LIGHTNING}use_qk_norm",),
    ("lightning", "attention.dense.bias"): (_BIAS,),
    ("mla", "attention.q_proj.weight"): _Q_LORA,
    ("mla", "attention.q_a_proj.weight"): _Q_LORA,
    ("mla", "attention.q_a_proj.bias"): (*_Q_LORA, _QKV_BIAS),
    ("mla", "attention.q_a_layernorm.weight"): _Q_LORA,
    ("mla", "attention.q_b_proj.weight"): _Q_LORA,
    ("mla", "attention.kv_a_proj_with_mqa.bias"): (_QKV_BIAS,),
    ("mla", "attention.dense.bias"): (_QKV_BIAS,),
    ("gqa", "attention.query_key_value.bias"): (_QKV_BIAS,),
    ("gqa", "attention.query_layernorm.weight"): (f"{_GQA}use_qk_norm",),
    ("gqa", "attention.key_layernorm.weight"): (f"{_GQA}use_qk_norm",),
    ("gqa", "attention.dense.bias"): (_BIAS,),
    ("moe", "mlp.gate.expert_bias"): ("moe.score_function",),
    ("moe", "mlp.shared_experts.gate_proj.weight"): (_NUM_SHARED,),
    ("moe", "mlp.shared_experts.up_proj.weight"): (_NUM_SHARED,),
    ("moe", "mlp.shared_experts.down_proj.weight"): (_NUM_SHARED,),
}

# Layer set → what decides the blocks of its stacked projection, and their unit.
_BLOCKS: dict[str, Keys] = {"lightning": _WIDTH, "gqa": _GQA_QKV}
_UNITS: dict[str, Keys] = {"lightning": (f"{_LIGHTNING}head_dim",), "gqa": (f"{_GQA}head_dim",)}

# The MTP layer has the weights of a full layer too; of the full kinds, a spec has one.
_MTP_SETS = ("draft", "all", "mla", "gqa", "moe")


def weight_keys(layer_set: str, weight: str, fact: str | None) -> Keys | None:
    """Keys that decide a fact of a weight; `fact` None: that it is there, given its group. None if
    there is no such weight."""
    found = [each for each in _sets_of(layer_set) if weight in _SHAPES.get(each, ())]
    if not found:
        return None
    return tuple(key for each in found for key in _weight_keys(each, weight, fact))


def group_keys(layer_set: str, fact: str | None) -> Keys | None:
    """Keys that decide a fact of a group of weights; `fact` None: that it is there."""
    if layer_set not in _PRESENCE:
        return None
    sets = _sets_of(layer_set)
    layers = _LAYER_LISTS.get(layer_set, ())
    conditions = [keys for (each, _), keys in _CONDITIONS.items() if each in sets]
    return {
        None: _PRESENCE[layer_set],
        "layers": layers,
        "name_prefix": (_LAYERS,) if layer_set == "draft" else (),
        "weights": tuple(key for keys in conditions for key in keys),
        "num_parameters": (*all_keys(sets), *layers),
        "num_routed_parameters": (*_EXPERT, _EXPERTS, *layers) if "moe" in sets else (),
    }.get(fact, ())


def all_keys(layer_sets: tuple[str, ...]) -> Keys:
    """Keys that decide which weights one layer of each set has, and their shapes."""
    keys: dict[str, None] = {}
    for layer_set in layer_sets:
        for weight in _SHAPES[layer_set]:
            for fact in (None, "num_parameters"):
                keys |= dict.fromkeys(_weight_keys(layer_set, weight, fact))
    return tuple(keys)


def _sets_of(layer_set: str) -> tuple[str, ...]:
    return _MTP_SETS if layer_set == "draft" else (layer_set,)


def _weight_keys(layer_set: str, weight: str, fact: str | None) -> Keys:
    shape = _SHAPES[layer_set][weight]
    experts = (_EXPERTS,) if "{expert}" in weight else ()
    has_blocks = "query_key_value" in weight
    return {
        None: _CONDITIONS.get((layer_set, weight), ()),
        "shape": shape,
        "num_experts": experts,
        "num_parameters": (*shape, *experts),
        "tp_blocks": _BLOCKS[layer_set] if has_blocks else (),
        "tp_unit": _UNITS[layer_set] if has_blocks else (),
    }.get(fact, ())


DRAFT: Keys = all_keys(_MTP_SETS)
DECODER: Keys = (*all_keys(tuple(each for each in _SHAPES if each != "draft")), *_PLAN, _DENSE)
"""Keys that decide about the weights of the MTP layer, and about all others."""
