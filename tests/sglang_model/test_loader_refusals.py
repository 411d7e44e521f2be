"""What the plugin's loader refuses, by the tensor's name, and what it passes over."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

LAYER = "model.layers.1."
QKV, QKV_PARAM = (
    f"{LAYER}attention.query_key_value.weight",
    f"{LAYER}self_attn.query_key_value.weight",
)
NORM = f"{LAYER}input_layernorm.weight"
FP8 = torch.float8_e4m3fn


class Tree(nn.Module):
    """A module with parameters of the given dotted names."""

    def __init__(self, **dtypes: torch.dtype) -> None:
        super().__init__()
        for name, (shape, dtype) in dtypes.items():
            *path, last = name.split(".")
            module = self
            for step in path:
                if step not in module._modules:
                    module.add_module(step, Tree())
                module = module._modules[step]
            param = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
            param.weight_loader = lambda param, tensor, *_: param.data.copy_(tensor)
            module.register_parameter(last, param)


@pytest.fixture
def small(flash):
    """A loader's target table of two tensors, one linear."""
    target = flash.model.Target
    return {
        QKV: target(QKV_PARAM, ((6, 2),), None, None),
        NORM: target(NORM, ((2,),), None, None),
    }


def loader(flash, small, dtype=torch.bfloat16, **more):
    """`small` and, for an fp8 projection, its scales."""
    params = {QKV_PARAM: ((6, 2), dtype), NORM: ((2,), torch.bfloat16)}
    if dtype == FP8:
        params[f"{QKV_PARAM}_scale"] = ((6, 1), torch.float32)
    tree = Tree(**params, **more)
    return flash.model.Loader(tree, small, is_foreign=lambda name: name.startswith("other.")), tree


def tensors(dtype=torch.bfloat16) -> dict[str, torch.Tensor]:
    found = {QKV: torch.ones(6, 2).to(dtype), NORM: torch.ones(2, dtype=torch.bfloat16)}
    if dtype == FP8:
        found[f"{QKV}_scale"] = torch.ones(6, 1)
    return found


def refusal(flash, small, weights, dtype=torch.bfloat16) -> str:
    with pytest.raises(ValueError, match=r"not one of ling-2\.6-flash") as caught:
        loader(flash, small, dtype)[0].load(weights.items(), may_be_partial=False)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
def test_a_whole_checkpoint_fills_every_parameter(flash, small, dtype):
    filling, tree = loader(flash, small, dtype)
    assert filling.load(tensors(dtype).items(), may_be_partial=False) == tensors(dtype).keys()
    assert all((param.float() == 1).all() for param in tree.parameters())


@pytest.mark.parametrize("name", [QKV, NORM, f"{QKV}_scale"])
def test_a_missing_tensor_is_named(flash, small, name):
    weights = tensors(FP8)
    del weights[name]
    assert refusal(flash, small, weights, FP8).endswith(f". missing: {name}")


def test_a_foreign_layout_is_named(flash, small):
    weights = {**tensors(), "foo.weight": torch.ones(1)}
    assert refusal(flash, small, weights).endswith(". unexpected: foo.weight")


def test_everything_that_is_wrong_is_said_at_once(flash, small):
    weights = {**tensors(), NORM: torch.ones(3), "foo.weight": torch.ones(1)}
    del weights[QKV]
    assert refusal(flash, small, weights).partition(". ")[2] == (
        f"missing: {QKV}. unexpected: foo.weight. unfit: {NORM} (shape [3], expected [2])"
    )


def test_an_fp8_tensor_does_not_fill_a_plain_parameter(flash, small):
    weights = {**tensors(), QKV: torch.ones(6, 2).to(FP8)}
    assert f"unfit: {QKV} (torch.float8_e4m3fn, " in refusal(flash, small, weights)


def test_a_plain_tensor_does_not_fill_an_fp8_parameter(flash, small):
    weights = {**tensors(FP8), QKV: torch.ones(6, 2)}
    assert f"unfit: {QKV} (torch.float32, " in refusal(flash, small, weights, FP8)


def test_scales_for_a_plain_parameter_are_unexpected(flash, small):
    weights = {**tensors(), f"{QKV}_scale": torch.ones(6, 1)}
    assert refusal(flash, small, weights).endswith(f". unexpected: {QKV}_scale")


def test_the_tensors_of_others_are_passed_over(flash, small):
    weights = {**tensors(), "other.weight": torch.ones(1)}
    loaded = loader(flash, small)[0].load(weights.items(), may_be_partial=False)
    assert loaded == tensors().keys()


def test_an_update_may_bring_some_tensors_but_no_unknown_ones(flash, small):
    filling, _ = loader(flash, small)
    assert filling.load([(NORM, torch.ones(2))], may_be_partial=True) == {NORM}
    with pytest.raises(ValueError, match=r"unexpected: foo\.weight"):
        filling.load([("foo.weight", torch.ones(2))], may_be_partial=True)


def test_a_parameter_that_no_tensor_fills_is_named_before_anything_is_read(flash, small):
    with pytest.raises(ValueError, match="no checkpoint tensor fills stray"):
        loader(flash, small, stray=((1,), torch.float32))


def test_the_scales_of_a_quantised_cache_are_the_engines(flash, small):
    loader(flash, small, **{"model.layers.7.self_attn.attn_mqa.k_scale": ((), torch.float32)})


def test_a_parameter_that_the_engine_does_not_make_is_named(flash, small):
    with pytest.raises(
        ValueError, match=r"SGLang has no model\.layers\.1\.input_layernorm\.weight"
    ):
        flash.model.Loader(Tree(**{QKV_PARAM: ((6, 2), torch.bfloat16)}), small, lambda name: False)


def test_row_blocks_fill_their_ends_of_one_parameter(flash):
    param = f"{LAYER}self_attn.fused_qkv_a_proj_with_mqa.weight"
    table = {
        shard: flash.model.Target(param, ((rows, 2),), shard, None)
        for shard, rows in (("top", 3), ("bottom", 2))
    }
    tree = Tree(**{param: ((5, 2), torch.float32)})
    weights = [("bottom", torch.full((2, 2), 2.0)), ("top", torch.full((3, 2), 1.0))]
    flash.model.Loader(tree, table, lambda name: False).load(weights, may_be_partial=False)
    assert tree.get_parameter(param)[:, 0].tolist() == [1, 1, 1, 2, 2]


def test_long_lists_are_cut(flash):
    assert flash.model.listed(f"n{i:02}" for i in range(23)).endswith("n18, n19 and 3 more")


# ------------------------------------------------ what each class passes over


def loaded_by(flash, monkeypatch, rank: SimpleNamespace):
    """The loader that the model's class makes on a pipeline stage, without loading."""
    made = {}

    class Spy:
        def __init__(self, model, targets, is_foreign, shared=()):
            made.update(targets=targets, is_foreign=is_foreign)

        def load(self, weights, may_be_partial):
            made["may_be_partial"] = may_be_partial
            return set()

    monkeypatch.setattr(flash.model, "Loader", Spy)
    start, end = rank.layers
    model = SimpleNamespace(
        start_layer=start,
        end_layer=end,
        pp_group=rank,
        is_loaded=False,
        post_load_weights=lambda: None,
    )
    flash.model.BailingMoeV2_5ForCausalLM.load_weights(model, ())
    return SimpleNamespace(**made)


def stage(first: bool, last: bool, layers: tuple[int, int]) -> SimpleNamespace:
    return SimpleNamespace(is_first_rank=first, is_last_rank=last, layers=layers)


def test_a_pipeline_stage_expects_its_own_layers_and_passes_over_the_others(flash, monkeypatch):
    first = loaded_by(flash, monkeypatch, stage(True, False, (0, 16)))
    last = loaded_by(flash, monkeypatch, stage(False, True, (16, 32)))
    whole = flash.model.model_targets(range(32))
    assert first.targets.keys() | last.targets.keys() == whole.keys()
    assert first.targets.keys() & last.targets.keys() == set()
    assert "model.word_embeddings.weight" in first.targets
    assert {"model.norm.weight", "lm_head.weight"} <= last.targets.keys()
    assert all(first.is_foreign(name) for name in last.targets)
    assert not any(first.is_foreign(name) for name in first.targets)
    other = "model.layers.16.attention.g_proj.weight_scale"
    assert first.is_foreign(other) and not last.is_foreign(other)


def test_the_model_passes_over_the_draft_layer_and_what_it_computes_and_nothing_else(
    flash, monkeypatch
):
    single = loaded_by(flash, monkeypatch, stage(True, True, (0, 32)))
    assert single.targets.keys() == flash.model.model_targets(range(32)).keys()
    assert single.is_foreign("model.layers.32.eh_proj.weight")
    assert single.is_foreign("model.layers.0.attention.slope")
    assert not single.is_foreign("model.layers.7.attention.slope")  # no lightning layer
    assert not single.is_foreign("model.layers.33.eh_proj.weight")
    assert not single.is_foreign("model.layers.0.attention.query_key_value.weight_scale")
    assert single.may_be_partial is False
