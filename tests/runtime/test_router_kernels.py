"""The router's kernels choose as the reference does: on a GPU, and in the interpreter on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import IS_INTERPRETED
from lingen.verify.package import generated_package
from small_models import V1, lowered, lowered_small
from torch import Tensor

pytestmark = [] if IS_INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
# By name: experts, groups, kept groups, experts per token.
ROUTERS = {
    "12 experts in 3 groups": (12, 3, 2, 4),
    "top 1": (12, 3, 2, 1),
    "one group": (8, 1, 1, 2),
    "all groups kept": (12, 3, 3, 5),
    "256 experts": (256, 8, 4, 8),
}
SIZE = 32


@pytest.fixture(scope="module")
def routers() -> Iterator[dict[str, ModuleType]]:
    with ExitStack() as stack:
        found = {}
        for name, (experts, groups, kept, top_k) in ROUTERS.items():
            ir = lowered_small(
                f"moe.num_experts={experts}",
                f"moe.n_group={groups}",
                f"moe.topk_group={kept}",
                f"moe.num_experts_per_tok={top_k}",
                "moe.routed_scaling_factor=2.5",
            )
            found[name] = stack.enter_context(generated_package(ir)).kernels.moe
        found["softmax"] = stack.enter_context(generated_package(lowered(spec=V1))).kernels.moe
        yield found


def given_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states and weights whose products are these logits exactly: one-hot weights.

    More experts than SIZE need wider hidden states.
    """
    num_experts = logits.shape[1]
    hidden = torch.zeros(logits.shape[0], max(SIZE, num_experts))
    hidden[:, :num_experts] = logits
    return hidden.to(DEVICE), torch.eye(num_experts, hidden.shape[1]).to(DEVICE)


def assert_routes_as_the_reference(moe: ModuleType, logits: Tensor, *bias: Tensor) -> None:
    hidden, weight = given_logits(logits)
    bias = tuple(each.to(DEVICE) for each in bias)
    got = moe.route(hidden, weight, *bias)
    weights, indices = moe.route_ref(logits.to(DEVICE), *bias)
    assert torch.equal(got.indices.long(), indices)
    torch.testing.assert_close(got.weights, weights, rtol=1e-5, atol=1e-7, equal_nan=True)
    assert_lists(got, logits.shape[1])


def assert_lists(routing: object, num_experts: int) -> None:
    """Every assignment once, among those of its expert."""
    slots, starts = routing.slots.long(), routing.starts.tolist()
    assert torch.equal(slots.sort().values, torch.arange(len(slots), device=slots.device))
    assert len(starts) == num_experts + 1 and starts[0] == 0 and starts[-1] == len(slots)
    experts = routing.indices.flatten().long()[slots]
    counts = torch.bincount(experts, minlength=num_experts)
    assert starts[1:] == counts.cumsum(0).tolist()
    assert torch.equal(experts, experts.sort().values)


def few_values(moe: ModuleType, num_experts: int, num_tokens: int, seed: int, low: float) -> tuple:
    """Logits and biases with many ties, and biases that differ by 2^-10."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([-4.0, -1.0, 0.0, 0.0, 0.5, 2.0])
    picks = torch.randint(6, (num_tokens, num_experts), generator=generator)
    steps = torch.randint(3, (num_experts,), generator=generator)
    return values[picks], low + steps * 2.0**-10


@settings(max_examples=6)
@given(
    num_tokens=st.sampled_from([1, 2, 17]),
    low=st.sampled_from([0.0, -7.0]),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("name", ROUTERS)
def test_ties_negative_scores_and_close_biases_are_decided_as_by_the_reference(
    routers: dict[str, ModuleType], name: str, num_tokens: int, low: float, seed: int
) -> None:
    moe = routers[name]
    assert_routes_as_the_reference(moe, *few_values(moe, ROUTERS[name][0], num_tokens, seed, low))


@pytest.mark.parametrize("num_tokens", [1, 64, 65, 70])
def test_lists_are_complete_on_both_sides_of_the_limit_of_one_launch(
    routers: dict[str, ModuleType], num_tokens: int
) -> None:
    moe = routers["12 experts in 3 groups"]
    assert_routes_as_the_reference(moe, *few_values(moe, 12, num_tokens, num_tokens, 0.0))


def test_no_token_is_routed_nowhere(routers: dict[str, ModuleType]) -> None:
    moe = routers["12 experts in 3 groups"]
    routing = moe.route(*given_logits(torch.zeros(0, 12)), torch.zeros(12, device=DEVICE))
    assert routing.indices.shape == (0, 4)
    assert routing.starts.tolist() == [0] * 13


def test_bias_chooses_and_does_not_weigh(routers: dict[str, ModuleType]) -> None:
    moe = routers["one group"]
    bias = torch.tensor([0.0, 0, 0, 0, 0, 0, 3, 5], device=DEVICE)
    routing = moe.route(*given_logits(torch.zeros(1, 8)), bias)
    assert routing.indices.tolist() == [[7, 6]]
    assert routing.weights.tolist() == [[1.25, 1.25]]


@pytest.mark.parametrize("name", ["12 experts in 3 groups", "top 1", "256 experts"])
def test_a_logit_of_minus_infinity_scores_nothing(
    routers: dict[str, ModuleType], name: str
) -> None:
    moe, num_experts = routers[name], ROUTERS[name][0]
    scores, bias = torch.zeros(num_experts), torch.linspace(-0.1, 0.1, num_experts)
    scores[::2] = -torch.inf
    # An infinity times the zeros of one-hot weights would be NaN: the biggest finite one stands in.
    logits = scores.clamp(min=-3e38).expand(3, -1)
    assert_routes_as_the_reference(moe, logits, bias)


@pytest.mark.parametrize("name", ["12 experts in 3 groups", "top 1", "256 experts"])
def test_a_token_of_nan_takes_the_first_experts_and_leaves_others_alone(
    routers: dict[str, ModuleType], name: str
) -> None:
    """All its logits are NaN, which counts as the best score: ties go to the lowest index."""
    moe, (num_experts, _, _, top_k) = routers[name], ROUTERS[name]
    logits, bias = few_values(moe, num_experts, 3, 1, 0.0)
    hidden, weight = given_logits(logits)
    hidden[1, 0] = torch.nan
    routing = moe.route(hidden, weight, bias.to(DEVICE))
    assert routing.indices[1].tolist() == list(range(top_k))
    assert routing.weights[1].isnan().all()
    weights, indices = moe.route_ref(logits.to(DEVICE), bias.to(DEVICE))
    assert torch.equal(routing.indices[::2].long(), indices[::2])
    torch.testing.assert_close(routing.weights[::2], weights[::2], rtol=1e-5, atol=1e-7)
    assert_lists(routing, num_experts)
    nan = torch.full((1, num_experts), torch.nan)
    assert moe.route_ref(nan, bias)[1].tolist() == [list(range(top_k))]


def test_softmax_routes_as_the_reference(routers: dict[str, ModuleType]) -> None:
    for num_tokens in (1, 7, 66):
        logits, _ = few_values(routers["softmax"], 8, num_tokens, num_tokens, 0.0)
        assert_routes_as_the_reference(routers["softmax"], logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_sums_in_float32(routers: dict[str, ModuleType], dtype: torch.dtype) -> None:
    """Of 2,000 products, over a width that no split divides."""
    if IS_INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter rounds on the way to float32")
    moe = routers["12 experts in 3 groups"]
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(9, 2000, generator=generator).to(dtype).to(DEVICE)
    weight = (torch.randn(12, 2000, generator=generator) / 2000**0.5).to(DEVICE)
    bias = torch.zeros(12, device=DEVICE)
    routing = moe.route(hidden, weight, bias)
    exact = (hidden.double() @ weight.double().T).float()
    weights, indices = moe.route_ref(exact, bias)
    assert torch.equal(routing.indices.long(), indices)
    torch.testing.assert_close(routing.weights, weights, rtol=3e-6, atol=0)
