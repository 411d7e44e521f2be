"""Names and shapes of a published checkpoint's tensors, worked out from its config.json.

Written down from descriptions of the files, not from the generator: knows config.json keys only.
"""

from __future__ import annotations

from collections import defaultdict

from torch import nn

Config = dict
Shapes = dict[str, tuple[int, ...]]


def checkpoint_tensors(config: Config) -> Shapes:
    """Every tensor of a checkpoint of the first to the 2.5th generation, its MTP layer included."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    shapes: Shapes = {
        "model.word_embeddings.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for layer in range(layers):
        own = _norms(hidden)
        own |= _full(config) if is_full(config, layer) else _lightning(config)
        own |= _dense(config) if layer < config["first_k_dense_replace"] else _moe(config)
        shapes |= _prefixed(f"model.layers.{layer}.", own)
    if config.get("num_nextn_predict_layers"):
        own = {name: (hidden,) for name in ("enorm.weight", "hnorm.weight")}
        own |= {"eh_proj.weight": (hidden, 2 * hidden), "final_layernorm.weight": (hidden,)}
        own |= _norms(hidden) | _full(config) | _moe(config)
        shapes |= _prefixed(f"model.layers.{layers}.", own)
    return shapes


def is_full(config: Config, layer: int) -> bool:
    """Whether a layer has softmax attention; without groups, all have."""
    size = config.get("layer_group_size", 1)
    is_last_of_group = (layer + 1) % size == 0
    is_behind_the_groups = layer >= config["num_hidden_layers"] // size * size
    return is_last_of_group or is_behind_the_groups


def _prefixed(prefix: str, shapes: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


def _norms(hidden: int) -> Shapes:
    return {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}


def _head_dim(config: Config) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _head_norms(config: Config) -> Shapes:
    if not config.get("use_qk_norm"):
        return {}
    names = ("attention.query_layernorm.weight", "attention.key_layernorm.weight")
    return dict.fromkeys(names, (_head_dim(config),))


def _lightning(config: Config) -> Shapes:
    hidden, width = config["hidden_size"], config["num_attention_heads"] * _head_dim(config)
    return {
        "attention.query_key_value.weight": (3 * width, hidden),
        **_head_norms(config),
        "attention.g_proj.weight": (width, hidden),
        "attention.g_norm.weight": (width,),
        "attention.dense.weight": (hidden, width),
    }


def _full(config: Config) -> Shapes:
    return _latent(config) if "kv_lora_rank" in config else _grouped(config)


def _grouped(config: Config) -> Shapes:
    hidden, heads, head_dim = (
        config["hidden_size"],
        config["num_attention_heads"],
        _head_dim(config),
    )
    return {
        "attention.query_key_value.weight": (
            (heads + 2 * config["num_key_value_heads"]) * head_dim,
            hidden,
        ),
        **_head_norms(config),
        "attention.dense.weight": (hidden, heads * head_dim),
    }


def _latent(config: Config) -> Shapes:
    hidden, heads, query = (
        config[key] for key in ("hidden_size", "num_attention_heads", "q_lora_rank")
    )
    latent, nope, rope, value = (
        config[key]
        for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    return {
        "attention.q_a_proj.weight": (query, hidden),
        "attention.q_a_layernorm.weight": (query,),
        "attention.q_b_proj.weight": (heads * (nope + rope), query),
        "attention.kv_a_proj_with_mqa.weight": (latent + rope, hidden),
        "attention.kv_a_layernorm.weight": (latent,),
        "attention.kv_b_proj.weight": (heads * (nope + value), latent),
        "attention.dense.weight": (hidden, heads * value),
    }


def _mlp(prefix: str, hidden: int, width: int) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def _dense(config: Config) -> Shapes:
    return _mlp("mlp", config["hidden_size"], config["intermediate_size"])


def _moe(config: Config) -> Shapes:
    hidden, experts, width = (
        config[key] for key in ("hidden_size", "num_experts", "moe_intermediate_size")
    )
    shapes: Shapes = {"mlp.gate.weight": (experts, hidden)}
    if config.get("score_function") == "sigmoid":
        shapes["mlp.gate.expert_bias"] = (experts,)
    for expert in range(experts):
        shapes |= _mlp(f"mlp.experts.{expert}", hidden, width)
    shared = config.get("moe_shared_expert_intermediate_size", width) * config["num_shared_experts"]
    return shapes | _mlp("mlp.shared_experts", hidden, shared)


def assert_every_element_is_filled_once(model: nn.Module, targets: dict) -> None:
    """The views that the loader writes to cover every parameter, and none twice."""
    spans = defaultdict(list)
    for name, target in targets.items():
        rows = target.rows(model)
        assert rows.shape == target.weight.shape, name
        assert rows.is_contiguous(), name
        spans[target.param].append((rows.storage_offset(), rows.numel()))
    for name, param in model.named_parameters():
        filled = 0
        for begin, size in sorted(spans.pop(name)):
            assert begin == filled, name
            filled += size
        assert filled == param.numel(), name
    assert dict(spans) == {}
