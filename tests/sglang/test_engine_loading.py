"""The plugin's loader in the real engine: what stops a start, and a draft layer off the index."""

from __future__ import annotations

import json
import re
from pathlib import Path

import engine
import pytest
from plugins import Plugin
from record import assert_greedy, assert_ours, checkpoint_copy, prompts
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.sglang, pytest.mark.long]

INDEX = "model.safetensors.index.json"
MTP = "model.layers.4."
DRAFTING = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
    "speculative_draft_attention_backend": "triton",
}


def test_a_missing_tensor_stops_the_start_with_its_name(plugin: Plugin, tmp_path: Path) -> None:
    name = "model.layers.2.mlp.experts.3.up_proj.weight"
    checkpoint = checkpoint_copy(tmp_path)
    weights = load_file(checkpoint / "weights.safetensors")
    del weights[name]
    save_file(weights, checkpoint / "weights.safetensors")
    index = json.loads((checkpoint / INDEX).read_text())
    del index["weight_map"][name]
    (checkpoint / INDEX).write_text(json.dumps(index))
    with pytest.raises(pytest.fail.Exception, match=re.escape(f"missing: {name}")):
        engine.serve(plugin, checkpoint, [prompts(1, 0)], tmp_path / "run")


def test_a_draft_layer_in_a_file_that_the_index_does_not_list_is_loaded(
    plugin: Plugin, tmp_path: Path
) -> None:
    """As Ling-2.6-flash is published. The engine itself passes such files over."""
    checkpoint = checkpoint_copy(tmp_path)
    weights = load_file(checkpoint / "weights.safetensors")
    draft = {name: tensor for name, tensor in weights.items() if name.startswith(MTP)}
    main = {name: tensor for name, tensor in weights.items() if name not in draft}
    save_file(main, checkpoint / "weights.safetensors")
    save_file(draft, checkpoint / "model-mtp-layer.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(main, "weights.safetensors")}
    (checkpoint / INDEX).write_text(json.dumps(index))
    run = engine.serve(plugin, checkpoint, [prompts(6, 0)], tmp_path / "run", **DRAFTING)
    assert_ours(run, plugin.package, drafting=True)
    assert_greedy(run.answers[0][0], 0)
