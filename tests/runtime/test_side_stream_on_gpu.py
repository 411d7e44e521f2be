"""On a GPU: experts on two streams give the bits that they give on one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered_variant, new_moe
from torch import Tensor, nn

pytestmark = pytest.mark.gpu

# Both halves run long enough that they meet.
WIDE = (
    "model.hidden_size=1024",
    "moe.moe_intermediate_size=512",
    "moe.moe_shared_expert_intermediate_size=4096",
)
STEP = SimpleNamespace(batch=SimpleNamespace(is_prefill=False))
NUM_TOKENS = 24
NUM_REPLAYS = 500
SPIN_CYCLES = 2_000_000  # about a millisecond


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def package(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    dtypes = (f"model.torch_dtype={request.param}", f"cache.kv_dtype={request.param}")
    with generated_package(lowered_variant("every-kind", *WIDE, *dtypes)) as package:
        yield package


@pytest.fixture
def moe(package: ModuleType) -> nn.Module:
    return fill_randomly(new_moe(package), seed=5).cuda()


class Captured:
    """The block over a fixed input, as one graph."""

    def __init__(
        self,
        moe: nn.Module,
        num_tokens: int,
        pool: tuple | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.hidden = inputs(moe, num_tokens)
        moe(self.hidden, STEP)  # compiles, and fills the caches of cuBLAS
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, pool=pool, stream=stream):
            # What is between the block's tensors in memory is reused as in a model.
            self.out = moe(moe(self.hidden * 1, STEP), STEP)

    def replayed(self, hidden: Tensor) -> Tensor:
        self.hidden.copy_(hidden)
        self.graph.replay()
        return self.out.clone()


def sequential(moe: nn.Module, num_tokens: int) -> Captured:
    takes = moe.side_stream.takes
    moe.side_stream.takes = lambda hidden: False
    try:
        return Captured(moe, num_tokens)
    finally:
        moe.side_stream.takes = takes


def inputs(moe: nn.Module, num_tokens: int = NUM_TOKENS, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(num_tokens, moe.gate.weight.shape[1], device="cuda", generator=generator)
    return values.to(moe.shared_experts.down_proj.weight.dtype)


@torch.no_grad()
@pytest.mark.parametrize("num_tokens", [1, 2, NUM_TOKENS])
def test_two_streams_give_the_bits_of_one(moe: nn.Module, num_tokens: int) -> None:
    one, two = sequential(moe, num_tokens), Captured(moe, num_tokens)
    assert moe.side_stream.stream is not None, "the side stream was not used"
    for seed in range(5):
        hidden = inputs(moe, num_tokens, seed)
        assert torch.equal(two.replayed(hidden), one.replayed(hidden))


@torch.no_grad()
def test_the_side_stream_may_be_the_current_one(moe: nn.Module) -> None:
    hidden = inputs(moe)
    want = sequential(moe, NUM_TOKENS).replayed(hidden)
    moe.side_stream.is_forced = True
    stream = torch.cuda.Stream()
    moe.side_stream.stream = stream
    with torch.cuda.stream(stream):
        got = moe(moe(hidden * 1, STEP), STEP)
    stream.synchronize()
    assert torch.equal(got, want)
    captured = Captured(moe, NUM_TOKENS, stream=stream)
    assert torch.equal(captured.replayed(hidden), want)


@torch.no_grad()
def test_the_input_is_never_written(moe: nn.Module) -> None:
    hidden = inputs(moe)
    moe(hidden, STEP)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moe(hidden, STEP)
    for _ in range(200):
        graph.replay()
    assert torch.equal(hidden, inputs(moe))


@torch.no_grad()
def test_experts_that_write_their_input_are_noticed(moe: nn.Module) -> None:
    """What the tests here would find: two streams then give other bits than one does."""
    hidden, routed = inputs(moe), moe.routed

    def scribbles(hidden: Tensor, step: SimpleNamespace) -> Tensor:
        out = routed(hidden, step)
        hidden.zero_()
        return out

    def waits(hidden: Tensor) -> Tensor:
        torch.cuda._sleep(20 * SPIN_CYCLES)
        return shared(hidden)

    want = sequential(moe, NUM_TOKENS).replayed(hidden)
    shared = moe.shared_experts.forward
    moe.routed, moe.shared_experts.forward = scribbles, waits
    assert not torch.equal(Captured(moe, NUM_TOKENS).replayed(hidden), want)


@torch.no_grad()
@pytest.mark.parametrize("is_captured", [True, False], ids=["captured", "forced"])
@pytest.mark.parametrize("slow", ["routed", "shared"])
def test_a_delay_on_either_stream_changes_nothing(
    moe: nn.Module, slow: str, is_captured: bool
) -> None:
    hidden = inputs(moe)
    want = sequential(moe, NUM_TOKENS).replayed(hidden)

    def delayed(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: object) -> Tensor:
            torch.cuda._sleep(SPIN_CYCLES)
            out = run(*args)
            torch.cuda._sleep(SPIN_CYCLES)
            return out

        return call

    if slow == "routed":
        moe.routed = delayed(moe.routed)
    else:
        moe.shared_experts.forward = delayed(moe.shared_experts.forward)
    if is_captured:
        graph = Captured(moe, NUM_TOKENS)
        for _ in range(5):
            assert torch.equal(graph.replayed(hidden), want)
        return
    moe.side_stream.is_forced = True
    for _ in range(5):
        got = moe(moe(hidden * 1, STEP), STEP)
        # What the block has let go of is handed out and written at once.
        junk = [torch.full_like(hidden, torch.nan) for _ in range(8)]
        assert torch.equal(got, want)
        del junk


@torch.no_grad()
def test_reused_memory_changes_nothing(moe: nn.Module) -> None:
    """Graphs of several sizes in one pool, and their memory's neighbours written in between."""
    sizes = (3, NUM_TOKENS, 8)
    one = {size: sequential(moe, size) for size in sizes}
    pool = torch.cuda.graph_pool_handle()
    two = {size: Captured(moe, size, pool) for size in sizes}
    for replay in range(NUM_REPLAYS):
        size = sizes[replay % len(sizes)]
        hidden = inputs(moe, size, replay)
        junk = [torch.full_like(hidden, torch.nan) for _ in range(replay % 5)]
        assert torch.equal(two[size].replayed(hidden), one[size].replayed(hidden)), replay
        del junk


@torch.no_grad()
def test_the_profile_shows_both_streams_at_once(moe: nn.Module) -> None:
    # One token: its experts take about as long as the shared ones, and not many times that. A
    # kernel's end and the next one's start are told with an error of a fraction of a microsecond.
    assert overlap(sequential(moe, 1)) < 0.02 < 0.1 < overlap(Captured(moe, 1))


def overlap(captured: Captured) -> float:
    """The part of a replay in which two kernels ran at once; the median of some replays."""
    captured.graph.replay()
    torch.cuda.synchronize()
    shares = []
    for _ in range(5):
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            captured.graph.replay()
            torch.cuda.synchronize()
        spans = sorted(
            (event.time_range.start, event.time_range.end)
            for event in profile.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        )
        assert len(spans) > 4, "the profile holds no kernels"
        shared, end = 0.0, 0.0
        for start, stop in spans:
            shared += max(0.0, min(end, stop) - start)
            end = max(end, stop)
        shares.append(shared / (end - spans[0][0]))
    return statistics.median(shares)
