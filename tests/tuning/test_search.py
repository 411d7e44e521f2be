"""What a search keeps: the fastest rows, and nothing that is not faster than the default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_card import FakeMeasurer, any_time, default_rows, request, tuned
from hypothesis import given, settings
from hypothesis import strategies as st
from lingen.tuned.devices import SHARED_MEMORY
from lingen.tuned.lookup import TableKey, find_tables
from lingen.tuned.rows import Limits, disagreement, table_faults
from lingen.tuning import FORMS
from lingen.tuning.rows import PRODUCTS, TOKEN_COUNTS, Shape, rows_to_try
from lingen.tuning.search import LEAST_GAIN, is_faster, spread

H200 = SHARED_MEMORY["NVIDIA H200"]


def written(folder: Path) -> dict[str, dict]:
    return {path.name: json.loads(path.read_text()) for path in folder.rglob("*.json")}


def test_the_planted_rows_are_found(tmp_path):
    """One pair per number of tokens is fastest, and the lookup of a package finds it."""
    asked = request()
    planted = {}
    for tokens in asked.token_counts:
        up = rows_to_try(asked.shape, tokens, "up", H200)[-1]
        downs = rows_to_try(asked.shape, tokens, "down", H200)
        down = [row for row in downs if row["BLOCK_SIZE_M"] == up["BLOCK_SIZE_M"]][-1]
        planted[tokens] = up, down

    def time_of(tokens, product, row):
        return 1.0 if row == planted[tokens][PRODUCTS.index(product)] else 5.0

    outcome = tuned(tmp_path, FakeMeasurer(time_of))
    found = find_tables(tmp_path, TableKey(256, 1024, "NVIDIA H200"), "3.6.0")
    for tokens, pair in planted.items():
        down = {**pair[1], "USE_TMA": pair[1].get("USE_TMA", False)}
        assert (found.up_row(tokens), found.down_row(tokens)) == (pair[0], down)
        assert outcome.choices[tokens].microseconds == 2.0
        assert outcome.choices[tokens].default_microseconds == 10.0


def test_the_best_pair_of_one_block_size_wins_over_faster_rows_that_do_not_go_together(tmp_path):
    def time_of(tokens, product, row):
        alone = {"up": 32, "down": 64}[product]
        return {alone: 1.0, 128: 2.0}.get(row["BLOCK_SIZE_M"], 9.0)

    choice = tuned(tmp_path, FakeMeasurer(time_of), request(counts="2048")).choices[2048]
    assert choice.up["BLOCK_SIZE_M"] == choice.down["BLOCK_SIZE_M"] == 128


@pytest.mark.parametrize("gain", [0.0, 0.005, -0.1])
def test_rows_that_are_not_faster_by_more_than_noise_are_not_written(gain, tmp_path):
    def time_of(tokens, product, row):
        return 50.0 if row in default_rows(tokens) else 50.0 * (1 - gain)

    outcome = tuned(tmp_path, FakeMeasurer(time_of))
    tables = find_tables(tmp_path, TableKey(256, 1024, "NVIDIA H200"), "3.6.0")
    for tokens, choice in outcome.choices.items():
        assert choice.is_default
        up, down = default_rows(tokens)
        assert tables.up_row(tokens) == up
        assert tables.down_row(tokens) == {**down, "USE_TMA": False}


def test_a_gain_within_the_spread_of_the_runs_is_noise(tmp_path):
    def time_of(tokens, product, row):
        return 50.0 if row in default_rows(tokens) else 45.0

    assert not tuned(tmp_path / "calm", FakeMeasurer(time_of, noise=2)).choices[1].is_default
    assert tuned(tmp_path / "wild", FakeMeasurer(time_of, noise=20)).choices[1].is_default


def test_a_search_that_lies_is_put_right_beside_the_default(tmp_path):
    """What looked fast alone and is slow in turns with the default is not kept."""

    class Moody(FakeMeasurer):
        def alternately(self, num_tokens, pairs):
            return [[10.0] * 5, [11.0] * 5][: len(pairs)]

    outcome = tuned(tmp_path, Moody())
    assert all(choice.is_default for choice in outcome.choices.values())


def test_rows_that_cannot_run_are_passed_over(tmp_path):
    def time_of(tokens, product, row):
        return None if row["num_warps"] == 8 else any_time(tokens, product, row)

    outcome = tuned(tmp_path, FakeMeasurer(time_of))
    rows = [row for choice in outcome.choices.values() for row in (choice.up, choice.down)]
    assert all(row["num_warps"] == 4 for row in rows)
    assert any(not choice.is_default for choice in outcome.choices.values())


def test_every_time_of_table_and_default_is_written_beside_the_tables(tmp_path):
    outcome = tuned(tmp_path, FakeMeasurer())
    measured = written(tmp_path)["E=256,N=1024,device_name=NVIDIA_H200.measured.json"]
    assert (measured["device"], measured["triton"], measured["torch"]) == (
        "NVIDIA H200", "3.6.0", "2.11.0",
    )  # fmt: skip
    assert (measured["num_experts"], measured["width"], measured["hidden"]) == (256, 1024, 4096)
    for tokens, choice in outcome.choices.items():
        assert measured["tokens"][str(tokens)] == {
            "table_microseconds": choice.microseconds,
            "default_microseconds": choice.default_microseconds,
            "is_default": choice.is_default,
        }
        assert choice.microseconds <= choice.default_microseconds


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tp", [1, 2])
def test_what_is_written_passes_the_rules_of_own_tables(form, tp, tmp_path):
    outcome = tuned(tmp_path, FakeMeasurer(), request(tp, form, "1,24,512,3072"))
    up, down = (json.loads(path.read_text()) for path in (outcome.files.up, outcome.files.down))
    limits = Limits("NVIDIA H200", H200, 2 if form == "bf16" else 1)
    assert not list(table_faults(up, limits, may_use_tma=True))
    assert not list(table_faults(down, limits, may_use_tma=True))
    assert list(up) == list(down) == ["1", "24", "512", "3072"]
    assert not disagreement(*({int(n): row for n, row in table.items()} for table in (up, down)))
    names = {"bf16": "", "fp8_channel": ",dtype=fp8_w8a8,per_channel_quant=True"}
    part = names.get(form, ",dtype=fp8_w8a8,block_shape=[128, 128]")
    assert outcome.files.up.name == f"E=256,N={1024 // tp},device_name=NVIDIA_H200{part}.json"
    assert outcome.files.up.parent.name == "triton_3_6_0"


shapes = st.builds(
    Shape,
    num_experts=st.sampled_from((4, 12, 256)),
    width=st.sampled_from((32, 128, 384, 1024)),
    hidden=st.sampled_from((64, 4096)),
    top_k=st.sampled_from((1, 4)),
    form=st.sampled_from(FORMS[:2]),
)


@given(
    shapes, st.integers(1, 5000), st.sampled_from(PRODUCTS), st.sampled_from(sorted(SHARED_MEMORY))
)
def test_rows_to_try_are_legal_on_the_card_and_no_larger_than_the_product(
    shape, tokens, product, device
):
    limits = Limits(device, SHARED_MEMORY[device], shape.weight_bytes)
    rows = rows_to_try(shape, tokens, product, SHARED_MEMORY[device])
    table = {str(number): row for number, row in enumerate(rows, 1)}
    assert not table or not list(table_faults(table, limits, may_use_tma=True))
    columns = shape.width if product == "up" else shape.hidden
    assert all(row["BLOCK_SIZE_N"] <= columns for row in rows)


@pytest.mark.parametrize("tokens", TOKEN_COUNTS)
@pytest.mark.parametrize("form", FORMS)
def test_both_products_have_rows_of_every_block_size(form, tokens):
    block = (128, 128) if form == "fp8_block" else None
    shape = Shape(256, 512, 4096, 8, form, block)
    up, down = (
        {row["BLOCK_SIZE_M"] for row in rows_to_try(shape, tokens, product, H200)}
        for product in PRODUCTS
    )
    assert up == down != set()
    if block:
        rows = [row for product in PRODUCTS for row in rows_to_try(shape, tokens, product, H200)]
        assert all(row["BLOCK_SIZE_K"] <= 128 for row in rows)


times = st.lists(st.floats(1, 1000), min_size=3, max_size=15)


@settings(deadline=None)
@given(times, times)
def test_never_are_both_of_two_faster_than_the_other(these, those):
    assert not (is_faster(these, those) and is_faster(those, these))
    if is_faster(these, those):
        middle = sorted(those)[len(those) // 2]
        assert sorted(these)[(len(these) - 1) // 2] <= middle * (1 - LEAST_GAIN / 2)
        assert spread(these) < max(those) - min(these)
