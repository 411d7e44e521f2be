"""Cards and what a model's weights take on one: the heaviest rank of the heaviest stage."""

from __future__ import annotations

import math

from lingen.ir.types import ModelIR
from lingen.ir.weight_map import Weight
from lingen.planner import pipeline_stages

MIB = 1 << 20

# As nvidia-smi reports them.
GPU_MIB = {"h100": 81559, "h200": 143771, "h20": 97871, "h20-3e": 143771, "b200": 183359}
WEIGHT_FORMATS = ("bf16", "fp8")

_EMBEDDING = "word_embeddings.weight"
_ROUTER = "mlp.gate."
_BF16_BYTES, _FLOAT32_BYTES = 2, 4


def weight_bytes(ir: ModelIR, tp: int, pp: int, weight_format: str, drafts: bool) -> int:
    """Bytes of parameters on the GPU that holds most of them.

    Replicated tensors count whole, and a vocabulary shard with its padding rows. `fp8` stores every
    linear of the layers in one byte per weight and a float32 scale per output channel, those of the
    MTP layer if the published files do. Routers stay float32: all other tensors take two bytes,
    whatever dtype the spec computes in. The MTP layer counts with drafts only. It stands behind the
    last layer and embeds the tokens that it drafts, so the last stage holds the embedding too.
    """
    stages = pipeline_stages(ir.model.num_hidden_layers, pp)
    totals = [0] * pp
    for group in ir.weights.groups:
        if group.is_draft and not drafts:
            continue
        for weight in group.weights:
            stored = "bf16" if group.is_draft and not ir.weights.fp8_mtp else weight_format
            size = rank_bytes(weight, tp, stored, group.is_whole_model)
            if group.layers:
                for stage, layers in enumerate(stages):
                    totals[stage] += size * sum(layer in layers for layer in group.layers)
            elif weight.param != _EMBEDDING:
                totals[-1] += size
            else:
                reading = {0, pp - 1} if drafts else {0}
                for stage in reading:
                    totals[stage] += size
    return max(totals)


def rank_bytes(weight: Weight, tp: int, weight_format: str, pads: bool) -> int:
    """Bytes of one tensor, all its experts included, on one tp rank."""
    shape = list(weight.shape)
    if weight.tp_dim is not None:
        shape[weight.tp_dim] = _rank_size(weight, tp, pads)
    count = math.prod(shape) * max(1, weight.num_experts)
    if weight.param.startswith(_ROUTER):
        return count * _FLOAT32_BYTES
    if weight_format == "fp8" and weight.quantizable:
        return count + shape[0] * max(1, weight.num_experts) * _FLOAT32_BYTES
    return count * _BF16_BYTES


def _rank_size(weight: Weight, tp: int, pads: bool) -> int:
    """Size of the split dimension on a rank: whole units of each block, at least one."""
    size = weight.shape[weight.tp_dim or 0]
    if pads:
        return -(-size // tp)
    unit = weight.tp_unit
    return sum(max(1, block // unit // tp) * unit for block in weight.tp_blocks or (size,))
