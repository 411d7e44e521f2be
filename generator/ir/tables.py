"""The tuned tables of a model: which files its packages ship, for which shapes of its experts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lingen.errors import Problem, SpecError
from lingen.spec.dump import flow
from lingen.spec.model import ModelSpec
from lingen.spec.table_entry import MoeTable, TableText
from lingen.spec.tables import ENGINE_DTYPES, KEY
from lingen.tuned.lookup import TableKey, version_folder
from lingen.tuned.names import moe_shape, parse_name


@dataclass(frozen=True, slots=True)
class TunedTable:
    """One file of kernel settings. An entry of the spec makes two where it has a `_down` table.

    index: from 0, over all files.  entry: its place in `kernels.moe.tables`.  folder, name: of the
    file below `tuned/configs/`.  origin: below `specs/`, where it was taken from.  num_experts,
    width: E and N.  tuned_on: another card than `device` for an alias.  tp: the sizes of the spec
    that use it.  has_down: whether the up table has a `_down` table beside it.
    """

    index: int
    entry: int
    folder: str
    name: str
    origin: str
    device: str
    tuned_on: str
    num_experts: int
    width: int
    dtype: str
    block_shape: tuple[int, ...] | None
    per_channel_quant: bool
    triton: str
    source: str
    targets: tuple[str, ...]
    tp: tuple[int, ...]
    is_down: bool
    has_down: bool
    sha256: str

    @property
    def path(self) -> str:
        return f"tuned/configs/{self.folder}/{self.name}"

    @property
    def is_alias(self) -> bool:
        """Whether it was tuned on another card than the one whose name it bears."""
        return self.tuned_on != self.device

    def text(self, spec: ModelSpec) -> str:
        """What the file holds, from the spec that listed it."""
        texts = spec.table_texts[self.entry]
        return (texts.down or "") if self.is_down else texts.up


def lower_tables(spec: ModelSpec) -> tuple[TunedTable, ...]:
    tables: list[TunedTable] = []
    for entry, (table, texts) in enumerate(_listed(spec)):
        tables.append(_table(spec, entry, table, texts.up, len(tables), False))
        if texts.down is not None:
            tables.append(_table(spec, entry, table, texts.down, len(tables), True))
    return tuple(tables)


def _listed(spec: ModelSpec) -> list[tuple[MoeTable, TableText]]:
    return list(zip(spec.kernels.moe.tables, spec.table_texts, strict=True))


def _table(
    spec: ModelSpec, entry: int, table: MoeTable, text: str, index: int, is_down: bool
) -> TunedTable:
    named = parse_name(table.file.rpartition("/")[2]).key
    key = TableKey(
        num_experts=named.num_experts,
        width=named.width,
        device=table.device,
        dtype=ENGINE_DTYPES[table.dtype],
        block_shape=table.block_shape,
        per_channel_quant=bool(table.per_channel_quant),
    )
    origin = f"tuned/{table.file}"
    return TunedTable(
        index=index,
        entry=entry,
        folder=version_folder(table.triton),
        name=key.file_name(is_down),
        origin=f"{origin.removesuffix('.json')}_down.json" if is_down else origin,
        device=table.device,
        tuned_on=table.tuned_on or table.device,
        num_experts=key.num_experts,
        width=key.width,
        dtype=table.dtype,
        block_shape=table.block_shape,
        per_channel_quant=key.per_channel_quant,
        triton=table.triton,
        source=table.source,
        targets=table.targets,
        tp=_tp_sizes(spec, (key.num_experts, key.width)),
        is_down=is_down,
        has_down=spec.table_texts[entry].down is not None,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def _tp_sizes(spec: ModelSpec, shape: tuple[int, int]) -> tuple[int, ...]:
    return tuple(size for size in spec.parallel.tp if _shape(spec, size) == shape)


def _shape(spec: ModelSpec, tp: int) -> tuple[int, int]:
    moe = spec.moe
    return moe_shape(moe.num_experts, moe.moe_intermediate_size, tp, spec.parallel.ep)


def refuse_useless_tables(spec: ModelSpec) -> None:
    """Raise SpecError for tables that no package of this model would ever look up."""
    problems = []
    for entry, (table, texts) in enumerate(_listed(spec)):
        reason = _why_useless(spec, table)
        if reason:
            problems.append(Problem(texts.position, f"{KEY}[{entry}]", *reason))
    if problems:
        raise SpecError(problems)


def _why_useless(spec: ModelSpec, table: MoeTable) -> tuple[str, str, str] | None:
    """Message, what was found and what is expected."""
    named = parse_name(table.file.rpartition("/")[2]).key
    if not _tp_sizes(spec, (named.num_experts, named.width)):
        shapes = [f"E={e},N={n} at tp {tp}" for tp, (e, n) in _shapes(spec)]
        found = f"{table.file}: E={named.num_experts},N={named.width}"
        keys = "moe.num_experts, moe.moe_intermediate_size and parallel.tp"
        expected = f"of {keys}: {', '.join(shapes)}"
        return "a table that no tp size of the spec can use", found, expected
    scales = "fp8_block" if table.block_shape else "fp8_channel"
    formats = spec.quantization.checkpoint_formats
    if (table.block_shape or table.per_channel_quant) and scales not in formats:
        found = f"{table.file}: {scales} weights"
        return (
            "a table for weights that the spec does not load",
            found,
            f"quantization.checkpoint_formats with {scales}, not {flow(formats)}",
        )
    size = spec.quantization.weight_block_size
    if table.block_shape and table.block_shape != size:
        found = f"{table.file}: block_shape {flow(table.block_shape)}"
        expected = f"quantization.weight_block_size, {flow(size)}"
        return "a table for another size of weight blocks", found, expected
    return None


def _shapes(spec: ModelSpec) -> list[tuple[int, tuple[int, int]]]:
    return [(size, _shape(spec, size)) for size in spec.parallel.tp]
