"""Each published config.json, imported and generated: its tensors, shapes and parameter count."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lingen.hf import import_config
from lingen.ir import ModelIR, lower
from lingen.verify.package import generated_package
from published import assert_every_element_is_filled_once, checkpoint_tensors, is_full
from small_models import lowered
from torch import nn

ROOT = Path(__file__).parents[2]
CONFIGS = Path(__file__).parents[1] / "configs"
# Billions of parameters without and with the MTP layer, and active ones, as published or worked out
# from published numbers.
BILLIONS = {
    "ling-2.6-flash": ("104.187", "107.494", "7.449"),
    "ling-2.6-1t": ("1012.231", "1025.414", "63.580"),
    "ring-2.6-1t": ("1012.231", "1025.414", "63.580"),
    "ring-2.5-1t": ("1012.231", "1012.231", "63.580"),
    "ling-2.5-1t": ("1012.231", "1012.231", "63.580"),
    "ring-flash-linear-2.0": ("104.182", "104.182", "7.444"),
    "ring-mini-linear-2.0": ("16.423", "16.423", "1.601"),
    "ling-mini-2.0": ("16.256", "16.256", "1.433"),
    "ling-flash-2.0": ("102.890", "102.890", "6.152"),
    "ling-1t": ("999.705", "999.705", "51.054"),
    "ling-lite-1.5": ("16.802", "16.802", "2.753"),
}
# Layers of softmax attention, as published.
FULL_LAYERS = {
    "ling-2.6-flash": [7, 15, 23, 31],
    "ring-flash-linear-2.0": [7, 15, 23, 31],
    "ring-mini-linear-2.0": [4, 9, 14, 19],
    "ling-mini-2.0": list(range(20)),
    "ling-lite-1.5": list(range(28)),
}


@dataclass(frozen=True)
class Built:
    """A generated package and its whole model, without memory."""

    name: str
    config: dict
    ir: ModelIR
    package: ModuleType
    model: nn.Module
    targets: dict[str, object]
    published: dict[str, tuple[int, ...]]


@pytest.fixture(scope="module", params=BILLIONS)
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    path = CONFIGS / f"{request.param}.json"
    ir = lower(import_config(path).spec)
    with generated_package(ir) as package:
        with torch.device("meta"):
            model = package.ForCausalLM(**({"drafts": True} if ir.mtp else {}))
        targets = package.weights.expand(*([True] if ir.mtp else []))
        config = json.loads(path.read_text())
        yield Built(request.param, config, ir, package, model, targets, checkpoint_tensors(config))


def test_every_config_but_those_of_the_third_generation_is_here():
    names = {path.stem for path in CONFIGS.glob("*.json") if not path.name.startswith("ling-3")}
    assert names == set(BILLIONS)


def test_the_loader_reads_exactly_the_published_tensors(built):
    published = built.published
    read = {name: target.weight.shape for name, target in built.targets.items()}
    assert sorted(published.keys() ^ read.keys()) == []
    assert {name: shape for name, shape in read.items() if published[name] != shape} == {}


def test_every_element_of_every_parameter_is_filled(built):
    """By counts; in the small models, which take little time, also each exactly once."""
    filled = defaultdict(int)
    for target in built.targets.values():
        filled[target.param] += math.prod(target.weight.shape)
    assert dict(filled) == {name: p.numel() for name, p in built.model.named_parameters()}
    if len(built.targets) < 20_000:
        assert_every_element_is_filled_once(built.model, built.targets)


def test_the_number_of_parameters_is_the_published_one(built):
    sizes = {name: math.prod(shape) for name, shape in built.published.items()}
    with_mtp = sum(sizes.values())
    main = sum(p.numel() for n, p in built.model.named_parameters() if not n.startswith("mtp."))
    counts = built.ir.parameters
    assert (counts.total, counts.total + counts.mtp) == (main, with_mtp)
    billions = tuple(f"{count / 1e9:.3f}" for count in (main, with_mtp, counts.active))
    assert billions == BILLIONS[built.name]


def test_full_attention_layers_are_the_published_ones(built):
    kinds = built.package.cache.LAYER_KINDS
    full = [layer for layer, kind in enumerate(kinds) if kind != "lightning"]
    assert full == [layer for layer in range(len(kinds)) if is_full(built.config, layer)]
    assert full == FULL_LAYERS.get(built.name, full)


@pytest.mark.parametrize("name", ["ling-mini-2.0", "ring-mini-linear-2.0", "ling-lite-1.5"])
def test_the_specs_of_the_siblings_say_what_their_configs_say(name):
    ours = lowered(spec=ROOT / "specs" / f"{name}.yaml")
    theirs = lower(import_config(CONFIGS / f"{name}.json").spec)
    assert ours.to_json() == theirs.to_json()
