"""Every key of a published config.json, per generation, and what becomes of it.

Data only. A key that is not here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from lingen.hf.rope import YARN_COMPLETION, rope_scaling, rope_type
from lingen.hf.rows import (
    Absent,
    Agrees,
    Generation,
    Ignored,
    Nested,
    NotUsed,
    Only,
    Refused,
    Row,
    Used,
)

_ROUTER_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _router_dtype(value: object) -> object:
    return _ROUTER_DTYPES.get(value, value) if isinstance(value, str) else value


def _expert_bias(value: object) -> object:
    if value is False:
        raise NotUsed("false, but the reference ignores it: the bias is always on")
    return value


def _sigmoid(value: object) -> object:
    if value != "sigmoid":
        raise Refused("not supported", "sigmoid: this generation's router knows no other scores")
    return value


def _one_token(value: object) -> object:
    if not isinstance(value, list):
        return value
    if len(value) == 1:
        return value[0]
    raise Refused(
        "a list of tokens is not supported yet",
        "one token",
        "--set model.eos_token_id=ID, with the token at which a server stops",
    )


def _rotary_dim(head_dim: int, partial_rotary_factor: float) -> tuple[object, ...]:
    return (int(head_dim * partial_rotary_factor),)


_FROM_TENSORS = "the loader reads from each tensor how it is stored"
_AT_INFERENCE = "inference drops nothing out"
_TRAINING = "only for training"
_LIBRARY = "a matter of the transformers library"
_V3_OFF = "a switch of later generations, off"
_V1_OFF = "a switch of earlier generations, off"


def _rotary_factor(rotary_dim: object, head_dim: object) -> object:
    """The factor that rotates that many dimensions, where only their number is stated."""
    is_width = type(rotary_dim) is int and type(head_dim) is int and 0 < rotary_dim <= head_dim
    if not is_width or int(head_dim * (rotary_dim / head_dim)) != rotary_dim:
        raise Refused("not a number of dimensions of a head", f"an integer up to {head_dim}")
    return rotary_dim / head_dim


def _head_dim(hidden_size: int, num_attention_heads: int) -> int:
    return hidden_size // num_attention_heads


_ROPE_PARAMETERS: Mapping[str, Row] = {
    "rope_theta": Used("model.rope_theta"),
    "rope_type": Used("model.rope_scaling", rope_type),
    "type": Used("model.rope_scaling", rope_type),
}
_COMMON: Mapping[str, Row] = {
    "architectures": Used("model.architectures"),
    "model_type": Used("model.model_type"),
    "vocab_size": Used("model.vocab_size"),
    "hidden_size": Used("model.hidden_size"),
    "num_hidden_layers": Used("model.num_hidden_layers"),
    "num_attention_heads": Used("model.num_attention_heads"),
    "hidden_act": Used("model.hidden_act"),
    "rms_norm_eps": Used("model.rms_norm_eps"),
    "rope_theta": Used("model.rope_theta"),
    "rope_scaling": Used("model.rope_scaling", rope_scaling, YARN_COMPLETION),
    "max_position_embeddings": Used("model.max_position_embeddings"),
    "tie_word_embeddings": Used("model.tie_word_embeddings"),
    "use_bias": Used("model.use_bias"),
    "use_qkv_bias": Used("model.use_qkv_bias"),
    "torch_dtype": Used("model.torch_dtype"),
    "dtype": Used("model.torch_dtype"),
    "pad_token_id": Used("model.pad_token_id"),
    "eos_token_id": Used("model.eos_token_id", _one_token),
    "intermediate_size": Used("mlp.intermediate_size"),
    "first_k_dense_replace": Used("mlp.first_k_dense_replace"),
    "num_experts": Used("moe.num_experts"),
    "num_experts_per_tok": Used("moe.num_experts_per_tok"),
    "num_shared_experts": Used("moe.num_shared_experts"),
    "moe_intermediate_size": Used("moe.moe_intermediate_size"),
    "moe_shared_expert_intermediate_size": Used("moe.moe_shared_expert_intermediate_size"),
    "quantization_config": Nested(
        {
            "weight_block_size": Used("quantization.weight_block_size"),
            "quant_method": Only(("fp8", "compressed-tensors"), _FROM_TENSORS),
            "fmt": Only(("e4m3",), _FROM_TENSORS),
            "format": Only(("float-quantized", "naive-quantized"), _FROM_TENSORS),
        },
        rest=Ignored(_FROM_TENSORS),
    ),
    "attention_dropout": Ignored(_AT_INFERENCE),
    "embedding_dropout": Ignored(_AT_INFERENCE),
    "output_dropout": Ignored(_AT_INFERENCE),
    "initializer_range": Ignored(_TRAINING),
    "mtp_loss_scaling_factor": Ignored(_TRAINING),
    "output_router_logits": Ignored(_TRAINING),
    "pretraining_tp": Ignored(_TRAINING),
    "use_cache": Ignored("the generated runtime always has caches"),
    "bos_token_id": Ignored("the tokenizer's: the model never needs it"),
    "auto_map": Ignored("names Python files of the published folder; none is run"),
    "transformers_version": Ignored(_LIBRARY),
    "_name_or_path": Ignored(_LIBRARY),
    "_attn_implementation": Ignored(_LIBRARY),
    "return_dict": Ignored(_LIBRARY),
    "output_attentions": Ignored(_LIBRARY),
    "output_hidden_states": Ignored(_LIBRARY),
    "use_sliding_window": Only((False,), "attention sees all tokens"),
    "sliding_window": Only((None,), "attention sees all tokens"),
    "use_rmsnorm": Only((True,), "every norm is an RMS norm"),
    "attention_bias": Only((False,), "use_qkv_bias and use_bias decide"),
    "norm_softmax": Only((False,), _V1_OFF),
    "short_conv_kernel_size": Only((None,), _V3_OFF),
    "expert_swiglu_limit_list": Only((None,), _V3_OFF),
    "share_expert_swiglu_limit_list": Only((None,), _V3_OFF),
    "mtp_use_kda": Only((False, None), _V3_OFF),
    "use_mla_nope": Only((False, None), _V3_OFF),
    "up_proj_norm": Only((False, None), _V3_OFF),
    "value_norm": Only((False, None), _V3_OFF),
    "scale_router_input": Only((False, None), _V3_OFF),
    "gated_attention_proj_granularity_type": Only((None,), _V3_OFF),
}
_COMMON_ABSENCES: Mapping[str, Absent] = {
    "model.rope_scaling": Absent("rotary frequencies are not scaled"),
    "moe.moe_shared_expert_intermediate_size": Absent(
        "a shared expert is as wide as a routed one, as in the reference",
        spec_keys=("moe.moe_intermediate_size",),
        is_null=True,
    ),
    "quantization.weight_block_size": Absent("the family decides", from_family=True, is_null=True),
}

# From the second generation on: sigmoid scores in groups, and MTP layers.
_SIGMOID_ROUTER: Mapping[str, Row] = {
    "n_group": Used("moe.n_group"),
    "topk_group": Used("moe.topk_group"),
    "routed_scaling_factor": Used("moe.routed_scaling_factor"),
    "score_function": Used("moe.score_function", _sigmoid),
    "scoring_func": Used("moe.score_function", _sigmoid),
    "moe_router_enable_expert_bias": Used("moe.expert_bias", _expert_bias),
    "router_dtype": Used("moe.router_dtype", _router_dtype),
    "norm_topk_prob": Ignored("the reference always normalises the weights of the chosen experts"),
    "topk_method": Only(("noaux_tc",), "the one way to choose experts"),
    "num_nextn_predict_layers": Used("mtp.num_nextn_predict_layers"),
    "norm_head": Only((False,), _V1_OFF),
}
_SIGMOID_ABSENCES: Mapping[str, Absent] = {
    "mtp.num_nextn_predict_layers": Absent("no MTP layer", value=0, is_null=True),
    "moe.score_function": Absent("the family decides", from_family=True),
    "moe.expert_bias": Absent("the family decides", from_family=True),
    "moe.router_dtype": Absent("the family decides", from_family=True),
}


def _heads(section: str) -> dict[str, Row]:
    """Keys of heads that are normed and rotated by halves."""
    head_dim, factor = f"{section}.head_dim", f"{section}.partial_rotary_factor"
    return {
        "head_dim": Used(head_dim),
        "partial_rotary_factor": Used(factor),
        "use_qk_norm": Used(f"{section}.use_qk_norm"),
        "rotary_dim": Agrees(
            (head_dim, factor),
            _rotary_dim,
            "int(head_dim * partial_rotary_factor)",
            "head_dim and partial_rotary_factor say it",
            gives=_rotary_factor,
        ),
        "rope_parameters": Nested({**_ROPE_PARAMETERS, "partial_rotary_factor": Used(factor)}),
    }


_LIGHTNING: Mapping[str, Row] = {
    **_heads("attention.lightning"),
    "layer_group_size": Used("attention.pattern.layer_group_size"),
    "group_norm_size": Used("attention.lightning.group_norm_size"),
    "linear_silu": Used("attention.lightning.linear_silu"),
    "num_kv_heads_for_linear_attn": Agrees(
        ("model.num_attention_heads",),
        lambda heads: (heads, 0),
        "num_attention_heads, or 0",
        "lightning layers have as many key heads as query heads",
    ),
}
_MLA: Mapping[str, Row] = {
    "q_lora_rank": Used("attention.mla.q_lora_rank"),
    "kv_lora_rank": Used("attention.mla.kv_lora_rank"),
    "qk_nope_head_dim": Used("attention.mla.qk_nope_head_dim"),
    "qk_rope_head_dim": Used("attention.mla.qk_rope_head_dim"),
    "v_head_dim": Used("attention.mla.v_head_dim"),
    "rope_interleave": Used("attention.mla.rope_interleave"),
    "num_key_value_heads": Ignored("lightning and MLA layers have no key heads of their own"),
    "qk_head_dim": Agrees(
        ("attention.mla.qk_nope_head_dim", "attention.mla.qk_rope_head_dim"),
        lambda nope, rope: (nope + rope,),
        "qk_nope_head_dim + qk_rope_head_dim",
        "the sum of qk_nope_head_dim and qk_rope_head_dim",
    ),
}
_GQA: Mapping[str, Row] = {"num_key_value_heads": Used("attention.gqa.num_key_value_heads")}
_ONE_KEY = "its one key for heads counts for both kinds of layers"

V2_5 = Generation(
    "BailingMoeV2_5ForCausalLM",
    "bailing_hybrid",
    "families/bailing-moe-v2.5",
    {**_COMMON, **_SIGMOID_ROUTER, **_LIGHTNING, **_MLA},
    {
        **_COMMON_ABSENCES,
        **_SIGMOID_ABSENCES,
        "attention.mla.q_lora_rank": Absent("a single query product without compression"),
    },
)
LINEAR_V2 = Generation(
    "BailingMoeLinearV2ForCausalLM",
    "bailing_moe_linear",
    "families/bailing-moe-linear-v2",
    {**_COMMON, **_SIGMOID_ROUTER, **_LIGHTNING, **_GQA},
    {
        **_COMMON_ABSENCES,
        **_SIGMOID_ABSENCES,
        **{
            f"attention.gqa.{key}": Absent(_ONE_KEY, spec_keys=(f"attention.lightning.{key}",))
            for key in ("head_dim", "partial_rotary_factor", "use_qk_norm")
        },
    },
)
V2 = Generation(
    "BailingMoeV2ForCausalLM",
    "bailing_moe",
    "families/bailing-moe-v2",
    {**_COMMON, **_SIGMOID_ROUTER, **_heads("attention.gqa"), **_GQA},
    {
        **_COMMON_ABSENCES,
        **_SIGMOID_ABSENCES,
        "attention.gqa.partial_rotary_factor": Absent("the whole head is rotated", value=1.0),
    },
)
V1 = Generation(
    "BailingMoeForCausalLM",
    "bailing_moe",
    "families/bailing-moe-v1",
    {
        **_COMMON,
        **_GQA,
        "rope_parameters": Nested(_ROPE_PARAMETERS),
        "head_dim": Used("attention.gqa.head_dim"),
        "norm_head": Used("model.norm_head"),
        "norm_topk_prob": Used("moe.renormalize"),
    },
    {
        **_COMMON_ABSENCES,
        "attention.gqa.head_dim": Absent(
            "hidden_size / num_attention_heads, as in the reference",
            spec_keys=("model.hidden_size", "model.num_attention_heads"),
            compute=_head_dim,
            is_null=True,
        ),
        "model.norm_head": Absent("the head is used as it is", value=False),
    },
)
GENERATIONS: Mapping[str, Generation] = {
    generation.architecture: generation for generation in (V2_5, LINEAR_V2, V2, V1)
}
