"""A key that passes validation and changes nothing would be a lie: flip each, and look."""

from __future__ import annotations

from pathlib import Path

import pytest
from lingen.ir import lower
from lingen.spec import ModelSpec, load_spec

FLASH = Path(__file__).parents[2] / "specs" / "ling-2.6-flash.yaml"

# Another legal value of each key, and what must go with it to keep the spec legal.
ALTERNATIVES: dict[str, list[str]] = {
    "model.name": ["another-name"],
    "model.vocab_size": ["157185"],
    "model.hidden_size": ["4224"],
    "model.num_hidden_layers": ["40"],
    "model.num_attention_heads": ["64"],
    "model.rms_norm_eps": ["1e-5"],
    "model.rope_theta": ["1e6"],
    "model.max_position_embeddings": ["262144"],
    "model.use_bias": ["true"],
    "model.use_qkv_bias": ["true"],
    "model.torch_dtype": ["float32"],
    "model.pad_token_id": ["1"],
    "model.eos_token_id": ["1"],
    "attention.pattern.layer_group_size": ["4"],
    "attention.pattern.tail": ["linear"],
    "attention.lightning.head_dim": ["64"],
    "attention.lightning.partial_rotary_factor": ["0.25"],
    "attention.lightning.use_qk_norm": ["false"],
    "attention.lightning.group_norm_size": ["8"],
    "attention.lightning.decay.layer_offset": ["-1"],
    "attention.lightning.decay.epsilon": ["1e-4"],
    "attention.lightning.backend": ["minimax"],
    "attention.mla.q_lora_rank": ["null"],
    "attention.mla.kv_lora_rank": ["256"],
    "attention.mla.qk_nope_head_dim": ["64"],
    "attention.mla.qk_rope_head_dim": ["32"],
    "attention.mla.v_head_dim": ["64"],
    "attention.mla.lora_norm_eps": ["1e-5"],
    "mlp.intermediate_size": ["8192"],
    "mlp.first_k_dense_replace": ["2"],
    "moe.num_experts": ["128"],
    "moe.num_experts_per_tok": ["4"],
    "moe.num_shared_experts": ["2"],
    "moe.moe_intermediate_size": ["512"],
    "moe.moe_shared_expert_intermediate_size": ["512"],
    "moe.n_group": ["4"],
    "moe.topk_group": ["2"],
    "moe.routed_scaling_factor": ["1.0"],
    "moe.overlap_shared_experts": ["false"],
    "mtp.num_nextn_predict_layers": ["0"],
    "cache.kv_dtype": ["float16"],
    "cache.state_dtype": ["bfloat16"],
    "cache.page_size": ["128"],
    "cache.mamba_full_memory_ratio": ["0.5"],
    "cache.prefix_cache": ["false"],
    "cache.extra_buffer": ["overlap"],
    "cache.verify_states": ["snapshot"],
    "cache.speculative.num_draft_tokens": ["4"],
    "quantization.checkpoint_formats": ["[bfloat16]"],
    "quantization.weight_block_size": ["[64, 64]"],
    "kernels.lightning.chunk_size": ["32"],
    "parallel.tp": ["[1, 2]"],
    "parallel.pp": ["[1]"],
}

# One value is supported so far; the spec states it so that a reader sees the decision.
ONE_VALUE = {
    "model.architectures",
    "model.model_type",
    "model.hidden_act",
    "model.rope_scaling",
    "model.tie_word_embeddings",
    "attention.lightning.linear_silu",
    "attention.lightning.decay.formula",
    "attention.mla.rope_interleave",
    "moe.score_function",
    "moe.expert_bias",
    "moe.renormalize",
    "moe.router_dtype",
    "cache.speculative.topk",
    "parallel.ep",
    "targets",
}


# The published models have no layers behind their last whole group.
BASE = {"attention.pattern.tail": ["model.num_hidden_layers=35"]}


@pytest.fixture(scope="module")
def flash() -> ModelSpec:
    return load_spec(FLASH)


def test_every_key_is_listed(flash):
    assert ALTERNATIVES.keys() | ONE_VALUE == set(flash.values())
    assert not ALTERNATIVES.keys() & ONE_VALUE


@pytest.mark.parametrize("key", ALTERNATIVES)
def test_another_value_changes_the_model(key):
    before = BASE.get(key, [])
    [value] = ALTERNATIVES[key]
    base = lower(load_spec(FLASH, overrides=before))
    flipped = lower(load_spec(FLASH, overrides=[*before, f"{key}={value}"]))
    assert flipped.to_json() != base.to_json()
