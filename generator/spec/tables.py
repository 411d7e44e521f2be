"""Reads the tuned tables that a spec lists and refuses what no kernel could run.

Knows nothing of which table fits which model: that needs the model's shape.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lingen.errors import Problem
from lingen.tuned.devices import SHARED_MEMORY
from lingen.tuned.lookup import TableKey, version_folder, version_number
from lingen.tuned.names import NAME_FORM, TableName, parse_name
from lingen.tuned.rows import WEIGHT_BYTES, Limits

from .dump import flow
from .extends import Layer, shipped_folder, why_not_a_parent_name
from .names import nearest_names
from .nodes import ListNode, MappingNode, escaped, leaves, plain, shortened
from .schema import schema_at
from .source import shown_path
from .table_entry import TableText
from .table_text import TableFile, pair_problem, read_table

KEY = "kernels.moe.tables"
FOLDER = "tuned"
ENGINE_DTYPES = {"bfloat16": None, "fp8_w8a8": "fp8_w8a8"}
"""The engine's word for the weights' type by the spec's."""

_VERSION = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry and where it stands. `values` by key, `name`: what its file's name says."""

    index: int
    node: MappingNode
    values: Mapping[str, object]

    def problem(self, key: str, message: str, *details: str | None) -> Problem:
        """About one key of the entry, or about the entry if that key is not there."""
        stated = self.node.entries.get(key)
        position = stated.position if stated else self.node.position
        return Problem(position, f"{KEY}[{self.index}].{key}", message, *details)

    @property
    def label(self) -> str:
        return f"{KEY.rpartition('.')[2]}[{self.index}]"

    @property
    def tuned_on(self) -> str:
        return self.values.get("tuned_on", self.values["device"])

    @property
    def output(self) -> str:
        """Name of the up table in a package. The entry itself has no problems."""
        name = parse_name(self.values["file"].rpartition("/")[2])
        return self.key_for(self.values["device"], name).file_name()

    def key_for(self, device: str, name: TableName) -> TableKey:
        """The key that the entry's values make, with (E, N) of the file's name."""
        shape = self.values["block_shape"]
        return TableKey(
            num_experts=name.key.num_experts,
            width=name.key.width,
            device=device,
            dtype=ENGINE_DTYPES[self.values["dtype"]],
            block_shape=tuple(shape) if shape else None,
            per_channel_quant=self.values.get("per_channel_quant", False),
        )


def read_tables(
    merged: MappingNode, layers: tuple[Layer, ...]
) -> tuple[tuple[TableText, ...], list[Problem]]:
    """The texts of the listed tables, and everything wrong with entries and files."""
    listed = dict(leaves(merged)).get(KEY)
    nodes = listed.items if isinstance(listed, ListNode) else []
    entries = [_Entry(index, node, plain(node)) for index, node in enumerate(nodes)]
    problems = [problem for entry in entries for problem in _entry_problems(entry)]
    if problems:
        return (), problems
    problems += _claim_problems(entries)
    pairs = []
    for entry in entries:
        pair = _read_entry(entry, layers)
        if isinstance(pair, Problem):
            problems.append(pair)
        else:
            pairs.append((entry, *pair))
            problems += _pair_problems(*pair)
    problems += _lent_down_problems(pairs)
    texts = (_text(*pair) for pair in pairs)
    return tuple(texts), problems


def _text(entry: _Entry, up: TableFile, down: TableFile | None) -> TableText:
    return TableText(entry.node.position, up.text, down.text if down else None)


def _entry_problems(entry: _Entry) -> list[Problem]:
    """What is wrong with the entry itself, whatever its file holds."""
    part = schema_at(KEY)["items"]
    missing = [key for key in part["x-lingen-required"] if key not in entry.values]
    if missing:
        return [entry.problem(key, "missing", None, None, f"state `{key}:`") for key in missing]
    return list(_value_problems(entry)) or list(_name_problems(entry))


def _value_problems(entry: _Entry) -> Iterator[Problem]:
    values = entry.values
    for key in ("device", "tuned_on"):
        device = values.get(key)
        if device is not None and device not in SHARED_MEMORY:
            near = nearest_names(device, SHARED_MEMORY)
            expected = f"the driver's name, one of {', '.join(sorted(SHARED_MEMORY))}"
            yield entry.problem(
                key, "not a known card", flow(device), expected, near[0] if near else None
            )
    if not _VERSION.fullmatch(values["triton"]):
        yield entry.problem("triton", "not a version", flow(values["triton"]), "X.Y.Z, as 3.10.0")
    is_block = values["block_shape"] is not None
    is_channel = values.get("per_channel_quant", False)
    if (is_block or is_channel) and values["dtype"] != "fp8_w8a8":
        key = "block_shape" if is_block else "per_channel_quant"
        found = f"{flow(values[key])} with dtype {values['dtype']}"
        yield entry.problem(key, "only fp8_w8a8 weights have scales", found, "dtype fp8_w8a8")
    elif is_block and is_channel:
        found = f"block_shape {flow(values['block_shape'])}"
        yield entry.problem(
            "per_channel_quant", "weights have one kind of scales", found, "block_shape null"
        )


def _name_problems(entry: _Entry) -> Iterator[Problem]:
    """Whether the file's name says what the entry says."""
    file = entry.values["file"]
    *folders, base = file.split("/")
    name = parse_name(base)
    shown = shortened(escaped(file))
    if why_not_a_parent_name(file) or name is None or not folders:
        expected = f"triton_<X_Y_Z>/{NAME_FORM}"
        yield entry.problem("file", "not a table's name", shown, expected)
        return
    if name.is_down:
        up = base.replace("_down.json", ".json")
        message = "a _down table, which goes with its up table"
        yield entry.problem("file", message, base, f"the up table: {up}")
        return
    folder = version_folder(entry.values["triton"])
    if folders[-1] != folder:
        message = "tuned with another version of Triton than the file's folder says"
        found = f"{entry.values['triton']}, file in {folders[-1]}"
        yield entry.problem("triton", message, found, f"a file in {folder}")
    wanted = entry.key_for(entry.tuned_on, name).file_name()
    if wanted != base:
        fix = None
        if entry.key_for(name.key.device, name).file_name() == base:
            tuned_on = name.key.device.replace("_", " ")
            fix = f"`tuned_on: {tuned_on}` with a device that is another, if it may serve there"
        yield entry.problem("file", "not a table of what the entry says", base, wanted, fix)


def _claim_problems(entries: list[_Entry]) -> Iterator[Problem]:
    """Two tables of one target that would have one name in its package."""
    first: dict[tuple[str, str, str], _Entry] = {}
    for entry in entries:
        for target in entry.values["targets"]:
            other = first.setdefault((target, entry.values["triton"], entry.output), entry)
            if other is not entry:
                folder = version_folder(entry.values["triton"])
                yield Problem(
                    entry.node.position,
                    f"{KEY}[{entry.index}]",
                    f"claims a name of the {target} target that {other.label} claims",
                    f"{folder}/{entry.output}, first at line {other.node.position.line},"
                    f" again at line {entry.node.position.line}",
                    None,
                    f"drop {target} from the `targets` of one of them",
                )


def _read_entry(
    entry: _Entry, layers: tuple[Layer, ...]
) -> tuple[TableFile, TableFile | None] | Problem:
    """The up table and the down table beside it, if there is one."""
    place = _find(entry.values["file"], layers)
    if place is None:
        folders = [os.path.join(os.path.dirname(layers[0].display), FOLDER), f"specs/{FOLDER}"]
        expected = f"a file below {' or '.join(dict.fromkeys(folders))}"
        return entry.problem("file", "no such table", escaped(entry.values["file"]), expected)
    limits = Limits(
        device=entry.values["device"],
        shared_memory=SHARED_MEMORY[entry.values["device"]],
        weight_bytes=WEIGHT_BYTES[ENGINE_DTYPES[entry.values["dtype"]]],
        block_k=entry.values["block_shape"][1] if entry.values["block_shape"] else None,
    )
    path, display = place
    down_path, down = Path(_down(str(path))), None
    if down_path.exists():
        down = read_table(down_path, _down(display), limits, may_use_tma=True)
    # The engine takes the flag from `_down` tables alone, the torch target's kernels from each row.
    is_own = "sglang" not in entry.values["targets"] and down is not None and down.uses_tma
    return read_table(path, display, limits, may_use_tma=is_own), down


def _pair_problems(up: TableFile, down: TableFile | None) -> Iterator[Problem]:
    yield from up.problems
    if down is not None:
        yield from down.problems
        yield from filter(None, [pair_problem(up, down)])


def _lent_down_problems(
    pairs: list[tuple[_Entry, TableFile, TableFile | None]],
) -> Iterator[Problem]:
    """Up tables without a down table of their version, beside the one that the engine then takes.

    It looks for each of the two by itself: in the running version's folder, then newest first.
    """
    downs: dict[str, list[tuple[tuple[int, ...], TableFile]]] = {}
    for entry, _, down in pairs:
        if down is not None and "sglang" in entry.values["targets"]:
            version = version_number(entry.values["triton"])
            downs.setdefault(entry.output, []).append((version, down))
    for entry, up, down in pairs:
        others = downs.get(entry.output, [])
        if down is None and others and "sglang" in entry.values["targets"]:
            _, newest = max(others, key=lambda other: other[0])
            yield from filter(None, [pair_problem(up, newest)])


def _down(name: str) -> str:
    return f"{name.removesuffix('.json')}_down.json"


def _find(file: str, layers: tuple[Layer, ...]) -> tuple[Path, str] | None:
    """Path and display path: beside the spec, beside what it extends, or shipped."""
    for layer in layers:
        if layer.folder is not None and os.path.exists(layer.folder / FOLDER / file):
            beside = os.path.join(os.path.dirname(layer.display), FOLDER, *file.split("/"))
            return layer.folder / FOLDER / file, shown_path(beside)
    shipped = shipped_folder() / FOLDER / file
    return (shipped, f"specs/{FOLDER}/{file}") if os.path.exists(shipped) else None
