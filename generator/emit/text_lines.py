"""How lines of a text are counted, everywhere that a line number is recorded or looked up."""

from __future__ import annotations


def lines_of(text: str) -> list[str]:
    """The lines of a text as editors number them; the line break at its end begins no new one."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines
