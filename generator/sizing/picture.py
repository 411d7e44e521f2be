"""A sweep as SVG: a bar per value, in states, draft rows, keys and values, and what is unused."""

from __future__ import annotations

from html import escape

from lingen.pictures.elements import INNER, MARGIN, WIDTH, box, words
from lingen.pictures.palette import CHOSEN, IDLE, KV, STATE, style_sheet
from lingen.planner import Plan
from lingen.sizing.sweep import Point, shown

_LEFT = 150
_RIGHT = 110
_ROW = 26
_BAR = 16
_TOP = 84
_PARTS = (("states", STATE), ("draft rows", CHOSEN), ("keys and values", KV), ("unused", IDLE))


def sweep_picture(name: str, knob: str, points: tuple[Point, ...]) -> str:
    """An SVG without a background, complete in itself; bars of one scale."""
    height = _TOP + _ROW * len(points) + MARGIN // 2
    largest = max((point.plan.budget_bytes for point in points if point.plan), default=1)
    title = f"{name}: cache memory by {knob}"
    lines = [words(MARGIN, 40, title, "title ink")]
    for index, (label, color) in enumerate(_PARTS):
        x = MARGIN + 150 * index
        lines += [box(x, 58, 12, 12, color), words(x + 18, 68, label, "dim")]
    for index, point in enumerate(points):
        y = _TOP + _ROW * index
        lines.append(words(MARGIN, y + 12, shown(point.value), "ink"))
        lines += _row(point.plan, largest, y)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title)}</title>',
            f"<style>\n{style_sheet()}\n</style>",
            *lines,
            "</svg>\n",
        ]
    )


def _row(plan: Plan | None, largest: int, y: int) -> list[str]:
    """Ends of the parts are rounded down, so the bars add up."""
    if plan is None:
        return [words(MARGIN + _LEFT, y + 12, "not one request fits", "dim")]
    longest = INNER - _LEFT - _RIGHT
    sizes = (plan.state_bytes, plan.verify_bytes, plan.kv_bytes, plan.unused_bytes)
    lines, taken, left = [], 0, 0
    for size, (_, color) in zip(sizes, _PARTS, strict=True):
        taken += size
        right = longest * taken // largest
        if right > left:
            lines.append(box(MARGIN + _LEFT + left, y, right - left, _BAR, color))
        left = right
    text = f"{plan.max_running_requests:,} requests"
    return [*lines, words(MARGIN + _LEFT + left + 8, y + 12, text, "ink")]
