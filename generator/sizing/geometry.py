"""A model's pipeline stages, and the cache bytes of each on one GPU."""

from __future__ import annotations

from lingen.ir.cache import (
    kv_bytes_per_token,
    kv_width,
    replay_bytes_per_draft,
    state_bytes_per_slot,
)
from lingen.ir.types import ModelIR
from lingen.planner import Geometry, Stage, pipeline_stages


def geometry_of(ir: ModelIR, tp: int = 1, pp: int = 1) -> Geometry:
    """Cache bytes per stage and GPU. tp and pp must be ones that `why_not_*` lets pass."""
    stages = []
    width = kv_width(ir.mla, ir.gqa, tp)
    for layers in pipeline_stages(ir.model.num_hidden_layers, pp):
        lightning = sum(layer in layers for layer in ir.plan.lightning)
        full = sum(layer in layers for layer in ir.plan.full)
        drafts = ir.mtp is not None and layers.stop == ir.model.num_hidden_layers
        stages.append(
            Stage(
                state_bytes_per_slot(lightning, ir.lightning, ir.cache.state_dtype, tp),
                replay_bytes_per_draft(lightning, ir.lightning, ir.model.torch_dtype, tp),
                kv_bytes_per_token(full, width, ir.cache.kv_dtype),
                kv_bytes_per_token(1 if drafts else 0, width, ir.cache.kv_dtype),
            )
        )
    return Geometry(tuple(stages), tp)


def why_not_pp(ir: ModelIR, pp: int) -> str | None:
    layers = ir.model.num_hidden_layers
    return None if 1 <= pp <= layers else f"1 to {layers}, the number of layers"


def why_not_tp(ir: ModelIR, tp: int) -> str | None:
    """What is expected of tp: every split dimension divides; norm groups do, either way round."""
    if tp < 1:
        return "at least 1"
    if ir.lightning is not None:
        groups = ir.lightning.group_norm_size
        if groups % tp and tp % groups:
            return f"a divisor or a multiple of group_norm_size {groups}"
    for group in ir.weights.groups:
        for weight in group.weights:
            if group.is_whole_model or weight.tp_dim is None:
                continue
            for block in weight.tp_blocks or (weight.shape[weight.tp_dim],):
                units = block // weight.tp_unit
                if units % tp and not (weight.has_blocks and tp % units == 0):
                    return f"a divisor of {units}, as {weight.param} is split by it"
    heads = ir.model.num_attention_heads
    return f"a divisor of num_attention_heads {heads}" if heads % tp else None
