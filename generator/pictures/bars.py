"""Two bars: recurrent state of a request beside its keys and values at an example length."""

from __future__ import annotations

from lingen.ir.types import ModelIR
from lingen.pictures.elements import INNER, MARGIN, Part, box, stroke, words
from lingen.pictures.palette import KV, STATE
from lingen.report import KV_EXAMPLE_TOKENS

_MIB = 1 << 20
_LONGEST = INNER - 100
_BAR = 16
_ROW = 46


def mib(count: int) -> str:
    """`1,440 MiB`, `4.5 MiB`, `0.0625 MiB`"""
    size = count / _MIB
    text = f"{size:,.1f}".removesuffix(".0") if size >= 1 or count == 0 else f"{size:.3g}"
    return f"{text} MiB"


def memory_bars(ir: ModelIR) -> Part:
    """State and KV bytes of one request on one scale, with their numbers."""
    cache = ir.cache
    slots = cache.slots_per_request
    state = cache.state_bytes_per_slot * slots
    kv = cache.kv_bytes_per_token * KV_EXAMPLE_TOKENS
    state_words = (
        f"Recurrent state, whatever the length: {slots} × {mib(cache.state_bytes_per_slot)}"
        if state
        else "Recurrent state: none"
    )
    kv_words = (
        f"Keys and values at {KV_EXAMPLE_TOKENS:,} tokens: {cache.kv_bytes_per_token:,} bytes each"
        if kv
        else "Keys and values: none"
    )
    longest = max(state, kv, 1)
    lines = [
        *_bar(state_words, state, longest, STATE, 0, slots),
        *_bar(kv_words, kv, longest, KV, _ROW, 1),
    ]
    return Part(tuple(lines), 2 * _ROW)


def _bar(label: str, count: int, longest: int, color: str, y: int, pieces: int) -> list[str]:
    """A bar in equal pieces. Anything above nothing is at least a pixel wide."""
    width = max(1, _LONGEST * count // longest) if count else 0
    top = y + 18
    lines = [words(MARGIN, y + 12, label, "ink")]
    if width:
        lines.append(box(MARGIN, top, width, _BAR, color))
    for piece in range(1, pieces if width >= 4 * pieces else 1):
        lines.append(stroke(f"M{MARGIN + width * piece // pieces} {top}v{_BAR}", "mark"))
    lines.append(words(MARGIN + width + (8 if width else 0), top + 12, mib(count), "ink"))
    return lines
