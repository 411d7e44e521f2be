"""Safetensors headers that lie: each is an error that names file and tensor, never a crash."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from types import ModuleType

import pytest
from checkpoints import (
    Described,
    assert_untouched,
    describe_empty,
    described,
    poisoned,
    published,
    refusal,
    write_raw,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lingen.verify.package import generated_package
from small_models import lowered_small
from torch import nn

NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def small() -> Iterator[ModuleType]:
    with generated_package(lowered_small("model.hidden_size=512")) as package:
        yield package


@pytest.fixture(scope="module")
def unfilled(small: ModuleType) -> nn.Module:
    """For loads that must fail: nothing may write to it."""
    return poisoned(small.ForCausalLM())


@pytest.fixture(scope="module")
def whole(unfilled: nn.Module) -> Described:
    return described(published(unfilled))


HEADER = b'{"%s":{"dtype":"F32","shape":[512],"data_offsets":[0,2048]}}' % NORM.encode()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 8 + len(HEADER) - 1])
def test_a_file_cut_short_in_its_header_is_named(small, unfilled, tmp_path, size):
    file = tmp_path / "model.safetensors"
    write_raw(file, HEADER, 2048)
    os.truncate(file, size)
    assert refusal(small, unfilled, tmp_path) == f"{file}: not a safetensors file, or cut short"


def test_a_file_cut_short_in_its_data_is_named_with_the_tensor(small, unfilled, whole, tmp_path):
    describe_empty(tmp_path, whole)
    file = tmp_path / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    [*_, last] = whole
    assert refusal(small, unfilled, tmp_path).startswith(f"{file}: {last!r}: the header places it")


@pytest.mark.parametrize("claim", [len(HEADER) + 2049, 100_000_001, 2**63, 2**64 - 1])
def test_a_header_said_to_be_longer_than_the_file_is_not_read(small, unfilled, tmp_path, claim):
    file = tmp_path / "model.safetensors"
    write_raw(file, HEADER, 2048, claimed_header_bytes=claim)
    tracemalloc.start()
    want = f"{file}: not a safetensors file, or cut short"
    assert refusal(small, unfilled, tmp_path) == want
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_header_beyond_the_formats_limit_is_not_read(small, unfilled, tmp_path):
    file = tmp_path / "model.safetensors"
    write_raw(file, HEADER, 10**12, claimed_header_bytes=100_000_001)
    want = f"{file}: not a safetensors file, or cut short"
    assert refusal(small, unfilled, tmp_path) == want


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"[]", b"null", b"{", b"x" * 300, b"\xff\xff{}", b"[" * 10_000, b'{"a":' * 10_000),
        *(HEADER[:-1] + b"," + HEADER[1:], HEADER.replace(b"512", b"5" * 5000)),
    ],
)
def test_a_header_that_is_no_table_is_named(small, unfilled, tmp_path, header):
    file = tmp_path / "model.safetensors"
    write_raw(file, header, 2048)
    assert refusal(small, unfilled, tmp_path).startswith(f"{file}: its header is not ")


ENTRY = {"dtype": "F32", "shape": [512], "data_offsets": [0, 2048]}


@pytest.mark.parametrize(
    "entry",
    [None, [], "F32", 1, {}]
    + [{name: ENTRY[name] for name in ENTRY if name != left_out} for left_out in ENTRY]
    + [{**ENTRY, "dtype": dtype} for dtype in (None, 32, ["F32"])]
    + [{**ENTRY, "shape": s} for s in (None, 512, "512", [-512], [512.0], [True], [[512]], [2**63])]
    + [{**ENTRY, "shape": shape} for shape in ([1] * 9, [10**4000] * 9, [10**4000, 10**4000])]
    + [{**ENTRY, "data_offsets": span} for span in (None, 0, [0], [0, 1, 2], ["0", "1"], [-4, 4])]
    + [{**ENTRY, "data_offsets": span} for span in ([0.0, 2048.0], [False, 2048], [0, 10**4000])],
)
def test_a_malformed_entry_is_named_with_its_tensor(small, unfilled, tmp_path, entry):
    file = tmp_path / "model.safetensors"
    write_raw(file, json.dumps({NORM: entry}).encode(), 2048)
    want = f"{file}: {NORM!r}: its header entry is malformed"
    assert refusal(small, unfilled, tmp_path) == want


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"data_offsets": [0, 2049]}, "places it at bytes 0 to 2049, the file holds 2048"),
        ({"data_offsets": [2048, 4096]}, "places it at bytes 2048 to 4096, the file holds 2048"),
        ({"data_offsets": [2048, 0]}, "places it at bytes 2048 to 0, the file holds 2048"),
        (
            {"data_offsets": [0, 2044]},
            "F32 of shape [512] takes 2048 bytes, the header gives it 2044",
        ),
        ({"shape": [2, 512]}, "F32 of shape [2, 512] takes 4096 bytes, the header gives it 2048"),
        ({"dtype": "BF16"}, "BF16 of shape [512] takes 1024 bytes, the header gives it 2048"),
        ({"shape": [2**62] * 8}, "bytes, the header gives it 2048"),
    ],
)
def test_a_lie_about_place_or_size_is_named_with_its_tensor(
    small, unfilled, tmp_path, change, want
):
    file = tmp_path / "model.safetensors"
    write_raw(file, json.dumps({NORM: {**ENTRY, **change}}).encode(), 2048)
    message = refusal(small, unfilled, tmp_path)
    assert message.startswith(f"{file}: {NORM!r}: ")
    assert message.endswith(want)


SLOPES = [f"model.layers.{layer}.attention.slope" for layer in (0, 2)]


@pytest.mark.parametrize(
    ("spans", "data_bytes"),
    [
        ([(0, 8), (4, 12)], 12),
        ([(0, 8), (0, 8)], 8),
        ([(0, 8), (16, 24)], 24),
        ([(8, 16)], 16),
        ([(0, 8)], 16),
    ],
    ids=["overlap", "twice", "hole", "hole-first", "hole-last"],
)
def test_overlapping_tensors_and_holes_are_refused(
    small, unfilled, whole, tmp_path, spans, data_bytes
):
    """In a file of tensors that would only be passed over, beside the complete model."""
    describe_empty(tmp_path, whole)
    file = tmp_path / "slopes.safetensors"
    entries = {
        name: {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
        for name, (begin, end) in zip(SLOPES, spans, strict=False)
    }
    write_raw(file, json.dumps(entries).encode(), data_bytes)
    assert refusal(small, unfilled, tmp_path).startswith(f"{file}: ")


@pytest.mark.parametrize(
    "change",
    [
        {"__metadata__": {"format": 7}},
        {"__metadata__": []},
        {SLOPES[0]: {"dtype": "F99", "shape": [0], "data_offsets": [0, 0]}},
    ],
)
def test_what_only_the_library_refuses_is_named_too(small, unfilled, whole, tmp_path, change):
    describe_empty(tmp_path, whole)
    file = tmp_path / "odd.safetensors"
    slope = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write_raw(file, json.dumps({SLOPES[0]: slope, **change}).encode(), 0)
    assert refusal(small, unfilled, tmp_path).startswith(f"{file}: ")


@settings(max_examples=200, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_changed_bytes_in_a_header_load_or_are_an_error_of_the_loader(
    small, whole, tmp_path_factory, places
):
    folder = tmp_path_factory.mktemp("changed")
    describe_empty(folder, whole)
    file = folder / "model.safetensors"
    header_bytes = int.from_bytes(file.read_bytes()[:8], "little")
    with file.open("r+b") as stream:
        for place, value in places:
            stream.seek(place % (8 + header_bytes))
            stream.write(bytes([value]))
    model = poisoned(small.ForCausalLM())
    try:
        small.load_weights(model, folder)
    except small.CheckpointError as error:
        assert str(folder) in str(error)
        assert_untouched(model)
    file.unlink()
