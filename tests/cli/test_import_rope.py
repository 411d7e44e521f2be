"""What becomes of `rope_scaling`: none, YaRN completed and noted, or a refusal."""

import pytest
from flash_config import PUBLISHED, imported, problems, refusal

YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 131072,
    "beta_fast": 16,
    "beta_slow": 2,
    "mscale": 0.5,
    "mscale_all_dim": 0.75,
}
UNSUPPORTED = "scaled rotary frequencies other than YaRN are not supported yet"


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "linear", "factor": 2.0}, UNSUPPORTED),
        ({"rope_type": "default", "factor": 2.0}, UNSUPPORTED),
        ({"rope_type": "default", "type": "yarn"}, UNSUPPORTED),
        ({"factor": 2.0}, UNSUPPORTED),
        ({}, UNSUPPORTED),
        (2.0, "not a scaling"),
        ("yarn", "not a scaling"),
        ([], "not a scaling"),
        ({"rope_type": "yarn"}, "yarn without factor and original_max_position_embeddings"),
        ({"type": "yarn", "factor": 2}, "yarn without original_max_position_embeddings"),
        (
            {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1},
            "yarn without factor",
        ),
        (
            {"rope_type": "yarn", "attention_factor": 1.0, "truncate": False},
            "attention_factor, truncate: not supported with yarn yet",
        ),
        ({"rope_type": "yarn", "a\x1bb": 1}, '"a\\u001bb": not supported with yarn yet'),
    ],
)
def test_a_scaling_that_cannot_be_taken_over_is_refused_once(name, scaling, message):
    assert PUBLISHED[name].problems(rope_scaling=scaling) == [f"rope_scaling: {message}"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("factor", "2", "not a number"),
        ("factor", 0.5, "too small"),
        ("factor", True, "not a number"),
        ("original_max_position_embeddings", 0, "too small"),
        ("original_max_position_embeddings", 1.5, "not an integer"),
        ("beta_fast", "x", "not a number"),
        ("beta_fast", 0.5, "not above beta_slow"),
        ("beta_slow", -1, "too small"),
        ("mscale", [1], "not a number or null"),
    ],
)
def test_a_wrong_value_of_a_scaling_is_refused_under_its_name_and_line(key, value, message):
    problem = refusal(rope_scaling={**YARN, key: value})
    assert (problem.key, problem.message) == (f"rope_scaling.{key}", message)
    assert problem.position.file == "config.json"
    assert problem.position.line == 19 + list(YARN).index(key)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_scaling_that_states_all_is_taken_as_it_is(name):
    result = PUBLISHED[name].imported(rope_scaling=YARN)
    assert result.spec.as_tree()["model"]["rope_scaling"] == YARN
    assert not any("rope_scaling" in note for note in result.notes)
    assert result.used["rope_scaling"] == "model.rope_scaling"


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("kind", ["rope_type", "type"])
@pytest.mark.parametrize("rest", [{}, {"beta_fast": None, "mscale": None}])
def test_what_a_yarn_scaling_leaves_out_is_stated_as_transformers_takes_it_and_noted(
    name, kind, rest
):
    stated = {kind: "yarn", "factor": 4, "original_max_position_embeddings": 32768}
    result = PUBLISHED[name].imported(rope_scaling={**stated, **rest})
    scaling = result.spec.model.rope_scaling
    assert (scaling.beta_fast, scaling.beta_slow) == (32.0, 1.0)
    assert (scaling.mscale, scaling.mscale_all_dim) == (None, None)
    assert (scaling.rope_type, scaling.factor) == ("yarn", 4.0)
    noted = [note.partition(":")[0] for note in result.notes if "rope_scaling" in note]
    silent = ["beta_fast", "beta_slow", "mscale", "mscale_all_dim"]
    if "mscale" in rest:
        silent.remove("mscale")
    assert noted == [f"model.rope_scaling.{key}" for key in silent]
    assert "beta_fast: 32.0\n" in result.text
    assert "default of the transformers library\n    beta_fast" in result.text


def test_values_of_a_scaling_may_be_set_by_hand():
    result = imported(["model.rope_scaling.beta_fast=24"], rope_scaling={
        "rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 131072
    })  # fmt: skip
    assert result.spec.model.rope_scaling.beta_fast == 24
    assert not any("beta_fast" in note for note in result.notes)
    assert imported(["model.rope_scaling=null"], rope_scaling=YARN).spec == imported().spec
    assert imported(["model.rope_scaling=null"], rope_scaling="?").spec == imported().spec


def test_a_factor_set_by_hand_over_no_scaling_names_all_that_is_missing():
    found = problems(["model.rope_scaling.factor=2"])
    keys = [f"model.rope_scaling.{key}" for key in YARN if key != "factor"]
    assert found == [f"{key}: missing, and it changes the mathematics" for key in sorted(keys)]


def test_a_scaling_is_read_from_rope_scaling_only():
    found = problems(drop=["rope_scaling"], rope_parameters={"rope_type": "yarn"})
    assert found == ["rope_parameters.rope_type: scaled rotary frequencies are not read from here"]
    found = problems(rope_scaling=YARN, rope_parameters={"rope_type": "default"})
    assert found == ["rope_parameters.rope_type: disagrees with rope_scaling"]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default"}])
def test_no_scaling_may_be_said_in_three_ways(name, scaling):
    result = PUBLISHED[name].imported(rope_scaling=scaling)
    assert result.spec == PUBLISHED[name].imported().spec
    assert result.used["rope_scaling"] == "model.rope_scaling"
