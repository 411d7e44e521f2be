"""A key that passes validation and changes nothing would be a lie: flip each, and look.

Looked at is the generated code without comments and docstrings: what runs, not what is said.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest
from lingen.emit.render import render
from lingen.errors import SpecError
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec
from lingen.spec.dump import flow
from spec_bases import BASES, SPECS, YARN

FULL = {
    "v2.5": "ling-2.6-flash",
    "linear-v2": "ring-mini-linear-2.0",
    "v2": "ling-mini-2.0",
    "v1": "ling-lite-1.5",
    "yarn": "ling-2.6-flash",
}
ONE_TABLE = load_spec(SPECS / "ling-2.6-flash.yaml").values()["kernels.moe.tables"][0]
YARN_SETTINGS = tuple(
    f"model.rope_scaling.{key}={'null' if value is None else value}" for key, value in YARN.items()
)

# Another legal value of each key.
ALTERNATIVES: dict[str, str] = {
    "model.name": "another-name",
    "model.vocab_size": "157200",
    "model.hidden_size": "4224",
    "model.num_hidden_layers": "40",
    "model.num_attention_heads": "64",
    "model.rms_norm_eps": "1e-5",
    "model.rope_theta": "2e6",
    "model.max_position_embeddings": "262144",
    "model.use_bias": "true",
    "model.use_qkv_bias": "true",
    "model.torch_dtype": "float32",
    "model.pad_token_id": "1",
    "model.eos_token_id": "1",
    "model.norm_head": "true",
    "model.rope_scaling.factor": "4",
    "model.rope_scaling.original_max_position_embeddings": "32768",
    "model.rope_scaling.beta_fast": "16",
    "model.rope_scaling.beta_slow": "2",
    "model.rope_scaling.mscale": "0.707",
    "model.rope_scaling.mscale_all_dim": "0.707",
    "attention.pattern.layer_group_size": "4",
    "attention.pattern.tail": "linear",
    "attention.lightning.head_dim": "64",
    "attention.lightning.partial_rotary_factor": "0.25",
    "attention.lightning.use_qk_norm": "false",
    "attention.lightning.group_norm_size": "8",
    "attention.lightning.decay.layer_offset": "-1",
    "attention.lightning.decay.epsilon": "1e-4",
    "attention.lightning.backend": "minimax",
    "attention.mla.q_lora_rank": "null",
    "attention.mla.kv_lora_rank": "256",
    "attention.mla.qk_nope_head_dim": "64",
    "attention.mla.qk_rope_head_dim": "32",
    "attention.mla.v_head_dim": "64",
    "attention.mla.lora_norm_eps": "1e-5",
    "attention.gqa.num_key_value_heads": "8",
    "attention.gqa.head_dim": "64",
    "attention.gqa.partial_rotary_factor": "0.25",
    "attention.gqa.use_qk_norm": "false",
    "mlp.intermediate_size": "8192",
    "mlp.first_k_dense_replace": "2",
    "moe.num_experts": "128",
    "moe.num_experts_per_tok": "4",
    "moe.num_shared_experts": "3",
    "moe.moe_intermediate_size": "768",
    "moe.moe_shared_expert_intermediate_size": "768",
    "moe.n_group": "4",
    "moe.topk_group": "2",
    "moe.routed_scaling_factor": "1.5",
    "moe.renormalize": "false",
    "moe.overlap_shared_experts": "false",
    "mtp.num_nextn_predict_layers": "0",
    "cache.kv_dtype": "float16",
    "cache.state_dtype": "bfloat16",
    "cache.page_size": "128",
    "cache.mamba_full_memory_ratio": "0.5",
    "cache.prefix_cache": "false",
    "cache.extra_buffer": "no-overlap",
    "cache.verify_states": "snapshot",
    "cache.speculative.num_draft_tokens": "4",
    "quantization.checkpoint_formats": "[bfloat16]",
    "quantization.weight_block_size": "[64, 64]",
    "quantization.fp8_mtp": "false",
    "kernels.lightning.chunk_size": "32",
    "kernels.moe.tables": "[]",
    "parallel.tp": "[1, 2]",
    "parallel.pp": "[1]",
    "sglang.tp_size": "8",
    "sglang.pp_size": "2",
}
# Where another value is needed, or one that leaves the published one.
OTHERWISE: dict[tuple[str, str], str] = {
    ("v2.5", "parallel.tp"): "[1, 2, 4]",  # the plugin's launcher serves with 4
    ("v2.5", "cache.kv_dtype"): "float32",  # the engine has it for weights of that kind
    **{(base, "kernels.moe.tables"): flow([ONE_TABLE]) for base in ("linear-v2", "v2", "v1")},
    ("v1", "attention.gqa.use_qk_norm"): "true",
    **{(base, "mtp.num_nextn_predict_layers"): "1" for base in ("linear-v2", "v2", "v1")},
}
# What the base must say for the key to have a meaning.
BEFORE: dict[tuple[str, str], tuple[str, ...]] = {
    ("v2.5", "cache.kv_dtype"): ("model.torch_dtype=float32",),
    # The published models have no layers behind their last whole group.
    ("v2.5", "attention.pattern.tail"): ("model.num_hidden_layers=35",),
    ("linear-v2", "attention.pattern.tail"): ("model.num_hidden_layers=23",),
    ("v1", "mlp.intermediate_size"): ("mlp.first_k_dense_replace=1",),
    # The formula takes both or none.
    ("yarn", "model.rope_scaling.mscale"): ("model.rope_scaling.mscale_all_dim=1",),
    **{
        (base, "cache.speculative.num_draft_tokens"): ("mtp.num_nextn_predict_layers=1",)
        for base in ("linear-v2", "v2", "v1")
    },
}
# What must go with the other value: config.json has one key for both kinds of layers.
ALONG: dict[tuple[str, str], tuple[str, ...]] = {
    ("linear-v2", f"attention.{one}.{key}"): (f"attention.{other}.{key}={value}",)
    for one, other in (("gqa", "lightning"), ("lightning", "gqa"))
    for key, value in (("head_dim", 64), ("partial_rotary_factor", 0.25))
} | {
    (base, "model.rope_scaling"): YARN_SETTINGS for base in ("v2.5", "linear-v2", "v2", "v1")
}  # fmt: skip

# One value is supported so far; the spec states it so that a reader sees the decision.
ONE_VALUE = {
    "model.architectures",
    "model.model_type",
    "model.hidden_act",
    "model.rope_scaling.rope_type",
    "model.tie_word_embeddings",
    "attention.lightning.linear_silu",
    "attention.lightning.decay.formula",
    "attention.mla.rope_interleave",
    "moe.score_function",
    "moe.expert_bias",
    "moe.router_dtype",
    "cache.speculative.topk",
    "parallel.ep",
    "targets",
}
# One value goes with the scores, or with the kinds of layers, of these architectures.
ONE_VALUE_IN = {
    *((base, "moe.renormalize") for base in ("v2.5", "linear-v2", "v2")),
    *(("v1", f"moe.{key}") for key in ("n_group", "topk_group", "routed_scaling_factor")),
    ("v2", "attention.pattern.layer_group_size"),
    ("v1", "attention.pattern.layer_group_size"),
}
# Decisions that the torch package does not take from the spec so far: they change the IR only.
NOT_IN_THE_PACKAGE_YET = {
    "cache.mamba_full_memory_ratio",  # the caller gives the sizes of both pools
    "cache.prefix_cache",  # the package shares no prefixes itself: its caller gives pages and slots
    "cache.extra_buffer",  # as prefix_cache
    "quantization.fp8_mtp",  # loading looks at each tensor; `lingen plan` asks what a card holds
    "parallel.pp",  # declared sizes, which the rules hold the model to; any that fit are accepted
}
# Of these, what the SGLang plugin takes.
IN_THE_PLUGIN = {
    "cache.mamba_full_memory_ratio",
    "cache.prefix_cache",
    "cache.extra_buffer",
}
# Keys that every model states and that have no meaning without lightning layers.
WITHOUT_LIGHTNING = {
    "attention.pattern.tail",  # no layer stands behind the last group of one
    "cache.state_dtype",  # no recurrent state
}
# Keys that every model states and that have no meaning without an MTP layer.
WITHOUT_DRAFTS = {"cache.verify_states"}

FLIPS = [
    (base, key)
    for base, spec in BASES.items()
    for key in spec.values()
    if key not in ONE_VALUE and (base, key) not in ONE_VALUE_IN
    # The other keys of a model with scaled frequencies are flipped without them.
    if base != "yarn" or key.startswith("model.rope_scaling.")
]


def ir_of(base: str, *settings: str) -> ModelIR:
    own = YARN_SETTINGS if base == "yarn" else ()
    keys = {text.partition("=")[0] for text in settings}
    kept = [text for text in own if text.partition("=")[0] not in keys]
    return lower(load_spec(SPECS / f"{FULL[base]}.yaml", [*kept, *settings]))


def settings_of(base: str, key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Settings of the base and of the flipped model."""
    before, along = BEFORE.get((base, key), ()), ALONG.get((base, key), ())
    own = () if key == "model.rope_scaling" else (f"{key}={other_value(base, key)}",)
    return before, (*before, *along, *own)


def other_value(base: str, key: str) -> str:
    return OTHERWISE.get((base, key), ALTERNATIVES[key])


@cache
def code_of(base: str, *settings: str) -> dict[str, str]:
    """What runs of every generated file, those of the plugin too."""
    ir = ir_of(base, *settings)
    return {
        path: what_runs(data)
        for target in ir.targets
        for path, data in render(ir, target).items()
        if path.endswith(".py")
    }


def what_runs(source: bytes) -> str:
    """The syntax tree without docstrings; comments are no part of it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        is_block = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if is_block and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def is_without_effect(base: str, key: str) -> bool:
    has_lightning = BASES[base].attention.lightning is not None
    has_drafts = BASES[base].mtp.num_nextn_predict_layers > 0
    has_plugin = "sglang" in BASES[base].targets
    return (
        (key in NOT_IN_THE_PACKAGE_YET and not (has_plugin and key in IN_THE_PLUGIN))
        or (not has_lightning and key in WITHOUT_LIGHTNING)
        or (not has_drafts and key in WITHOUT_DRAFTS)
    )


def test_every_key_is_listed():
    keys = {key for spec in BASES.values() for key in spec.values()}
    assert ALTERNATIVES.keys() | ONE_VALUE | {"model.rope_scaling"} == keys
    assert not ALTERNATIVES.keys() & ONE_VALUE
    places = {(base, key) for base, spec in BASES.items() for key in spec.values()}
    assert places >= {*OTHERWISE, *BEFORE, *ALONG, *ONE_VALUE_IN}
    assert keys >= NOT_IN_THE_PACKAGE_YET | WITHOUT_LIGHTNING | WITHOUT_DRAFTS


@pytest.mark.parametrize(("base", "key"), FLIPS)
def test_another_value_changes_the_model_and_the_code_that_runs(base, key):
    before, after = settings_of(base, key)
    assert ir_of(base, *after).to_json() != ir_of(base, *before).to_json()
    changes_code = code_of(base, *after) != code_of(base, *before)
    assert changes_code != is_without_effect(base, key)


@pytest.mark.parametrize(("base", "key"), sorted(ONE_VALUE_IN))
def test_no_other_value_is_accepted_where_the_architecture_leaves_one(base, key):
    with pytest.raises(SpecError) as caught:
        ir_of(base, f"{key}={other_value(base, key)}")
    assert all(problem.key == key for problem in caught.value.problems)


def test_comments_and_docstrings_are_not_what_runs():
    one = b'"""A."""\nx = 1  # y\n\ndef f():\n    """B."""\n    return 2\n'
    other = b"x = 1\ndef f():\n    return 2\n"
    assert what_runs(one) == what_runs(other)
    assert what_runs(one) != what_runs(other.replace(b"2", b"3"))
