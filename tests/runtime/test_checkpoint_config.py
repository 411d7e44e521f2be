"""config.json beside the weights: values that no shape shows must be those of the package."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from checkpoints import describe_empty, described, loaded, poisoned, published, refusal, save
from lingen.emit.render import render_all
from lingen.hf import import_config
from lingen.ir import lower
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_variant
from torch import nn

CONFIGS = Path(__file__).parents[1] / "configs"
TINY_FACTS = {
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 6000000.0,
    "partial_rotary_factor": 0.5,
    "layer_group_size": 4,
    "group_norm_size": 4,
    "qk_rope_head_dim": 32,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_head": False,
    "hidden_act": "silu",
    "linear_silu": False,
    "score_function": "sigmoid",
    "rotary_dim": 32,
}
OTHERS = {
    **{"num_hidden_layers": 9, "num_attention_heads": 16, "head_dim": 32, "rms_norm_eps": 1e-5},
    **{"rope_theta": 600000.0, "partial_rotary_factor": 1.0, "layer_group_size": 8},
    **{"group_norm_size": 8, "qk_rope_head_dim": 64, "num_experts_per_tok": 2, "n_group": 8},
    **{"topk_group": 4, "routed_scaling_factor": 1.0, "norm_head": True},
    **{"hidden_act": "gelu", "linear_silu": True, "score_function": "softmax", "rotary_dim": 64},
}


def write_config(
    folder: Path, facts: dict, architecture: str = "BailingMoeV2_5ForCausalLM"
) -> None:
    config = {"architectures": [architecture], **facts}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def unfilled(tiny: ModuleType) -> nn.Module:
    """For loads that must fail: nothing may write to it."""
    return poisoned(tiny.ForCausalLM())


@pytest.fixture
def folder(tiny_model: nn.Module, tmp_path: Path) -> Path:
    """A whole checkpoint of the tiny model, in zeros that take no room."""
    describe_empty(tmp_path, described(published(tiny_model)))
    return tmp_path


def test_the_facts_are_those_of_the_spec(tiny):
    assert tiny.weights.CONFIG_FACTS == TINY_FACTS


@pytest.mark.parametrize("key", OTHERS)
def test_each_fact_that_differs_is_refused_although_every_shape_fits(tiny, unfilled, folder, key):
    write_config(folder, {**TINY_FACTS, key: OTHERS[key]})
    there, here = json.dumps(OTHERS[key]), json.dumps(TINY_FACTS[key])
    want = f"not tiny: {key} is {there}, this package has {here}"
    assert refusal(tiny, unfilled, folder) == f"{folder / 'config.json'}: {want}"


def test_all_facts_that_differ_are_listed_at_once(tiny, unfilled, folder):
    write_config(folder, OTHERS)
    differences = "; ".join(
        f"{key} is {json.dumps(OTHERS[key])}, this package has {json.dumps(value)}"
        for key, value in TINY_FACTS.items()
    )
    message = refusal(tiny, unfilled, folder)
    assert message == f"{folder / 'config.json'}: not tiny: {differences}"


@pytest.mark.parametrize("value", ["6000000", [6000000], True, 6000000.5, float("nan")], ids=str)
def test_a_value_of_another_type_or_a_little_off_differs(tiny, unfilled, folder, value):
    write_config(folder, {"rope_theta": value})
    assert "rope_theta is " in refusal(tiny, unfilled, folder)


SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def test_a_checkpoint_with_scaled_frequencies_is_refused(tiny, unfilled, folder):
    write_config(folder, {"rope_scaling": SCALED})
    message = refusal(tiny, unfilled, folder)
    assert f"rope_scaling is {json.dumps(SCALED)}, this package scales nothing" in message


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default"}], ids=str)
def test_a_checkpoint_that_scales_nothing_passes(tiny, tmp_path, scaling):
    write_config(tmp_path, {"rope_scaling": scaling})
    tiny.weights.check_config(tmp_path)


def test_facts_inside_rope_parameters_are_compared_too(tiny, unfilled, folder):
    write_config(folder, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})
    assert "rope_theta is 10000.0" in refusal(tiny, unfilled, folder)


@pytest.mark.parametrize(
    "facts",
    [
        TINY_FACTS,
        {},
        {key: None for key in TINY_FACTS},
        {**TINY_FACTS, "rms_norm_eps": 0.000001, "rope_theta": 6000000.0, "topk_group": 2.0},
        {**TINY_FACTS, "vocab_size": 1, "unknown": "anything"},
    ],
    ids=["all", "none", "null", "written-otherwise", "other-keys"],
)
def test_equal_absent_and_unrelated_keys_pass(tiny, tmp_path, facts):
    write_config(tmp_path, facts)
    tiny.weights.check_config(tmp_path)


def test_a_checkpoint_with_the_config_it_was_published_with_loads(tmp_path):
    with generated_package(lowered_variant("every-kind")) as package:
        save(tmp_path, published(fill_randomly(package.ForCausalLM())))
        write_config(tmp_path, package.weights.CONFIG_FACTS)
        loaded(package, tmp_path)


def test_key_heads_and_what_the_softmax_router_honours_are_compared(tmp_path):
    with generated_package(lowered_variant("v1")) as package:
        save(tmp_path, published(fill_randomly(package.ForCausalLM())))
        others = {"num_key_value_heads": 4, "norm_topk_prob": False, "norm_head": True}
        write_config(tmp_path, others, "BailingMoeForCausalLM")
        message = refusal(package, poisoned(package.ForCausalLM()), tmp_path)
    assert message == (
        f"{tmp_path / 'config.json'}: not small-v1: "
        "num_key_value_heads is 4, this package has 2; "
        "norm_head is true, this package has false; "
        "norm_topk_prob is false, this package has true"
    )


def test_the_sigmoid_routers_ignore_norm_topk_prob_as_the_reference_does():
    with generated_package(lowered_variant("v2")) as package:
        assert "norm_topk_prob" not in package.weights.CONFIG_FACTS


def test_every_published_config_fits_the_package_made_from_it(tmp_path):
    configs = [
        path for path in sorted(CONFIGS.glob("*.json")) if not path.name.startswith("ling-3")
    ]
    assert len(configs) == 11
    irs = [lower(import_config(path).spec) for path in configs]
    for path, files in zip(configs, render_all([(ir, "torch") for ir in irs]), strict=True):
        namespace: dict = {}
        lines = files["weights.py"].decode().splitlines()
        start = lines.index("CONFIG_FACTS = {")
        exec("\n".join(lines[start : lines.index("}", start) + 1]), namespace)
        config = json.loads(path.read_text())
        for key, value in namespace["CONFIG_FACTS"].items():
            assert config.get(key) in (None, value), f"{path.name}: {key}"


def test_another_model_is_named_before_its_tensors_are_read(tiny, unfilled, tmp_path):
    describe_empty(tmp_path, {"foo.weight": ("F32", (3,))})
    write_config(tmp_path, {"rope_theta": 1})
    message = refusal(tiny, unfilled, tmp_path)
    assert "rope_theta is 1" in message and "foo" not in message
