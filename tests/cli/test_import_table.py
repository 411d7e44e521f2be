"""What becomes of each key of a config.json: the table row by row, and what is left out."""

import pytest
from flash_config import (
    PUBLISHED,
    changed,
    imported,
)
from lingen.hf.architectures import UnsupportedArchitecture
from lingen.hf.reader import known_keys
from lingen.hf.rows import Agrees, Ignored, Nested, Only, Used
from lingen.hf.table import GENERATIONS

YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 65536,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "mscale": 0.5,
    "mscale_all_dim": 0.75,
}
# A value unlike the base config's, and the spec's value then; REFUSED where only one is supported.
REFUSED = object()
USED_EXAMPLES = {
    "vocab_size": (200000, 200000),
    "hidden_size": (1024, 1024),
    "num_hidden_layers": (16, 16),
    "num_attention_heads": (64, 64),
    "hidden_act": ("gelu", REFUSED),
    "rms_norm_eps": (1e-5, 1e-5),
    "rope_theta": (10000, 10000.0),
    "rope_scaling": (YARN, YARN),
    "rope_parameters.rope_theta": (10000, 10000.0),
    "rope_parameters.rope_type": ("default", None),
    "rope_parameters.type": ("default", None),
    "rope_parameters.partial_rotary_factor": (0.25, 0.25),
    "max_position_embeddings": (4096, 4096),
    "tie_word_embeddings": (True, REFUSED),
    "use_bias": (True, True),
    "use_qkv_bias": (True, True),
    "torch_dtype": ("float32", "float32"),
    "dtype": ("float32", "float32"),
    "pad_token_id": (7, 7),
    "eos_token_id": ([8], 8),
    "layer_group_size": (4, 4),
    "head_dim": (64, 64),
    "partial_rotary_factor": (0.25, 0.25),
    "use_qk_norm": (False, False),
    "group_norm_size": (8, 8),
    "linear_silu": (True, REFUSED),
    "q_lora_rank": (None, None),
    "kv_lora_rank": (256, 256),
    "qk_nope_head_dim": (64, 64),
    "qk_rope_head_dim": (32, 32),
    "v_head_dim": (64, 64),
    "rope_interleave": (False, REFUSED),
    "intermediate_size": (8192, 8192),
    "first_k_dense_replace": (2, 2),
    "num_experts": (128, 128),
    "num_experts_per_tok": (4, 4),
    "num_shared_experts": (3, 3),
    "moe_intermediate_size": (768, 768),
    "moe_shared_expert_intermediate_size": (768, 768),
    "n_group": (4, 4),
    "topk_group": (2, 2),
    "routed_scaling_factor": (1.5, 1.5),
    "score_function": ("softmax", REFUSED),
    "scoring_func": ("sigmoid", "sigmoid"),
    "moe_router_enable_expert_bias": (True, True),
    "router_dtype": ("bf16", REFUSED),
    "num_nextn_predict_layers": (0, 0),
    "num_key_value_heads": (8, 8),
    "norm_head": (True, True),
    "norm_topk_prob": (False, False),
    "quantization_config.weight_block_size": ([64, 64], (64, 64)),
}
# Where a generation's base has that value, or no other.
OTHERWISE = {
    **{("linear-v2", "num_nextn_predict_layers"): (1, 1)},
    **{("v2", "num_nextn_predict_layers"): (1, 1)},
    **{
        (generation, "architectures"): ([published.generation.architecture],) * 2
        for generation, published in PUBLISHED.items()
    },
    **{
        (generation, "model_type"): (published.generation.model_type,) * 2
        for generation, published in PUBLISHED.items()
    },
}
# Keys that repeat others, of each generation.
REPEATING = {
    "v2.5": {"num_kv_heads_for_linear_attn", "qk_head_dim", "rotary_dim"},
    "linear-v2": {"num_kv_heads_for_linear_attn", "rotary_dim"},
    "v2": {"rotary_dim"},
    "v1": set(),
}
# Two spellings of one fact: the other one must go for the example to be taken.
OTHER_SPELLING = {
    "dtype": "torch_dtype",
    "scoring_func": "score_function",
    "rope_parameters.rope_theta": "rope_theta",
    "rope_parameters.rope_type": "rope_scaling",
    "rope_parameters.type": "rope_scaling",
    "rope_parameters.partial_rotary_factor": "partial_rotary_factor",
}


def rows(kind) -> list[tuple[str, str]]:
    """Generation and config key of every row of a kind, over all generations."""
    return [(name, path) for name, each in PUBLISHED.items() for path in each.rows_of(kind)]


def test_there_is_a_published_config_of_every_generation():
    assert [each.generation for each in PUBLISHED.values()] == list(GENERATIONS.values())


def test_examples_cover_the_tables():
    examples = {*USED_EXAMPLES, *(path for _, path in OTHERWISE)}
    assert examples == {path for _, path in rows(Used)}
    assert set(OTHERWISE) <= set(rows(Used))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_a_generation_is_of_a_known_kind(name):
    published = PUBLISHED[name]
    every_kind = published.rows_of((Used, Ignored, Only, Agrees, Nested))
    assert known_keys(published.generation) == list(every_kind)
    assert set(published.rows_of(Nested)) == {"rope_parameters", "quantization_config"}
    assert set(published.rows_of(Agrees)) == REPEATING[name]


@pytest.mark.parametrize(("name", "path"), rows(Used))
def test_a_used_key_reaches_its_spec_key(name, path):
    published = PUBLISHED[name]
    value, expected = OTHERWISE.get((name, path)) or USED_EXAMPLES[path]
    drop = ["num_kv_heads_for_linear_attn", OTHER_SPELLING.get(path)]
    if expected is REFUSED:
        assert published.problems(drop=drop, **changed(path, value)) == [f"{path}: not supported"]
        return
    result = published.imported(drop=drop, **changed(path, value))
    spec_key = published.rows_of(Used)[path].spec_key
    assert value_at(result.spec.as_tree(), spec_key) == plain(expected)
    assert result.used[path] == spec_key
    places = [place for key, place in result.spec.origins.items() if f"{key}.".startswith(spec_key)]
    assert {place.file for place in places} == {"specs/toy.yaml"}
    if path not in ("architectures", "model_type", *OTHER_SPELLING, "scoring_func"):
        is_base = path == "moe_router_enable_expert_bias"
        assert (result.spec == published.imported(drop=drop).spec) == is_base


def value_at(tree, key):
    for step in key.split("."):
        tree = tree[step]
    return tree


def plain(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("name", "path"), rows(Ignored))
def test_an_ignored_key_changes_nothing_and_is_listed_with_a_reason(name, path):
    published = PUBLISHED[name]
    without = published.imported(drop=[path])
    values = (0, 0.1, True, None, "text", [1, {"a": 2}], {"rest": 1})
    for value in values if name == "v2.5" else values[-1:]:
        result = published.imported(**{path: value})
        assert result.text == without.text
        assert result.ignored[path] == published.rows_of(Ignored)[path].reason


@pytest.mark.parametrize(("name", "path"), rows(Only))
def test_a_key_with_one_supported_value_refuses_others(name, path):
    published = PUBLISHED[name]
    row = published.rows_of(Only)[path]
    for value in row.values:
        assert published.imported(**changed(path, value)).ignored[path].endswith(row.reason)
    accepted = {(type(value), value) for value in row.values}
    others = (1, 0, True, False, "other")
    wrong = [value for value in others if (type(value), value) not in accepted]
    for value in wrong if name == "v2.5" else wrong[-1:]:
        if path == "short_conv_kernel_size":
            with pytest.raises(UnsupportedArchitecture):
                published.imported(**{path: value})
        else:
            assert published.problems(**changed(path, value)) == [f"{path}: not supported"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("topk_method", "greedy"),
        ("use_sliding_window", True),
        ("sliding_window", 4096),
        ("use_rmsnorm", False),
        ("attention_bias", True),
        ("norm_head", True),
        ("norm_softmax", True),
        ("expert_swiglu_limit_list", [0, 4]),
        ("share_expert_swiglu_limit_list", [0, 5]),
        ("mtp_use_kda", True),
        ("use_mla_nope", True),
        ("up_proj_norm", True),
        ("value_norm", True),
        ("scale_router_input", True),
        ("gated_attention_proj_granularity_type", "head_wise"),
    ],
)
def test_a_switch_that_would_change_the_mathematics_is_refused(path, value):
    for published in PUBLISHED.values():
        if path in published.rows_of(Only):
            assert published.problems(**{path: value}) == [f"{path}: not supported"]
    assert path in PUBLISHED["v2.5"].rows_of(Only)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("num_kv_heads_for_linear_attn", ["heads", 0], [8, None, True, "32"]),
        ("qk_head_dim", [192], [128, 0, None]),
        ("rotary_dim", [64], [128, 32, None]),
    ],
)
def test_a_key_that_repeats_others_must_agree_with_them(name, key, right, wrong):
    published = PUBLISHED[name]
    if key not in REPEATING[name]:
        assert published.problems(**{key: 0}) == [f"{key}: a key of another generation"]
        return
    for value in right:
        value = published.config["num_attention_heads"] if value == "heads" else value
        assert published.imported(**{key: value}).ignored[key].startswith(str(value))
    for value in wrong:
        assert published.problems(**{key: value}) == [f"{key}: contradicts other keys"]


def test_reasons_are_given_for_keys_that_engines_disagree_on():
    ignored = imported(
        norm_topk_prob=False, moe_router_enable_expert_bias=False, bos_token_id=1
    ).ignored
    assert ignored["norm_topk_prob"] == (
        "the reference always normalises the weights of the chosen experts"
    )
    assert ignored["moe_router_enable_expert_bias"] == (
        "false, but the reference ignores it: the bias is always on"
    )


@pytest.mark.parametrize(("value", "reason"), [({}, "empty"), (None, "null")])
def test_an_object_that_says_nothing_is_listed_as_ignored(value, reason):
    result = imported(rope_parameters=value, quantization_config=value)
    assert result.ignored["rope_parameters"] == reason
    assert result.ignored["quantization_config"] == reason
