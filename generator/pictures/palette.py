"""Colours, marks and names of every kind of layer: a new kind is one more row.

Fills stand out from white and from near-black pages, and white letters are legible on them. Words
follow the page through `prefers-color-scheme`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """How layers of a kind are drawn and named. mark: a letter, or for MLPs a path in the band."""

    mark: str
    color: str
    name: str


ATTENTION: dict[str, Kind] = {
    "lightning": Kind("L", "#b45309", "lightning attention"),
    "mla": Kind("M", "#2563eb", "latent attention (MLA)"),
    "gqa": Kind("G", "#0f766e", "grouped-query attention (GQA)"),
    "kda": Kind("K", "#9333ea", "delta attention (KDA)"),
}
MLP: dict[str, Kind] = {
    "moe": Kind("M3 25h2m2 0h2m2 0h2", "#be185d", "experts (MoE)"),
    "dense": Kind("M3 25h10", "#64748b", "dense MLP"),
}

IDLE = MLP["dense"].color
CHOSEN = MLP["moe"].color
SHARED = "#15803d"
STATE = ATTENTION["lightning"].color
KV = ATTENTION["mla"].color
ON_FILL = "#ffffff"

# Words of the first rank and the second. Where a viewer knows no schemes, one grey serves both.
INKS = {"light": ("#1f2328", "#59636e"), "dark": ("#e6edf3", "#9198a1")}
ANY_INK = "#788290"


def style_sheet() -> str:
    """The rules of every picture."""
    schemes = (
        f"@media (prefers-color-scheme: {scheme}) "
        f"{{ .ink {{ fill: {ink} }} .dim {{ fill: {dim} }} .rule {{ stroke: {dim} }} }}"
        for scheme, (ink, dim) in INKS.items()
    )
    rules = (
        "text { font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif;"
        " font-size: 12px }",
        ".title { font-size: 20px; font-weight: 600 }",
        ".head { font-size: 14px; font-weight: 600 }",
        ".small { font-size: 11px }",
        f".ink, .dim {{ fill: {ANY_INK} }}",
        f".rule {{ fill: none; stroke: {ANY_INK}; stroke-width: 2 }}",
        f".on {{ fill: {ON_FILL}; font-weight: 600 }}",
        f".mark {{ fill: none; stroke: {ON_FILL}; stroke-width: 2 }}",
        f".idle, .left {{ fill: none; stroke: {IDLE}; stroke-width: 8 }}",
        ".left { opacity: 0.5 }",
    )
    return "\n".join([*rules, *schemes])
