"""What a config.json leaves out: required, of a documented meaning, or the family's to say."""

import pytest
from flash_config import DECAY_OFFSET, PUBLISHED, SPECS, imported, problems, refusal
from lingen.spec import load_spec
from lingen.spec.schema import schema_at

# Spec keys that change the mathematics and that no config.json of the generation can say.
UNSAYABLE = {
    "v2.5": {
        "attention.pattern.tail",
        "attention.lightning.decay.formula",
        DECAY_OFFSET,
        "attention.lightning.decay.epsilon",
        "attention.mla.lora_norm_eps",
        "moe.renormalize",
        "model.norm_head",
        "cache.kv_dtype",
        "cache.state_dtype",
    },
    "linear-v2": {
        "attention.pattern.tail",
        "attention.lightning.decay.formula",
        DECAY_OFFSET,
        "attention.lightning.decay.epsilon",
        "moe.renormalize",
        "model.norm_head",
        "cache.kv_dtype",
        "cache.state_dtype",
    },
    "v2": {
        "attention.pattern.layer_group_size",
        "attention.pattern.tail",
        "moe.renormalize",
        "model.norm_head",
        "cache.kv_dtype",
        "cache.state_dtype",
    },
    "v1": {
        "attention.pattern.layer_group_size",
        "attention.pattern.tail",
        "attention.gqa.partial_rotary_factor",
        "attention.gqa.use_qk_norm",
        "mtp.num_nextn_predict_layers",
        "moe.n_group",
        "moe.topk_group",
        "moe.routed_scaling_factor",
        "moe.score_function",
        "moe.expert_bias",
        "moe.router_dtype",
        "cache.kv_dtype",
        "cache.state_dtype",
    },
}
REQUIRED = [
    (name, path)
    for name, published in PUBLISHED.items()
    for path in published.required
    if path != "architectures"
]


@pytest.mark.parametrize(("name", "path"), REQUIRED)
def test_a_key_that_only_the_config_can_know_is_never_taken_from_the_family(name, path):
    published = PUBLISHED[name]
    spec_key = published.required[path]
    assert spec_key in load_spec(SPECS / f"{published.name}.yaml").values()
    mathematics = schema_at(spec_key).get("x-lingen-mathematics")
    message = "missing, and it changes the mathematics" if mathematics else "missing"
    drop = [path, "num_kv_heads_for_linear_attn", "moe_shared_expert_intermediate_size"]
    assert f"{path}: {message}" in published.problems(drop=drop)


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_mathematics_is_either_required_absent_with_a_meaning_or_unsayable(name):
    published = PUBLISHED[name]
    keys = load_spec(SPECS / f"{published.name}.yaml").values()
    mathematics = {key for key in keys if schema_at(key).get("x-lingen-mathematics")}
    said = set(published.required.values()) | set(published.generation.absences)
    assert mathematics - said == UNSAYABLE[name]


def test_all_missing_keys_are_listed_at_once():
    missing = ["rope_theta", "group_norm_size", "kv_lora_rank", "layer_group_size"]
    assert len(problems(drop=missing)) == len(missing)


def test_a_missing_rope_theta_is_an_error_that_says_both_ways_out():
    assert refusal(drop=["rope_theta"]).render() == (
        "config.json:1:1: rope_theta: missing, and it changes the mathematics\n"
        "  expected  a number above 1 and at most 1000000000000\n"
        "  fix       state it in the file, or give --set model.rope_theta=VALUE"
    )


def test_a_missing_key_may_be_set_by_hand():
    result = imported(["model.rope_theta=6000000"], drop=["rope_theta"])
    assert result.spec.model.rope_theta == 6e6


@pytest.mark.parametrize(
    ("name", "path", "spec_key", "value"),
    [
        ("v2.5", "q_lora_rank", "attention.mla.q_lora_rank", None),
        ("v2.5", "rope_scaling", "model.rope_scaling", None),
        ("v2.5", "num_nextn_predict_layers", "mtp.num_nextn_predict_layers", 0),
        ("v2.5", "moe_shared_expert_intermediate_size",
         "moe.moe_shared_expert_intermediate_size", 1024),
        ("linear-v2", "num_nextn_predict_layers", "mtp.num_nextn_predict_layers", 0),
        ("linear-v2", "no such key", "attention.gqa.head_dim", 128),
        ("linear-v2", "no such key", "attention.gqa.partial_rotary_factor", 0.5),
        ("linear-v2", "no such key", "attention.gqa.use_qk_norm", True),
        ("v2", "partial_rotary_factor", "attention.gqa.partial_rotary_factor", 1.0),
        ("v1", "head_dim", "attention.gqa.head_dim", 128),
        ("v1", "norm_head", "model.norm_head", False),
        ("v1", "moe_shared_expert_intermediate_size",
         "moe.moe_shared_expert_intermediate_size", 1408),
    ],
)  # fmt: skip
def test_absence_with_a_documented_meaning_is_written_out_and_noted(name, path, spec_key, value):
    published = PUBLISHED[name]
    result = published.imported(drop=[path])
    assert result.spec.values()[spec_key] == value
    assert result.spec.origin(spec_key).file == "specs/toy.yaml"
    assert any(note.startswith(f"{spec_key}: ") for note in result.notes)
    note = published.generation.absences[spec_key].note
    assert f"config.json has no such key: {note}" in result.text


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
        if result.spec.origin(key).file.startswith("specs/families/")
    }


def test_the_head_size_of_the_first_generation_is_hidden_size_over_heads():
    v1 = PUBLISHED["v1"]
    assert v1.imported(hidden_size=1024).spec.attention.gqa.head_dim == 64
    assert v1.imported(hidden_size=1024, head_dim=None).spec.attention.gqa.head_dim == 64
    assert v1.imported(hidden_size=1024, head_dim=96).spec.attention.gqa.head_dim == 96
    by_hand = v1.imported(["model.hidden_size=1024"])
    assert by_hand.spec.attention.gqa.head_dim == 64
    assert v1.problems(hidden_size="2048") == ["hidden_size: not an integer"]
    assert v1.problems(num_attention_heads=0) == ["num_attention_heads: too small"]


def test_a_number_of_rotated_dimensions_alone_gives_the_factor():
    for name in ("v2.5", "linear-v2", "v2"):
        published = PUBLISHED[name]
        result = published.imported(drop=["partial_rotary_factor"], rotary_dim=32)
        kinds = (result.spec.attention.lightning, result.spec.attention.gqa)
        assert {kind.partial_rotary_factor for kind in kinds if kind} == {0.25}
        assert result.used["rotary_dim"].endswith("partial_rotary_factor")
        assert "rotary_dim" not in result.ignored


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary_dim": 129}, "rotary_dim: not a number of dimensions of a head"),
        ({"rotary_dim": 0}, "rotary_dim: not a number of dimensions of a head"),
        ({"rotary_dim": "64"}, "rotary_dim: not a number of dimensions of a head"),
        ({"rotary_dim": None}, "rotary_dim: not a number of dimensions of a head"),
        ({"rotary_dim": 64, "head_dim": "128"}, "head_dim: not an integer"),
        ({"rotary_dim": 63}, "rotary_dim: the rotated width int(head_dim * partial_rotary_factor)"
         " is 63"),
    ],
)  # fmt: skip
def test_a_wrong_number_of_rotated_dimensions_is_refused_under_its_name(changes, message):
    found = PUBLISHED["v2"].problems(drop=["partial_rotary_factor"], **changes)
    assert message in found
    assert all(text.startswith(("rotary_dim: ", "head_dim: ")) for text in found)


def test_a_factor_set_by_hand_counts_before_the_number_of_rotated_dimensions():
    result = PUBLISHED["v2"].imported(
        ["attention.gqa.partial_rotary_factor=1.0"], drop=["partial_rotary_factor"], rotary_dim=64
    )
    assert result.spec.attention.gqa.partial_rotary_factor == 1.0
    assert "rotary_dim" in result.ignored


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("head_dim=64", "head_dim", 64),
        ("partial_rotary_factor=0.25", "partial_rotary_factor", 0.25),
        ("use_qk_norm=false", "use_qk_norm", False),
    ],
)
def test_what_is_set_by_hand_for_lightning_layers_counts_for_both_kinds(setting, key, value):
    attention = PUBLISHED["linear-v2"].imported([f"attention.lightning.{setting}"]).spec.attention
    assert (getattr(attention.lightning, key), getattr(attention.gqa, key)) == (value, value)


def test_a_wrong_value_for_both_kinds_of_layers_is_reported_once():
    assert PUBLISHED["linear-v2"].problems(head_dim="128") == ["head_dim: not an integer"]
    (problem,) = PUBLISHED["linear-v2"].found_problems(['attention.lightning.head_dim="128"'])
    assert problem.key == "attention.lightning.head_dim"
