"""The layer plan: which layer is of which kind. Data only; `layers.py` owns the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["lightning", "mla", "gqa"]
FullKind = Literal["mla", "gqa"]
MlpKind = Literal["dense", "moe"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. `pool_idx` is its place among the layers of its own attention kind."""

    index: int
    attention: AttentionKind
    mlp: MlpKind
    pool_idx: int


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Consecutive layers of one attention and MLP kind, `first` to `last` inclusive."""

    first: int
    last: int
    attention: AttentionKind
    mlp: MlpKind

    @property
    def length(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class LayerPlan:
    layers: tuple[Layer, ...]
    runs: tuple[LayerRun, ...]
    group_size: int
    num_groups: int
    tail: Literal["full", "linear"]
    tail_kind: AttentionKind
    num_tail_layers: int
    full_kind: FullKind
    lightning: tuple[int, ...]
    full: tuple[int, ...]
    dense: tuple[int, ...]
    moe: tuple[int, ...]

    @property
    def has_lightning(self) -> bool:
        return bool(self.lightning)

    @property
    def has_full(self) -> bool:
        return bool(self.full)

    @property
    def is_mixed(self) -> bool:
        return self.has_lightning and self.has_full

    @property
    def branches_anywhere(self) -> bool:
        """Whether a request can start from any prefix of another, since no layer has a state.

        A state holds all tokens up to one place: with lightning layers, a prefix can be shared only
        up to where a state was stored.
        """
        return not self.has_lightning

    @property
    def layer_imports(self) -> str:
        """LAYER_KINDS and the names of the kinds, as generated code imports them."""
        return ", ".join(sorted(["LAYER_KINDS", *self.kind_names.split(", ")]))

    @property
    def kind_names(self) -> str:
        """Names of the decoder layers' attention kinds, as generated code imports them."""
        names = (("LIGHTNING", self.has_lightning), (self.full_kind.upper(), self.has_full))
        return ", ".join(name for name, is_there in names if is_there)

    @property
    def has_tail(self) -> bool:
        return self.num_tail_layers > 0

    @property
    def lightning_per_group(self) -> int:
        return self.group_size - 1

    @property
    def num_dense(self) -> int:
        return len(self.dense)

    @property
    def description(self) -> str:
        """`32 layers: 28 lightning and 4 MLA, 1 dense and 31 MoE`."""
        kinds = [(len(self.lightning), "lightning"), (len(self.full), self.full_kind.upper())]
        mlps = [(len(self.dense), "dense"), (len(self.moe), "MoE")]
        attention, mlp = (
            " and ".join(f"{count} {name}" for count, name in parts if count)
            for parts in (kinds, mlps)
        )
        return f"{len(self.layers)} layers: {attention}, {mlp}"
