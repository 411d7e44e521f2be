"""The fixed decay of lightning attention: head slopes times layer factors.

The one owner of the formula. Head slopes are those of ALiBi (Press et al., "Train Short, Test
Long", 2022, and its released code for head counts that are not powers of two); the layer factor is
that of the vendor's modeling file, with the offset as a choice of the spec.
"""

from __future__ import annotations

import math

from lingen.ir.parts import Decay
from lingen.ir.plan import LayerPlan
from lingen.spec.model import ModelSpec


def head_slopes(num_heads: int) -> tuple[float, ...]:
    """Slope of each head, counted over the whole model, never over a tensor-parallel shard.

    For a power of two n: 2^(-8/n), 2^(-16/n), … Else the slopes of the next lower power of two,
    followed by every second slope of twice that power.
    """
    lower = 1 << (num_heads.bit_length() - 1)
    slopes = _power_of_two_slopes(lower)
    if lower < num_heads:
        slopes += _power_of_two_slopes(2 * lower)[::2][: num_heads - lower]
    return slopes


def _power_of_two_slopes(num_heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8 * (head + 1) / num_heads) for head in range(num_heads))


def layer_factor(
    layer_idx: int, num_hidden_layers: int, layer_offset: int, epsilon: float
) -> float:
    """`1 - (l + offset) / (L - 1) + epsilon`, l counted from 0, L without MTP layers.

    A model of one layer has no depth to scale by: its factor is `1 + epsilon`.
    """
    if num_hidden_layers == 1:
        return 1.0 + epsilon
    return 1.0 - (layer_idx + layer_offset) / (num_hidden_layers - 1) + epsilon


def slope_expression(num_heads: int) -> str:
    """`head_slopes` as an expression for generated code, equal to the last bit."""
    lower = 1 << (num_heads.bit_length() - 1)
    text = f"tuple(2.0 ** (-8 * k / {lower}) for k in range(1, {lower + 1}))"
    if lower == num_heads:
        return text
    stop = 2 * (num_heads - lower) + 1
    return f"{text} + tuple(2.0 ** (-8 * k / {2 * lower}) for k in range(1, {stop}, 2))"


def factor_expression(num_hidden_layers: int, layer_offset: int, epsilon: float) -> str:
    """`layer_factor` as an expression in `layer` for generated code, equal to the last bit."""
    if num_hidden_layers == 1:
        return f"1 + {epsilon}"
    place = "layer" if layer_offset == 0 else f"(layer - {-layer_offset})"
    return f"1 - {place} / {num_hidden_layers - 1} + {epsilon}"


def decay(decays: Decay, layer_idx: int, head_idx: int) -> float:
    """Factor by which one step shrinks the state of a head: exp of a number that is never > 0."""
    return math.exp(-decays.head_slopes[head_idx] * dict(decays.layer_factors)[layer_idx])


def lower_decay(spec: ModelSpec, plan: LayerPlan) -> Decay:
    chosen = spec.attention.lightning.decay
    num_layers = spec.model.num_hidden_layers
    return Decay(
        formula=chosen.formula,
        layer_offset=chosen.layer_offset,
        epsilon=chosen.epsilon,
        head_slopes=head_slopes(spec.model.num_attention_heads),
        layer_factors=tuple(
            (index, layer_factor(index, num_layers, chosen.layer_offset, chosen.epsilon))
            for index in plan.lightning
        ),
        slope_expression=slope_expression(spec.model.num_attention_heads),
        factor_expression=factor_expression(num_layers, chosen.layer_offset, chosen.epsilon),
    )
