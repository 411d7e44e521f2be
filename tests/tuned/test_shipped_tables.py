"""What packages ship, what their manifests say of it, and what `lingen check` reports."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from lingen.cli import run
from lingen.emit.render import render
from lingen.errors import SpecError
from lingen.ir import lower
from lingen.spec import load_spec
from lingen.targets import TARGETS
from lingen.tuned.lookup import TableKey, find_tables
from lingen.tuning.rows import TOKEN_COUNTS
from lingen.tuning.search import LEAST_GAIN

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "specs"
TUNED = SPECS / "tuned"
H200 = "triton_3_6_0/E=256,N=512,device_name=NVIDIA_H200.json"
# Model, tensor-parallel size, device, weights in 128x128 blocks, version of the table.
SHIPPED = [
    (model, tp, device, is_fp8, version)
    for model, half, quarter in (("ling-2.6-flash", 2, 4), ("ling-2.6-1t", 4, 8))
    for tp, device, is_fp8, version in (
        *((half, f"NVIDIA {card}", fp8, "3.5.1") for card in ("H20", "H20-3e") for fp8 in (0, 1)),
        *((quarter, f"NVIDIA {card}", 1, "3.5.1") for card in ("H20", "H20-3e")),
        *((half, "NVIDIA H200", fp8, "3.6.0") for fp8 in (0, 1)),
        (quarter, "NVIDIA H200", 1, "3.1.0"),
    )
]

# Keys of tables by how the weights are stored.
OWN_SCALES = {
    "bf16": (),
    "fp8_channel": ("fp8_w8a8", None, True),
    "fp8_block": ("fp8_w8a8", (128, 128)),
}


@cache
def package(model: str, target: str) -> dict[str, bytes]:
    return render(lower(load_spec(SPECS / f"{model}.yaml")), target)


def manifest(files: dict[str, bytes]) -> dict:
    return json.loads(files["manifest.json"])


def spec_with(folder: Path, tables: str, extends: str = "ling-2.6-flash") -> Path:
    spec = folder / "mine.yaml"
    spec.write_text(
        f"extends: {extends}\nmodel:\n  name: mine\nkernels:\n  moe:\n    tables:\n{tables}"
    )
    return spec


def entry(file: str, **values: str) -> str:
    stated = {
        "device": "NVIDIA H200",
        "dtype": "bfloat16",
        "block_shape": "null",
        "triton": "3.6.0",
        "source": "a test",
        "targets": "[torch]",
    } | values
    lines = "".join(f"        {key}: {value}\n" for key, value in stated.items())
    return f'      - file: "{file}"\n{lines}'


def mine(tmp_path: Path, tables: str) -> dict[str, bytes]:
    return render(lower(load_spec(spec_with(tmp_path, tables))), "torch")


def tuned_paths(files: dict[str, bytes]) -> list[str]:
    return [path for path in files if "tuned/configs/" in path]


def unpack(model: str, target: str, folder: Path) -> None:
    """Put a package's tables below `folder`."""
    for path in tuned_paths(package(model, target)):
        file = folder / path.partition("tuned/configs/")[2]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(package(model, target)[path])


@pytest.mark.parametrize(("model", "tp", "device", "is_fp8", "version"), SHIPPED)
def test_each_published_table_is_where_the_engine_looks(
    model, tp, device, is_fp8, version, tmp_path
):
    unpack(model, "sglang", tmp_path)
    shape = lower(load_spec(SPECS / f"{model}.yaml")).moe_shape(tp)
    scales = ("fp8_w8a8", (128, 128)) if is_fp8 else ()
    found = find_tables(tmp_path, TableKey(*shape, device, *scales), version)
    assert found.triton == version
    assert (found.down is None) == (version == "3.1.0")


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("scales", OWN_SCALES.values(), ids=OWN_SCALES)
def test_each_own_table_is_where_our_kernels_look(tp, scales, tmp_path):
    unpack("ling-2.6-flash", "torch", tmp_path)
    found = find_tables(tmp_path, TableKey(256, 1024 // tp, "NVIDIA H200", *scales), "3.6.0")
    assert found.triton == "3.6.0"
    assert list(found.up) == list(found.down) == list(TOKEN_COUNTS)
    for num_tokens in range(1, 4097, 3):
        rows = found.up_row(num_tokens), found.down_row(num_tokens)
        assert rows[0]["BLOCK_SIZE_M"] == rows[1]["BLOCK_SIZE_M"]


def test_own_tables_are_for_our_kernels_and_published_ones_for_the_engine_s():
    """They were measured at the hidden size of one model: no other gets them."""
    sources = {
        (model, target): {table["source"] for table in manifest(package(model, target))["tuned"]}
        for model in ("ling-2.6-flash", "ling-2.6-1t")
        for target in TARGETS
    }
    assert sources == {
        ("ling-2.6-flash", "torch"): {"lingen tune"},
        ("ling-2.6-flash", "sglang"): {"SGLang 0.5.23"},
        ("ling-2.6-1t", "torch"): set(),
        ("ling-2.6-1t", "sglang"): {"SGLang 0.5.23"},
    }


@pytest.mark.parametrize(
    "path", sorted(TUNED.glob("lingen/*/*.measured.json")), ids=lambda p: p.name
)
def test_no_own_row_was_slower_than_the_default_beside_it(path):
    measured = json.loads(path.read_text())
    assert (measured["device"], measured["triton"]) == ("NVIDIA H200", "3.6.0")
    table = json.loads(path.with_name(path.name.replace(".measured", "")).read_text())
    assert list(measured["tokens"]) == list(table)
    for times in measured["tokens"].values():
        own, default = times["table_microseconds"], times["default_microseconds"]
        assert own == default if times["is_default"] else own < (1 - LEAST_GAIN / 2) * default


@pytest.mark.parametrize(
    ("model", "target", "count"),
    [
        ("ling-2.6-flash", "sglang", 17),
        ("ling-2.6-1t", "sglang", 17),
        ("ling-2.6-flash", "torch", 12),
    ],
)
def test_the_manifest_says_what_each_table_is_and_where_it_came_from(model, target, count):
    files = package(model, target)
    facts = manifest(files)
    jsonschema.validate(facts, json.loads((SPECS / "manifest.schema.json").read_text()))
    tables = facts["tuned"]
    assert [table["file"] for table in tables] == tuned_paths(files)
    assert len(tables) == count
    for table in tables:
        origin = ROOT / table["origin"]
        assert files[table["file"]] == origin.read_bytes()
        assert table["sha256"] == hashlib.sha256(origin.read_bytes()).hexdigest()
        assert table["sha256"] == facts["files"][table["file"]]["sha256"]
        assert table["device"].replace(" ", "_") in table["file"]
        assert f"E={table['E']},N={table['N']}," in table["file"]
        assert f"triton_{table['triton'].replace('.', '_')}/" in table["file"]
        assert (table["block_shape"] == [128, 128]) == ("block_shape=[128, 128]" in table["file"])
        assert table["tuned_on"] == table["device"] and not table["alias"]
    assert {tuple(table["tp"]) for table in tables} == (
        {(1,), (2,)} if target == "torch" else {(2,), (4,)} if "flash" in model else {(4,), (8,)}
    )


def test_every_table_is_shipped_by_some_spec():
    listed = {
        table.origin
        for spec in SPECS.glob("*.yaml")
        for table in lower(load_spec(spec)).tables
    }  # fmt: skip
    tables = {path for path in TUNED.rglob("*.json") if not path.name.endswith(".measured.json")}
    assert listed == {path.relative_to(SPECS).as_posix() for path in tables}


def test_published_files_are_as_they_were_published():
    sums = dict(
        reversed(line.split("  ", 1)) for line in (TUNED / "SHA256SUMS").read_text().splitlines()
    )
    files = {path.relative_to(TUNED).as_posix(): path for path in TUNED.rglob("*.json")}
    published = {name: path for name, path in files.items() if name.startswith("triton_")}
    assert sums == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in published.items()
    }


def test_a_table_goes_into_the_folder_of_the_version_it_was_tuned_with_and_no_other(tmp_path):
    other = "triton_3_5_1/E=256,N=512,device_name=NVIDIA_H20.json"
    tables = entry(H200) + entry(other, device="NVIDIA H20", triton="3.5.1")
    folders = Counter(path.split("/")[2] for path in tuned_paths(mine(tmp_path, tables)))
    assert folders == {"triton_3_5_1": 2, "triton_3_6_0": 2}


def test_an_alias_has_the_other_cards_name_and_is_marked(tmp_path):
    h20 = "triton_3_5_1/E=256,N=512,device_name=NVIDIA_H20.json"
    tables = entry(h20, device="NVIDIA H20-3e", tuned_on="NVIDIA H20", triton="3.5.1")
    files = mine(tmp_path, tables)
    assert {path.rpartition("/")[2] for path in tuned_paths(files)} == {
        "E=256,N=512,device_name=NVIDIA_H20-3e.json",
        "E=256,N=512,device_name=NVIDIA_H20-3e_down.json",
    }
    for table in manifest(files)["tuned"]:
        assert (table["alias"], table["tuned_on"]) == (True, "NVIDIA H20")
        assert table["device"] == "NVIDIA H20-3e"


def test_a_table_for_one_target_replaces_the_published_one_there_and_nowhere_else(tmp_path):
    own = tmp_path / "tuned" / "own" / H200
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"1": json.loads((TUNED / H200).read_text())["256"]}))
    tables = entry(H200, targets="[sglang]") + entry(f"own/{H200}", source="lingen tune")
    files = mine(tmp_path, tables)
    assert [table["source"] for table in manifest(files)["tuned"]] == ["lingen tune"]
    [path] = tuned_paths(files)
    assert files[path] == own.read_bytes()
    ir = lower(load_spec(tmp_path / "mine.yaml"))
    names = [(table.targets, table.source) for table in ir.tables]
    assert names == [(("sglang",), "a test")] * 2 + [(("torch",), "lingen tune")]


@pytest.mark.parametrize(
    ("targets", "down_says", "is_taken"),
    [("[torch]", True, True), ("[torch]", False, False), ("[torch, sglang]", True, False)],
)
def test_an_up_table_uses_tma_where_only_our_kernels_read_it_and_the_down_table_says_it_too(
    targets, down_says, is_taken, tmp_path
):
    """The engine takes the flag from the down table, for both."""
    up = tmp_path / "tuned" / "own" / H200
    up.parent.mkdir(parents=True)
    row = json.loads((TUNED / H200).read_text())["256"]
    up.write_text(json.dumps({"1": row | {"USE_TMA": True}}))
    down = row | {"USE_TMA": False} if down_says else row
    up.with_name(up.name.replace(".json", "_down.json")).write_text(json.dumps({"1": down}))
    tables = entry(f"own/{H200}", targets=targets)
    if is_taken:
        assert len(tuned_paths(mine(tmp_path, tables))) == 2
    else:
        with pytest.raises(SpecError, match=r"1\.USE_TMA: in an up table"):
            mine(tmp_path, tables)


def test_a_model_without_tables_has_neither_files_nor_a_lookup():
    files = package("ling-mini-2.0", "torch")
    assert not tuned_paths(files) and "tables.py" not in files
    assert manifest(files)["tuned"] == []


@pytest.mark.parametrize("command", ["build", "check"])
def test_a_table_that_no_tp_size_can_use_is_reported(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tables = entry(H200)
    spec_with(tmp_path, tables, "ling-2.6-1t")
    with Path("mine.yaml").open("a") as file:
        file.write("parallel:\n  tp: [1, 2]\ntargets: [torch]\n")
    assert run([command, "mine.yaml"]) == 2
    assert (
        capsys.readouterr().err
        == f"""\
mine.yaml:7:9: kernels.moe.tables[0]: a table that no tp size of the spec can use
  found     {H200}: E=256,N=512
  expected  of moe.num_experts, moe.moe_intermediate_size and parallel.tp: E=256,N=2048 at tp 1, \
E=256,N=1024 at tp 2
Nothing was written.
"""
    )
    assert not Path("generated").exists()


@pytest.mark.parametrize("command", ["build", "check"])
@pytest.mark.parametrize(
    ("setting", "message", "expected"),
    [
        (
            "checkpoint_formats: [bfloat16]",
            "a table for weights that the spec does not load",
            "quantization.checkpoint_formats with fp8_block, not [bfloat16]",
        ),
        (
            "weight_block_size: [64, 64]",
            "a table for another size of weight blocks",
            "quantization.weight_block_size, [64, 64]",
        ),
    ],
)
def test_a_table_for_other_weights_is_reported(
    command, setting, message, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    fp8 = H200.replace(".json", ",dtype=fp8_w8a8,block_shape=[128, 128].json")
    spec_with(tmp_path, entry(fp8, dtype="fp8_w8a8", block_shape="[128, 128]"))
    with Path("mine.yaml").open("a") as file:
        file.write(f"quantization:\n  {setting}\n")
    assert run([command, "mine.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mine.yaml:7:9: kernels.moe.tables[0]: {message}\n")
    assert f"  expected  {expected}\n" in error


def test_check_reports_two_tables_that_claim_one_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TUNED, tmp_path / "tuned" / "again")
    spec_with(tmp_path, entry(H200) + entry(f"again/{H200}"))
    assert run(["check", "mine.yaml"]) == 2
    error = capsys.readouterr().err
    assert "kernels.moe.tables[1]: claims a name of the torch target that tables[0] claims" in error
    assert f"{H200}, first at line 7, again at line 14" in error


def test_check_reports_an_edited_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spec_with(tmp_path, entry(H200))
    assert run(["build", "mine.yaml"]) == 0
    table = Path("generated/mine/tuned/configs") / H200
    table.write_text(table.read_text().replace('"num_warps": 4', '"num_warps": 8', 1))
    capsys.readouterr()
    assert run(["check", "mine.yaml", "--format", "json"]) == 1
    [difference] = json.loads(capsys.readouterr().out)["differences"]
    assert (difference["path"], difference["kind"]) == (table.as_posix(), "edited")
    assert '-        "num_warps": 8' in difference["diff"]
    assert run(["build", "mine.yaml"]) == 1
    assert run(["build", "mine.yaml", "--force"]) == 0
    assert run(["check", "mine.yaml"]) == 0


def test_check_reports_a_source_table_that_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TUNED, tmp_path / "tuned")
    spec_with(tmp_path, entry(H200))
    assert run(["build", "mine.yaml"]) == 0
    table = tmp_path / "tuned" / H200
    table.write_text(table.read_text().replace('"GROUP_SIZE_M": 1\n', '"GROUP_SIZE_M": 8\n'))
    table.write_text(table.read_text().replace('"num_warps": 4', '"num_warps": 8', 1))
    capsys.readouterr()
    assert run(["check", "mine.yaml", "--format", "json"]) == 1
    kinds = {
        Path(difference["path"]).name: difference["kind"]
        for difference in json.loads(capsys.readouterr().out)["differences"]
    }
    assert kinds == {Path(H200).name: "changed", "manifest.json": "changed"}


def test_explain_lists_tables_and_says_where_down_has_none(capsys):
    assert run(["explain", str(SPECS / "ling-2.6-flash.yaml")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "expert kernels 15 tuned tables" in words
    assert "NVIDIA H20-3e bfloat16, N 512 (tp 2), triton 3.5.1, sglang only NVIDIA" in words
    assert "NVIDIA H200 fp8_w8a8 per channel, N 1024 (tp 1), triton 3.6.0, torch only" in words
    table = "NVIDIA H200 fp8_w8a8 [128, 128], N 256 (tp 4), triton 3.1.0"
    assert f"{table}, sglang only, no _down table: up's" in words
