"""Which pieces of a template's text each line of the formatted file holds.

The formatter moves text between lines, adds and drops parentheses, commas and blank lines, drops
semicolons and changes quotes. All other characters, the *ink*, it leaves in their order: they are
what is counted to find a place of one text in the other. Knows nothing of templates beyond their
pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lingen.emit.recording import Piece
from lingen.emit.text_lines import lines_of

_NO_INK = str.maketrans("", "", " \t\n\r\f(),;'\"\\")
_REACH = 80


@dataclass(frozen=True, slots=True)
class LineOrigin:
    """Where an output line comes from: the template line of its first character, and the IR paths
    that it prints (`own`) or that decide whether it is there (`outer`), each once."""

    template: str
    line: int
    own: tuple[str, ...]
    outer: tuple[str, ...]


@dataclass(slots=True)
class _Part:
    """What one piece has on one line of the template's text: ink from `start` to `end`.

    A part without ink belongs to the ink beside it; `is_inked` tells.
    """

    start: int
    end: int
    is_inked: bool
    template_line: int
    piece: Piece


@dataclass(slots=True)
class _Line:
    """A line of the template's text; its first ink is number `start` of the text."""

    start: int
    text: str
    parts: list[_Part]


def align(pieces: Sequence[Piece], formatted: str) -> list[LineOrigin | None]:
    """The origin of each line of `formatted`, which was made of the text of `pieces`; None for
    blank lines, and for all if there is no piece."""
    texts = lines_of(formatted)
    lines, raw_ink = _lines_of(pieces)
    parts = [part for line in lines for part in _anchored(line)]
    if not parts:
        return [None] * len(texts)
    inks = [text.translate(_NO_INK) for text in texts]
    place = _places("".join(inks), raw_ink)
    offsets = list(accumulate(map(len, inks), initial=0))
    bare_texts = {n: text for n, text in enumerate(texts) if text.strip() and not inks[n]}
    bare = _bare_lines(lines, bare_texts, {n: place(offsets[n]) for n in bare_texts})
    origins: list[LineOrigin | None] = []
    low, last = 0, parts[:1]
    for number, (text, ink) in enumerate(zip(texts, inks, strict=True)):
        found: list[_Part] = []
        if ink:
            start, end = place(offsets[number]), place(offsets[number + 1] - 1) + 1
            while low < len(parts) - 1 and parts[low].end <= start:
                low += 1
            found = _overlapping(parts, low, end)
            last = found[-1:]
        elif text.strip():
            found = bare.get(number, last)
        origins.append(_origin(found) if found else None)
    return origins


def _lines_of(pieces: Sequence[Piece]) -> tuple[list[_Line], str]:
    """The lines of the template's text with what pieces have on them, and the text's ink."""
    lines = [_Line(0, "", [])]
    inks: list[str] = []
    offset = 0
    for piece in pieces:
        for index, text in enumerate(piece.text.split("\n")):
            if index:
                lines.append(_Line(offset, "", []))
            ink = text.translate(_NO_INK)
            template_line = piece.line + index * piece.is_literal
            # White space has no origin that matters; an expression that printed nothing has.
            if text.strip() or not piece.text:
                part = _Part(offset, offset + len(ink), bool(ink), template_line, piece)
                lines[-1].parts.append(part)
            lines[-1].text += text
            inks.append(ink)
            offset += len(ink)
    return lines, "".join(inks)


def _anchored(line: _Line) -> list[_Part]:
    """The parts of a line that has ink; those without it cover the ink before or behind them."""
    if not any(part.is_inked for part in line.parts):
        return []
    for part in line.parts:
        if not part.is_inked and part.start > line.start:
            part.start -= 1
        elif not part.is_inked:
            part.end += 1
    return line.parts


def _overlapping(parts: Sequence[_Part], low: int, end: int) -> list[_Part]:
    high = low + 1
    while high < len(parts) and parts[high].start < end:
        high += 1
    return list(parts[low:high])


def _bare_lines(
    lines: Sequence[_Line], texts: Mapping[int, str], places: Mapping[int, int]
) -> dict[int, list[_Part]]:
    """Formatted lines without ink, by number, with the parts of the line that they were.

    Between the same two inks, lines that read the same are the same; indentation decides where
    there are several. A closing bracket that the formatter made was no line.
    """
    waiting = defaultdict(list)
    for line in lines:
        if line.text.strip() and not any(part.is_inked for part in line.parts):
            waiting[line.start].append(line)
    found: dict[int, list[_Part]] = {}
    for reading in (str.rstrip, str.strip):
        for number, text in texts.items():
            same = [each for each in waiting[places[number]] if reading(each.text) == reading(text)]
            if same and number not in found:
                found[number] = same[0].parts
                waiting[places[number]].remove(same[0])
    return found


def _origin(parts: Sequence[_Part]) -> LineOrigin:
    first = next((part for part in parts if part.is_inked), parts[0])
    own = dict.fromkeys(path for part in parts for path in part.piece.own)
    outer = dict.fromkeys(path for part in parts for path in part.piece.outer)
    outer_only = tuple(path for path in outer if path not in own)
    return LineOrigin(first.piece.template, first.template_line, tuple(own), outer_only)


def _places(formatted: str, raw: str) -> Callable[[int], int]:
    """From a place in the formatted ink to that in the raw ink.

    They are equal but for what the formatter rewrites, such as `1E5` or the prefix of a string:
    there the texts are followed until they agree again.
    """
    if formatted == raw:
        return lambda offset: offset
    from bisect import bisect_right

    starts, shifts = [0], [0]
    here, there = 0, 0
    while here < len(formatted) and there < len(raw):
        if formatted[here] == raw[there]:
            here, there = here + 1, there + 1
            continue
        step = _agreement(formatted, here, raw, there)
        if step is None:
            break
        here, there = here + step[0], there + step[1]
        starts.append(here)
        shifts.append(there - here)

    def place(offset: int) -> int:
        index = bisect_right(starts, offset) - 1
        limit = starts[index + 1] + shifts[index + 1] if index + 1 < len(starts) else len(raw) - 1
        return max(0, min(offset + shifts[index], limit))

    return place


def _agreement(formatted: str, here: int, raw: str, there: int) -> tuple[int, int] | None:
    """The smallest steps after which both texts go on alike, the longer the steps are."""
    for total in range(1, _REACH):
        length = 3 if total < 3 else 12
        for step in range(total + 1):
            after, raw_after = here + step, there + total - step
            if formatted[after : after + length] == raw[raw_after : raw_after + length]:
                return step, total - step
    return None
