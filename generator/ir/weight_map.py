"""The weight map: checkpoint tensors and the parameters they fill. Data; `weights.py` fills it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lingen.ir.engine_params import (
    engine_layers,
    engine_param,
    engine_shard,
    is_in_decoder_layer,
)

LayerSet = Literal["model", "all", "lightning", "mla", "gqa", "dense", "moe", "draft"]


@dataclass(frozen=True, slots=True)
class Weight:
    """Checkpoint tensors of one name and the parameter they fill, both relative to their group.

    name: may hold `{expert}`, which runs below `num_experts`.
    param: rows `[part * shape[0], (part + 1) * shape[0])` of it are filled, of `parts` such blocks,
        after the expert index where there is one.
    tp_dim: dimension of the checkpoint tensor that tensor parallelism splits, None: replicated.
    tp_blocks: sizes of the blocks along `tp_dim` (query, key, value), each split on its own in
        whole multiples of `tp_unit` (a head); ranks share copies of a block with too few of them.
    quantizable: may be stored in fp8 with scales.
    """

    name: str
    param: str
    shape: tuple[int, ...]
    num_experts: int = 0
    part: int = 0
    parts: int = 1
    tp_dim: int | None = None
    tp_blocks: tuple[int, ...] = ()
    tp_unit: int = 1
    quantizable: bool = False

    @property
    def is_renamed(self) -> bool:
        return self.param != self.name

    @property
    def is_split(self) -> bool:
        return self.tp_dim is not None

    @property
    def has_blocks(self) -> bool:
        return bool(self.tp_blocks)

    @property
    def has_parts(self) -> bool:
        return self.parts > 1

    @property
    def engine_param(self) -> str:
        """The parameter of SGLang's layer that it fills."""
        return engine_param(self.name)

    @property
    def engine_shard(self) -> int | str | None:
        """What that parameter's loader is told."""
        return engine_shard(self.name)

    @property
    def has_engine_shard(self) -> bool:
        return self.engine_shard is not None

    @property
    def is_renamed_by_engine(self) -> bool:
        return self.engine_param != self.name

    @property
    def is_beside_decoder(self) -> bool:
        """Of an MTP layer: whether it is outside of the decoder layer in it."""
        return not is_in_decoder_layer(self.name)

    @property
    def num_parameters(self) -> int:
        """In one layer, over all experts."""
        return math.prod(self.shape) * max(1, self.num_experts)


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Weights under one prefix. Prefixes of decoder layers hold `{layer}`, one of `layers`."""

    layer_set: LayerSet
    layers: tuple[int, ...]
    name_prefix: str
    param_prefix: str
    weights: tuple[Weight, ...]

    @property
    def is_whole_model(self) -> bool:
        return self.layer_set == "model"

    @property
    def is_draft(self) -> bool:
        return self.layer_set == "draft"

    @property
    def engine_layers(self) -> str:
        """Its layers, as an expression in the module for SGLang."""
        return engine_layers(self.layer_set)

    @property
    def num_parameters(self) -> int:
        return max(1, len(self.layers)) * sum(w.num_parameters for w in self.weights)

    @property
    def num_routed_parameters(self) -> int:
        routed = sum(w.num_parameters for w in self.weights if w.num_experts)
        return max(1, len(self.layers)) * routed


@dataclass(frozen=True, slots=True)
class WeightMap:
    """Every tensor of the published checkpoint. `computed`: tensors of lightning layers that
    repacked checkpoints carry and this package computes itself; they are skipped on loading.
    `config_facts`: see `lingen.ir.config_facts`. `fp8_mtp`: fp8 files store the MTP layer so."""

    groups: tuple[WeightGroup, ...]
    computed: tuple[str, ...]
    digest: str
    config_facts: tuple[tuple[str, int | float | bool | str], ...]
    checkpoint_formats: tuple[str, ...]
    weight_block_size: tuple[int, int]
    fp8_mtp: bool

    @property
    def plain_dtypes(self) -> tuple[str, ...]:
        """Safetensors names of the formats that are stored without scales."""
        names = {"bfloat16": "BF16", "float32": "F32"}
        return tuple(names[f] for f in self.checkpoint_formats if f in names)

    @property
    def layer_groups(self) -> tuple[WeightGroup, ...]:
        return tuple(group for group in self.groups if group.layers)

    @property
    def dtype_bytes(self) -> dict[str, int]:
        """Safetensors name → bytes per element, of everything a checkpoint may store."""
        sizes = {"BF16": 2, "F32": 4}
        readable = {name: sizes[name] for name in self.plain_dtypes}
        return {**readable, "F8_E4M3": 1} if self.has_fp8 else readable

    @property
    def formats_text(self) -> str:
        texts = {
            "bfloat16": "bfloat16",
            "float32": "float32",
            "fp8_channel": "fp8 per output channel",
            "fp8_block": "fp8 in blocks",
        }
        return ", ".join(texts[name] for name in self.checkpoint_formats)

    @property
    def has_fp8_channel(self) -> bool:
        return "fp8_channel" in self.checkpoint_formats

    @property
    def has_fp8_block(self) -> bool:
        return "fp8_block" in self.checkpoint_formats

    @property
    def has_fp8(self) -> bool:
        return self.has_fp8_channel or self.has_fp8_block


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Single parameters. total: without the MTP layer. active: total less the routed experts that
    one token does not use; embedding and head counted whole."""

    total: int
    active: int
    mtp: int
