"""What the engine's config may say, and which draft models are this plugin's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

CONFIGS = Path(__file__).parents[1] / "configs"


def published(name: str, **changed: object) -> SimpleNamespace:
    """A published config.json as the engine's config class holds it."""
    values = json.loads((CONFIGS / f"{name}.json").read_text()) | changed
    return SimpleNamespace(**values)


def test_the_published_config_passes(plugin):
    plugin.model.check_config(published(plugin.ir.name))


def test_a_rope_scaling_that_scales_nothing_passes(plugin):
    scaling = {"rope_type": "default", "rope_theta": 6000000}
    plugin.model.check_config(published(plugin.ir.name, rope_scaling=scaling))


def test_every_key_that_differs_is_said_with_both_values(flash):
    config = published("ling-2.6-flash", group_norm_size=8, routed_scaling_factor=1.0)
    with pytest.raises(ValueError) as caught:
        flash.model.check_config(config)
    assert str(caught.value) == (
        "config.json is not that of ling-2.6-flash: group_norm_size is 8, this package has 4; "
        "routed_scaling_factor is 1.0, this package has 2.5"
    )


def test_the_config_of_a_sibling_is_refused(flash):
    with pytest.raises(ValueError, match="hidden_size is 8192, this package has 4096"):
        flash.model.check_config(published("ling-2.6-1t"))


def test_a_rope_that_scales_is_refused(flash):
    scaling = {"rope_type": "yarn", "factor": 2.0}
    with pytest.raises(ValueError, match="rope_scaling has rope_type 'yarn'"):
        flash.model.check_config(published("ling-2.6-flash", rope_scaling=scaling))


def test_other_kernels_are_refused(flash):
    with pytest.raises(ValueError, match="linear_backend is 'minimax', this package has 'seg_la'"):
        flash.model.check_config(published("ling-2.6-flash", linear_backend="minimax"))


def serving(plugin, monkeypatch, exchange: str, dense: int | None) -> None:
    """A server of 4 ranks with these arguments."""
    a2a = SimpleNamespace(value=exchange, is_none=lambda: exchange == "none")
    parallel = SimpleNamespace(moe_dense_tp_size=dense, tp_size=4)
    monkeypatch.setattr(plugin.model, "get_moe_a2a_backend", lambda: a2a)
    monkeypatch.setattr(plugin.model, "get_parallel", lambda: parallel)


@pytest.mark.parametrize("dense", [None, 4])
def test_a_server_that_splits_dense_layers_over_all_ranks_passes(plugin, monkeypatch, dense):
    serving(plugin, monkeypatch, "none", dense)
    plugin.model.check_server()


@pytest.mark.parametrize(
    ("exchange", "dense", "message"),
    [
        ("deepep", None, "--moe-a2a-backend is 'deepep', expected 'none'"),
        ("none", 1, "--moe-dense-tp-size is 1, expected that of --tp-size, 4, or none"),
    ],
)
def test_a_server_that_would_split_them_otherwise_builds_neither_model(
    plugin, monkeypatch, exchange, dense, message
):
    serving(plugin, monkeypatch, exchange, dense)
    for cls in (
        plugin.model.BailingMoeV2_5ForCausalLM,
        plugin.draft.BailingMoeForCausalLMNextN,
    ):
        config = published(plugin.ir.name, use_kda=False)
        with pytest.raises(ValueError, match=f"{plugin.ir.name}: {message}"):
            cls(config)


@pytest.mark.parametrize(
    ("config", "is_ours"),
    [
        ({"model_type": "bailing_hybrid", "use_kda": False}, True),
        ({"model_type": "bailing_hybrid", "use_kda": True}, False),  # Ling-3.0
        ({"model_type": "bailing_moe"}, False),  # first and second generation
    ],
)
def test_draft_models_of_other_architectures_are_passed_on(plugin, monkeypatch, config, is_ours):
    """The engine gives all of them one draft class name."""
    draft, built = plugin.draft, {}

    class EngineClass:
        hf_to_sglang_mapper = "the engine's"

        def __init__(self, config, quant_config, prefix):
            built.update(config=config, quant_config=quant_config, prefix=prefix)

        @staticmethod
        def shared_experts_fusion_disable_reason(config, quant_config):
            return "a reason"

        @staticmethod
        def num_fusable_shared_experts(config):
            return 1

    monkeypatch.setattr(draft, "engine_class", lambda: EngineClass)
    config = SimpleNamespace(**config)
    cls = draft.BailingMoeForCausalLMNextN
    if is_ours:
        monkeypatch.setattr(cls, "__init__", lambda self, *_, **__: None)
        assert type(cls(config=config, quant_config="q", prefix="p")) is cls
        assert built == {}
    else:
        assert type(cls(config=config, quant_config="q", prefix="p")) is EngineClass
        assert built == {"config": config, "quant_config": "q", "prefix": "p"}
    mapper = (
        plugin.model.BailingMoeV2_5ForCausalLM.hf_to_sglang_mapper if is_ours else "the engine's"
    )
    assert cls.get_hf_to_sglang_mapper(config) == mapper
    reason = cls.shared_experts_fusion_disable_reason(config, None)
    assert reason == (None if is_ours else "a reason")
    assert cls.num_fusable_shared_experts(config) == (0 if is_ours else 1)


def test_the_draft_model_shares_embedding_and_head_without_cuda(flash, monkeypatch):
    draft = flash.draft
    monkeypatch.setattr(draft, "is_cuda", lambda: False)
    embedding, head = SimpleNamespace(weight="own"), SimpleNamespace(weight="own")
    model = SimpleNamespace(model=SimpleNamespace(word_embeddings=embedding), lm_head=head)
    draft.BailingMoeForCausalLMNextN.set_embed_and_head(model, "embedding", "head")
    assert (embedding.weight, head.weight) == ("embedding", "head")


def test_no_class_inherits_one_of_the_engines_bailing_models(plugin):
    """Neither is the engine's module imported, but for the architectures that are passed on."""
    import ast
    import inspect

    for module in (plugin.model, plugin.draft):
        names = [
            node.module
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.ImportFrom) and node.level == 0 and "bailing" in node.module
        ]
        expected = ["sglang.srt.models.bailing_moe_nextn"] if module is plugin.draft else []
        assert names == expected
        assert not any(
            name.startswith("Bailing")
            for name in vars(module)
            if "2_5" not in name and "NextN" not in name
        )
