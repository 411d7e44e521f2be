"""`lingen import` of published configs, and what it says of other architectures."""

import json

import pytest
from flash_config import (
    SPECS,
    TESTS,
    imported,
    problems,
    refusal,
)
from lingen.cli import run
from lingen.hf import import_config
from lingen.hf.architectures import NOT_YET, SUPPORTED, UnsupportedArchitecture
from lingen.ir import lower
from lingen.spec import load_spec

CONFIGS = sorted([*(TESTS / "configs").glob("*.json"), *(TESTS / "golden").glob("*/config.json")])


def is_supported(path):
    return json.loads(path.read_text())["architectures"][0] in SUPPORTED


def ids(path):
    return path.parent.name if path.name == "config.json" else path.stem


SUPPORTED_CONFIGS = [path for path in CONFIGS if is_supported(path)]
OTHER_CONFIGS = [path for path in CONFIGS if not is_supported(path)]


@pytest.mark.parametrize("name", ["ling-2.6-flash", "ling-2.6-1t", "ring-2.5-1t"])
def test_import_of_a_published_config_gives_the_values_of_the_shipped_spec(name):
    shipped = load_spec(SPECS / f"{name}.yaml").values()
    assert import_config(TESTS / f"configs/{name}.json").spec.values() == shipped


@pytest.mark.parametrize("path", SUPPORTED_CONFIGS, ids=ids)
def test_every_config_of_the_family_imports_and_lowers(path):
    result = import_config(path)
    config = json.loads(path.read_text())
    assert result.spec.model.name == ids(path)
    assert result.spec.header_name == f"specs/{ids(path)}.yaml"
    assert len(lower(result.spec).plan.layers) == config["num_hidden_layers"]
    assert sorted([*result.used, *result.ignored]) == sorted(config)


def test_there_are_configs_of_both_sorts():
    assert (len(SUPPORTED_CONFIGS), len(OTHER_CONFIGS)) == (12, 10)


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
        "  expected  BailingMoeV2_5ForCausalLM"
    )


def test_a_misspelt_architecture_gets_the_nearest_one():
    assert refusal(architectures=["BailingMoeV2_5ForCausalLm"]).fix == "BailingMoeV2_5ForCausalLM"


def test_model_type_alone_does_not_decide():
    assert problems(drop=["architectures"]) == ["architectures: missing"]


def test_several_architectures_are_refused():
    both = ["BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM"]
    assert problems(architectures=both) == ["architectures: not exactly one name"]


def test_a_model_type_that_contradicts_the_architecture_is_refused():
    assert refusal(model_type="bailing_moe").render() == (
        "config.json:5:16: model_type: contradicts architectures\n"
        '  found     "bailing_moe", a string\n'
        "  expected  bailing_hybrid, which goes with BailingMoeV2_5ForCausalLM (line 3)"
    )


def test_a_short_convolution_under_this_architecture_is_refused_in_one_line():
    with pytest.raises(UnsupportedArchitecture) as caught:
        imported(short_conv_kernel_size=4)
    assert str(caught.value) == (
        "config.json:57:2: short_conv_kernel_size: KDA attention is not supported yet, and "
        "BailingMoeV2_5ForCausalLM (line 3) has none"
    )
