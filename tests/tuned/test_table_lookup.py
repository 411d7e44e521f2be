"""Which table and which row are used: the engine's choice, told once where it is not exact."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lingen.emit.render import render
from lingen.ir import lower
from lingen.spec import load_spec
from lingen.tuned import lookup
from lingen.tuned.lookup import TableKey, find_tables, nearest_count, nearest_row, version_number
from lingen.tuned.names import moe_shape, parse_name

ROOT = Path(__file__).parents[2]
KEY = TableKey(256, 512, "NVIDIA H200")
ROW = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}


@pytest.fixture(autouse=True)
def nothing_said_yet():
    lookup._warn_once.cache_clear()


def write(folder: Path, version: str, block_m: int, key: TableKey = KEY, is_down: bool = False):
    path = folder / f"triton_{version.replace('.', '_')}" / key.file_name(is_down)
    path.parent.mkdir(parents=True, exist_ok=True)
    tma = {"USE_TMA": True} if is_down else {}
    path.write_text(json.dumps({"64": {**ROW, "BLOCK_SIZE_M": block_m, **tma}}))


def found(folder: Path, version: str, key: TableKey = KEY):
    tables = find_tables(folder, key, version)
    return tables and (tables.triton, tables.up_row(1)["BLOCK_SIZE_M"])


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=12, unique=True), st.integers(1, 5000))
def test_the_nearest_token_count_is_used_and_of_two_as_near_the_first_listed(counts, num_tokens):
    best = None
    for count in counts:
        if best is None or abs(count - num_tokens) < abs(best - num_tokens):
            best = count
    assert nearest_count(counts, num_tokens) == best


def test_a_tie_goes_to_the_row_that_stands_first():
    assert nearest_row({64: {"row": 1}, 128: {"row": 2}}, 96) == {"row": 1}
    assert nearest_row({128: {"row": 2}, 64: {"row": 1}}, 96) == {"row": 2}


def test_rows_keep_the_order_of_the_file(tmp_path):
    write(tmp_path, "3.6.0", 16)
    rows = {"128": {**ROW, "BLOCK_SIZE_M": 128}, "64": {**ROW, "BLOCK_SIZE_M": 64}}
    (tmp_path / "triton_3_6_0" / KEY.file_name()).write_text(json.dumps(rows))
    tables = find_tables(tmp_path, KEY, "3.6.0")
    assert [tables.up_row(m)["BLOCK_SIZE_M"] for m in (1, 95, 96, 97, 4096)] == [
        64, 64, 128, 128, 128
    ]  # fmt: skip


def test_the_running_version_comes_first_without_a_word(tmp_path, caplog):
    for version, block_m in (("3.5.1", 16), ("3.6.0", 32), ("3.8.0", 64)):
        write(tmp_path, version, block_m)
    assert found(tmp_path, "3.6.0") == ("3.6.0", 32)
    assert caplog.messages == []


def test_else_the_newest_other_version_with_one_warning_that_names_both(tmp_path, caplog):
    for version in ("3.10.0", "3.9.0", "3.5.1"):
        write(tmp_path, version, 16)
        write(tmp_path, version, 16, TableKey(256, 256, "NVIDIA H200"))
    for _ in range(3):
        assert found(tmp_path, "3.8.0") == ("3.10.0", 16)
        assert found(tmp_path, "3.8.0", TableKey(256, 256, "NVIDIA H200")) == ("3.10.0", 16)
    assert caplog.messages == [
        "no MoE tables of the running Triton 3.8.0: those tuned with Triton 3.10.0 are used"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_versions_count_as_numbers():
    assert version_number("3.10.0") > version_number("3.9.0")


def test_a_miss_prints_the_looked_up_name_once(tmp_path, caplog):
    write(tmp_path, "3.6.0", 16, TableKey(256, 512, "NVIDIA H20"))
    for _ in range(3):
        assert find_tables(tmp_path, TableKey(256, 512, "NVIDIA H20-3e"), "3.6.0") is None
        assert find_tables(tmp_path, TableKey(256, 512, "NVIDIA H200 NVL"), "3.6.0") is None
    assert caplog.messages == [
        f"no MoE table E=256,N=512,device_name={name}.json: default kernel settings are used"
        for name in ("NVIDIA_H20-3e", "NVIDIA_H200_NVL")
    ]


def test_no_folder_is_a_miss(tmp_path):
    assert find_tables(tmp_path / "none", KEY, "3.6.0") is None


def test_folders_of_other_names_do_not_count(tmp_path):
    write(tmp_path, "3.6.0", 16)
    for name in ("triton_nightly", "triton_3_x", "notes"):
        (tmp_path / name).mkdir()
    assert found(tmp_path, "3.9.0") == ("3.6.0", 16)


def test_down_falls_back_to_the_up_table(tmp_path):
    write(tmp_path, "3.6.0", 32)
    tables = find_tables(tmp_path, KEY, "3.6.0")
    assert tables.down is None
    assert tables.down_row(7) == tables.up_row(7)


def test_down_is_taken_from_the_folder_of_the_up_table(tmp_path):
    write(tmp_path, "3.5.1", 32)
    write(tmp_path, "3.6.0", 64)
    write(tmp_path, "3.6.0", 64, is_down=True)
    assert find_tables(tmp_path, KEY, "3.5.1").down is None
    tables = find_tables(tmp_path, KEY, "3.6.0")
    assert tables.down_row(1) == {**tables.up_row(1), "USE_TMA": True}


@pytest.mark.parametrize(
    ("key", "is_down", "name"),
    [
        (KEY, False, "E=256,N=512,device_name=NVIDIA_H200.json"),
        (KEY, True, "E=256,N=512,device_name=NVIDIA_H200_down.json"),
        (
            TableKey(256, 256, "NVIDIA H20-3e", "fp8_w8a8", (128, 128)),
            True,
            "E=256,N=256,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128]_down.json",
        ),
        (
            TableKey(8, 64, "NVIDIA H100 80GB HBM3", "fp8_w8a8", None, True),
            False,
            "E=8,N=64,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,per_channel_quant=True.json",
        ),
    ],
)
def test_names_are_the_engines_and_read_back(key, is_down, name):
    assert key.file_name(is_down) == name
    parsed = parse_name(name)
    assert parsed.is_down == is_down
    assert parsed.key.file_name(is_down) == name


@pytest.mark.parametrize(
    "name",
    [
        "E=256,N=512,device_name=NVIDIA_H200",
        "E=0,N=512,device_name=NVIDIA_H200.json",
        "E=256,N=512.json",
        "N=512,E=256,device_name=NVIDIA_H200.json",
        "E=256,N=512,device_name=NVIDIA_H200,block_shape=[128,128].json",
        "E=256,N=512,device_name=NVIDIA_H200,per_channel_quant=False.json",
        "E=256,N=512,device_name=a/b.json",
    ],
)
def test_other_names_are_no_tables(name):
    assert parse_name(name) is None


@pytest.mark.parametrize(
    ("tp", "ep", "shape"),
    [(1, 1, (256, 1024)), (2, 1, (256, 512)), (8, 1, (256, 128)), (8, 2, (128, 256))],
)
def test_the_shape_on_one_rank_is_that_of_the_down_weight(tp, ep, shape):
    ir = lower(load_spec(ROOT / "specs/ling-2.6-flash.yaml"))
    assert ir.moe_shape(tp, ep) == moe_shape(256, 1024, tp, ep) == shape


def test_the_package_finds_its_tables_by_the_code_that_the_rules_run(tmp_path, monkeypatch):
    """The generated module, alone in a folder with the tables, chooses what lingen's does."""
    ir = lower(load_spec(ROOT / "specs/ling-2.6-flash.yaml"))
    files = render(ir, "torch")
    for path in files:
        if path == "tables.py" or path.startswith("tuned/"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(files[path])
    loader = importlib.util.spec_from_file_location("package_tables", tmp_path / "tables.py")
    module = importlib.util.module_from_spec(loader)
    monkeypatch.setitem(sys.modules, "package_tables", module)
    loader.loader.exec_module(module)
    assert tmp_path / "tuned" / "configs" == module.CONFIGS
    for table in ir.tables:
        if "torch" not in table.targets:
            continue
        key = (table.num_experts, table.width, table.device)
        dtype = "fp8_w8a8" if table.dtype == "fp8_w8a8" else None
        scales = dtype, table.block_shape, table.per_channel_quant
        mine = module.find_tables(module.CONFIGS, module.TableKey(*key, *scales), "3.5.1")
        ours = find_tables(module.CONFIGS, TableKey(*key, *scales), "3.5.1")
        for num_tokens in range(1, 4097, 5):
            assert mine.up_row(num_tokens) == ours.up_row(num_tokens)
            assert mine.down_row(num_tokens) == ours.down_row(num_tokens)
