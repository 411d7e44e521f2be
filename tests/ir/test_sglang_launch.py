"""What the IR recommends for the engine, from the spec's caches and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from lingen.ir import lower
from lingen.spec import load_spec

SPECS = Path(__file__).parents[2] / "specs"


def launch(*settings: str, name: str = "ling-2.6-flash"):
    return lower(load_spec(SPECS / f"{name}.yaml", settings)).sglang.launch


def test_the_shipped_models_are_served_as_their_recipes_say():
    assert (launch().tp_size, launch().pp_size) == (4, 1)
    big = launch(name="ling-2.6-1t")
    assert (big.tp_size, big.pp_size) == (8, 2)


@pytest.mark.parametrize(
    ("settings", "strategy", "flags"),
    [
        ((), "extra_buffer", ()),
        (("cache.extra_buffer=overlap",), "extra_buffer", ()),
        (
            ("cache.extra_buffer=no-overlap",),
            "extra_buffer",
            ("--disable-overlap-schedule",),
        ),
        (("cache.page_size=1",), "no_buffer", ("--disable-overlap-schedule",)),
        (("cache.page_size=1", "cache.extra_buffer=overlap"), "extra_buffer", ()),
        (("cache.prefix_cache=false",), None, ("--disable-radix-cache",)),
        (("cache.prefix_cache=false", "cache.page_size=1"), None, ("--disable-radix-cache",)),
    ],
)
def test_pages_of_more_than_one_token_need_the_extra_buffer(settings, strategy, flags):
    found = launch(*settings)
    assert (found.radix_strategy, found.flags) == (strategy, flags)


@pytest.mark.parametrize(("stated", "tokens"), [(0, 4), (1, 2), (2, 2), (6, 6)])
def test_a_chain_of_drafts_has_a_step_less_than_tokens_to_verify(stated, tokens):
    found = launch(f"cache.speculative.num_draft_tokens={stated}", "cache.extra_buffer=overlap")
    assert (found.num_draft_tokens, found.num_steps, found.eagle_topk) == (tokens, tokens - 1, 1)
    assert found.drafts == (stated > 0)


def test_caches_have_the_engines_names_of_their_dtypes():
    assert (launch().kv_cache_dtype, launch().mamba_ssm_dtype) == ("auto", "float32")
    mixed = launch("model.torch_dtype=float32", "cache.state_dtype=bfloat16")
    assert (mixed.kv_cache_dtype, mixed.mamba_ssm_dtype) == ("bfloat16", "bfloat16")
    alike = launch("model.torch_dtype=float32", "cache.kv_dtype=float32")
    assert alike.kv_cache_dtype == "auto"


def test_a_model_that_the_target_does_not_serve_has_no_such_facts():
    assert lower(load_spec(SPECS / "ling-mini-2.0.yaml")).sglang is None


def test_a_model_without_an_mtp_layer_does_not_draft():
    ring = lower(load_spec(SPECS / "ring-2.5-1t.yaml")).sglang
    assert (ring.draft_class, ring.launch.can_draft) == (None, False)
    assert ring.classes == ("BailingMoeV2_5ForCausalLM",)
