"""Names and shapes that the plugin's loader expects, against the list of the published tensors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from published import checkpoint_tensors

FP8 = torch.float8_e4m3fn
CONFIGS = Path(__file__).parents[1] / "configs"
NUM_TENSORS = {"ling-2.6-flash": 25_015, "ling-2.6-1t": 60_199}


@pytest.fixture(scope="module")
def published(plugin) -> dict[str, tuple[int, ...]]:
    """Name → shape, worked out from the published config.json, the MTP layer included."""
    return checkpoint_tensors(json.loads((CONFIGS / f"{plugin.ir.name}.json").read_text()))


def expected(plugin) -> dict:
    """All targets: of the model over all its layers, and of the draft layer."""
    layers = range(plugin.ir.model.num_hidden_layers)
    return plugin.model.model_targets(layers) | plugin.draft.draft_targets()


def test_the_loader_expects_exactly_the_published_tensors(plugin, published):
    targets = expected(plugin)
    assert sorted(published.keys() - targets.keys()) == []
    assert sorted(targets.keys() - published.keys()) == []
    assert {n: t.shapes for n, t in targets.items() if t.shapes != (published[n],)} == {}
    assert len(targets) == NUM_TENSORS[plugin.ir.name]


def test_the_stages_of_a_pipeline_share_out_the_decoder_layers(plugin):
    num_layers = plugin.ir.model.num_hidden_layers
    first = plugin.model.model_targets(range(num_layers // 2)).keys()
    last = plugin.model.model_targets(range(num_layers // 2, num_layers)).keys()
    whole = plugin.model.model_targets(range(num_layers)).keys()
    assert first | last == whole
    assert {name for name in first & last if "layers" in name} == set()


# Of a published fp8 file: everything linear has scales, but not in the MTP layer of the 1T.
UNQUANTISED = ("norm.weight", "word_embeddings.weight", "lm_head.weight", "mlp.gate.weight", "bias")


def is_linear(name: str) -> bool:
    return not name.endswith(UNQUANTISED)


@pytest.mark.parametrize("form", ["channel", "block"])
def test_the_scales_of_an_fp8_checkpoint_are_expected_beside_its_tensors(plugin, published, form):
    targets = plugin.model.model_targets(range(plugin.ir.model.num_hidden_layers))
    scales = dict(plugin.model.scale_targets(targets, quantised_params(targets, form)))
    suffix = {"channel": "_scale", "block": "_scale_inv"}[form]
    main = {name: published[name] for name in targets if is_linear(name)}
    assert sorted(scales) == sorted(name + suffix for name in main)
    for name, (out, width) in main.items():
        blocks = (-(-out // 128), -(-width // 128))
        assert scales[name + suffix].shapes == ((out, 1), blocks), name
        assert scales[name + suffix].param == targets[name].param + suffix


def test_a_layer_that_the_engine_keeps_unquantised_has_no_scales(plugin):
    """The MTP layer of the 1T fp8 file: its quantization config ignores it."""
    targets = plugin.draft.draft_targets()
    params = {target.param: SimpleNamespace(dtype=torch.bfloat16) for target in targets.values()}
    assert dict(plugin.model.scale_targets(targets, params)) == {}


def quantised_params(targets: dict, form: str) -> dict:
    """What the engine holds: linears in fp8 with scales beside them, the rest as it is."""
    params = {}
    for name, target in targets.items():
        params[target.param] = SimpleNamespace(dtype=FP8 if is_linear(name) else torch.bfloat16)
        if is_linear(name):
            suffix = {"channel": "_scale", "block": "_scale_inv"}[form]
            params[target.param + suffix] = SimpleNamespace(dtype=torch.float32)
    return params


def test_each_tensor_fills_a_part_of_a_parameter_that_no_other_fills(plugin):
    """Experts by expert and shard, halves and row blocks by shard, all others alone."""
    targets = expected(plugin)
    places = [(target.param, target.shard, target.expert) for target in targets.values()]
    assert len(set(places)) == len(places)
    by_param: dict[str, set] = {}
    for target in targets.values():
        by_param.setdefault(target.param, set()).add(target.shard)
    assert set(map(frozenset, by_param.values())) == {
        frozenset({None}),
        frozenset({0, 1}),
        frozenset({"w1", "w3"}),
        frozenset({"w2"}),
        frozenset({"top", "bottom"}),
    }


def test_gate_comes_first_and_up_second(plugin):
    targets = expected(plugin)
    layer = f"model.layers.{plugin.ir.plan.moe[0]}.mlp."
    assert [targets[f"{layer}shared_experts.{n}_proj.weight"].shard for n in ("gate", "up")] == [
        0,
        1,
    ]
    shards = [targets[f"{layer}experts.7.{n}_proj.weight"] for n in ("gate", "up", "down")]
    assert [(target.shard, target.expert) for target in shards] == [("w1", 7), ("w3", 7), ("w2", 7)]


def test_the_mtp_shard_outside_the_index_is_read(plugin, tmp_path, monkeypatch):
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}'
    )
    for name in ("model-00001", "model-00002", "model-mtp-layer"):
        (tmp_path / f"{name}.safetensors").touch()
    read = lambda files: iter((file, None) for file in files)  # noqa: E731
    monkeypatch.setattr(plugin.draft, "safetensors_weights_iterator", read)
    found = [name for name, _ in plugin.draft.unlisted_weights(str(tmp_path))]
    assert found == [str(tmp_path / "model-mtp-layer.safetensors")]


def test_without_an_index_the_engine_has_read_every_file(plugin, tmp_path):
    (tmp_path / "model.safetensors").touch()
    assert list(plugin.draft.unlisted_weights(str(tmp_path))) == []
