"""Parameter counts, summed from the weight map: it owns names and shapes."""

from __future__ import annotations

from lingen.ir.parts import Moe
from lingen.ir.weight_map import ParameterCounts, WeightGroup


def count_parameters(groups: tuple[WeightGroup, ...], moe: Moe | None) -> ParameterCounts:
    main = [group for group in groups if not group.is_draft]
    total = sum(group.num_parameters for group in main)
    idle = 0
    if moe is not None:
        routed = sum(group.num_routed_parameters for group in main)
        idle = routed // moe.num_experts * (moe.num_experts - moe.num_experts_per_tok)
    drafting = sum(group.num_parameters for group in groups if group.is_draft)
    return ParameterCounts(total=total, active=total - idle, mtp=drafting)
