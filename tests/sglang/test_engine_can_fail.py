"""A model that is wrong in one place does not give what is recorded."""

from __future__ import annotations

import math
from pathlib import Path

import engine
import plugins
import pytest
from engine import Answer
from plugins import CASE, Plugin
from record import (
    RECORD,
    TOLERANCE,
    assert_greedy,
    assert_ours,
    checkpoint_copy,
    distance,
    prompts,
)
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.sglang

MODEL = "models/bailing_moe_v2_5.py"


def first_tokens(plugin: Plugin, checkpoint: Path, scratch: Path) -> Answer:
    """One recorded prompt and four tokens: enough to see a wrong model."""
    run = engine.serve(plugin, checkpoint, [prompts(4, 0)], scratch)
    assert_ours(run, plugin.package)
    return run.answers[0][0]


def assert_wrong(answer: Answer) -> None:
    with pytest.raises(AssertionError):
        assert_greedy(answer, 0)
    # By far more than rounding, and by numbers, not by missing ones.
    assert 1e-2 < distance(answer.log_probs[:20], RECORD["main.logits"][0]) < math.inf


def test_another_decay_offset_is_seen_and_has_its_own_record(
    sglang_python: Path, tmp_path: Path
) -> None:
    other = plugins.build(tmp_path, "attention.lightning.decay.layer_offset=-1")
    plugin = plugins.install(other, tmp_path / "overlay")
    answer = first_tokens(plugin, CASE, tmp_path / "run")
    assert_wrong(answer)
    assert distance(answer.log_probs[:20], RECORD["alt_decay.logits"][0]) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("ROUTED_SCALING_FACTOR = 2.5", "ROUTED_SCALING_FACTOR = 1.0", id="scaling"),
        pytest.param("is_neox_style=True", "is_neox_style=False", id="rope"),
    ],
)
def test_a_changed_model_file_is_seen(
    old: str, new: str, sglang_python: Path, tmp_path: Path
) -> None:
    distribution = plugins.build(tmp_path)
    (file,) = distribution.glob(f"*/{MODEL}")
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    plugin = plugins.install(distribution, tmp_path / "overlay")
    assert_wrong(first_tokens(plugin, CASE, tmp_path / "run"))


@pytest.mark.long
def test_an_expert_with_the_weights_of_another_is_seen(plugin: Plugin, tmp_path: Path) -> None:
    checkpoint = checkpoint_copy(tmp_path)
    weights = load_file(checkpoint / "weights.safetensors")
    one, two = "model.layers.1.mlp.experts.0.", "model.layers.1.mlp.experts.1."
    swapped = [name for name in weights if name.startswith(one)]
    assert len(swapped) == 3
    for name in swapped:
        partner = name.replace(one, two)
        weights[name], weights[partner] = weights[partner], weights[name]
    save_file(weights, checkpoint / "weights.safetensors")
    assert_wrong(first_tokens(plugin, checkpoint, tmp_path / "run"))
