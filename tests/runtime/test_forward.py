"""The whole model: any batching of the same tokens gives the same result, and nothing leaks."""

from __future__ import annotations

from itertools import permutations
from types import ModuleType

import pytest
import torch
from comparison import assert_close, assert_same_bits
from lingen.ir import ModelIR
from lingen.ir.decay import decay
from serving import NUM_PAGES, NUM_SLOTS, Request, Server, requests_of
from small_models import fill_randomly, new_moe
from torch import Tensor, nn

LENGTHS = [5, 18, 33]
# Eight layers of float32 sums in another order; measured: up to 2.2e-5, in the first tokens, where
# the group norm divides by an output that can be small. Nothing but a step repeated as it was is
# equal bit for bit: matrix products choose their order of summing by the number of rows.
TOLERANCE = 5e-5


@pytest.fixture
def server(tiny: ModuleType, tiny_model: nn.Module) -> Server:
    return Server(tiny, tiny_model)


@pytest.fixture(scope="module")
def alone(tiny: ModuleType, tiny_model: nn.Module) -> list[Tensor]:
    """Hidden states of each request of LENGTHS, prefilled by itself."""
    return [
        Server(tiny, tiny_model).step((request, len(request.tokens)))[0]
        for request in requests_of(LENGTHS, 160)
    ]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_batch_in_any_order_equals_single_requests(
    server: Server, alone: list[Tensor], order: tuple[int, ...]
) -> None:
    requests = requests_of(LENGTHS, 160)
    outs = server.step(*((requests[r], LENGTHS[r]) for r in order))
    for r, out in zip(order, outs, strict=True):
        assert_close(out, alone[r], TOLERANCE)
    memory = server.usable_without(requests)
    assert all(pool.isnan().all() for pool in memory.values())


@pytest.mark.parametrize("cuts", [[16, 17], [15, 2, 16], [1, 32], [32, 1], [4, 4, 25]], ids=str)
def test_chunked_prefill_equals_the_whole(
    server: Server, alone: list[Tensor], cuts: list[int]
) -> None:
    request = requests_of(LENGTHS, 160)[2]
    outs = [server.step((request, count))[0] for count in cuts]
    assert_close(torch.cat(outs), alone[2], TOLERANCE)


def test_decode_after_prefill_equals_prefill_of_all(server: Server, alone: list[Tensor]) -> None:
    request = requests_of(LENGTHS, 160)[2]
    outs = server.step((request, 14))
    while request.computed < 33:
        outs += server.step((request, 1))
    assert_close(torch.cat(outs), alone[2], TOLERANCE)


def test_decode_from_the_first_token_equals_prefill(server: Server, alone: list[Tensor]) -> None:
    request = requests_of(LENGTHS, 160)[1]
    outs = [server.step((request, 1))[0] for _ in range(18)]
    assert_close(torch.cat(outs), alone[1], TOLERANCE)


def test_mixed_prefill_decode_and_empty_requests_equal_single_ones(
    server: Server, alone: list[Tensor]
) -> None:
    a, b, c = requests_of(LENGTHS, 160)
    idle = Request([], NUM_SLOTS - 1, [])
    idle.slot = next(s for s in range(NUM_SLOTS) if s not in (a.slot, b.slot, c.slot))
    first = server.step((b, 17))
    outs = server.step((idle, 0), (c, 20), (None, 3), (b, 1), (idle, 0), (a, 5))
    assert_close(torch.cat([first[0], outs[3]]), alone[1], TOLERANCE)
    assert_close(outs[5], alone[0], TOLERANCE)
    assert_close(torch.cat([outs[1], server.step((c, 13))[0]]), alone[2], TOLERANCE)


def test_padded_decode_rows_leave_all_other_memory_untouched(
    server: Server, alone: list[Tensor]
) -> None:
    requests = requests_of(LENGTHS, 160)
    for request, length in zip(requests, LENGTHS, strict=True):
        server.step((request, length - 2))
    # The third one waits: its slot and pages must not change.
    before = {name: pool.clone() for name, pool in server.usable_without(requests[:2]).items()}
    for place in (-2, -1):
        chunks = [(None, 1), (requests[1], 1), (None, 1), (requests[0], 1), *[(None, 1)] * 4]
        outs = server.step(*chunks)
        assert_close(outs[1], alone[1][[place]], TOLERANCE)
        assert_close(outs[3], alone[0][[place]], TOLERANCE)
        assert all(out.isfinite().all() for out in outs)
    for name, pool in server.usable_without(requests[:2]).items():
        assert_same_bits(pool, before[name])
    outs = server.step((requests[2], 2))
    assert_close(outs[0], alone[2][-2:], TOLERANCE)


@pytest.mark.parametrize("chunks", [[1] * 4, [1, 3], []], ids=["decode", "prefill", "empty"])
def test_step_without_a_real_request_writes_nothing(server: Server, chunks: list[int]) -> None:
    outs = server.step(*((None, count) for count in chunks))
    assert all(out.isfinite().all() for out in outs)
    for pool in server.usable_without([]).values():
        assert pool.isnan().all()


@pytest.mark.parametrize("leftover", [torch.nan, 1e3])
def test_slot_and_pages_of_an_earlier_request_do_not_matter(
    server: Server, alone: list[Tensor], leftover: float
) -> None:
    for pool in server.pools.tensors():
        pool.fill_(leftover)
    request = requests_of(LENGTHS, 160)[1]
    outs = [*server.step((request, 17)), *server.step((request, 1))]
    assert_close(torch.cat(outs), alone[1], TOLERANCE)


def decoded_in_a_batch_of(server: Server, size: int) -> Tensor:
    """The third request's last token, decoded beside `size - 1` others."""
    requests = requests_of([33] * 3, 160)
    for request in requests:
        server.step((request, 32))
    others = [(requests[0], 1), (requests[1], 1), *[(None, 1)] * 5][: size - 1]
    return server.step((requests[2], 1), *others)[0]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_decoded_token_does_not_depend_on_its_batch(
    tiny: ModuleType, tiny_model: nn.Module, size: int
) -> None:
    want = decoded_in_a_batch_of(Server(tiny, tiny_model), 1)
    got = decoded_in_a_batch_of(Server(tiny, tiny_model), size)
    assert_close(got, want, TOLERANCE)


def test_order_of_decode_rows_does_not_matter(tiny: ModuleType, tiny_model: nn.Module) -> None:
    def decoded(order: list[int]) -> dict[int, Tensor]:
        server = Server(tiny, tiny_model)
        requests = requests_of(LENGTHS, 160)
        for request, length in zip(requests, LENGTHS, strict=True):
            server.step((request, length - 1))
        return dict(zip(order, server.step(*((requests[r], 1) for r in order)), strict=True))

    want = decoded([0, 1, 2])
    got = decoded([2, 0, 1])
    for r in range(3):
        assert_close(got[r], want[r], TOLERANCE)


def test_logits_are_float32_of_the_vocabulary(server: Server) -> None:
    [request] = requests_of([3], 160)
    logits = server.model.compute_logits(server.step((request, 3))[0])
    assert logits.dtype == torch.float32
    assert logits.shape == (3, 160)


def test_decay_of_each_layer_and_head_is_that_of_the_plan(
    tiny_model: nn.Module, tiny_ir: ModelIR
) -> None:
    decays = tiny_ir.lightning.decay
    for layer in tiny_ir.plan.lightning:
        log_decay = tiny_model.layers[layer].attention.log_decay
        assert log_decay.dtype == torch.float32
        want = [decay(decays, layer, head) for head in range(8)]
        got = log_decay.double().exp()
        assert_close(got, torch.tensor(want, dtype=torch.float64), 1e-7)
    mla = [tiny_model.layers[layer].attention for layer in tiny_ir.plan.full]
    assert not any(hasattr(attention, "log_decay") for attention in mla)


def test_decay_is_exact_whatever_the_default_dtype_is(
    tiny: ModuleType, tiny_model: nn.Module
) -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = tiny.model.LightningAttention(1).log_decay
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_bits(got, tiny_model.layers[1].attention.log_decay)


@pytest.mark.parametrize("count", [1, 3], ids=["decode", "prefill"])
def test_plain_forward_keeps_no_graph_in_the_pools(server: Server, count: int) -> None:
    """Outside `no_grad` too: a graph would grow with each step until memory ends."""
    assert torch.is_grad_enabled()
    [request] = requests_of([8], 160)
    for _ in range(2):
        step = server.prepare([(request, count)])
        hidden = server.model(step, server.backend)
        drafted = server.model.draft(torch.ones(count).long(), hidden, step, server.backend)
        request.computed += count
    logits = server.model.compute_logits(hidden)
    for tensor in (hidden, drafted, logits, *server.pools.tensors()):
        assert not tensor.requires_grad
        assert tensor.grad_fn is None
    assert not any(param.requires_grad for param in server.model.parameters())


def next_tokens(request: Request, start: int, end: int) -> list[int]:
    return [*request.tokens, 0][start + 1 : end + 1]


def test_drafts_of_chunks_and_decodes_equal_those_of_the_whole(
    tiny: ModuleType, tiny_model: nn.Module
) -> None:
    [request] = requests_of([33], 160)
    server = Server(tiny, tiny_model)
    want = server.step_and_draft(next_tokens(request, 0, 33), (request, 33))[0]
    [request] = requests_of([33], 160)
    server = Server(tiny, tiny_model)
    outs = []
    for count in (16, 15, 1, 1):
        ids = next_tokens(request, request.computed, request.computed + count)
        outs += server.step_and_draft(ids, (request, count))
    assert_close(torch.cat(outs), want, TOLERANCE)
    assert tiny_model.compute_logits(want).shape == (33, 160)


def test_draft_of_a_batch_equals_drafts_of_single_requests(
    tiny: ModuleType, tiny_model: nn.Module
) -> None:
    requests = requests_of(LENGTHS, 160)
    ids = [next_tokens(request, 0, len(request.tokens)) for request in requests]
    server = Server(tiny, tiny_model)
    chunks = [(requests[2], 33), (None, 2), (requests[0], 5), (requests[1], 18)]
    outs = server.step_and_draft([*ids[2], 0, 0, *ids[0], *ids[1]], *chunks)
    assert server.pools.kv[:, NUM_PAGES].isfinite().any(), "padding went to the spare page"
    for place, r in ((0, 2), (2, 0), (3, 1)):
        request = requests_of(LENGTHS, 160)[r]
        want = Server(tiny, tiny_model).step_and_draft(ids[r], (request, LENGTHS[r]))[0]
        assert_close(outs[place], want, TOLERANCE)


def test_draft_writes_only_the_cache_of_the_mtp_layer(
    tiny: ModuleType, tiny_model: nn.Module, tiny_ir: ModelIR
) -> None:
    server = Server(tiny, tiny_model)
    [request] = requests_of([5], 160)
    step = server.prepare([(request, 5)])
    with torch.no_grad():
        hidden = tiny_model(step, server.backend)
        state, _, kv = server.snapshot()
        tiny_model.draft(torch.ones(5, dtype=torch.int64), hidden, step, server.backend)
    own = tiny_ir.mtp.pool_idx
    assert kv[own].isnan().all()
    assert_same_bits(server.pools.state, state)
    assert_same_bits(server.pools.kv[:own], kv[:own])
    assert server.pools.kv[own, request.pages[0], :5].isfinite().all()


def test_model_without_drafts_has_no_weights_for_them(
    tiny: ModuleType, tiny_model: nn.Module, alone: list[Tensor]
) -> None:
    model = tiny.ForCausalLM(drafts=False)
    names = {name for name, _ in model.named_parameters()}
    with_drafts = {name for name, _ in tiny_model.named_parameters()}
    assert {name for name in with_drafts - names if not name.startswith("mtp.")} == set()
    assert not any("mtp" in name for name in names)
    assert any(name.startswith("mtp.") for name in with_drafts)
    model.load_state_dict({name: tiny_model.state_dict()[name] for name in model.state_dict()})
    request = requests_of(LENGTHS, 160)[0]
    server = Server(tiny, model.eval())
    server.pools = tiny.Pools.of_size(NUM_SLOTS, NUM_PAGES, draft_tokens=0)
    server.backend = tiny.HybridBackend(server.pools)
    assert_same_bits(server.step((request, 5))[0], alone[0])


def test_random_weights_depend_on_the_seed_alone(tiny: ModuleType) -> None:
    first, again, other = (fill_randomly(new_moe(tiny), seed) for seed in (3, 3, 4))
    assert torch.equal(first.gate.weight, again.gate.weight)
    assert not torch.equal(first.gate.weight, other.gate.weight)
