"""Folders, indexes and files that cannot be loaded: each is an error that names the fault."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

import pytest
from checkpoints import (
    INDEX,
    Described,
    describe_empty,
    described,
    loaded,
    poisoned,
    published,
    refusal,
    save,
    write_index,
)
from torch import nn

NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def whole(tiny_model: nn.Module) -> Described:
    return described(published(tiny_model))


@pytest.fixture(scope="module")
def unfilled(tiny: ModuleType) -> nn.Module:
    """For loads that must fail: nothing may write to it."""
    return poisoned(tiny.ForCausalLM())


# Folders and indexes


def test_an_absent_folder_is_named(tiny, unfilled, tmp_path):
    assert refusal(tiny, unfilled, tmp_path / "no") == f"{tmp_path / 'no'}: not a folder"


def test_a_file_in_place_of_a_folder_is_named(tiny, unfilled, whole, tmp_path):
    describe_empty(tmp_path, whole)
    file = tmp_path / "model.safetensors"
    assert refusal(tiny, unfilled, file) == f"{file}: not a folder"


def test_an_empty_folder_is_named(tiny, unfilled, tmp_path):
    assert refusal(tiny, unfilled, tmp_path) == f"{tmp_path}: no .safetensors file"


def test_pickles_are_never_read(tiny, unfilled, tmp_path):
    for name in ("pytorch_model.bin", "consolidated.00.pth", "model.pt", "notes.txt"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    names = "consolidated.00.pth, model.pt, pytorch_model.bin"
    want = f"{tmp_path}: no .safetensors file; pickles are not read: {names}"
    assert refusal(tiny, unfilled, tmp_path) == want


def test_an_index_that_lists_pickles_is_refused(tiny, unfilled, whole, tmp_path):
    describe_empty(tmp_path, whole)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    write_index(tmp_path, {NORM: "pytorch_model.bin"})
    want = f"{tmp_path / INDEX}: lists 'pytorch_model.bin'; only .safetensors files are read"
    assert refusal(tiny, unfilled, tmp_path) == want


@pytest.mark.parametrize(
    "listed",
    [
        *("../m.safetensors", "/etc/m.safetensors", "a/m.safetensors", "./m.safetensors"),
        *(None, 3, ["m.safetensors"], {"a": 1}, True),
    ],
)
def test_an_index_may_list_only_files_beside_it(tiny, unfilled, whole, tmp_path, listed):
    describe_empty(tmp_path, whole)
    describe_empty(tmp_path / "a", whole)
    write_index(tmp_path / "a", {NORM: listed})
    want = f"{tmp_path / 'a' / INDEX}: {NORM!r} is not mapped to the name of a file beside it"
    assert refusal(tiny, unfilled, tmp_path / "a") == want


@pytest.mark.parametrize("listed", ["", ".", "..", "model", "a\0.bin"])
def test_an_index_may_list_only_safetensors_files(tiny, unfilled, whole, tmp_path, listed):
    describe_empty(tmp_path, whole)
    write_index(tmp_path, {NORM: listed})
    assert refusal(tiny, unfilled, tmp_path).startswith(f"{tmp_path / INDEX}: ")


def test_all_files_of_the_index_that_are_not_there_are_listed(tiny, unfilled, whole, tmp_path):
    describe_empty(tmp_path, whole)
    names = {"a": "2.safetensors", "b": "1.safetensors", NORM: "model.safetensors"}
    write_index(tmp_path, {**names, "c": "3\0.safetensors"})
    want = "lists files that are not there: '1.safetensors', '2.safetensors', '3\\x00.safetensors'"
    assert refusal(tiny, unfilled, tmp_path) == f"{tmp_path / INDEX}: {want}"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (b"", "it is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"weight_map": {', "it is not valid JSON: Expecting property name"),
        (b"\xff\xfe\xfd", "it is not valid JSON: "),
        (b"[" * 10_000, "it is not valid JSON: maximum recursion depth exceeded"),
        (b'{"weight_map": ' + b"9" * 5000 + b"}", "it is not valid JSON: Exceeds the limit"),
        (b'{"weight_map": {"a": "b", "a": "c"}}', "it is not valid JSON: 'a' stands in it twice"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "it has no weight_map"),
        (b'{"weight_map": null}', "it has no weight_map"),
        (b'{"weight_map": ["model.safetensors"]}', "it has no weight_map"),
    ],
)
def test_a_malformed_index_is_named(tiny, unfilled, whole, tmp_path, text, want):
    describe_empty(tmp_path, whole)
    (tmp_path / INDEX).write_bytes(text)
    assert refusal(tiny, unfilled, tmp_path).startswith(f"{tmp_path / INDEX}: {want}")


@pytest.mark.parametrize("name", [INDEX, "config.json"])
def test_a_huge_json_file_is_not_read(tiny, unfilled, whole, tmp_path, name):
    describe_empty(tmp_path, whole)
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(10**12)
    want = f"{tmp_path / name}: larger than 100000000 bytes"
    assert refusal(tiny, unfilled, tmp_path) == want


@pytest.mark.parametrize(
    ("config", "want"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            'architectures is ["LlamaForCausalLM"], this package is BailingMoeV2_5ForCausalLM',
        ),
        ({"architectures": []}, "architectures is [], this package is BailingMoeV2_5ForCausalLM"),
        ({}, "architectures is null, this package is BailingMoeV2_5ForCausalLM"),
        ([], "it is not a JSON object"),
    ],
)
def test_another_architecture_in_the_config_is_named(tiny, unfilled, whole, tmp_path, config, want):
    describe_empty(tmp_path, whole)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(tiny, unfilled, tmp_path) == f"{tmp_path / 'config.json'}: {want}"


def test_the_right_architecture_and_links_to_files_elsewhere_load(tiny, tiny_model, tmp_path):
    tensors = published(tiny_model)
    save(tmp_path / "blobs", tensors, "0123abcd")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("../blobs/0123abcd")
    (folder / "._model.safetensors").write_bytes(b"left behind by another system")
    (folder / "config.json").write_text('{"architectures": ["BailingMoeV2_5ForCausalLM"]}')
    loaded(tiny, folder)


# Files that are no safetensors files


def make_dangling_link(file: Path) -> None:
    file.symlink_to("nowhere")


def make_link_to_itself(file: Path) -> None:
    file.symlink_to(file.name)


@pytest.mark.parametrize("make", [Path.mkdir, make_dangling_link, make_link_to_itself, os.mkfifo])
def test_what_is_no_file_is_refused_and_not_waited_for(tiny, unfilled, whole, tmp_path, make):
    describe_empty(tmp_path, whole)
    make(tmp_path / "x.safetensors")
    assert refusal(tiny, unfilled, tmp_path) == f"{tmp_path / 'x.safetensors'}: not a file"


def test_a_file_that_may_not_be_read_is_named(tiny, unfilled, whole, tmp_path, monkeypatch):
    describe_empty(tmp_path, whole)
    file = tmp_path / "model.safetensors"

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal(tiny, unfilled, tmp_path) == f"{file}: Permission denied"
