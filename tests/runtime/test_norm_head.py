"""The output head of the first generation: its columns are normalised once, on loading."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from checkpoints import loaded, published, save
from comparison import assert_close, assert_same_bits
from lingen.verify.package import generated_package
from small_models import V1, fill_randomly, lowered
from torch import Tensor

HEAD = "lm_head.weight"
EMBEDDING = "model.word_embeddings.weight"


@pytest.fixture(scope="module")
def normed() -> Iterator[ModuleType]:
    with generated_package(lowered("model.norm_head=true", spec=V1)) as package:
        yield package


def weights_of(package: ModuleType) -> dict[str, Tensor]:
    """Random weights; each column of the head is 3 long, give or take: nowhere near 1."""
    tensors = dict(published(fill_randomly(package.ForCausalLM())))
    tensors[HEAD] = 3 * tensors[HEAD]
    return tensors


def normalized(head: Tensor) -> Tensor:
    """In float64, column by column."""
    columns = [column / (column.square().sum().sqrt() + 1e-7) for column in head.double().T]
    return torch.stack(columns, dim=1)


def test_the_reference_gives_the_numbers_computed_by_hand() -> None:
    head = torch.tensor([[3.0, 0.0], [4.0, 2.0]])
    want = torch.tensor([[0.6, 0.0], [0.8, 1.0]], dtype=torch.float64)
    assert (normalized(head) - want).abs().max() < 1e-7


def test_columns_of_the_whole_vocabulary_have_length_1_after_loading(normed, tmp_path) -> None:
    tensors = weights_of(normed)
    save(tmp_path, tensors)
    head = loaded(normed, tmp_path).lm_head.weight
    assert_close(head, normalized(tensors[HEAD]), 1e-6)
    assert_close(head.norm(dim=0), torch.ones(32))


def test_only_the_head_is_normalised(normed, tmp_path) -> None:
    tensors = weights_of(normed)
    save(tmp_path, tensors)
    got = published(loaded(normed, tmp_path))
    changed = [name for name in tensors if not torch.equal(got[name], tensors[name])]
    assert changed == [HEAD]


def test_loading_twice_normalises_what_is_stored_and_not_what_was_loaded(
    normed, tmp_path, monkeypatch
) -> None:
    save(tmp_path, weights_of(normed))
    calls = []
    original = normed.weights.normalize_columns

    def counted(rows: Tensor, head: object) -> Tensor:
        calls.append(rows.shape)
        return original(rows, head)

    monkeypatch.setattr(normed.weights, "normalize_columns", counted)
    model = loaded(normed, tmp_path)
    first = model.lm_head.weight.clone()
    normed.load_weights(model, tmp_path)
    assert_same_bits(model.lm_head.weight.data, first)
    assert calls == [(160, 32)] * 2


def test_a_head_that_was_stored_normalised_changes_by_rounding_alone(normed) -> None:
    head = weights_of(normed)[HEAD]
    once = normed.weights.normalize_columns(head, head)
    assert_close(normed.weights.normalize_columns(once, once), once.double(), 1e-6)


def test_ranks_hold_rows_of_the_normalised_whole_and_not_normalised_rows(normed) -> None:
    head = weights_of(normed)[HEAD]
    [weight] = [w for w in normed.weights.MODEL_WEIGHTS if w.name == HEAD]
    normalize = normed.weights.normalize_columns
    whole = normalize(head, head)
    rows = [normed.weights.shard(head, weight, rank, 4) for rank in range(4)]
    assert_same_bits(torch.cat([normalize(part, head) for part in rows]), whole)
    # A rank's own rows have another length.
    assert (normalize(rows[0], rows[0]) - whole[:40]).abs().max() > 0.01


def test_bfloat16_heads_are_normalised_in_float32_and_rounded_once(tmp_path) -> None:
    with generated_package(
        lowered("model.norm_head=true", "model.torch_dtype=bfloat16", spec=V1)
    ) as package:
        tensors = weights_of(package)
        assert tensors[HEAD].dtype == torch.bfloat16
        save(tmp_path, tensors)
        head = loaded(package, tmp_path).lm_head.weight
    assert head.dtype == torch.bfloat16
    # Exactly the rounded quotient, but where the float32 one lies on the edge of two.
    want = normalized(tensors[HEAD]).bfloat16()
    assert (head != want).float().mean() < 0.01
    assert_close(head, normalized(tensors[HEAD]), 2.0**-9)


def test_an_empty_column_stays_zero(normed) -> None:
    head = weights_of(normed)[HEAD].clone()
    head[:, 5] = 0.0
    assert not normed.weights.normalize_columns(head, head)[:, 5].any()


def test_a_plain_head_is_loaded_as_it_is(tmp_path) -> None:
    with generated_package(lowered(spec=V1)) as package:
        tensors = weights_of(package)
        save(tmp_path, tensors)
        assert not hasattr(package.weights, "normalize_columns")
        assert_same_bits(loaded(package, tmp_path).lm_head.weight.data, tensors[HEAD])
