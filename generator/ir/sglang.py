"""What the SGLang plugin of a model is called, the engine it is written for, and how it is served.

The one owner of the pinned engine version: its hook points are private, so each version is checked
before the pin moves. Facts of that version, and where its source says so:

- The class's name decides how a model is served (`configs/model_config.py`, `arg_groups/`).
- Pages of more than one token need the extra buffer, or no prefix cache; without that buffer the
  schedule does not overlap either (`arg_groups/mamba_hook.py`).
- Drafting over pipeline stages is experimental, behind SGLANG_ENABLE_PP_SPEC
  (`arg_groups/validation_hook.py`).
- Its own choice for drafts of this architecture is 3 steps, 1 branch, 4 tokens
  (`arg_groups/speculative_hook.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from lingen import __version__
from lingen.spec.model import Cache, ModelSpec

ENGINE_VERSION = "0.5.23"
PACKAGE_SUFFIX = "_sglang"

# Model class in the engine → its draft class: the plugin's are called the same.
ENGINE_CLASSES = {"BailingMoeV2_5ForCausalLM": "BailingMoeForCausalLMNextN"}
ENGINE_DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """Arguments of `sglang serve`, under the engine's names, unless the user says otherwise.

    radix_strategy: None without a prefix cache. flags: arguments without a value. num_steps,
    eagle_topk and num_draft_tokens: of a server that drafts; drafts: whether it does unasked.
    """

    tp_size: int
    pp_size: int
    page_size: int
    mamba_full_memory_ratio: float
    mamba_ssm_dtype: str
    kv_cache_dtype: str
    radix_strategy: str | None
    flags: tuple[str, ...]
    can_draft: bool
    drafts: bool
    num_steps: int
    eagle_topk: int
    num_draft_tokens: int


@dataclass(frozen=True, slots=True)
class SGLang:
    """package: module, folder and entry point. distribution: what pip calls it.

    version: of the distribution, which is lingen's. draft_class: None without an MTP layer.
    """

    engine_version: str
    version: str
    package: str
    distribution: str
    model_class: str
    draft_class: str | None
    launch: Launch

    @property
    def classes(self) -> tuple[str, ...]:
        """What the plugin registers, the model first."""
        return (self.model_class, *((self.draft_class,) if self.draft_class else ()))


def lower_sglang(spec: ModelSpec, package: str, drafts: bool) -> SGLang | None:
    """None for an architecture that the target does not serve: a rule refuses it there.

    drafts: whether the model has an MTP layer.
    """
    [architecture] = spec.model.architectures
    if architecture not in ENGINE_CLASSES:
        return None
    name = package + PACKAGE_SUFFIX
    return SGLang(
        engine_version=ENGINE_VERSION,
        version=__version__,
        package=name,
        distribution=name.replace("_", "-"),
        model_class=architecture,
        draft_class=ENGINE_CLASSES[architecture] if drafts else None,
        launch=_lower_launch(spec, drafts),
    )


def _flags(cache: Cache, needs_buffer: bool) -> tuple[str, ...]:
    if not cache.prefix_cache:
        return ("--disable-radix-cache",)
    overlaps = needs_buffer and cache.extra_buffer != "no-overlap"
    return () if overlaps else ("--disable-overlap-schedule",)


def _lower_launch(spec: ModelSpec, can_draft: bool) -> Launch:
    cache = spec.cache
    needs_buffer = cache.extra_buffer != "none" or cache.page_size > 1
    strategy = "extra_buffer" if needs_buffer else "no_buffer"
    # One of the tokens that are verified is the step's own, so a draft has at least two.
    draft_tokens = max(2, cache.speculative.num_draft_tokens or ENGINE_DRAFT_TOKENS)
    return Launch(
        tp_size=spec.sglang.tp_size,
        pp_size=spec.sglang.pp_size,
        page_size=cache.page_size,
        mamba_full_memory_ratio=cache.mamba_full_memory_ratio,
        mamba_ssm_dtype=cache.state_dtype,
        # The engine knows no name for float32 and float16: there the weights' dtype is meant.
        kv_cache_dtype="auto" if cache.kv_dtype == spec.model.torch_dtype else cache.kv_dtype,
        radix_strategy=strategy if cache.prefix_cache else None,
        flags=_flags(cache, needs_buffer),
        can_draft=can_draft,
        drafts=cache.speculative.num_draft_tokens > 0,
        num_steps=draft_tokens - 1,
        eagle_topk=cache.speculative.topk,
        num_draft_tokens=draft_tokens,
    )
