"""What becomes of each key of a config.json: the table row by row, and what is left out."""

import pytest
from flash_config import (
    DECAY_OFFSET,
    REQUIRED,
    SPECS,
    imported,
    problems,
    refusal,
    rows_of,
)
from lingen.hf.architectures import UnsupportedArchitecture
from lingen.hf.reading import known_keys
from lingen.hf.rows import Agrees, Ignored, Nested, Only, Used
from lingen.hf.table import ABSENCES
from lingen.spec import load_spec
from lingen.spec.schema import schema_at

# A value unlike the base config's, and the spec's value then; REFUSED where only one is supported.
REFUSED = object()
USED_EXAMPLES = {
    "architectures": (["BailingMoeV2_5ForCausalLM"], ("BailingMoeV2_5ForCausalLM",)),
    "model_type": ("bailing_hybrid", "bailing_hybrid"),
    "vocab_size": (200000, 200000),
    "hidden_size": (2048, 2048),
    "num_hidden_layers": (16, 16),
    "num_attention_heads": (16, 16),
    "hidden_act": ("gelu", REFUSED),
    "rms_norm_eps": (1e-5, 1e-5),
    "rope_theta": (10000, 10000.0),
    "rope_scaling": ({"rope_type": "default"}, None),
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
    "num_shared_experts": (2, 2),
    "moe_intermediate_size": (512, 512),
    "moe_shared_expert_intermediate_size": (512, 512),
    "n_group": (4, 4),
    "topk_group": (2, 2),
    "routed_scaling_factor": (1.5, 1.5),
    "score_function": ("softmax", REFUSED),
    "scoring_func": ("sigmoid", "sigmoid"),
    "moe_router_enable_expert_bias": (True, True),
    "router_dtype": ("bf16", REFUSED),
    "num_nextn_predict_layers": (0, 0),
    "quantization_config.weight_block_size": ([64, 64], (64, 64)),
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


def test_examples_cover_the_table():
    assert set(USED_EXAMPLES) == set(rows_of(Used))
    assert set(known_keys()) == set(rows_of((Used, Ignored, Only, Agrees, Nested)))
    assert set(rows_of(Nested)) == {"rope_parameters", "quantization_config"}
    assert set(rows_of(Agrees)) == {"num_kv_heads_for_linear_attn", "qk_head_dim", "rotary_dim"}


@pytest.mark.parametrize("path", rows_of(Used))
def test_a_used_key_reaches_its_spec_key(path):
    value, expected = USED_EXAMPLES[path]
    section, _, inner = path.rpartition(".")
    changes = {section: {inner: value}} if section else {path: value}
    drop = ["num_kv_heads_for_linear_attn", OTHER_SPELLING.get(path)]
    if expected is REFUSED:
        assert problems(drop=drop, **changes) == [f"{path}: not supported"]
        return
    result = imported(drop=drop, **changes)
    spec_key = rows_of(Used)[path].spec_key
    assert result.spec.values()[spec_key] == expected
    assert result.used[path] == spec_key
    assert result.spec.origin(spec_key).file == "specs/toy.yaml"


@pytest.mark.parametrize("path", rows_of(Ignored))
def test_an_ignored_key_changes_nothing_and_is_listed_with_a_reason(path):
    without = imported(drop=[path])
    for value in (0, 0.1, True, None, "text", [1, {"a": 2}], {"rest": 1}):
        result = imported(**{path: value})
        assert result.text == without.text
        assert result.ignored[path] == rows_of(Ignored)[path].reason


@pytest.mark.parametrize("path", rows_of(Only))
def test_a_key_with_one_supported_value_refuses_others(path):
    row = rows_of(Only)[path]
    for value in row.values:
        assert imported(**{path: value}).ignored[path].endswith(row.reason)
    accepted = {(type(value), value) for value in row.values}
    others = (1, 0, True, False, "other")
    wrong = [value for value in others if (type(value), value) not in accepted]
    for value in wrong:
        if path == "short_conv_kernel_size":
            with pytest.raises(UnsupportedArchitecture):
                imported(**{path: value})
        else:
            assert problems(**{path: value}) == [f"{path}: not supported"]


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("num_kv_heads_for_linear_attn", [32, 0], [16, None, True, "32"]),
        ("qk_head_dim", [192], [128, 0, None]),
        ("rotary_dim", [64], [128, 32, None]),
    ],
)
def test_a_key_that_repeats_others_must_agree_with_them(key, right, wrong):
    for value in right:
        assert imported(**{key: value}).ignored[key].startswith(str(value))
    for value in wrong:
        assert problems(**{key: value}) == [f"{key}: contradicts other keys"]


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


def test_the_rest_of_a_quantization_config_is_ignored_key_by_key():
    config = {"quant_method": "fp8", "weight_block_size": [64, 128], "ignore": ["lm_head"]}
    result = imported(quantization_config=config)
    assert result.spec.quantization.weight_block_size == (64, 128)
    assert "quantization_config.quant_method" in result.ignored
    assert "quantization_config.ignore" in result.ignored


@pytest.mark.parametrize("path", [key for key in REQUIRED if key != "architectures"])
def test_a_key_that_only_the_config_can_know_is_never_taken_from_the_family(path):
    assert load_spec(SPECS / "ling-2.6-flash.yaml").values()[REQUIRED[path]] is not REFUSED
    mathematics = schema_at(REQUIRED[path]).get("x-lingen-mathematics")
    message = "missing, and it changes the mathematics" if mathematics else "missing"
    drop = [path, "num_kv_heads_for_linear_attn", "moe_shared_expert_intermediate_size"]
    assert f"{path}: {message}" in problems(drop=drop)


def test_all_mathematics_of_the_schema_is_either_required_absent_with_a_meaning_or_unsayable():
    unsayable = {
        "attention.pattern.tail",
        "attention.lightning.decay.formula",
        DECAY_OFFSET,
        "attention.lightning.decay.epsilon",
        "attention.mla.lora_norm_eps",
        "moe.renormalize",
        "cache.kv_dtype",
        "cache.state_dtype",
    }
    from lingen.spec.schema import known_keys as spec_keys

    mathematics = {key for key, part in spec_keys().items() if part.get("x-lingen-mathematics")}
    assert mathematics - set(REQUIRED.values()) - set(ABSENCES) == unsayable


def test_all_missing_keys_are_listed_at_once():
    missing = ["rope_theta", "group_norm_size", "kv_lora_rank", "layer_group_size"]
    assert len(problems(drop=missing)) == len(missing)


def test_a_missing_rope_theta_is_an_error_that_says_both_ways_out():
    assert refusal(drop=["rope_theta"]).render() == (
        "config.json:1:1: rope_theta: missing, and it changes the mathematics\n"
        "  expected  a number above 0 and at most 1000000000000\n"
        "  fix       state it in the file, or give --set model.rope_theta=VALUE"
    )


def test_a_missing_key_may_be_set_by_hand():
    result = imported(["model.rope_theta=6000000"], drop=["rope_theta"])
    assert result.spec.model.rope_theta == 6e6


@pytest.mark.parametrize(
    ("path", "spec_key", "value"),
    [
        ("q_lora_rank", "attention.mla.q_lora_rank", None),
        ("rope_scaling", "model.rope_scaling", None),
        ("num_nextn_predict_layers", "mtp.num_nextn_predict_layers", 0),
        ("moe_shared_expert_intermediate_size", "moe.moe_shared_expert_intermediate_size", 1024),
    ],
)
def test_absence_with_a_documented_meaning_is_written_out_and_noted(path, spec_key, value):
    result = imported(drop=[path])
    assert result.spec.values()[spec_key] == value
    assert result.spec.origin(spec_key).file == "specs/toy.yaml"
    assert any(note.startswith(f"{spec_key}: ") for note in result.notes)
    assert f"config.json has no such key: {ABSENCES[spec_key].note}" in result.text


@pytest.mark.parametrize(
    ("path", "spec_key", "value"),
    [
        ("score_function", "moe.score_function", "sigmoid"),
        ("router_dtype", "moe.router_dtype", "float32"),
        ("moe_router_enable_expert_bias", "moe.expert_bias", True),
    ],
)
def test_the_routing_that_the_reference_always_does_may_be_left_to_the_family(
    path, spec_key, value
):
    result = imported(drop=[path])
    assert result.spec.values()[spec_key] == value
    assert spec_key in result.from_family


@pytest.mark.parametrize(
    "path", ["num_nextn_predict_layers", "moe_shared_expert_intermediate_size"]
)
def test_null_is_absence_where_that_is_its_meaning(path):
    assert imported(**{path: None}).spec == imported(drop=[path]).spec


def test_a_null_pad_token_is_refused():
    assert refusal(pad_token_id=None).message == "not an integer"


def test_the_decay_offset_comes_first_of_what_the_family_says():
    result = imported()
    assert next(iter(result.from_family)) == DECAY_OFFSET
    assert result.notes[0].startswith(f"{DECAY_OFFSET}: config.json is silent on it")
    assert "families/bailing-moe-v2.5 says 0" in result.text.split("\n\n")[0]


def test_what_comes_from_the_family_is_all_that_the_text_does_not_say():
    result = imported()
    assert set(result.from_family) == {
        key
        for key in result.spec.values()
        if result.spec.origin(key).file == "specs/families/bailing-moe-v2.5.yaml"
    }
