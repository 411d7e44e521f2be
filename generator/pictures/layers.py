"""The layer strip: a cell per layer, a letter for its attention, a band for its MLP.

The plan says which layer is of which kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingen.ir.types import ModelIR
from lingen.pictures.elements import (
    INNER,
    Part,
    box,
    flow,
    put,
    shape,
    stroke,
    width_of,
    words,
)
from lingen.pictures.palette import ATTENTION, MLP

Cell = tuple[str, str]
"""Attention kind and MLP kind."""

_CELL, _PITCH, _HEIGHT = 16, 18, 30
_GAP = 12
_LABEL = 16
_ROW = _LABEL + _HEIGHT + 24
_MOST_IN_A_ROW = INNER // _PITCH


def layer_strip(ir: ModelIR) -> Part:
    """All layers in their groups, the MTP layer behind a plus, and what the marks mean."""
    cells = [(layer.attention, layer.mlp) for layer in ir.plan.layers]
    groups = _groups(cells, ir.plan.group_size)
    labels = _labels(groups)
    widths = [
        max(_group_width(group), width_of(label))
        for group, label in zip(groups, labels, strict=True)
    ]
    widths += [_PITCH + width_of("MTP")] if ir.mtp else []
    places = flow(widths, _GAP)
    kinds = sorted({*cells, *([_draft_cell(ir)] if ir.mtp else [])})
    lines = ["<defs>", *(_cell_shape(kind) for kind in kinds), "</defs>"]
    for group, label, (x, row) in zip(groups, labels, places, strict=False):
        lines += _group(group, label, x, row * _ROW)
    if ir.mtp:
        x, row = places[-1]
        lines += _draft(_draft_cell(ir), x, row * _ROW)
    height = (places[-1][1] + 1) * _ROW
    legend = _legend(kinds, height)
    return Part((*lines, *legend.lines), height + legend.height)


def _draft_cell(ir: ModelIR) -> Cell:
    """The MTP layer has the model's full attention, and experts."""
    return ir.plan.full_kind, "moe"


def _groups(cells: Sequence[Cell], group_size: int) -> list[list[Cell]]:
    """Groups as the plan has them, cut where a row ends; groups of one layer are one run."""
    size = len(cells) if group_size == 1 else group_size
    return [
        list(cells[start : min(start + _MOST_IN_A_ROW, first + size)])
        for first in range(0, len(cells), size)
        for start in range(first, min(first + size, len(cells)), _MOST_IN_A_ROW)
    ]


def _labels(groups: Sequence[Sequence[Cell]]) -> list[str]:
    """`8–15`: indices of the first and last layer of each group."""
    labels, first = [], 0
    for group in groups:
        last = first + len(group) - 1
        labels.append(f"{first}–{last}" if last > first else f"{first}")
        first = last + 1
    return labels


def _group_width(cells: Sequence[Cell]) -> int:
    return len(cells) * _PITCH - (_PITCH - _CELL)


def _shape_name(kind: Cell) -> str:
    return "-".join(kind)


def _cell_shape(kind: Cell) -> str:
    attention, mlp = ATTENTION[kind[0]], MLP[kind[1]]
    return shape(
        _shape_name(kind),
        [
            box(0, 0, _CELL, 18, attention.color),
            words(_CELL // 2, 14, attention.mark, "on", "middle"),
            box(0, 20, _CELL, 10, mlp.color),
            stroke(mlp.mark, "mark"),
        ],
    )


def _group(cells: Sequence[Cell], label: str, x: int, y: int) -> list[str]:
    top = y + _LABEL
    return [
        words(x, y + 11, label, "dim small"),
        *(put(_shape_name(kind), x + i * _PITCH, top) for i, kind in enumerate(cells)),
        stroke(f"M{x} {top + _HEIGHT + 5}h{_group_width(cells)}", "rule"),
    ]


def _draft(kind: Cell, x: int, y: int) -> list[str]:
    top = y + _LABEL
    return [
        words(x + 4, top + 19, "+", "head ink", "middle"),
        words(x + _PITCH, y + 11, "MTP", "dim small"),
        put(_shape_name(kind), x + _PITCH, top),
    ]


def _legend(kinds: Sequence[Cell], y: int) -> Part:
    """A swatch and a name for each kind of attention and of MLP that is there."""
    attention = [ATTENTION[name] for name in ATTENTION if name in {kind[0] for kind in kinds}]
    mlps = [MLP[name] for name in MLP if name in {kind[1] for kind in kinds}]
    entries = [*attention, *mlps]
    places = flow([_CELL + 8 + width_of(kind.name) for kind in entries], _GAP)
    lines = []
    for kind, (x, row) in zip(entries, places, strict=True):
        top = y + row * 24
        if kind in attention:
            lines.append(box(x, top, _CELL, 18, kind.color))
            lines.append(words(x + _CELL // 2, top + 14, kind.mark, "on", "middle"))
        else:
            lines.append(box(x, top + 4, _CELL, 10, kind.color))
            lines.append(_moved(stroke(kind.mark, "mark"), x, top - 16))
        lines.append(words(x + _CELL + 8, top + 13, kind.name, "ink"))
    return Part(tuple(lines), (places[-1][1] + 1) * 24)


def _moved(markup: str, x: int, y: int) -> str:
    return f'<g transform="translate({x} {y})">{markup}</g>'
