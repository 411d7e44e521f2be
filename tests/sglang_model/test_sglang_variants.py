"""Specs that the sglang target takes, each imported and free of leftovers; and those it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from engine_stubs import SPECS, plugin_ir, plugin_modules
from lingen.errors import SpecError
from lingen.spec import load_spec
from lingen.spec.rules import refuse_target
from lingen.spec.rules_sglang import SGLANG_RULES

NO_MTP = ("mtp.num_nextn_predict_layers=0", "cache.speculative.num_draft_tokens=0")
VARIANTS = {
    "no draft layer": NO_MTP,
    "no head norms": ("attention.lightning.use_qk_norm=false",),
    "no second stream": ("moe.overlap_shared_experts=false",),
    "no fp8": ("quantization.checkpoint_formats=[bfloat16]",),
    "fp8 per channel": ("quantization.checkpoint_formats=[bfloat16, fp8_channel]",),
    "fp8 in blocks": ("quantization.checkpoint_formats=[bfloat16, fp8_block]",),
    "no dense layer": ("mlp.first_k_dense_replace=0",),
    "decay offset -1": ("attention.lightning.decay.layer_offset=-1",),
    "one expert per token": ("moe.num_experts_per_tok=1",),
    "two shared experts": ("moe.num_shared_experts=2",),
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_imports_and_has_nothing_unused(settings, tmp_path):
    ir = plugin_ir("ling-2.6-flash", *settings)
    with plugin_modules(ir, tmp_path) as modules:
        assert (modules.draft is None) == (ir.mtp is None)
        assert modules.model.EntryClass.__name__ == "BailingMoeV2_5ForCausalLM"
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_without_a_second_stream_the_experts_have_none(tmp_path):
    ir = plugin_ir("ling-2.6-flash", *VARIANTS["no second stream"])
    with plugin_modules(ir, tmp_path) as modules:
        source = Path(modules.model.__file__).read_text()
    assert "        self.alt_stream = None\n        self.gate = Router()" in source


def test_one_expert_per_token_keeps_its_score(tmp_path):
    """F21: the weight of the only expert is not normalised away."""
    ir = plugin_ir("ling-2.6-flash", *VARIANTS["one expert per token"])
    with plugin_modules(ir, tmp_path) as modules:
        assert modules.model.RENORMALIZE is False


YARN = (
    "model.rope_scaling.rope_type=yarn",
    "model.rope_scaling.factor=2",
    "model.rope_scaling.original_max_position_embeddings=131072",
    "model.rope_scaling.beta_fast=32",
    "model.rope_scaling.beta_slow=1",
    "model.rope_scaling.mscale=null",
    "model.rope_scaling.mscale_all_dim=null",
)
TORCH = "targets=[torch]"
REFUSED = {
    "engine-tail": (
        ("attention.pattern.layer_group_size=5",),
        "SGLang makes the layers after the last whole group lightning layers",
    ),
    "engine-kinds": (
        ("attention.pattern.layer_group_size=1",),
        "SGLang serves this architecture with both kinds of layers",
    ),
    "engine-head-dim": (
        ("attention.lightning.head_dim=64",),
        "SGLang's lightning kernel takes heads of 128",
    ),
    "engine-backend": (
        ("attention.lightning.backend=minimax",),
        "only seg_la was run in SGLang",
    ),
    "engine-query": (
        ("attention.mla.q_lora_rank=null",),
        "a whole query projection was never run in SGLang",
    ),
    "engine-bias": (("model.use_qkv_bias=true",), "SGLang's latent attention has no biases"),
    "engine-rope": (YARN, "yarn was never run in SGLang with this model"),
    "engine-experts": (
        ("moe.num_shared_experts=0",),
        "a model without experts, or without shared ones, was never run in SGLang",
    ),
}


def test_every_rule_has_a_spec_that_it_refuses():
    assert [rule.name for rule in SGLANG_RULES] == list(REFUSED)


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_engine_cannot_serve_is_refused_with_its_place(settings, message):
    spec = load_spec(SPECS / "ling-2.6-flash.yaml", (TORCH, *settings))
    refuse_target(spec, "torch", is_listed=True)
    with pytest.raises(SpecError) as caught:
        refuse_target(spec, "sglang", is_listed=False)
    (problem,) = caught.value.problems
    assert problem.message == message
    assert problem.key == settings[0].partition("=")[0] or problem.key in (
        "attention.pattern.tail",
        "model.use_bias",
    )


def test_a_linear_tail_is_served():
    """The engine's own class refuses a partial group; its cache lays it out so."""
    settings = ("attention.pattern.layer_group_size=5", "attention.pattern.tail=linear")
    refuse_target(load_spec(SPECS / "ling-2.6-flash.yaml", (TORCH, *settings)), "sglang", False)


@pytest.mark.parametrize("name", ["ling-2.6-flash", "ling-2.6-1t", "ring-2.5-1t"])
def test_shipped_models_are_served(name):
    refuse_target(load_spec(SPECS / f"{name}.yaml"), "sglang", False)
