"""Which decoder layer is of which kind. The one owner of the group and tail rules."""

from __future__ import annotations

from itertools import groupby

from lingen.ir.plan import AttentionKind, FullKind, Layer, LayerPlan, LayerRun, MlpKind
from lingen.spec.model import ModelSpec


def layer_kind(
    layer_idx: int, num_hidden_layers: int, group_size: int, tail: str, full_kind: FullKind
) -> AttentionKind:
    """Attention kind of one layer, counted from 0.

    The last layer of each whole group is full attention; layers after the last whole group are
    full where `tail` is `full` (the vendor's modeling file) and lightning where it is `linear`.
    """
    if layer_idx >= num_hidden_layers // group_size * group_size:
        return full_kind if tail == "full" else "lightning"
    return full_kind if (layer_idx + 1) % group_size == 0 else "lightning"


def mlp_kind(layer_idx: int, first_k_dense_replace: int) -> MlpKind:
    """The first `first_k_dense_replace` layers are dense, the others mixtures of experts."""
    return "dense" if layer_idx < first_k_dense_replace else "moe"


def lower_plan(spec: ModelSpec) -> LayerPlan:
    pattern = spec.attention.pattern
    full_kind = "mla" if spec.attention.mla else "gqa"
    num_layers = spec.model.num_hidden_layers
    num_groups = num_layers // pattern.layer_group_size
    seen = {"lightning": 0, full_kind: 0}
    layers = []
    for index in range(num_layers):
        attention = layer_kind(index, num_layers, pattern.layer_group_size, pattern.tail, full_kind)
        mlp = mlp_kind(index, spec.mlp.first_k_dense_replace)
        layers.append(Layer(index, attention, mlp, seen[attention]))
        seen[attention] += 1
    return LayerPlan(
        layers=tuple(layers),
        runs=_runs(layers),
        group_size=pattern.layer_group_size,
        num_groups=num_groups,
        tail=pattern.tail,
        tail_kind=full_kind if pattern.tail == "full" else "lightning",
        num_tail_layers=num_layers - num_groups * pattern.layer_group_size,
        full_kind=full_kind,
        lightning=tuple(layer.index for layer in layers if layer.attention == "lightning"),
        full=tuple(layer.index for layer in layers if layer.attention == full_kind),
        dense=tuple(layer.index for layer in layers if layer.mlp == "dense"),
        moe=tuple(layer.index for layer in layers if layer.mlp == "moe"),
    )


def _runs(layers: list[Layer]) -> tuple[LayerRun, ...]:
    runs = []
    for (attention, mlp), group in groupby(layers, key=lambda layer: (layer.attention, layer.mlp)):
        members = list(group)
        runs.append(LayerRun(members[0].index, members[-1].index, attention, mlp))
    return tuple(runs)
