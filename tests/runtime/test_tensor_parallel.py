"""Ranks that share a model compute what one rank computes, whatever is split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkpoints import published, quantized, save, weight_values
from comparison import assert_close, assert_same_bits
from lingen.ir import ModelIR
from lingen.verify.package import generated_package
from ranks_in_threads import Meeting, on_ranks, rank_of
from small_models import BIASES, LINEAR_V2, MTP, NO_MTP, TINY, V1, V2, fill_randomly, lowered
from step_loop import Served, StepLoop
from torch import Tensor

# Eight heads and widths that eight ranks share; four norm groups, so that at 8 a group spans ranks.
SMALL = (
    "model.hidden_size=32",
    "model.num_hidden_layers=4",
    "attention.pattern.layer_group_size=2",
    "attention.lightning.head_dim=16",
    "attention.mla.q_lora_rank=20",
    "attention.mla.kv_lora_rank=24",
    "attention.mla.qk_nope_head_dim=12",
    "attention.mla.qk_rope_head_dim=8",
    "attention.mla.v_head_dim=10",
    "mlp.intermediate_size=40",
    "moe.moe_intermediate_size=16",
    "moe.moe_shared_expert_intermediate_size=8",
    "kernels.lightning.chunk_size=16",
)
SPLIT = ("parallel.tp=[1, 2, 4, 8]", "model.num_attention_heads=8")
WIDTHS = (
    "mlp.intermediate_size=40",
    "moe.moe_intermediate_size=16",
    "moe.moe_shared_expert_intermediate_size=16",
)
VARIANTS = {
    "every-kind": (TINY, SMALL),
    "biases": (TINY, (*SMALL, *BIASES)),
    "padded-vocabulary": (TINY, (*SMALL, "model.vocab_size=161")),
    "no-q-lora": (TINY, (*SMALL, "attention.mla.q_lora_rank=null")),
    "no-shared-expert": (TINY, (*SMALL, "moe.num_shared_experts=0")),
    "all-dense": (TINY, (*SMALL, "mlp.first_k_dense_replace=4", *NO_MTP)),
    "one-norm-group": (TINY, (*SMALL, "attention.lightning.group_norm_size=1")),
    "eight-norm-groups": (TINY, (*SMALL, "attention.lightning.group_norm_size=8")),
    "no-qk-norm": (TINY, (*SMALL, "attention.lightning.use_qk_norm=false")),
    "v2-two-key-heads": (V2, (*SPLIT, *WIDTHS, *MTP, *BIASES)),
    "v2-one-key-head": (V2, (*SPLIT, *WIDTHS, "attention.gqa.num_key_value_heads=1")),
    "linear-v2": (LINEAR_V2, (*SPLIT, *WIDTHS, *MTP)),
    "v1-normed-head": (V1, (*SPLIT, *WIDTHS, "model.norm_head=true", "model.vocab_size=161")),
}
PROMPTS = [[5, 9, 2, 77, 31], [8], list(range(40, 75))]
NUM_STEPS = 4
DRAFTS = 2
# Sums of a whole model in another order: an element's rounding grows from layer to layer by some
# the factor of ten that 1e-5 leaves for one sum. A wrong head, slope or row is off by 1e-2 or more.
TOLERANCE = 1e-4
# Sizes that `make test` runs of a variant; the others are for `make test-long`.
QUICK = {"every-kind": (2, 4, 8), "v2-two-key-heads": (4,), "padded-vocabulary": (2,)}


def package_of(name: str) -> ModelIR:
    spec, values = VARIANTS[name]
    last = {text.partition("=")[0]: text for text in values}
    return lowered(*last.values(), spec=spec)


def serve(package: ModuleType, model: torch.nn.Module) -> dict[str, Tensor]:
    """A ragged prefill, decodes beside padded rows, drafts verified and committed: all outputs."""
    has_mtp = hasattr(package.cache, "DRAFT_TOKENS")
    loop = StepLoop(package, model, DRAFTS if has_mtp else 0)
    requests = [
        Served([*prompt], slot=slot, row=row, pages=pages)
        for prompt, slot, row, pages in zip(
            PROMPTS, [6, 1, 4], [2, 5, 0], [[9, 2, 30], [17, 3, 8], [0, 11, 25, 7, 1]], strict=True
        )
    ]
    seen: dict[str, Tensor] = {}

    def run(name: str, rows: list[Served | None], feeds: list[list[int]], **kind: object) -> object:
        step = loop.backend.prepare(loop.batch(rows, feeds, **kind))
        hidden = model(step, loop.backend)
        kept = [
            i for row, feed in zip(rows, feeds, strict=True) for i in [row is not None] * len(feed)
        ]
        seen[name] = model.compute_logits(hidden)[torch.tensor(kept)]
        if has_mtp:
            next_ids = torch.arange(hidden.shape[0]) % 150
            drafted = model.draft(next_ids, hidden, step, loop.backend)
            seen[f"{name}.draft"] = model.compute_logits(drafted)[kept]
        return step

    run("prefill", requests, [request.tokens for request in requests])
    for request in requests:
        request.computed = len(request.tokens)
    for number in range(NUM_STEPS):
        run(f"decode{number}", [*requests, None], [[(7 * number + i) % 150] for i in range(4)])
        for request in requests:
            request.computed += 1
    if has_mtp:
        step = run("verify", requests, [[3, 4, 5], [6], [7, 8]], is_verify=True)
        if loop.has_states:
            loop.backend.accept(step, torch.tensor([1, 0, 1], dtype=torch.int32))
        for request, count in zip(requests, [2, 1, 2], strict=True):
            request.computed += count
        run("after", requests, [[1], [2, 3], [4]])
    if loop.has_states:
        seen["states"] = loop.pools.state[:, [6, 1, 4]].clone()
    return seen


@pytest.fixture(scope="module")
def package(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    with generated_package(package_of(request.param)) as package:
        yield package


@pytest.fixture(scope="module")
def checkpoint(package: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save(folder, published(fill_randomly(built(package), seed=3)))
    return folder


def built(package: ModuleType, **choices: object) -> torch.nn.Module:
    drafts = {"drafts": True} if hasattr(package.cache, "DRAFT_TOKENS") else {}
    model = package.ForCausalLM(**drafts, **choices)
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    return model


def loaded(package: ModuleType, folder: Path, **choices: object) -> torch.nn.Module:
    model = built(package, **choices)
    package.load_weights(model, folder)
    return model.eval()


@pytest.mark.parametrize(
    ("package", "size"),
    [
        pytest.param(name, size, marks=() if size in QUICK.get(name, (8,)) else pytest.mark.long)
        for name in VARIANTS
        for size in (2, 4, 8)
    ],
    indirect=["package"],
)
def test_ranks_compute_what_one_rank_computes(
    package: ModuleType, checkpoint: Path, size: int
) -> None:
    """Prefill, decode, drafts, verify: logits and states, from one checkpoint, split on reading."""
    with torch.no_grad():
        want = serve(package, loaded(package, checkpoint))
    got = on_ranks(package, size, lambda tp: serve(package, loaded(package, checkpoint, tp=tp)))
    assert all(rank.keys() == want.keys() for rank in got)
    for name, expected in want.items():
        if name == "states":
            assert_close(torch.cat([rank[name] for rank in got], dim=2), expected, TOLERANCE)
            continue
        assert_close(got[0][name], expected, TOLERANCE)
        for rank in got[1:]:
            assert_same_bits(rank[name], got[0][name])


@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
def test_fp8_weights_are_split_with_their_scales(suffix: str, tmp_path: Path) -> None:
    """Widths no multiple of 128: a rank's part begins inside of a block of scales."""
    ir = lowered("model.hidden_size=160", "mlp.intermediate_size=400", "model.num_hidden_layers=4")
    with generated_package(ir) as package:
        model = fill_randomly(built(package), seed=3)
        stored, exact = quantized(published(model), suffix)
        save(tmp_path / "fp8", stored)
        save(tmp_path / "exact", exact)
        for rank in (0, 3):
            tp = rank_of(package, rank, Meeting(4))
            got, want = (loaded(package, tmp_path / name, tp=tp) for name in ("fp8", "exact"))
            ours, theirs = weight_values(got), weight_values(want)
            assert ours.keys() == theirs.keys()
            for name in theirs:
                assert_same_bits(ours[name], theirs[name])
                assert not ours[name].isnan().any(), name


def test_slopes_are_those_of_the_global_heads(tiny: ModuleType) -> None:
    """Rank 2 of 4 has heads 4 and 5 of 8: 1/32 and 1/64, not 1/16 and 1/256 of a model of two."""
    model = tiny.ForCausalLM(tp=tiny.TensorParallel(2, 4))
    for layer in (0, 5):
        factor = tiny.model.LAYER_FACTORS[layer]
        got = model.layers[layer].attention.log_decay.tolist()
        assert got == pytest.approx([-factor / 32, -factor / 64])


def test_pools_of_another_size_than_the_model_are_refused(tiny: ModuleType) -> None:
    model = tiny.ForCausalLM(tp=rank_of(tiny, 0, Meeting(1)))
    pools = tiny.Pools.of_size(2, 4, tp=2)
    backend = tiny.HybridBackend(pools)
    for tokens in ([[1, 2]], [[1]]):
        step = backend.prepare(tiny.ForwardBatch.from_lists(tokens, [0], [0], [[0]]))
        with pytest.raises(ValueError, match=r"[48] heads of values, 4 of the state pool, 8 dec"):
            model(step, backend)


@pytest.mark.parametrize("size", [3, 16, 0, -1])
def test_a_size_that_was_not_declared_is_refused_with_the_heads(tiny: ModuleType, size) -> None:
    with pytest.raises(ValueError) as refusal:
        tiny.TensorParallel(0, size)
    assert str(refusal.value) == (
        f"tp is {size}: parallel.tp of this model, whose num_attention_heads is 8, is (1, 2, 4, 8)"
    )


def test_a_rank_outside_of_its_size_is_refused(tiny: ModuleType) -> None:
    with pytest.raises(ValueError, match="rank is 2: one of 0 to 1 is expected"):
        tiny.TensorParallel(2, 2)


def test_one_rank_alone_needs_no_torch_distributed(tiny: ModuleType, monkeypatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a rank alone talked to others")

    for name in ("all_reduce", "all_gather"):
        monkeypatch.setattr(tiny.parallel.dist, name, forbidden)
    x = torch.ones(2, 3)
    assert tiny.parallel.ONE_RANK.all_reduce(x) is x
    assert tiny.parallel.ONE_RANK.all_gather(x) is x


@pytest.mark.parametrize("spec", [V2, V1, LINEAR_V2])
def test_a_model_that_declares_one_rank_has_no_code_for_more(spec: Path) -> None:
    with generated_package(lowered(spec=spec)) as package:
        assert not hasattr(package, "TensorParallel")
        source = Path(package.model.__file__).read_text()
    assert "tp" not in source.replace("mtp", "").replace("https", "").replace("output", "")


@pytest.mark.parametrize(("size", "is_fused"), [(4, True), (8, False)])
def test_decode_is_fused_only_where_ranks_hold_whole_norm_groups(
    tiny: ModuleType, size: int, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(
        tiny.backend,
        "lightning_decode_fused",
        lambda qkv, gate, *rest: calls.append(rest[5]) or torch.zeros_like(gate),
    )

    def decode(tp: object) -> None:
        model = fill_randomly(tiny.ForCausalLM(tp=tp))
        backend = tiny.HybridBackend(tiny.Pools.of_size(2, 4, tp=size))
        step = backend.prepare(tiny.ForwardBatch.from_lists([[1]], [0], [0], [[0]]))
        model(step, backend)

    on_ranks(tiny, size, decode)
    assert len(calls) == (6 * size if is_fused else 0)
    assert set(calls) <= {1}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_layer_meets_twice_and_once_more_where_a_norm_group_spans_ranks(
    tiny: ModuleType, size: int
) -> None:
    """Attention's output, and shared and routed experts in one sum; the embedding once."""
    meeting = Meeting(size)

    def prefill(tp: object) -> None:
        model = fill_randomly(tiny.ForCausalLM(tp=tp))
        backend = tiny.HybridBackend(tiny.Pools.of_size(2, 4, tp=size))
        step = backend.prepare(tiny.ForwardBatch.from_lists([[1, 2]], [0], [0], [[0]]))
        model(step, backend)

    on_ranks(tiny, size, prefill, meeting)
    spanning = 6 if size == 8 else 0  # six lightning layers
    assert meeting.count == 1 + 2 * 8 + spanning


def test_scaling_is_applied_once_on_two_ranks() -> None:
    """Experts and shared expert that return 1 and a scaling of 2.5: 3.5, not 2, 5, 7 or 7.25."""
    with generated_package(lowered(*SMALL)) as package:
        width = 16 // 2

        def block(tp: object) -> Tensor:
            moe = package.model.MoE(package.model.SideStream(), tp)
            for parameter in moe.parameters():
                parameter.data.zero_()
            # silu(g) * 1 = 1 in every place of the width; down sums them to 1 over both ranks.
            g = torch.tensor(1.2784645)  # silu(g) = 1
            for gate_up, down, own in (
                (moe.experts.gate_up_proj, moe.experts.down_proj, width),
                (moe.shared_experts.gate_up_proj.weight, moe.shared_experts.down_proj.weight, 4),
            ):
                gate_up.data[..., :own, 0] = g
                gate_up.data[..., own:, 0] = 1.0
                down.data.fill_(1 / (2 * own))
            hidden = torch.zeros(3, 32)
            hidden[:, 0] = 1.0
            batch = package.ForwardBatch.from_lists([[1, 2, 3]], [0], [0], [[0]])
            step = package.HybridBackend(package.Pools.of_size(1, 1, tp=2)).prepare(batch)
            return tp.all_reduce(moe(hidden, step))

        for out in on_ranks(package, 2, block):
            assert_close(out, torch.full((3, 32), 3.5))


def test_a_rank_reads_its_part_of_each_tensor_alone(tiny, tmp_path, monkeypatch) -> None:
    save(tmp_path, published(fill_randomly(built(tiny))))
    read = []
    original = tiny.weights.shard

    def counted(source: object, weight: object, *ranks: int) -> Tensor:
        assert not isinstance(source, Tensor)
        part = original(source, weight, *ranks)
        read.append((weight, part.numel()))
        return part

    monkeypatch.setattr(tiny.weights, "shard", counted)
    loaded(tiny, tmp_path, tp=rank_of(tiny, 1, Meeting(4)))
    for weight, count in read:
        whole = torch.Size(weight.shape).numel()
        assert count == (whole // 4 if weight.tp_dim is not None else whole), weight.name
