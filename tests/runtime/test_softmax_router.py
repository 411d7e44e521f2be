"""Softmax routing of the first generation: the chosen experts, their weights, and no scaling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace

import pytest
import reference
import torch
from comparison import assert_close
from hypothesis import given
from hypothesis import strategies as st
from lingen.verify.package import generated_package
from small_models import V1, fill_randomly, lowered, new_moe

SETTINGS = {
    "top_3": (),
    "top_3_raw": ("moe.renormalize=false",),
    "top_1": ("moe.num_experts_per_tok=1",),
    "top_1_raw": ("moe.num_experts_per_tok=1", "moe.renormalize=false"),
}


@pytest.fixture(scope="module")
def packages() -> Iterator[dict[str, ModuleType]]:
    """By name: 3 or 1 of 8 experts, weights normalised over the chosen or raw."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(generated_package(lowered(*overrides, spec=V1)))
            for name, overrides in SETTINGS.items()
        }


def route(package: ModuleType, logits: list[float]) -> tuple[list[int], list[float]]:
    weights, indices = package.kernels.moe.route_ref(torch.tensor([logits]))
    assert weights.dtype == torch.float32 and indices.dtype == torch.int64
    return indices[0].tolist(), weights[0].tolist()


LOGITS = [0.0, 2.0, -1.0, 1.0, 0.5, -3.0, 0.0, 0.0]


def test_reference_gives_the_numbers_computed_by_hand() -> None:
    # Scores 1/2, 1/4, 1/4 of logits ln 2, 0, 0.
    logits = [0.6931471805599453, 0.0, 0.0]
    for is_normalised, want in ((True, [2 / 3, 1 / 3]), (False, [1 / 2, 1 / 4])):
        experts, weights = reference.route_softmax(
            logits, num_experts_per_tok=2, is_normalised=is_normalised
        )
        assert experts == [0, 1]
        assert weights == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", ["top_3", "top_3_raw"])
def test_tie_of_experts_goes_to_the_lowest_index(
    packages: dict[str, ModuleType], name: str
) -> None:
    assert route(packages[name], [0.0] * 8)[0] == [0, 1, 2]
    assert route(packages[name], [-1.0, 0.5, -1, 0.5, 0.5, 0.5, -1, 0.5])[0] == [1, 3, 4]
    assert route(packages[name], [0.0, 0, 0, 0, 0, 0, 0, 1])[0] == [7, 0, 1]


def test_raw_weights_are_the_softmax_over_all_experts(packages: dict[str, ModuleType]) -> None:
    experts, weights = route(packages["top_3_raw"], LOGITS)
    assert experts == [1, 3, 4]
    scores = torch.tensor(LOGITS, dtype=torch.float64).softmax(0)
    assert_close(torch.tensor(weights), scores[experts], 1e-6)
    assert sum(weights) < 0.9


def test_normalised_weights_are_the_softmax_over_the_chosen(
    packages: dict[str, ModuleType],
) -> None:
    experts, weights = route(packages["top_3"], LOGITS)
    assert experts == [1, 3, 4]
    chosen = torch.tensor([LOGITS[expert] for expert in experts], dtype=torch.float64)
    assert_close(torch.tensor(weights), chosen.softmax(0), 1e-6)


@pytest.mark.parametrize("name", ["top_1", "top_1_raw"])
def test_weight_of_a_single_expert_is_its_score_and_not_1(
    packages: dict[str, ModuleType], name: str
) -> None:
    experts, [weight] = route(packages[name], LOGITS)
    assert experts == [1]
    assert weight == pytest.approx(torch.tensor(LOGITS).softmax(0)[1].item(), rel=1e-6)


@given(
    logits=st.lists(
        st.sampled_from([-20.0, -1.0, 0.0, 0.0, 0.5, 0.5 + 2**-10, 30.0]), min_size=8, max_size=8
    )
)
@pytest.mark.parametrize("name", SETTINGS)
def test_choice_and_weights_equal_the_reference(
    packages: dict[str, ModuleType], name: str, logits: list[float]
) -> None:
    experts, weights = route(packages[name], logits)
    want_experts, want_weights = reference.route_softmax(
        logits,
        num_experts_per_tok=3 if "3" in name else 1,
        is_normalised="raw" not in name,
    )
    assert_close(torch.tensor(weights), torch.tensor(want_weights, dtype=torch.float64), 1e-6)
    # Scores that float32 cannot tell apart are ties: their logits lie 20 and more below the best.
    scores = torch.tensor(logits).softmax(0)
    assert [scores[e] for e in experts] == [scores[e] for e in want_experts]
    if max(logits) < 30:
        assert experts == want_experts


def test_huge_logits_stay_finite(packages: dict[str, ModuleType]) -> None:
    for name in SETTINGS:
        _, weights = route(packages[name], [1e4, -1e4, 0.0, 0.0, 0.0, 0.0, 0.0, 1e4])
        assert weights[0] == pytest.approx(0.5)


def test_each_token_is_routed_on_its_own(packages: dict[str, ModuleType]) -> None:
    logits = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    weights, indices = packages["top_3"].kernels.moe.route_ref(logits)
    for token in range(20):
        experts, own = route(packages["top_3"], logits[token].tolist())
        assert indices[token].tolist() == experts
        assert_close(weights[token], torch.tensor(own, dtype=torch.float64), 1e-6)


def test_router_has_no_bias_and_computes_in_float32_from_bfloat16(
    packages: dict[str, ModuleType],
) -> None:
    router = fill_randomly(packages["top_3"].model.Router())
    assert [name for name, _ in router.named_parameters()] == ["weight"]
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits = router.logits(hidden)
    assert logits.dtype == torch.float32
    assert_close(logits, hidden.double() @ router.weight.double().T)


@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "prefill"])
@pytest.mark.parametrize(("name", "routed"), [("top_3", 1.0), ("top_3_raw", 3 / 8)])
def test_nothing_scales_the_experts_or_the_shared_ones(
    packages: dict[str, ModuleType], name: str, routed: float, is_decode: bool
) -> None:
    """All experts and the shared MLP return 1; all scores are 1/8."""
    moe = new_moe(packages[name])
    for param in moe.parameters():
        param.data.zero_()
    shared = moe.shared_experts
    for gate_up, down in (
        (moe.experts.gate_up_proj.data, moe.experts.down_proj.data),
        (shared.gate_up_proj.weight.data, shared.down_proj.weight.data),
    ):
        gate_up[..., 0, 0] = 1.0
        gate_up[..., down.shape[-1], 0] = 1 / torch.nn.functional.silu(torch.tensor(1.0))
        down[..., :, 0] = 1.0
    out = moe(torch.ones(3, 32), SimpleNamespace(batch=SimpleNamespace(is_prefill=not is_decode)))
    assert_close(out, torch.full((3, 32), 1 + routed))
