"""The entries of `kernels.moe.tables`: the one list whose items have keys of their own."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass

from lingen.errors import Position

LEFT_OUT = frozenset({"tuned_on", "per_channel_quant"})
"""Keys of a table's entry that need not be stated."""


@dataclass(frozen=True, slots=True)
class MoeTable:
    """One entry of `kernels.moe.tables`: an up table, and the `_down` table beside it if any."""

    file: str
    device: str
    tuned_on: str | None
    dtype: str
    block_shape: tuple[int, ...] | None
    per_channel_quant: bool | None
    triton: str
    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableText:
    """What stands in the files of one entry of `kernels.moe.tables`, and where the entry is.

    `down` None: there is no `_down` table beside the up table.
    """

    position: Position
    up: str
    down: str | None


def plain_items(value: object, sequence: type) -> object:
    """A tuple as a `sequence`, its items as mappings where they have keys of their own."""
    if not isinstance(value, tuple):
        return value
    return sequence(_item(item) if is_dataclass(item) else item for item in value)


def _item(item: object) -> dict[str, object]:
    """An entry of a list. Keys that it may leave out, and did, are not in it."""
    tree = {each.name: getattr(item, each.name) for each in fields(item)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in tree.items()
        if value is not None or name not in LEFT_OUT
    }
