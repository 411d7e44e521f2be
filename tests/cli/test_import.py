"""`lingen import` of published configs, and what it says of other architectures."""

import json

import pytest
from flash_config import PUBLISHED, SPECS, TESTS, imported, problems, refusal
from lingen.cli import run
from lingen.hf import import_config
from lingen.hf.architectures import NOT_YET, UnsupportedArchitecture
from lingen.hf.table import GENERATIONS
from lingen.ir import lower
from lingen.spec import load_spec, load_spec_text
from lingen.spec.schema import schema

# Billions, in all and used by one token, of the models behind the published configs.
TOTALS = {
    "ling-1t": (999.705, 51.054),
    "ling-2.5-1t": (1012.231, 63.580),
    "ling-2.6-1t": (1012.231, 63.580),
    "ling-2.6-flash": (104.187, 7.449),
    "ling-flash-2.0": (102.890, 6.152),
    "ling-lite-1.5": (16.802, 2.753),
    "ling-mini-2.0": (16.256, 1.433),
    "ring-2.5-1t": (1012.231, 63.580),
    "ring-2.6-1t": (1012.231, 63.580),
    "ring-flash-linear-2.0": (104.182, 7.444),
    "ring-mini-linear-2.0": (16.423, 1.601),
}
SHIPPED = sorted(path.stem for path in SPECS.glob("*.yaml"))
ALL_ARCHITECTURES = (
    "BailingMoeV2_5ForCausalLM, BailingMoeLinearV2ForCausalLM, "
    "BailingMoeV2ForCausalLM, BailingMoeForCausalLM"
)
CONFIGS = sorted([*(TESTS / "configs").glob("*.json"), *(TESTS / "golden").glob("*/config.json")])


def is_supported(path):
    return json.loads(path.read_text())["architectures"][0] in GENERATIONS


def ids(path):
    return path.parent.name if path.name == "config.json" else path.stem


SUPPORTED_CONFIGS = [path for path in CONFIGS if is_supported(path)]
OTHER_CONFIGS = [path for path in CONFIGS if not is_supported(path)]


TABLES = "kernels.moe.tables"


@pytest.mark.parametrize("name", SHIPPED)
def test_import_of_a_published_config_gives_the_values_of_the_shipped_spec(name):
    shipped = load_spec(SPECS / f"{name}.yaml").values()
    imported = import_config(TESTS / f"configs/{name}.json").spec.values()
    # What is generated, how it is served and with which tables, and how fp8 files store the MTP
    # layer, no config says.
    silent = {"targets", "sglang.tp_size", "sglang.pp_size", "quantization.fp8_mtp", TABLES}
    chosen = silent & {*shipped}
    assert imported == {**shipped, **{key: imported[key] for key in chosen}}
    assert imported[TABLES] == ()


@pytest.mark.parametrize("path", SUPPORTED_CONFIGS, ids=ids)
def test_every_config_of_a_known_generation_imports_and_lowers(path):
    result = import_config(path)
    assert load_spec_text(result.text, result.spec.header_name) == result.spec
    config = json.loads(path.read_text())
    assert result.spec.model.name == ids(path)
    assert result.spec.header_name == f"specs/{ids(path)}.yaml"
    assert len(lower(result.spec).plan.layers) == config["num_hidden_layers"]
    assert sorted([*result.used, *result.ignored]) == sorted(config)
    generation = GENERATIONS[config["architectures"][0]]
    assert result.spec.sources[1] == f"specs/{generation.family}.yaml"


@pytest.mark.parametrize("name", TOTALS)
def test_an_imported_model_has_the_published_number_of_parameters(name):
    counts = lower(import_config(TESTS / f"configs/{name}.json").spec).parameters
    assert (round(counts.total / 1e9, 3), round(counts.active / 1e9, 3)) == TOTALS[name]


def test_there_are_configs_of_both_sorts_and_each_has_its_totals():
    assert (len(SUPPORTED_CONFIGS), len(OTHER_CONFIGS)) == (24, 4)
    published = {path.stem for path in SUPPORTED_CONFIGS if path.name != "config.json"}
    assert published == set(TOTALS)


def test_the_generations_are_those_of_the_schema():
    assert list(GENERATIONS) == list(schema()["x-lingen-sections"])
    model_types = {name: each.model_type for name, each in GENERATIONS.items()}
    assert model_types == schema()["x-lingen-model-types"]
    assert not GENERATIONS.keys() & NOT_YET.keys()
    assert len({each.family for each in GENERATIONS.values()}) == len(GENERATIONS)


def test_the_largest_model_of_the_second_generation_says_how_many_dimensions_it_rotates():
    result = import_config(TESTS / "configs/ling-1t.json")
    assert result.spec.attention.gqa.partial_rotary_factor == 0.5
    assert result.used["rotary_dim"] == "attention.gqa.partial_rotary_factor"
    assert lower(result.spec).gqa.rotary_dim == 64


def test_weights_of_the_chosen_experts_are_normed_as_only_the_first_generation_lets_one_choose():
    assert import_config(TESTS / "golden/v1-gqa/config.json").spec.moe.renormalize is True
    assert import_config(TESTS / "golden/v1-normhead/config.json").spec.moe.renormalize is False
    for name in ("v2.5", "linear-v2", "v2"):
        result = PUBLISHED[name].imported(norm_topk_prob=False)
        assert result.spec.moe.renormalize is True
        assert "always normalises" in result.ignored["norm_topk_prob"]


def test_a_normed_head_is_taken_from_the_first_generation_alone():
    assert import_config(TESTS / "golden/v1-normhead/config.json").spec.model.norm_head is True
    for name in ("v2.5", "linear-v2", "v2"):
        assert PUBLISHED[name].problems(norm_head=True) == ["norm_head: not supported"]
        assert PUBLISHED[name].imported(norm_head=False).spec.model.norm_head is False


@pytest.mark.parametrize("path", OTHER_CONFIGS, ids=ids)
def test_other_generations_are_refused_in_one_line(path, capsys):
    assert run(["import", str(path), "-o", "-"]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    architecture = json.loads(path.read_text())["architectures"][0]
    ending = f"{architecture} ({NOT_YET[architecture]}) is not supported yet"
    assert line.startswith(f"{path}:3:") and line.endswith(f": architectures: {ending}")
    assert out == ""


def test_the_line_for_kda_names_place_architecture_and_attention(monkeypatch, capsys):
    monkeypatch.chdir(TESTS)
    run(["import", "golden/ling3-kda/config.json"])
    assert capsys.readouterr().err == (
        "golden/ling3-kda/config.json:3:3: architectures: BailingMoeV3ForCausalLM (KDA attention) "
        "is not supported yet\n"
    )


def test_an_unknown_architecture_is_named_beside_the_known_ones():
    problem = refusal(architectures=["LlamaForCausalLM"])
    assert problem.render() == (
        "config.json:3:3: architectures: unknown architecture\n"
        "  found     LlamaForCausalLM\n"
        f"  expected  {ALL_ARCHITECTURES}"
    )


def test_a_misspelt_architecture_gets_the_nearest_one():
    assert refusal(architectures=["BailingMoeV2_5ForCausalLm"]).fix == "BailingMoeV2_5ForCausalLM"
    assert refusal(architectures=["BailingMoELinearV2"]).fix == "BailingMoeLinearV2ForCausalLM"


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_type_alone_does_not_decide(name):
    problem = PUBLISHED[name].refusal(drop=["architectures"])
    assert (problem.key, problem.message) == ("architectures", "missing")
    assert problem.expected == f"a list of one name: {ALL_ARCHITECTURES}"
    assert problem.fix == "state it: model_type alone does not tell the generations apart"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([], "a list of 0"),
        ([1], "a list of 1"),
        ("BailingMoeForCausalLM", "a string"),
        (7, "an int"),
    ],
)
def test_architectures_that_are_no_list_of_one_name_are_refused(value, found):
    problem = refusal(architectures=value)
    assert problem.message == "not exactly one name"
    assert found in problem.found


def test_several_architectures_are_refused():
    both = ["BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM"]
    assert problems(architectures=both) == ["architectures: not exactly one name"]


def test_a_model_type_that_contradicts_the_architecture_is_refused():
    assert refusal(model_type="bailing_moe").render() == (
        "config.json:5:16: model_type: contradicts architectures\n"
        '  found     "bailing_moe", a string\n'
        "  expected  bailing_hybrid, which goes with BailingMoeV2_5ForCausalLM (line 3)"
    )


PAIRS = [
    (generation.architecture, model_type)
    for generation in GENERATIONS.values()
    for model_type in {each.model_type for each in GENERATIONS.values()} | {"llama"}
    if model_type != generation.model_type
]


@pytest.mark.parametrize(("architecture", "model_type"), sorted(PAIRS))
def test_every_pair_that_does_not_go_together_is_refused_with_what_was_found(
    architecture, model_type
):
    for published in PUBLISHED.values():
        problem = published.refusal(architectures=[architecture], model_type=model_type)
        assert (problem.key, problem.message) == ("model_type", "contradicts architectures")
        assert problem.found == f'"{model_type}", a string'
        right = GENERATIONS[architecture].model_type
        assert problem.expected == f"{right}, which goes with {architecture} (line 3)"


def test_a_missing_model_type_is_named_with_the_right_one():
    problem = PUBLISHED["v1"].refusal(drop=["model_type"])
    assert (problem.key, problem.message) == ("model_type", "missing")
    assert problem.expected.startswith("bailing_moe, which goes with BailingMoeForCausalLM")


def test_generations_of_one_model_type_are_told_apart_by_their_architecture():
    v1, v2 = PUBLISHED["v1"], PUBLISHED["v2"]
    assert v1.config["model_type"] == v2.config["model_type"]
    assert v1.imported().spec.moe.score_function == "softmax"
    assert v2.imported().spec.moe.score_function == "sigmoid"
    found = v2.problems(architectures=["BailingMoeForCausalLM"])
    assert "n_group: a key of another generation" in found


@pytest.mark.parametrize("name", ["linear-v2", "v2", "v1"])
def test_a_short_convolution_is_refused_in_one_line_under_every_architecture(name):
    with pytest.raises(UnsupportedArchitecture, match="KDA attention is not supported yet") as why:
        PUBLISHED[name].imported(short_conv_kernel_size=4)
    assert PUBLISHED[name].generation.architecture in str(why.value)


def test_a_short_convolution_under_this_architecture_is_refused_in_one_line():
    with pytest.raises(UnsupportedArchitecture) as caught:
        imported(short_conv_kernel_size=4)
    assert str(caught.value) == (
        "config.json:57:2: short_conv_kernel_size: KDA attention is not supported yet, and "
        "BailingMoeV2_5ForCausalLM (line 3) has none"
    )
