"""What `lingen import` refuses: contradictions, unsupported values, and text that is no config."""

import json

import pytest
from flash_config import BASE, PUBLISHED, imported, problems, refusal
from lingen.errors import LingenError, SpecError
from lingen.hf import import_config, import_config_data
from lingen.hf.json_text import parse_json


def test_an_unknown_key_is_refused_with_its_place_and_the_nearest_known_one():
    assert refusal(group_norm_sizes=4).render() == (
        "config.json:57:2: group_norm_sizes: unknown key\n"
        "  expected  a key whose effect on the model is known\n"
        "  fix       group_norm_size is the nearest known key"
    )


def test_an_unknown_key_inside_rope_parameters_is_refused():
    assert problems(rope_parameters={"factor": 2.0}) == ["rope_parameters.factor: unknown key"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dtype": "float32"}, "dtype"),
        ({"rope_parameters": {"rope_theta": 10000.0}}, "rope_parameters.rope_theta"),
        (
            {"rope_parameters": {"partial_rotary_factor": 1.0}},
            "rope_parameters.partial_rotary_factor",
        ),
    ],
)
def test_two_spellings_of_one_fact_must_agree(changes, key):
    (problem,) = problems(**changes)
    assert problem.startswith(f"{key}: disagrees with ")


def test_a_disagreement_shows_both_values_and_the_line_of_the_other():
    problem = refusal(rope_parameters={"rope_theta": 10000})
    assert problem.found == "10000, but 6000000 at rope_theta (line 17)"


def test_spellings_that_agree_are_all_used():
    parameters = {"rope_theta": 6000000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
    result = imported(rope_parameters=parameters, dtype="bfloat16")
    assert result.spec == imported().spec
    assert result.used["rope_parameters.rope_theta"] == "model.rope_theta"


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quant_method", "gptq"),
        ("quant_method", "awq"),
        ("quant_method", None),
        ("fmt", "e5m2"),
        ("format", "pack-quantized"),
        ("format", "int-quantized"),
    ],
)
def test_a_quantization_that_the_loader_cannot_read_is_refused(name, key, value):
    config = {"quant_method": "fp8", key: value, "bits": 4}
    assert PUBLISHED[name].problems(quantization_config=config) == [
        f"quantization_config.{key}: not supported"
    ]


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
        {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}},
        {"ignore": ["lm_head"]},
    ],
)
def test_a_quantization_that_the_loader_reads_is_ignored_key_by_key(config):
    result = imported(quantization_config={**config, "weight_block_size": [64, 128]})
    assert result.spec.quantization.weight_block_size == (64, 128)
    assert {f"quantization_config.{key}" for key in config} <= set(result.ignored)


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_in_float16_are_refused(name):
    for key in ("torch_dtype", "dtype"):
        problem = PUBLISHED[name].refusal(drop=["torch_dtype"], **{key: "float16"})
        assert (problem.key, problem.message) == (key, "not supported")
        assert problem.expected == "bfloat16 or float32"


@pytest.mark.parametrize("name", ["v2.5", "linear-v2", "v2"])
def test_other_scores_than_sigmoids_are_refused_by_the_generations_that_know_no_others(name):
    problem = PUBLISHED[name].refusal(score_function="softmax")
    assert (problem.key, problem.message) == ("score_function", "not supported")
    assert problem.expected.startswith("sigmoid")


def test_a_list_of_stop_tokens_is_refused_with_a_way_out():
    problem = refusal(eos_token_id=[156892, 156895])
    assert problem.message == "a list of tokens is not supported yet"
    assert problem.fix.startswith("--set model.eos_token_id=ID")
    result = imported(["model.eos_token_id=156895"], eos_token_id=[156892, 156895])
    assert result.spec.model.eos_token_id == 156895
    assert result.ignored["eos_token_id"] == "--set model.eos_token_id overrides it"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vocab_size": "157184"}, "vocab_size: not an integer"),
        ({"vocab_size": 157184.0}, "vocab_size: not an integer"),
        ({"vocab_size": True}, "vocab_size: not an integer"),
        ({"vocab_size": 0}, "vocab_size: too small"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers: too large"),
        ({"use_bias": 0}, "use_bias: not a boolean"),
        ({"hidden_size": {"a": 1}}, "hidden_size: not an integer"),
        ({"torch_dtype": "float64"}, "torch_dtype: not supported"),
        ({"quantization_config": {"weight_block_size": [1]}},
         "quantization_config.weight_block_size: too few items"),
        ({"rope_parameters": 5}, "rope_parameters: not supported"),
    ],
)  # fmt: skip
def test_wrong_types_and_ranges_are_refused_under_the_name_in_the_config(changes, expected):
    assert problems(**changes) == [expected]


def test_rules_between_keys_speak_of_the_lines_of_the_config():
    problem = refusal(n_group=7)
    assert problem.position.file == "config.json"
    assert problem.key == "n_group"
    assert problem.found == "n_group 7, num_experts 256 (line 26)"


def test_everything_wrong_is_reported_at_once():
    found = problems(
        ["moe.nexperts=3", "parallel.tp"],
        drop=["rope_theta"],
        linear_silu=True,
        unheard_of=1,
        rotary_dim=7,
    )
    assert sorted(text.partition(":")[0] for text in found) == [
        "", "linear_silu", "moe.nexperts", "rope_theta", "rotary_dim", "unheard_of",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n "a": 2}', "2:2: a: written twice"),
        ('{"a": {"b": 1, "b": 1}}', "1:16: b: written twice"),
        ('{"a": NaN}', "1:7: NaN is not a finite number"),
        ('{"a": -Infinity}', "1:7: -Infinity is not a finite number"),
        ('{"a": 1e999}', "1:7: 1e999 is too large for a float64"),
        (f'{{"a": {"9" * 41}}}', "1:7: a number of 41 characters"),
        ('{"a": 01}', "1:7: not a JSON value"),
        ('{"a": True}', "1:7: not a JSON value"),
        ('{"a": 1,}', "1:9: a comma without an entry behind it"),
        ('{"a" 1}', "1:6: no colon after a key"),
        ('{a: 1}', "1:2: not a key"),
        ('{"a": 1 "b": 2}', "1:9: no comma between two entries"),
        ('{"a": "x\ny"}', "1:7: a string that is not closed on its line"),
        (r'{"a": "\x"}', "1:7: an unknown escape in a string"),
        (r'{"a": "\ud800"}', "1:7: half of a surrogate pair"),
        ('{"a": 1} {}', "1:10: text after the end of the object"),
        ('{"a": [1, 2}', "1:12: no comma between two entries"),
        ('{"a": ', "1:7: not valid JSON"),
        ("[1]", "1:1: not a config"),
        ("", "1:1: empty"),
        ("[" * 99, "1:34: nested more than 32 levels deep"),
        ('{"a": 1} // x', "1:10: text after the end of the object"),
    ],
)  # fmt: skip
def test_text_that_is_not_one_strict_object_is_refused_with_its_place(text, expected):
    with pytest.raises(SpecError) as caught:
        parse_json(text, "c.json")
    assert str(caught.value).startswith(f"c.json:{expected}\n")


def test_all_repeated_keys_are_reported_at_once():
    with pytest.raises(SpecError) as caught:
        parse_json('{"a": 1, "a": NaN, "b": 1, "b": 2}', "c.json")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("indent", [None, 0, 1, "\t"])
def test_layout_has_no_effect(tmp_path, indent):
    place = tmp_path / "toy.json"
    place.write_text(json.dumps(BASE, indent=indent), newline="\r\n" if indent == 1 else "\n")
    assert import_config(place).spec == imported().spec


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{\n "a": "\xff"}', "2:8: not UTF-8"),
        (b" " * (4 * 1024 * 1024 + 1), "1:1: too large for a config.json"),
        (None, "1:1: no such file"),
    ],
)
def test_a_file_that_gives_no_text_is_refused(tmp_path, data, expected):
    place = tmp_path / "toy.json"
    if data is not None:
        place.write_bytes(data)
    with pytest.raises(SpecError) as caught:
        import_config(place)
    assert str(caught.value).startswith(f"{place}:{expected}\n")


def test_a_model_folder_gets_the_path_of_its_config(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SpecError) as caught:
        import_config(tmp_path)
    assert caught.value.problems[0].fix == f"{tmp_path}/config.json"


def test_a_config_in_memory_must_be_json():
    with pytest.raises(LingenError, match="not JSON"):
        import_config_data({**BASE, "use_cache": object()}, name="toy")
