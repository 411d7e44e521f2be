"""Which experts a token gets, with which weights, and that scaling is applied once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import reference
import torch
from comparison import assert_close
from hypothesis import given
from hypothesis import strategies as st
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_small, new_moe
from torch import Tensor, nn

SCALING = 2.5


@contextmanager
def routed_package(
    num_experts: int, n_group: int, topk_group: int, top_k: int, *others: str
) -> Iterator[ModuleType]:
    ir = lowered_small(
        f"moe.num_experts={num_experts}",
        f"moe.n_group={n_group}",
        f"moe.topk_group={topk_group}",
        f"moe.num_experts_per_tok={top_k}",
        f"moe.routed_scaling_factor={SCALING}",
        *others,
    )
    with generated_package(ir) as package:
        yield package


@pytest.fixture(scope="module")
def top_2_of_8() -> Iterator[ModuleType]:
    with routed_package(8, 1, 1, 2) as package:
        yield package


@pytest.fixture(scope="module")
def top_1_of_8() -> Iterator[ModuleType]:
    with routed_package(8, 1, 1, 1) as package:
        yield package


@pytest.fixture(scope="module")
def top_1_of_12() -> Iterator[ModuleType]:
    """Twelve experts in three groups, two of which are kept."""
    with routed_package(12, 3, 2, 1) as package:
        yield package


@pytest.fixture(scope="module")
def top_4_of_12() -> Iterator[ModuleType]:
    with routed_package(12, 3, 2, 4) as package:
        yield package


def route(package: ModuleType, logits: list[float], bias: list[float]) -> tuple[list, list]:
    weights, indices = package.kernels.moe.route_ref(torch.tensor([logits]), torch.tensor(bias))
    assert weights.dtype == torch.float32 and indices.dtype == torch.int64
    return indices[0].tolist(), weights[0].tolist()


BIAS_FOR_THE_LAST = [0.0, 0, 0, 0, 0, 0, 3, 5]


def test_bias_chooses_two_experts_and_does_not_weigh_them(top_2_of_8: ModuleType) -> None:
    experts, weights = route(top_2_of_8, [0.0] * 8, BIAS_FOR_THE_LAST)
    assert sorted(experts) == [6, 7]
    assert weights == [1.25, 1.25]


def test_weight_of_a_single_expert_is_its_score_and_not_normalised(
    top_1_of_8: ModuleType,
) -> None:
    assert route(top_1_of_8, [0.0] * 8, BIAS_FOR_THE_LAST) == ([7], [1.25])


def test_reference_gives_the_numbers_computed_by_hand() -> None:
    choice = {"n_group": 1, "topk_group": 1, "scaling": SCALING}
    assert reference.route([0.0] * 8, BIAS_FOR_THE_LAST, num_experts_per_tok=2, **choice) == (
        [7, 6],
        [1.25, 1.25],
    )
    assert reference.route([0.0] * 8, BIAS_FOR_THE_LAST, num_experts_per_tok=1, **choice) == (
        [7],
        [1.25],
    )


def test_tie_of_experts_goes_to_the_lowest_index(top_2_of_8: ModuleType) -> None:
    logits = [-1.0, 0.5, -1.0, 0.5, 0.5, 0.5, -1.0, 0.5]
    assert route(top_2_of_8, logits, [0.0] * 8)[0] == [1, 3]


def test_tie_of_groups_goes_to_the_lowest_index(top_4_of_12: ModuleType) -> None:
    # Groups 1 and 2 have equal sums, group 0 the best one: 0 and 1 are kept.
    logits = [1.0, 1, 1, 1, -1, 0, 0, -1, 0, 0, -1, -1]
    assert sorted(route(top_4_of_12, logits, [0.0] * 12)[0]) == [0, 1, 2, 3]
    logits = [1.0, 1, -9, -9, -1, 0, 0, -1, 0, 0, -1, -1]
    assert sorted(route(top_4_of_12, logits, [0.0] * 12)[0]) == [0, 1, 5, 6]


def test_group_is_judged_by_its_two_best_experts(top_1_of_12: ModuleType) -> None:
    # Expert 8 is the best of all, but its group has nothing else.
    logits = [1.0, 1, -9, -9, 1, 1, -9, -9, 3, -9, -9, -9]
    assert route(top_1_of_12, logits, [0.0] * 12)[0] == [0]


def test_masked_group_loses_to_negative_scores(top_4_of_12: ModuleType) -> None:
    # All biased scores are below 0: masked experts counted as 0 would win.
    bias = [-7.0] * 4 + [-5.0] * 4 + [-6.0] * 4
    experts, _ = route(top_4_of_12, [0.0, 1, 2, 3] * 3, bias)
    assert experts == [7, 6, 5, 4]
    # Three places in the best group, and the fourth in the second best.
    bias[4] = -20.0
    experts, _ = route(top_4_of_12, [0.0, 1, 2, 3] * 3, bias)
    assert experts == [7, 6, 5, 11]


def test_weights_are_those_of_scores_without_bias(top_4_of_12: ModuleType) -> None:
    logits = [0.0, 1, 2, 3] * 3
    bias = [0.0] * 4 + [5.0] * 4 + [0.0] * 4
    _, weights = route(top_4_of_12, logits, bias)
    scores = torch.tensor([3.0, 2, 1, 0], dtype=torch.float64).sigmoid()
    assert_close(torch.tensor(weights), SCALING * scores / scores.sum())


def logits_and_bias(num_experts: int) -> st.SearchStrategy[tuple[list[float], list[float]]]:
    """Few distinct values, so that ties and biases that differ by 2^-10 decide."""
    logit = st.sampled_from([-4.0, -1.0, 0.0, 0.0, 0.5, 2.0])
    bias = st.sampled_from([0.0, 2.0**-10, -(2.0**-10), -3.0, -3.0 + 2.0**-10, 1.0])
    return st.tuples(
        st.lists(logit, min_size=num_experts, max_size=num_experts),
        st.lists(bias, min_size=num_experts, max_size=num_experts),
    )


@given(values=logits_and_bias(12))
@pytest.mark.parametrize("name", ["top_1_of_12", "top_4_of_12"])
def test_choice_and_weights_equal_the_reference(
    request: pytest.FixtureRequest, name: str, values: tuple[list[float], list[float]]
) -> None:
    top_k = {"top_1_of_12": 1, "top_4_of_12": 4}[name]
    got_experts, got_weights = route(request.getfixturevalue(name), *values)
    experts, weights = reference.route(
        *values, n_group=3, topk_group=2, num_experts_per_tok=top_k, scaling=SCALING
    )
    assert got_experts == experts
    assert_close(torch.tensor(got_weights), torch.tensor(weights, dtype=torch.float64))


def test_each_token_is_routed_on_its_own(top_4_of_12: ModuleType) -> None:
    logits = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
    bias = torch.linspace(-0.1, 0.1, 12)
    weights, indices = top_4_of_12.kernels.moe.route_ref(logits, bias)
    for token in range(20):
        experts, own = route(top_4_of_12, logits[token].tolist(), bias.tolist())
        assert indices[token].tolist() == experts
        # The sigmoid's last bit depends on a number's place in its vector.
        assert_close(weights[token], torch.tensor(own, dtype=torch.float64), 1e-6)


def test_router_computes_logits_in_float32_from_bfloat16(top_4_of_12: ModuleType) -> None:
    router = fill_randomly(top_4_of_12.model.Router())
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits = router.logits(hidden)
    assert logits.dtype == torch.float32
    assert_close(logits, hidden.double() @ router.weight.double().T)


def expert_sum(hidden: Tensor, experts: nn.Module, weights: Tensor, indices: Tensor) -> Tensor:
    """Each token's weighted experts in float64."""
    out = torch.zeros_like(hidden, dtype=torch.float64)
    for token, chosen in enumerate(indices.tolist()):
        for rank, expert in enumerate(chosen):
            gate, up = (experts.gate_up_proj[expert].double() @ hidden[token].double()).chunk(2)
            value = experts.down_proj[expert].double() @ (gate * gate.sigmoid() * up)
            out[token] += weights[token, rank].double() * value
    return out


@given(num_tokens=st.integers(0, 9), seed=st.integers(0, 1000))
def test_both_expert_paths_equal_the_weighted_sum(
    top_4_of_12: ModuleType, num_tokens: int, seed: int
) -> None:
    model, moe = top_4_of_12.model, top_4_of_12.kernels.moe
    generator = torch.Generator().manual_seed(seed)
    experts = fill_randomly(model.Experts(), seed)
    hidden = torch.randn(num_tokens, 32, generator=generator)
    logits = torch.randn(num_tokens, 12, generator=generator)
    weights, indices = moe.route_ref(logits, torch.zeros(12))
    inputs = (hidden, experts.gate_up_proj, experts.down_proj, weights, indices)
    want = expert_sum(hidden, experts, weights, indices)
    for run in (moe.experts_decode_ref, moe.experts_prefill_ref):
        out = run(*inputs)
        assert out.dtype == torch.float32
        assert_close(out, want)


def test_prefill_reads_only_the_experts_that_a_token_chose(top_4_of_12: ModuleType) -> None:
    model = top_4_of_12.model
    experts = fill_randomly(model.Experts())
    indices = torch.tensor([[11, 2, 5, 7], [7, 5, 2, 0]])
    weights = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
    hidden = torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
    present = [0, 2, 5, 7, 11]
    gate_up = {expert: experts.gate_up_proj[expert] for expert in present}
    down = {expert: experts.down_proj[expert] for expert in present}
    out = top_4_of_12.kernels.moe.experts_prefill_ref(hidden, gate_up, down, weights, indices)
    assert_close(out, expert_sum(hidden, experts, weights, indices))


@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "prefill"])
@pytest.mark.parametrize(
    ("num_shared", "want"), [(1, 3.5), (0, 2.5)], ids=["with-shared", "without-shared"]
)
def test_scaling_is_applied_once_and_never_to_the_shared_expert(
    is_decode: bool, num_shared: int, want: float
) -> None:
    with routed_package(12, 3, 2, 4, f"moe.num_shared_experts={num_shared}") as package:
        moe = new_moe(package)
    for param in moe.parameters():
        param.data.zero_()

    def return_one(gate_up: Tensor, down: Tensor) -> None:
        """silu(1) * (1 / silu(1)) = 1 in the first of the inner dimensions, the rest zero."""
        width = down.shape[-1]
        gate_up[..., 0, 0] = 1.0
        gate_up[..., width, 0] = 1 / nn.functional.silu(torch.tensor(1.0))
        down[..., :, 0] = 1.0

    return_one(moe.experts.gate_up_proj.data, moe.experts.down_proj.data)
    if num_shared:
        shared = moe.shared_experts
        return_one(shared.gate_up_proj.weight.data, shared.down_proj.weight.data)
    moe.gate.expert_bias.data.copy_(torch.linspace(-1, 1, 12))
    out = moe(torch.ones(3, 32), SimpleNamespace(batch=SimpleNamespace(is_prefill=not is_decode)))
    assert_close(out, torch.full((3, 32), want))


@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "prefill"])
def test_input_of_the_experts_is_never_written(top_4_of_12: ModuleType, is_decode: bool) -> None:
    moe = fill_randomly(new_moe(top_4_of_12))
    hidden = torch.randn(4, 32, generator=torch.Generator().manual_seed(2))
    before = hidden.clone()
    moe(hidden, SimpleNamespace(batch=SimpleNamespace(is_prefill=not is_decode)))
    assert torch.equal(hidden, before)
