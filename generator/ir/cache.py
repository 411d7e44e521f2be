"""Bytes of the caches, the one owner of these facts. Slots of a request: `lingen.planner`."""

from __future__ import annotations

from lingen.ir.parts import Cache, Gqa, Lightning, Mla, Mtp
from lingen.ir.plan import LayerPlan
from lingen.planner.options import slots_per_request
from lingen.spec.model import ModelSpec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def state_bytes_per_slot(
    num_layers: int, lightning: Lightning | None, state_dtype: str, tp: int = 1
) -> int:
    """Recurrent state of one slot over `num_layers` lightning layers, heads divided by tp."""
    if lightning is None:
        return 0
    heads = lightning.num_heads // tp
    return num_layers * heads * lightning.head_dim**2 * DTYPE_BYTES[state_dtype]


def replay_bytes_per_draft(
    num_layers: int, lightning: Lightning | None, activation_dtype: str, tp: int = 1
) -> int:
    """Key and value of one draft token over `num_layers` lightning layers, heads divided by tp."""
    if lightning is None:
        return 0
    heads = lightning.num_heads // tp
    return num_layers * heads * 2 * lightning.head_dim * DTYPE_BYTES[activation_dtype]


def kv_width(mla: Mla | None, gqa: Gqa | None, tp: int = 1) -> int:
    """Numbers that one full layer keeps of one token, on one tp rank.

    MLA: its latent row, whole on every rank. GQA: keys and values of the rank's key heads, at least
    one.
    """
    if mla is not None:
        return mla.latent_width
    if gqa is not None:
        return 2 * max(1, gqa.num_key_value_heads // tp) * gqa.head_dim
    return 0


def kv_bytes_per_token(num_layers: int, width: int, kv_dtype: str) -> int:
    """KV cache of one token over `num_layers` full layers of `kv_width` numbers."""
    return num_layers * width * DTYPE_BYTES[kv_dtype]


def lower_cache(
    spec: ModelSpec,
    plan: LayerPlan,
    lightning: Lightning | None,
    mla: Mla | None,
    gqa: Gqa | None,
    mtp: Mtp | None,
) -> Cache:
    cache = spec.cache
    drafts = cache.speculative.num_draft_tokens
    num_draft_layers = 1 if mtp else 0
    num_kv_layers = len(plan.full) + (num_draft_layers if drafts else 0)
    return Cache(
        kv_dtype=cache.kv_dtype,
        state_dtype=cache.state_dtype,
        page_size=cache.page_size,
        num_state_layers=len(plan.lightning),
        num_kv_layers=len(plan.full),
        num_draft_kv_layers=num_draft_layers,
        state_bytes_per_slot=state_bytes_per_slot(
            len(plan.lightning), lightning, cache.state_dtype
        ),
        kv_bytes_per_token=kv_bytes_per_token(num_kv_layers, kv_width(mla, gqa), cache.kv_dtype),
        slots_per_request=slots_per_request(
            plan.has_lightning, cache.prefix_cache, cache.extra_buffer
        ),
        # A recurrent state exists only where it was stored: a prefix can be shared at such a
        # boundary and nowhere else.
        can_branch_unaligned=not plan.has_lightning,
        mamba_full_memory_ratio=cache.mamba_full_memory_ratio,
        prefix_cache=cache.prefix_cache,
        extra_buffer=cache.extra_buffer,
        verify_states=cache.verify_states,
        num_draft_tokens=drafts,
        draft_topk=cache.speculative.topk,
    )
