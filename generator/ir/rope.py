"""Rotary frequencies: plain, or stretched by YaRN. The one owner of the scaling formulas.

YaRN: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023, as
transformers implements it; the factor on MLA's softmax scale is that of the vendor's modeling file.
"""

from __future__ import annotations

import math

from lingen.ir.parts import Rope, Yarn, YarnRamp
from lingen.spec.model import ModelSpec, RopeScaling


def rotary_dim(head_dim: int, partial_rotary_factor: float) -> int:
    """Leading dimensions of a lightning or GQA head that are rotated.

    MLA rotates all of its rope part.
    """
    return int(head_dim * partial_rotary_factor)


def attention_mscale(factor: float, weight: float = 1.0) -> float:
    """`0.1 * weight * ln(factor) + 1`, and 1 where nothing is stretched."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def yarn_ramp(rotary_dim: int, theta: float, scaling: RopeScaling) -> tuple[float, float]:
    """Pairs up to the first number turn as before, pairs from the second on `factor` times slower.

    A pair that makes n rotations over the original length is pair
    `rotary_dim * ln(length / (2 pi n)) / (2 ln theta)`; the bounds are whole pairs.
    """

    def pair(rotations: float) -> float:
        length = scaling.original_max_position_embeddings
        return rotary_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair(scaling.beta_fast)), 0)
    high = min(math.ceil(pair(scaling.beta_slow)), rotary_dim - 1)
    return (float(low), float(high) if high > low else low + 0.001)


def attention_factor(scaling: RopeScaling) -> float:
    """Factor on cosines and sines."""
    if scaling.mscale and scaling.mscale_all_dim:
        return attention_mscale(scaling.factor, scaling.mscale) / attention_mscale(
            scaling.factor, scaling.mscale_all_dim
        )
    return attention_mscale(scaling.factor)


def mla_scale_factor(scaling: RopeScaling) -> float:
    """Factor on the softmax scale of MLA layers: mscale squared, if `mscale_all_dim` is stated."""
    if not scaling.mscale_all_dim:
        return 1.0
    return attention_mscale(scaling.factor, scaling.mscale_all_dim) ** 2


def lower_rope(spec: ModelSpec, rotary_dims: list[int]) -> Rope:
    """`rotary_dims`: the rotated width of each attention kind that the model has."""
    theta, scaling = spec.model.rope_theta, spec.model.rope_scaling
    if scaling is None:
        return Rope(theta, None)
    ramps = [YarnRamp(dim, *yarn_ramp(dim, theta, scaling)) for dim in sorted(set(rotary_dims))]
    return Rope(
        theta,
        Yarn(
            factor=scaling.factor,
            original_max_position_embeddings=scaling.original_max_position_embeddings,
            ramps=tuple(ramps),
            attention_factor=attention_factor(scaling),
            mla_scale_factor=mla_scale_factor(scaling),
        ),
    )
