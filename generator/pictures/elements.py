"""The few SVG elements that pictures are made of, all on whole pixels.

Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 860
MARGIN = 24
INNER = WIDTH - 2 * MARGIN
_LETTER = 7  # pixels, of an average letter: an upper bound for the fonts named in the style sheet


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a picture: one element per line, and the height it takes."""

    lines: tuple[str, ...]
    height: int


def words(x: int, y: int, text: str, style: str, anchor: str = "") -> str:
    """Text with its baseline at y. style: classes of the style sheet."""
    middle = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x}" y="{y}" class="{style}"{middle}>{escape(text)}</text>'


def box(x: int, y: int, width: int, height: int, color: str) -> str:
    """A filled rectangle with slightly round corners."""
    place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    return f'<rect {place} rx="2" fill="{color}"/>'


def stroke(path: str, style: str) -> str:
    return f'<path d="{path}" class="{style}"/>'


def shape(name: str, lines: Sequence[str]) -> str:
    """A shape to be put in places with `put`."""
    return f'<g id="{name}">{"".join(lines)}</g>'


def put(name: str, x: int, y: int) -> str:
    return f'<use href="#{name}" x="{x}" y="{y}"/>'


def width_of(text: str) -> int:
    """A safe estimate in pixels."""
    return len(text) * _LETTER


def flow(widths: Sequence[int], gap: int) -> list[tuple[int, int]]:
    """Left edge and row of each item, set side by side and wrapped like words."""
    places = []
    x, row = MARGIN, 0
    for width in widths:
        if x > MARGIN and x + width > MARGIN + INNER:
            x, row = MARGIN, row + 1
        places.append((x, row))
        x += width + gap
    return places
