"""The expert grid: a cell per routed expert in its group, one token's choice as an example.

The choice is made up and always the same: spread evenly over groups and experts.
"""

from __future__ import annotations

from itertools import count
from math import gcd, isqrt

from lingen.ir.parts import Moe
from lingen.ir.types import ModelIR
from lingen.pictures.elements import (
    INNER,
    MARGIN,
    Part,
    box,
    flow,
    stroke,
    width_of,
    words,
)
from lingen.pictures.palette import CHOSEN, SHARED

_CELL, _PITCH = 8, 10
_GAP = 14
_LABEL = 16


def example_choice(moe: Moe) -> dict[int, list[int]]:
    """Kept groups, each with the experts that the example token uses, counted inside the group."""
    size, kept = moe.experts_per_group, moe.topk_group
    # Steps of about the golden ratio look like no pattern; without a common divisor none repeats.
    step = next(step for step in count(size * 618 // 1000 + 1) if gcd(step, size) == 1)
    groups = [(2 * place + 1) * moe.n_group // (2 * kept) for place in range(kept)]
    choice = {}
    for place, group in enumerate(groups):
        share = (moe.num_experts_per_tok - place + kept - 1) // kept
        choice[group] = sorted((5 * group + turn * step) % size for turn in range(share))
    return choice


def expert_grid(ir: ModelIR) -> Part:
    """The experts of one layer, or a line that says that there are none."""
    moe = ir.moe
    if moe is None:
        return Part((words(MARGIN, 12, "No experts: every layer has a dense MLP.", "ink"),), 20)
    columns = _columns(moe.experts_per_group)
    rows = -(-moe.experts_per_group // columns)
    block = max(columns * _PITCH - 2, width_of(_label(moe.n_group - 1, True)))
    widths = [block] * moe.n_group
    widths += [18 + width_of(_shared_label(moe))] if moe.has_shared_experts else []
    places = flow(widths, _GAP)
    row_height = _LABEL + max(rows * _PITCH, 20) + 18
    choice = example_choice(moe)
    lines = []
    for group, (x, row) in zip(range(moe.n_group), places, strict=False):
        y = row * row_height
        lines += _group(moe, group, choice.get(group), columns, x, y)
    if moe.has_shared_experts:
        x, row = places[-1]
        lines += _shared(moe, x, row * row_height)
    height = (places[-1][1] + 1) * row_height
    lines.append(words(MARGIN, height + 10, _caption(moe), "ink"))
    return Part(tuple(lines), height + 18)


def _columns(num_experts: int) -> int:
    """About twice as wide as high: the next power of two, as far as a row reaches."""
    wanted = isqrt(2 * num_experts - 1) + 1
    return min(1 << (wanted - 1).bit_length(), num_experts, INNER // _PITCH)


def _label(group: int, is_kept: bool) -> str:
    return f"{group} kept" if is_kept else f"{group}"


def _group(
    moe: Moe, group: int, chosen: list[int] | None, columns: int, x: int, y: int
) -> list[str]:
    size, top = moe.experts_per_group, y + _LABEL
    is_kept = chosen is not None
    path = ""
    for first in range(0, size, columns):
        path += f"M{x} {top + first // columns * _PITCH + _CELL // 2}h{_CELL}"
        path += f"m{_PITCH - _CELL} 0h{_CELL}" * (min(columns, size - first) - 1)
    lines = [stroke(path, "idle" if is_kept else "left")]
    if moe.n_group > 1:
        lines.insert(0, words(x, y + 11, _label(group, is_kept), "dim small"))
    for expert in chosen or ():
        left, above = x + expert % columns * _PITCH, top + expert // columns * _PITCH
        lines.append(box(left - 1, above - 1, _CELL + 2, _CELL + 2, CHOSEN))
        lines.append(stroke(f"M{left + 2} {above + 4}h4", "mark"))
    if is_kept and moe.n_group > 1:
        height = -(-size // columns) * _PITCH
        lines.append(stroke(f"M{x} {top + height + 4}h{columns * _PITCH - 2}", "rule"))
    return lines


def _shared_label(moe: Moe) -> str:
    return "shared" if moe.num_shared_experts == 1 else f"{moe.num_shared_experts} shared"


def _shared(moe: Moe, x: int, y: int) -> list[str]:
    top = y + _LABEL
    return [
        words(x + 4, top + 14, "+", "head ink", "middle"),
        words(x + 18, y + 11, _shared_label(moe), "dim small"),
        box(x + 18, top, 18, 18, SHARED),
        words(x + 27, top + 13, "S", "on", "middle"),
    ]


def _caption(moe: Moe) -> str:
    """What the example token does, in words."""
    groups = f"keeps {moe.topk_group} of {moe.n_group} groups and " if moe.n_group > 1 else ""
    used = f"uses {moe.num_experts_per_tok} of {moe.num_experts} experts"
    shared = f", and {moe.shared_experts_text}" if moe.has_shared_experts else ""
    return f"Example: a token {groups}{used} (barred cells){shared}."
