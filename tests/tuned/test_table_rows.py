"""What rows may say, and that up and down tables agree for every number of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lingen.tuned.devices import SHARED_MEMORY
from lingen.tuned.lookup import nearest_row
from lingen.tuned.rows import MAX_TOKENS, Limits, disagreement, shared_memory, table_faults

TUNED = Path(__file__).parents[2] / "specs" / "tuned"
PAIRS = sorted(path for path in TUNED.glob("*/*_down.json"))
H200 = Limits("NVIDIA H200", SHARED_MEMORY["NVIDIA H200"], weight_bytes=1, block_k=128)
ROW = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}

tables = st.dictionaries(
    st.integers(1, 5000), st.sampled_from((16, 32)).map(lambda m: {"BLOCK_SIZE_M": m}), min_size=1,
    max_size=4,
)  # fmt: skip


def first_disagreement(up, down):
    """The plain reference: every number of tokens, one after another."""
    for num_tokens in range(1, MAX_TOKENS + 1):
        blocks = [nearest_row(rows, num_tokens)["BLOCK_SIZE_M"] for rows in (up, down)]
        if blocks[0] != blocks[1]:
            return num_tokens
    return None


@given(tables, tables)
def test_the_first_disagreement_is_found_wherever_it_is(up, down):
    found = disagreement(up, down)
    assert (found and found.num_tokens) == first_disagreement(up, down)


def test_a_disagreement_names_the_rows_of_both():
    up = {1: {"BLOCK_SIZE_M": 16}, 256: {"BLOCK_SIZE_M": 64}}
    down = {1: {"BLOCK_SIZE_M": 16}, 256: {"BLOCK_SIZE_M": 32}}
    found = disagreement(up, down)
    assert (found.num_tokens, found.up, found.down) == (129, 256, 256)
    assert (found.up_block, found.down_block) == (64, 32)


def test_a_disagreement_beyond_the_last_token_count_does_not_matter():
    assert disagreement({1: {"BLOCK_SIZE_M": 16}}, {1: {"BLOCK_SIZE_M": 16}, 9000: ROW}) is None


def read(path: Path):
    return {int(count): row for count, row in json.loads(path.read_text()).items()}


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: path.name)
def test_published_pairs_agree(path):
    up = read(path.with_name(path.name.replace("_down", "")))
    down = read(path)
    assert first_disagreement(up, down) is None


def test_there_is_a_published_pair_whose_down_table_has_more_rows():
    sizes = [(len(read(p.with_name(p.name.replace("_down", "")))), len(read(p))) for p in PAIRS]
    assert (3, 9) in sizes


@pytest.mark.parametrize(
    ("block_m", "block_n", "block_k", "stages", "weight_bytes", "needed"),
    [(128, 256, 128, 4, 1, 147_456), (64, 128, 64, 3, 2, 49_152), (16, 64, 128, 1, 1, 0)],
)
def test_shared_memory_of_a_row(block_m, block_n, block_k, stages, weight_bytes, needed):
    row = {"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": block_n, "BLOCK_SIZE_K": block_k}
    assert shared_memory({**row, "num_stages": stages}, weight_bytes) == needed


def test_a_row_without_stages_has_tritons_three():
    assert shared_memory(ROW, 1) == shared_memory({**ROW, "num_stages": 3}, 1)


@pytest.mark.parametrize(("device", "fits"), [("NVIDIA H200", True), ("NVIDIA L40S", False)])
def test_a_row_fits_one_card_and_not_another(device, fits):
    row = {**ROW, "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "num_stages": 4, "num_warps": 8}
    limits = Limits(device, SHARED_MEMORY[device], weight_bytes=1, block_k=128)
    faults = list(table_faults({"64": row}, limits, may_use_tma=False))
    assert [fault.path for fault in faults] == ([] if fits else [("64",)])


def test_limits_are_those_of_the_cards():
    kib = {SHARED_MEMORY[name] for name in ("NVIDIA H200", "NVIDIA H20", "NVIDIA H20-3e")}
    assert kib == {227 * 1024}
    assert SHARED_MEMORY["NVIDIA L40S"] == 99 * 1024 == 101_376


@pytest.mark.parametrize("left_out", [("num_warps",), ("num_stages",), ("num_warps", "num_stages")])
def test_rows_without_warps_and_stages_are_legal(left_out):
    row = {**ROW, "num_warps": 4, "num_stages": 3}
    row = {key: value for key, value in row.items() if key not in left_out}
    assert list(table_faults({"1": row}, H200, may_use_tma=False)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("BLOCK_SIZE_M", value) for value in (0, -16, 8, 100, 2048, 16.0, "16", True, None)),
        *(("BLOCK_SIZE_N", value) for value in (0, 24, 4096)),
        *(("BLOCK_SIZE_K", value) for value in (0, 96, [64])),
        *(("GROUP_SIZE_M", value) for value in (0, -1, 1.0, True)),
        *(("num_warps", value) for value in (0, 3, 64, 4.0)),
        *(("num_stages", value) for value in (0, 17, "3", False)),
        *(("USE_TMA", value) for value in (1, "true", None)),
        *((key, 1) for key in ("block_size_m", "waves_per_eu", "")),
    ],
)
def test_an_impossible_value_is_found_under_its_row_and_key(key, value):
    faults = list(table_faults({"1": ROW, "8": {**ROW, key: value}}, H200, may_use_tma=True))
    assert [fault.path for fault in faults] == [("8", key)]


@pytest.mark.parametrize("key", ROW)
def test_a_missing_key_is_found(key):
    row = {name: value for name, value in ROW.items() if name != key}
    [fault] = table_faults({"8": row}, H200, may_use_tma=False)
    assert (fault.path, fault.message) == (("8",), f"{key} is missing")


def test_tma_belongs_into_down_tables():
    table = {"8": {**ROW, "USE_TMA": True}}
    assert list(table_faults(table, H200, may_use_tma=True)) == []
    faults = table_faults(table, H200, may_use_tma=False)
    assert [fault.path for fault in faults] == [("8", "USE_TMA")]


def test_only_blockwise_scales_limit_the_width_of_a_block():
    table = {"8": {**ROW, "BLOCK_SIZE_K": 256}}
    assert [f.path for f in table_faults(table, H200, False)] == [("8", "BLOCK_SIZE_K")]
    plain = Limits(H200.device, H200.shared_memory, weight_bytes=1)
    assert list(table_faults(table, plain, may_use_tma=False)) == []


@pytest.mark.parametrize("table", [None, [], {}, 3, "64"])
def test_what_is_no_table_is_one_fault(table):
    [fault] = table_faults(table, H200, may_use_tma=False)
    assert fault.path == ()
