"""Which spec keys decide a fact of the IR: the one table of that.

A fact has the path by which templates read it, `plan.num_dense`; the path of a part or a member,
`mla` or `weights.groups[mla]`, is the fact that it is there. Facts under the name of a spec key
(`moe.n_group`, `mla.v_head_dim`) are decided by it and need no row. A test flips every key and
names each row that lacks a key or lists an idle one. Knows nothing of templates.
"""

from __future__ import annotations

import re
from functools import cache

from lingen.ir.config_facts import fact_keys
from lingen.ir.weight_provenance import DECODER, DRAFT, group_keys, weight_keys

Keys = tuple[str, ...]

_ARCHITECTURE = "model.architectures"
_LAYERS = "model.num_hidden_layers"
_HEADS = "model.num_attention_heads"
_GROUP_SIZE = "attention.pattern.layer_group_size"
_TAIL = "attention.pattern.tail"
_DENSE = "mlp.first_k_dense_replace"
_MTP = "mtp.num_nextn_predict_layers"
_SHARED = "moe.num_shared_experts"
_OVERLAP = "moe.overlap_shared_experts"
_SCORE = "moe.score_function"
_FORMATS = "quantization.checkpoint_formats"
_STATES = "cache.state_dtype"
_DRAFT_TOKENS = "cache.speculative.num_draft_tokens"
_EXTRA_BUFFER = "cache.extra_buffer"
_LIGHTNING = "attention.lightning."
_MLA = "attention.mla."
_GQA = "attention.gqa."
_TP = "parallel.tp"
_YARN = "model.rope_scaling."

_TABLES = "kernels.moe.tables"
_TABLE_FACTS = (
    *("entry", "folder", "name", "path", "origin", "device", "tuned_on", "is_alias", "num_experts"),
    *("width", "dtype", "block_shape", "per_channel_quant", "triton", "source", "targets"),
    *("index", "is_down", "has_down", "sha256"),
)

_PLAN: Keys = (_GROUP_SIZE, _TAIL, _LAYERS)
_HAS_KV: Keys = (*_PLAN, _MTP)
_GROUPS: Keys = (_LAYERS, _GROUP_SIZE)
_RUNS: Keys = (*_PLAN, _DENSE)
_SPARSE: Keys = (_DENSE, _LAYERS)
_DECAY: Keys = (f"{_LIGHTNING}decay.layer_offset", f"{_LIGHTNING}decay.epsilon")
_LATENT: Keys = (f"{_MLA}kv_lora_rank", f"{_MLA}qk_rope_head_dim")
_HALVES: Keys = tuple(
    f"{part}{key}" for part in (_LIGHTNING, _GQA) for key in ("head_dim", "partial_rotary_factor")
)
_ROTARY: Keys = (*_HALVES, f"{_MLA}qk_rope_head_dim")
_RAMP: Keys = (f"{_YARN}original_max_position_embeddings", "model.rope_theta")
# The first where it is null, the second where it is a section.
_HAS_YARN: Keys = ("model.rope_scaling", f"{_YARN}rope_type")
_STRETCH: Keys = (f"{_YARN}factor", f"{_YARN}mscale_all_dim")

# Sections of the IR whose facts bear the names of spec keys, and where those are.
_SECTIONS: dict[str, str] = {
    "model": "model.",
    "moe": "moe.",
    "cache": "cache.",
    "parallel": "parallel.",
    "lightning": _LIGHTNING,
    "mla": _MLA,
    "gqa": _GQA,
    "spec": "",
}

_ROWS: dict[str, Keys] = {
    "architecture": (_ARCHITECTURE,),
    "name": ("model.name",),
    "package": ("model.name",),
    "model_type": ("model.model_type",),
    "targets": ("targets",),
    "model.intermediate_size": ("mlp.intermediate_size",),
    "has_dense": (_DENSE,),
    "has_sparse": _SPARSE,
    "has_side_stream": (*_SPARSE, _SHARED, _OVERLAP),
    "has_skippable": _HAS_KV,
    "rotates_whole_heads": tuple(f"{p}partial_rotary_factor" for p in (_LIGHTNING, _GQA)),
    "has_layer_kinds": (*_GROUPS, _DENSE),
    "has_mlp": (_DENSE, _SHARED),
    "has_kv": _HAS_KV,
    "parallel.is_split": (_TP,),
    "norm_groups_span_ranks": (_TP, f"{_LIGHTNING}group_norm_size", *_PLAN),
    "key_heads_are_repeated": (_TP, f"{_GQA}num_key_value_heads", *_HAS_KV),
    "vocabulary_is_padded": (_TP, "model.vocab_size"),
    "has_verify_rows": _HAS_KV,
    "planner_source": (),
    "full_class": (_ARCHITECTURE,),
    "full_rotary_dim": (_ARCHITECTURE,),
    "mtp_kinds": (_ARCHITECTURE,),
    "halves": _PLAN,
    "rotates_halves": _PLAN,
    "skipped_text": (*_PLAN, _MTP),
    "mtp": (_MTP,),
    "mtp.layer_idx": (_LAYERS,),
    "mtp.pool_idx": _PLAN,
    # The engine's plugin
    "sglang": (_ARCHITECTURE,),
    "sglang.engine_version": (),
    "sglang.version": (),
    "sglang.package": ("model.name",),
    "sglang.distribution": ("model.name",),
    "sglang.model_class": (_ARCHITECTURE,),
    "sglang.draft_class": (_MTP,),
    "sglang.classes": (_MTP,),
    "sglang.launch": (_ARCHITECTURE,),
    "sglang.launch.tp_size": ("sglang.tp_size",),
    "sglang.launch.pp_size": ("sglang.pp_size",),
    "sglang.launch.page_size": ("cache.page_size",),
    "sglang.launch.mamba_full_memory_ratio": ("cache.mamba_full_memory_ratio",),
    "sglang.launch.mamba_ssm_dtype": (_STATES,),
    "sglang.launch.kv_cache_dtype": ("cache.kv_dtype", "model.torch_dtype"),
    "sglang.launch.radix_strategy": ("cache.prefix_cache", _EXTRA_BUFFER, "cache.page_size"),
    "sglang.launch.flags": ("cache.prefix_cache", _EXTRA_BUFFER, "cache.page_size"),
    "sglang.launch.can_draft": (_MTP,),
    "sglang.launch.drafts": (_DRAFT_TOKENS,),
    "sglang.launch.num_steps": (_DRAFT_TOKENS,),
    "sglang.launch.eagle_topk": ("cache.speculative.topk",),
    "sglang.launch.num_draft_tokens": (_DRAFT_TOKENS,),
    # Layers
    "plan.layers": (_LAYERS,),
    "plan.layers[*]": (_LAYERS,),
    "plan.layers[*].attention": _PLAN,
    "plan.layers[*].mlp": (_DENSE,),
    "plan.layers[*].pool_idx": _PLAN,
    "plan.runs": _RUNS,
    "plan.runs[*]": _RUNS,
    "plan.runs[*].last": _RUNS,
    "plan.runs[*].length": _RUNS,
    "plan.runs[*].attention": _PLAN,
    "plan.runs[*].mlp": (_DENSE,),
    "plan.group_size": (_GROUP_SIZE,),
    "plan.lightning_per_group": (_GROUP_SIZE,),
    "plan.num_groups": _GROUPS,
    "plan.num_tail_layers": _GROUPS,
    "plan.has_tail": _GROUPS,
    "plan.tail": (_TAIL,),
    "plan.tail_kind": (_TAIL, _ARCHITECTURE),
    "plan.full_kind": (_ARCHITECTURE,),
    "plan.lightning": _PLAN,
    "plan.full": _PLAN,
    "plan.dense": (_DENSE,),
    "plan.num_dense": (_DENSE,),
    "plan.moe": _SPARSE,
    "plan.has_lightning": _PLAN,
    "plan.branches_anywhere": _PLAN,
    "plan.has_full": _PLAN,
    "plan.is_mixed": _GROUPS,
    "plan.kind_names": _PLAN,
    "plan.layer_imports": _PLAN,
    "plan.description": _RUNS,
    # Rotation
    "rope.theta": ("model.rope_theta",),
    "rope.yarn": _HAS_YARN,
    "rope.yarn.factor": (f"{_YARN}factor",),
    "rope.yarn.original_max_position_embeddings": (f"{_YARN}original_max_position_embeddings",),
    "rope.yarn.ramps": _ROTARY,
    "rope.yarn.ramps[*]": _ROTARY,
    "rope.yarn.ramps[*].low": (f"{_YARN}beta_fast", *_RAMP),
    "rope.yarn.ramps[*].high": (f"{_YARN}beta_slow", *_RAMP),
    "rope.yarn.ramp_table": (f"{_YARN}beta_fast", f"{_YARN}beta_slow", *_RAMP, *_ROTARY),
    "rope.yarn.attention_factor": (f"{_YARN}mscale", *_STRETCH),
    "rope.yarn.mla_scale_factor": _STRETCH,
    "rope.yarn.changes_mla_scale": _STRETCH,
    "rope.yarn.changes_tables": (f"{_YARN}factor", f"{_YARN}mscale"),
    "mla_scale_is_stretched": (*_STRETCH, *_HAS_YARN),
    # Attention
    "lightning": _PLAN,
    "lightning.num_heads": (_HEADS,),
    "lightning.rotary_dim": _HALVES[:2],
    "lightning.group_norm_width": (f"{_LIGHTNING}group_norm_size", _HEADS, f"{_LIGHTNING}head_dim"),
    "lightning.qkv_bias": ("model.use_qkv_bias",),
    "lightning.dense_bias": ("model.use_bias",),
    "lightning.chunk_size": ("kernels.lightning.chunk_size",),
    "lightning.has_kernels": (f"{_LIGHTNING}head_dim",),
    "lightning.decay": (),
    "lightning.decay.head_slopes": (_HEADS,),
    "lightning.decay.slope_expression": (_HEADS,),
    "lightning.decay.layer_factors": (*_DECAY, *_PLAN),
    "lightning.decay.factor_formula": (*_DECAY, _LAYERS),
    "lightning.decay.factor_expression": (*_DECAY, _LAYERS),
    "mla": _HAS_KV,
    "mla.num_heads": (_HEADS,),
    "mla.has_q_lora": (f"{_MLA}q_lora_rank",),
    "mla.qk_head_dim": (f"{_MLA}qk_nope_head_dim", f"{_MLA}qk_rope_head_dim"),
    "mla.latent_width": _LATENT,
    "mla.bias": ("model.use_qkv_bias",),
    "gqa": _HAS_KV,
    "gqa.num_heads": (_HEADS,),
    "gqa.rotary_dim": _HALVES[2:],
    "gqa.qkv_bias": ("model.use_qkv_bias",),
    "gqa.dense_bias": ("model.use_bias",),
    # Kernels
    "kernels": (),
    "kernels.in_triton": (*_HAS_KV, f"{_LIGHTNING}head_dim", _DENSE),
    "kernels.in_torch": (*_HAS_KV, f"{_LIGHTNING}head_dim"),
    # Experts
    "moe": (*_SPARSE, _MTP),
    "moe.shared_intermediate_size": ("moe.moe_shared_expert_intermediate_size", _SHARED),
    "moe.has_shared_experts": (_SHARED,),
    "moe.has_side_stream": (_SHARED, _OVERLAP),
    "moe.shared_experts_text": (_SHARED,),
    "moe.experts_per_group": ("moe.num_experts", "moe.n_group"),
    "moe.has_expert_bias": (_SCORE,),
    "moe.is_softmax": (_SCORE,),
    "moe.limits_groups": (_SCORE, "moe.topk_group", "moe.n_group"),
    "moe.router_kind": (_SCORE,),
    "moe.normalizes_weights": ("moe.renormalize", "moe.num_experts_per_tok"),
    "has_tables": (_TABLES,),
    "has_own_tables": (_TABLES,),
    "tables": (_TABLES,),
    "tables[*]": (_TABLES,),
    **{f"tables[*].{name}": (_TABLES,) for name in _TABLE_FACTS},
    "tables[*].tp": (
        *(_TABLES, "moe.num_experts", "moe.moe_intermediate_size"),
        *("parallel.tp", "parallel.ep"),
    ),
    "lookup_source": (),
    # Caches
    "cache.num_state_layers": _PLAN,
    "cache.num_kv_layers": _PLAN,
    "cache.num_draft_kv_layers": (_MTP,),
    "cache.state_bytes_per_slot": (*_PLAN, _HEADS, f"{_LIGHTNING}head_dim", _STATES),
    "cache.kv_bytes_per_token": (
        *(*_PLAN, *_LATENT, f"{_GQA}num_key_value_heads", f"{_GQA}head_dim"),
        *("cache.kv_dtype", _DRAFT_TOKENS),
    ),
    "cache.slots_per_request": (*_PLAN, "cache.prefix_cache", _EXTRA_BUFFER),
    "cache.can_branch_unaligned": _PLAN,
    "cache.num_draft_tokens": (_DRAFT_TOKENS,),
    "cache.drafts": (_DRAFT_TOKENS,),
    "cache.draft_topk": ("cache.speculative.topk",),
    # Weights; those of single tensors are in weight_provenance.py.
    "weight_map_digest": (*DECODER, _MTP),
    "weights.digest": (*DECODER, _MTP),
    "weights.groups": (*_RUNS, _MTP),
    "weights.layer_groups": _RUNS,
    "weights.computed": _PLAN,
    "weights.checkpoint_formats": (_FORMATS,),
    "weights.plain_dtypes": (_FORMATS,),
    "weights.dtype_bytes": (_FORMATS,),
    "weights.formats_text": (_FORMATS,),
    "weights.has_fp8": (_FORMATS,),
    "weights.has_fp8_block": (_FORMATS,),
    "weights.has_fp8_channel": (_FORMATS,),
    "weights.weight_block_size": ("quantization.weight_block_size",),
    "weights.fp8_mtp": ("quantization.fp8_mtp",),
    "parameters.total": DECODER,
    "parameters.active": (*DECODER, "moe.num_experts_per_tok"),
    "parameters.mtp": (*DRAFT, _MTP),
}

_NUMBER = re.compile(r"\[[0-9]+\]")
_CONFIG = "weights.config_facts"
_WEIGHTS = re.compile(r"weights\.groups\[(\w+)\](?:\.weights\[([^\]]+)\])?(?:\.(\w+))?")


@cache
def spec_keys(fact: str) -> Keys:
    """Keys that decide a fact, those that bear on it most first; () where none does.

    A spec need not have all of them: some belong to other architectures.
    """
    generic = _NUMBER.sub("[*]", fact)
    if generic in _ROWS:
        return _ROWS[generic]
    weights = _WEIGHTS.fullmatch(fact)
    if weights:
        layer_set, weight, name = weights.groups()
        found = weight_keys(layer_set, weight, name) if weight else group_keys(layer_set, name)
        return tuple(dict.fromkeys(found or ()))
    if fact.startswith(_CONFIG):
        return fact_keys(fact[len(_CONFIG) :].strip("[]"))
    section, _, name = fact.partition(".")
    return (_SECTIONS[section] + name,) if name and section in _SECTIONS else ()
