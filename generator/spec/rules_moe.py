"""Rules between the keys of the experts, and how they split over tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .rule import Refusal, Rule, why_not_split


def why_not_expert_groups(n_group: int, num_experts: int) -> Refusal | None:
    if num_experts % n_group == 0:
        return None
    return Refusal("num_experts is not a multiple of n_group", "n_group that divides num_experts")


def why_not_group_of_one(n_group: int, num_experts: int) -> Refusal | None:
    """Says nothing where the groups are not equal: `why_not_expert_groups` does."""
    if num_experts % n_group or num_experts // n_group >= 2:
        return None
    return Refusal(
        "a group of one expert, but the score of a group is the sum of its two best",
        "at least two experts in each group",
    )


def why_not_kept_groups(topk_group: int, n_group: int) -> Refusal | None:
    if topk_group <= n_group:
        return None
    return Refusal("topk_group is more than n_group", "topk_group of at most n_group")


def why_not_experts_per_token(
    num_experts_per_tok: int, topk_group: int, n_group: int, num_experts: int
) -> Refusal | None:
    """Says nothing where the groups themselves are refused."""
    if num_experts % n_group or topk_group > n_group:
        return None
    available = topk_group * (num_experts // n_group)
    if num_experts_per_tok <= available:
        return None
    return Refusal(
        f"num_experts_per_tok is more than the {available} experts of topk_group groups",
        "num_experts_per_tok of at most topk_group * num_experts / n_group",
    )


def why_not_router_bias(expert_bias: bool, score_function: str) -> Refusal | None:
    if expert_bias == (score_function == "sigmoid"):
        return None
    return Refusal(
        "expert_bias does not go with score_function",
        "true with sigmoid scores, false with softmax scores",
    )


def why_not_raw_scores(renormalize: bool, score_function: str) -> Refusal | None:
    if renormalize or score_function == "softmax":
        return None
    return Refusal(
        "renormalize is false, but sigmoid scores are always normalised",
        "true with sigmoid scores",
    )


def why_not_softmax_groups(n_group: int, score_function: str) -> Refusal | None:
    if n_group == 1 or score_function == "sigmoid":
        return None
    return Refusal("softmax scores are not limited to groups", "n_group 1 with softmax scores")


def one_group(n_group: int, score_function: str) -> list[int]:
    return [1]


def why_not_softmax_scaling(routed_scaling_factor: float, score_function: str) -> Refusal | None:
    if routed_scaling_factor == 1 or score_function == "sigmoid":
        return None
    return Refusal(
        "softmax weights are not scaled", "routed_scaling_factor 1.0 with softmax scores"
    )


def no_scaling(routed_scaling_factor: float, score_function: str) -> list[float]:
    return [1.0]


def why_not_expert_width_per_tp(moe_intermediate_size: int, tp: Sequence[int]) -> Refusal | None:
    return why_not_split("moe_intermediate_size", moe_intermediate_size, tp)


def why_not_shared_width_per_tp(
    moe_shared_expert_intermediate_size: int, num_shared_experts: int, tp: Sequence[int]
) -> Refusal | None:
    """Shared experts are one MLP as wide as all of them."""
    what = "moe_shared_expert_intermediate_size * num_shared_experts"
    width = moe_shared_expert_intermediate_size * num_shared_experts
    return why_not_split(what, width, tp)


NUM_EXPERTS = "moe.num_experts"
SCORES = "moe.score_function"
SCALING = "moe.routed_scaling_factor"
N_GROUP = "moe.n_group"
TOPK_GROUP = "moe.topk_group"
SHARED_WIDTH = "moe.moe_shared_expert_intermediate_size"
TP = "parallel.tp"

MOE_RULES = (
    Rule((N_GROUP, NUM_EXPERTS), why_not_expert_groups),
    Rule((N_GROUP, NUM_EXPERTS), why_not_group_of_one),
    Rule((TOPK_GROUP, N_GROUP), why_not_kept_groups),
    Rule(("moe.num_experts_per_tok", TOPK_GROUP, N_GROUP, NUM_EXPERTS), why_not_experts_per_token),
    Rule(("moe.expert_bias", SCORES), why_not_router_bias),
    Rule(("moe.renormalize", SCORES), why_not_raw_scores),
    Rule((N_GROUP, SCORES), why_not_softmax_groups, {N_GROUP: one_group}),
    Rule((SCALING, SCORES), why_not_softmax_scaling, {SCALING: no_scaling}),
    Rule(("moe.moe_intermediate_size", TP), why_not_expert_width_per_tp),
    Rule((SHARED_WIDTH, "moe.num_shared_experts", TP), why_not_shared_width_per_tp),
)
