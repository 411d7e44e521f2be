"""A model built without memory: given some and loaded, it equals one that was built with it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkpoints import assert_same_weights, published, save
from comparison import assert_same_bits
from lingen.verify.package import generated_package
from serving import Server, requests_of
from small_models import fill_randomly, lowered_variant
from torch import Tensor, nn


def on_meta(package: ModuleType) -> nn.Module:
    with torch.device("meta"):
        return package.ForCausalLM()


def given_memory(model: nn.Module) -> nn.Module:
    """Uninitialised memory may hold anything: here, NaN."""
    model = model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(torch.nan)
    return model


def logits_of(package: ModuleType, model: nn.Module) -> Tensor:
    [request] = requests_of([20], 160)
    server = Server(package, model)
    outs = [server.step((request, count))[0] for count in (19, 1)]
    return model.compute_logits(torch.cat(outs))


@pytest.mark.parametrize("name", ["every-kind", "linear-v2-with-mtp", "v1-normed-head", "bfloat16"])
def test_meta_then_memory_then_weights_gives_the_same_decays_and_logits(name, tmp_path):
    with generated_package(lowered_variant(name)) as package:
        save(tmp_path, published(fill_randomly(package.ForCausalLM())))
        direct = package.ForCausalLM()
        package.load_weights(direct, tmp_path)
        late = given_memory(on_meta(package))
        package.load_weights(late, tmp_path)
        assert_same_weights(late, direct)
        decays = dict(direct.named_buffers())
        assert bool(decays) == ("v1" not in name)
        for buffer, got in late.named_buffers():
            assert_same_bits(got, decays.pop(buffer))
        assert not decays
        assert_same_bits(logits_of(package, late), logits_of(package, direct))


def test_a_model_without_memory_is_refused(tiny: ModuleType, tiny_model, tmp_path: Path):
    save(tmp_path, published(tiny_model))
    with pytest.raises(ValueError) as refusal:
        tiny.load_weights(on_meta(tiny), tmp_path)
    assert str(refusal.value) == (
        "word_embeddings.weight is on the meta device: model.to_empty(device=...) comes first"
    )


def test_moving_from_meta_loses_the_decay_and_resetting_restores_it(
    tiny: ModuleType, tiny_model: nn.Module
):
    attention = given_memory(on_meta(tiny)).layers[2].attention
    assert attention.log_decay.isnan().all()
    attention.reset_log_decay()
    assert_same_bits(attention.log_decay, tiny_model.layers[2].attention.log_decay)


def test_a_refused_checkpoint_leaves_the_decay_alone(tiny: ModuleType, tmp_path: Path):
    model = given_memory(on_meta(tiny))
    with pytest.raises(tiny.CheckpointError):
        tiny.load_weights(model, tmp_path)
    assert all(buffer.isnan().all() for buffer in model.buffers())


def test_one_layer_without_memory_is_named(tiny: ModuleType, tiny_model, tmp_path: Path):
    save(tmp_path, published(tiny_model))
    model = tiny.ForCausalLM()
    model.layers[1].to("meta")
    with pytest.raises(ValueError, match=r"layers\.1\.input_layernorm\.weight is on the meta"):
        tiny.load_weights(model, tmp_path)
