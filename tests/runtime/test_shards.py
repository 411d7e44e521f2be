"""How tensor-parallel ranks share each tensor of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from comparison import assert_close
from lingen.verify.package import generated_package
from reference import grouped_attention
from small_models import V1, V2, lowered, lowered_variant

# Dimension that ranks split, by the end of the name. All others are whole on every rank.
SPLIT = {
    "word_embeddings.weight": 0,
    "lm_head.weight": 0,
    "query_key_value.weight": 0,
    "query_key_value.bias": 0,
    "g_proj.weight": 0,
    "g_norm.weight": 0,
    "attention.dense.weight": 1,
    "q_b_proj.weight": 0,
    "q_proj.weight": 0,
    "kv_b_proj.weight": 0,
    "gate_proj.weight": 0,
    "up_proj.weight": 0,
    "down_proj.weight": 1,
}


def all_weights(package: ModuleType) -> list:
    tables = [package.weights.MODEL_WEIGHTS, getattr(package.weights, "DRAFT_WEIGHTS", ())]
    tables += [table for _, table in package.weights.LAYER_WEIGHTS]
    return [weight for table in tables for weight in table]


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


@pytest.fixture(scope="module")
def biased() -> Iterator[ModuleType]:
    """The tensors that tiny has not: biases, and a query projection without a latent."""
    overrides = ["model.use_bias=true", "model.use_qkv_bias=true", "attention.mla.q_lora_rank=null"]
    with generated_package(lowered(*overrides)) as package:
        yield package


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_the_ranks_shards_put_together_are_the_whole_tensor(tiny, biased, tp_size):
    for package in (tiny, biased):
        for weight in all_weights(package):
            whole = numbered(weight.shape)
            shards = [package.weights.shard(whole, weight, r, tp_size) for r in range(tp_size)]
            ends = [end for end in SPLIT if weight.name.endswith(end)]
            if not ends:
                assert all(torch.equal(shard, whole) for shard in shards), weight.name
                continue
            blocks = 3 if "query_key_value" in weight.name else 1
            dim = SPLIT[ends[0]]
            columns = zip(*(shard.chunk(blocks, dim) for shard in shards), strict=True)
            joined = torch.cat([torch.cat(block, dim) for block in columns], dim)
            assert torch.equal(joined, whole), weight.name
            assert len({shard.shape for shard in shards}) == 1, weight.name


def test_a_rank_holds_its_own_heads_of_query_key_and_value(tiny):
    """8 heads of 64 rows; rank 1 of 4 has heads 2 and 3 of each."""
    [weight] = [w for w in all_weights(tiny) if "query_key_value" in w.name]
    shard = tiny.weights.shard(torch.arange(3 * 512)[:, None], weight, 1, 4)
    starts = [128, 512 + 128, 1024 + 128]
    assert shard.flatten().tolist() == [row for s in starts for row in range(s, s + 128)]


@pytest.mark.parametrize("tp_size", [2, 4, 8])
def test_a_vocabulary_that_does_not_divide_is_padded_with_zero_rows(tp_size):
    with generated_package(lowered("model.vocab_size=161")) as package:
        embedding, _, head = package.weights.MODEL_WEIGHTS
        for weight in (embedding, head):
            whole = (1 + numbered((161, 512))).bfloat16()
            shards = [package.weights.shard(whole, weight, r, tp_size) for r in range(tp_size)]
            joined = torch.cat(shards)
            assert joined.shape[0] == -(-161 // tp_size) * tp_size
            assert torch.equal(joined[:161], whole)
            assert not joined[161:].any()
            assert {shard.dtype for shard in shards} == {torch.bfloat16}


@pytest.mark.parametrize("tp_dim", [0, 1])
def test_a_size_that_does_not_divide_is_refused_by_name_even_if_it_is_the_vocabularys(tiny, tp_dim):
    shape = (tiny.model.VOCAB_SIZE, tiny.model.VOCAB_SIZE)
    weight = tiny.weights.Weight("attention.dense.weight", shape, tp_dim=tp_dim)
    with pytest.raises(ValueError, match=r"^attention\.dense\.weight: 160 does not divide by 3 ra"):
        tiny.weights.shard(torch.zeros(shape), weight, 0, 3)


# Grouped-query attention: 8 query heads of 16 rows, on 2 key heads or as stated.
EIGHT_HEADS = (
    *("model.num_attention_heads=8", "moe.moe_intermediate_size=16"),
    *("moe.moe_shared_expert_intermediate_size=16", "model.use_bias=true"),
    *("model.use_qkv_bias=true", "mtp.num_nextn_predict_layers=1"),
)
# Rank → its query heads, and the key head that they read, at each size.
OWNERS = {
    1: [(range(8), [0, 1])],
    2: [(range(4), [0]), (range(4, 8), [1])],
    4: [(range(0, 2), [0]), (range(2, 4), [0]), (range(4, 6), [1]), (range(6, 8), [1])],
    8: [(range(r, r + 1), [r // 4]) for r in range(8)],
}


@pytest.fixture(scope="module")
def grouped() -> Iterator[ModuleType]:
    with generated_package(lowered(*EIGHT_HEADS, spec=V2)) as package:
        yield package


def rows_of(heads: list[int] | range, first_head: int, head_dim: int = 16) -> list[int]:
    starts = [(first_head + head) * head_dim for head in heads]
    return [row for start in starts for row in range(start, start + head_dim)]


@pytest.mark.parametrize("tp_size", OWNERS)
def test_ranks_hold_their_query_heads_and_the_key_heads_that_those_read(grouped, tp_size):
    """Rows are 8 query heads, 2 key heads, 2 value heads."""
    found = [w for w in all_weights(grouped) if "query_key_value" in w.name]
    assert [w.name.rpartition(".")[2] for w in found] == ["weight", "bias"] * 2
    for weight in found:
        whole = torch.arange(weight.shape[0])
        for rank, (queries, keys) in enumerate(OWNERS[tp_size]):
            shard = grouped.weights.shard(whole, weight, rank, tp_size)
            want = rows_of(queries, 0) + rows_of(keys, 8) + rows_of(keys, 10)
            assert shard.tolist() == want, (weight.name, rank)


@pytest.mark.parametrize("tp_size", OWNERS)
def test_shards_of_every_other_tensor_put_together_are_the_whole(grouped, tp_size):
    for weight in all_weights(grouped):
        if "query_key_value" in weight.name:
            continue
        whole = numbered(weight.shape)
        shards = [grouped.weights.shard(whole, weight, r, tp_size) for r in range(tp_size)]
        ends = [end for end in SPLIT if weight.name.endswith(end)]
        joined = torch.cat(shards, SPLIT[ends[0]]) if ends else shards[-1]
        assert torch.equal(joined, whole), weight.name


@pytest.mark.parametrize("tp_size", OWNERS)
@pytest.mark.parametrize("key_heads", [1, 2, 4, 8])
def test_ranks_outputs_summed_are_those_of_one_rank(tp_size, key_heads):
    """Projection, attention and output projection of each rank, on its own heads alone."""
    ir = lowered(
        "model.num_attention_heads=8", f"attention.gqa.num_key_value_heads={key_heads}", spec=V1
    )
    with generated_package(ir) as package:
        by_end = {w.name.partition(".")[2]: w for w in all_weights(package)}
        shard = package.weights.shard
    generator = torch.Generator().manual_seed(0)
    qkv, dense = (
        torch.randn(by_end[name].shape, generator=generator) / 4
        for name in ("query_key_value.weight", "dense.weight")
    )
    hidden = torch.randn(9, 32, generator=generator)

    def output(qkv: torch.Tensor, dense: torch.Tensor, num_heads: int, num_keys: int):
        heads = (hidden.double() @ qkv.double().T).unflatten(1, (-1, 16))
        q, k, v = heads.split([num_heads, num_keys, num_keys], dim=1)
        return grouped_attention(q, k, v, 0.25).flatten(1) @ dense.double().T

    total = torch.zeros(9, 32, dtype=torch.float64)
    for rank in range(tp_size):
        own = [
            shard(tensor, by_end[name], rank, tp_size)
            for tensor, name in ((qkv, "query_key_value.weight"), (dense, "dense.weight"))
        ]
        total += output(*own, 8 // tp_size, max(1, key_heads // tp_size))
    assert_close(total, output(qkv, dense, 8, key_heads), 1e-12)


def test_key_heads_that_neither_split_nor_copies_can_share_are_refused_by_name():
    """6 query heads divide by 2, but 3 key heads do not, nor 2 ranks by 3."""
    with generated_package(lowered_variant("v2-six-heads-on-three")) as package:
        [weight] = [w for w in all_weights(package) if "query_key_value" in w.name]
        for tp_size, count in ((2, 3), (4, 6)):
            with pytest.raises(ValueError) as refusal:
                package.weights.shard(torch.zeros(weight.shape), weight, 0, tp_size)
            assert str(refusal.value) == (
                f"attention.query_key_value.weight: {count} does not divide by {tp_size} ranks"
            )
        whole = torch.arange(weight.shape[0])
        shards = [package.weights.shard(whole, weight, rank, 6) for rank in range(6)]
    assert [(shard[16] // 16 - 6).item() for shard in shards] == [0, 0, 1, 1, 2, 2]
