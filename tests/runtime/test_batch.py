"""A step's metadata, which backend serves which layer, and the pools."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from lingen.ir import ModelIR
from lingen.verify.package import generated_package
from small_models import lowered, lowered_variant
from torch import Tensor

PAD_SLOT = -1
NUM_PAGES = 9


def prepared(package: ModuleType, **lists: list):
    """The step of `ForwardBatch.from_lists(**lists)`."""
    backend = package.HybridBackend(package.Pools.of_size(num_slots=6, num_pages=NUM_PAGES))
    return backend.prepare(package.ForwardBatch.from_lists(**lists))


def assert_equal(tensor: Tensor, values: list, dtype: torch.dtype) -> None:
    assert tensor.dtype == dtype
    assert tensor.tolist() == values


def test_batch_of_lists_lays_tokens_end_to_end(tiny: ModuleType) -> None:
    batch = tiny.ForwardBatch.from_lists(
        input_ids=[[7, 8], [], [9]],
        num_computed_tokens=[0, 3, 17],
        slots=[4, 2, PAD_SLOT],
        page_table=[[5], [], [1, 0]],
    )
    assert_equal(batch.input_ids, [7, 8, 9], torch.int64)
    assert_equal(batch.query_start_loc, [0, 2, 2, 3], torch.int32)
    assert_equal(batch.num_computed_tokens, [0, 3, 17], torch.int32)
    assert_equal(batch.slots, [4, 2, PAD_SLOT], torch.int32)
    assert batch.page_table.dtype == torch.int32
    assert batch.page_table.shape == (3, 2)
    assert batch.page_table[0, 0] == 5 and batch.page_table[2].tolist() == [1, 0]
    assert batch.max_query_len == 2


def test_batch_without_requests_is_legal(tiny: ModuleType) -> None:
    step = prepared(tiny, input_ids=[], num_computed_tokens=[], slots=[], page_table=[])
    assert_equal(step.batch.query_start_loc, [0], torch.int32)
    assert step.batch.max_query_len == 0
    assert step.batch.page_table.shape[0] == 0
    for part in (step.layout, step.lightning, step.paged):
        for name, tensor in vars(part).items():
            assert tensor.shape == (0,), name
    assert step.paged.kv_rows.shape == (0,)


def test_two_requests_on_one_slot_are_refused(tiny: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"slots \[1, 1\]: two requests on one slot"):
        prepared(
            tiny,
            input_ids=[[7], [8]],
            num_computed_tokens=[0, 0],
            slots=[1, 1],
            page_table=[[0], [1]],
        )


def test_two_requests_without_tokens_or_of_padding_may_share_a_slot(tiny: ModuleType) -> None:
    step = prepared(
        tiny,
        input_ids=[[], [8], [], [9], [9]],
        num_computed_tokens=[3, 0, 0, 0, 0],
        slots=[1, 1, 1, PAD_SLOT, PAD_SLOT],
        page_table=[[0], [1], [], [], []],
    )
    assert_equal(step.batch.slots, [1, 1, 1, PAD_SLOT, PAD_SLOT], torch.int32)


@pytest.mark.parametrize(
    ("computed", "pages", "message"),
    [
        (16, [0], "slot 1: 17 tokens do not fit 1 pages of 16"),
        (0, [], "slot 1: 1 tokens do not fit 0 pages of 16"),
        (47, [3, 4], "slot 1: 48 tokens do not fit 2 pages of 16"),
    ],
)
def test_too_few_pages_are_refused(
    tiny: ModuleType, computed: int, pages: list[int], message: str
) -> None:
    lists = {"num_computed_tokens": [0, computed], "slots": [0, 1], "page_table": [[5], pages]}
    with pytest.raises(ValueError) as refusal:
        prepared(tiny, input_ids=[[7], [7]], **lists)
    assert str(refusal.value) == message
    lists["page_table"] = [[5], [*pages, 6]]
    prepared(tiny, input_ids=[[7], [7]], **lists)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": [0, -2]}, "slots [0, -2]: below -1"),
        ({"num_computed_tokens": [-1, 0]}, "num_computed_tokens [-1, 0]: below 0"),
        ({"page_table": [[0], [1, -1]]}, "slot 1: pages [1, -1]: below 0"),
        ({"page_table": [[0], [-1]], "slots": [0, -1]}, "slot -1: pages [-1]: below 0"),
    ],
    ids=["slot", "computed", "page", "page-of-padding"],
)
def test_numbers_that_index_from_the_end_are_refused(
    tiny: ModuleType, wrong: dict, message: str
) -> None:
    lists = {"num_computed_tokens": [0, 0], "slots": [0, 1], "page_table": [[0], [1]]}
    with pytest.raises(ValueError) as refusal:
        tiny.ForwardBatch.from_lists([[7], [8]], **(lists | wrong))
    assert str(refusal.value) == message


@pytest.mark.parametrize("short", ["input_ids", "num_computed_tokens", "slots", "page_table"])
def test_lists_of_unequal_length_are_refused_with_their_counts(
    tiny: ModuleType, short: str
) -> None:
    lists = {
        "input_ids": [[1], [2]],
        "num_computed_tokens": [0, 0],
        "slots": [0, 1],
        "page_table": [[0], [1]],
    }
    lists[short] = lists[short][:1]
    counts = {name: len(values) for name, values in lists.items()}
    with pytest.raises(ValueError) as refusal:
        tiny.ForwardBatch.from_lists(**lists)
    assert str(refusal.value) == (
        f"{counts['input_ids']} token lists, {counts['num_computed_tokens']} computed counts, "
        f"{counts['slots']} slots and {counts['page_table']} page lists: each request needs one of "
        "each"
    )


def test_every_token_knows_its_request_position_and_cache_row(tiny: ModuleType) -> None:
    # Requests: none at first, two tokens across a page edge, none, padding, one, none at last.
    step = prepared(
        tiny,
        input_ids=[[], [1, 1], [], [1, 1], [1], []],
        num_computed_tokens=[5, 15, 0, 40, 0, 16],
        slots=[0, 3, 1, PAD_SLOT, 5, 2],
        page_table=[[8], [7, 2], [], [6, 6, 6], [4], [3]],
    )
    assert_equal(step.layout.token_to_req, [1, 1, 3, 3, 4], torch.int64)
    assert_equal(step.layout.positions, [15, 16, 0, 0, 0], torch.int64)
    spare = NUM_PAGES * 16
    assert_equal(step.paged.kv_rows, [7 * 16 + 15, 2 * 16, spare, spare, 4 * 16], torch.int64)
    assert_equal(step.paged.seq_lens, [5, 17, 0, 0, 1, 16], torch.int32)


def test_initial_state_is_there_if_and_only_if_tokens_were_computed(tiny: ModuleType) -> None:
    step = prepared(
        tiny,
        input_ids=[[1], [1, 1], [], [1], [1, 1, 1], [1]],
        num_computed_tokens=[0, 0, 0, 1, 16, 7],
        slots=[0, 1, 2, 3, 4, PAD_SLOT],
        page_table=[[0], [1], [2], [3], [4, 5], [6]],
    )
    assert_equal(
        step.lightning.has_initial_state, [False, False, False, True, True, False], torch.bool
    )


@pytest.mark.parametrize(
    ("lengths", "is_decode"),
    [
        ([], True),
        ([1], True),
        ([1, 1, 1], True),
        ([2], False),
        ([0], False),
        ([1, 0], False),
        ([2, 0], False),
        ([0, 1, 2], False),
    ],
    ids=str,
)
def test_step_is_decode_if_each_request_has_one_token(
    tiny: ModuleType, lengths: list[int], is_decode: bool
) -> None:
    requests = range(len(lengths))
    step = prepared(
        tiny,
        input_ids=[[1] * length for length in lengths],
        num_computed_tokens=[0] * len(lengths),
        slots=list(requests),
        page_table=[[r] for r in requests],
    )
    assert step.batch.is_decode is is_decode


def assert_every_layer_has_the_backend_of_its_kind(package: ModuleType, ir: ModelIR) -> None:
    pools = package.Pools.of_size(num_slots=2, num_pages=2)
    backend = package.HybridBackend(pools)
    assert tuple(layer.attention for layer in ir.plan.layers) == package.cache.LAYER_KINDS
    classes = {
        "lightning": getattr(package.backend, "LightningBackend", None),
        "mla": getattr(package.backend, "MLABackend", None),
        "gqa": getattr(package.backend, "GQABackend", None),
    }
    expected = [(layer.attention, layer.pool_idx) for layer in ir.plan.layers]
    if ir.mtp:
        expected.append((ir.plan.full_kind, ir.mtp.pool_idx))
    assert len(backend.layers) == len(expected)
    for (served_by, pool_idx), (kind, place) in zip(backend.layers, expected, strict=True):
        assert type(served_by) is classes[kind]
        assert pool_idx == place
        # The pool of that kind has an entry there.
        pool = pools.state if kind == "lightning" else pools.kv
        assert pool_idx < pool.shape[0]


def test_every_layer_of_the_tiny_model_has_the_backend_of_its_kind(
    tiny: ModuleType, tiny_ir: ModelIR
) -> None:
    assert [layer.index for layer in tiny_ir.plan.layers if layer.attention == "mla"] == [3, 7]
    assert_every_layer_has_the_backend_of_its_kind(tiny, tiny_ir)


@pytest.mark.parametrize(
    "name",
    [
        *("all-mla", "all-lightning", "all-lightning-with-mtp", "full-tail", "linear-tail"),
        *("v2", "v2-with-mtp", "linear-v2", "linear-v2-tail", "linear-v2-all-lightning-with-mtp"),
    ],
)
def test_every_layer_has_the_backend_of_its_kind(name: str) -> None:
    ir = lowered_variant(name)
    with generated_package(ir) as package:
        assert_every_layer_has_the_backend_of_its_kind(package, ir)


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
def test_pools_take_the_bytes_that_the_plan_counts(state_dtype: str, kv_dtype: str) -> None:
    # With drafts: only then the plan counts the MTP layer's cache.
    ir = lowered(
        f"cache.state_dtype={state_dtype}",
        f"cache.kv_dtype={kv_dtype}",
        "cache.speculative.num_draft_tokens=3",
        "cache.prefix_cache=false",
    )
    with generated_package(ir) as package:
        pools = package.Pools.of_size(num_slots=5, num_pages=7)
    assert pools.state.shape == (6, 6, 8, 64, 64)
    assert pools.kv.shape == (3, 8, 16, 160)
    assert pools.state.dtype == getattr(torch, state_dtype)
    assert pools.kv.dtype == getattr(torch, kv_dtype)
    assert pools.state.nbytes == ir.cache.state_bytes_per_slot * (5 + 1)
    assert pools.kv.nbytes == ir.cache.kv_bytes_per_token * ir.cache.page_size * (7 + 1)
    assert [tensor.data_ptr() for tensor in pools.tensors()] == [
        pools.state.data_ptr(),
        pools.verify.data_ptr(),
        pools.kv.data_ptr(),
    ]


@pytest.mark.parametrize(("num_drafts", "num_layers"), [(0, 2), (4, 3)])
def test_pools_hold_the_mtp_layers_cache_if_the_spec_drafts(
    num_drafts: int, num_layers: int
) -> None:
    ir = lowered(f"cache.speculative.num_draft_tokens={num_drafts}")
    with generated_package(ir) as package:
        pools = package.Pools.of_size(num_slots=2, num_pages=7)
        with torch.device("meta"):
            model = package.ForCausalLM()
    assert pools.kv.shape[0] == num_layers
    assert pools.kv.nbytes == ir.cache.kv_bytes_per_token * ir.cache.page_size * (7 + 1)
    assert (model.mtp is not None) == (num_drafts > 0)


def test_pools_of_key_heads_take_the_bytes_that_the_plan_counts() -> None:
    """Keys and values of 2 heads of 16 numbers, in two layers and the MTP layer."""
    ir = lowered_variant("linear-v2-with-mtp")
    with generated_package(ir) as package:
        pools = package.Pools.of_size(num_slots=5, num_pages=7)
    assert pools.state.shape == (4, 6, 4, 16, 16)
    assert pools.kv.shape == (3, 8, 16, 2, 2, 16)
    assert ir.cache.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert pools.kv.nbytes == ir.cache.kv_bytes_per_token * 16 * 8


def test_bfloat16_state_takes_half_the_bytes() -> None:
    wide, narrow = (lowered(f"cache.state_dtype={d}").cache for d in ("float32", "bfloat16"))
    assert wide.state_bytes_per_slot == 2 * narrow.state_bytes_per_slot


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (-1, 1)], ids=str)
def test_pool_that_can_serve_nobody_is_refused(tiny: ModuleType, counts: tuple[int, int]) -> None:
    name, count = ("num_slots", counts[0]) if counts[0] < 1 else ("num_pages", counts[1])
    with pytest.raises(ValueError) as refusal:
        tiny.Pools.of_size(*counts)
    message = f"{name} is {count}: a pool that serves requests holds at least 1"
    assert str(refusal.value) == message
