"""The whole picture of a model: a title, its layers, its experts, its bytes per request."""

from __future__ import annotations

from html import escape

from lingen.ir.parts import Moe
from lingen.ir.types import ModelIR
from lingen.pictures.bars import memory_bars, mib
from lingen.pictures.elements import MARGIN, WIDTH, Part, words
from lingen.pictures.experts import expert_grid
from lingen.pictures.layers import layer_strip
from lingen.pictures.palette import style_sheet
from lingen.report import KV_EXAMPLE_TOKENS

_SPACE = 26


def picture(ir: ModelIR) -> str:
    """An SVG without a background, for light and dark pages, complete in itself."""
    parts = [
        _title(ir),
        _headed("Layers", layer_strip(ir)),
        _headed(_experts_head(ir), expert_grid(ir)),
        _headed("Memory of one request", memory_bars(ir)),
    ]
    body: list[str] = []
    y = MARGIN
    for part in parts:
        body += [f'<g transform="translate(0 {y})">', *part.lines, "</g>"]
        y += part.height + _SPACE
    height = y - _SPACE + MARGIN // 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(ir.name)}: layers, experts and memory</title>',
            f'<desc id="description">{escape(describe(ir))}</desc>',
            f"<style>\n{style_sheet()}\n</style>",
            *body,
            "</svg>\n",
        ]
    )


def describe(ir: ModelIR) -> str:
    """The picture in words."""
    cache = ir.cache
    texts = [f"{ir.plan.description}{', and one MTP layer' if ir.mtp else ''}."]
    if ir.moe:
        moe = ir.moe
        texts.append(
            f"{moe.num_experts} routed experts{_in_groups(moe)}:"
            f" a token uses {moe.num_experts_per_tok}."
        )
    texts.append(
        f"A request holds {mib(cache.state_bytes_per_slot * cache.slots_per_request)} of recurrent"
        f" state, and {mib(cache.kv_bytes_per_token * KV_EXAMPLE_TOKENS)} of keys and values at"
        f" {KV_EXAMPLE_TOKENS:,} tokens."
    )
    return " ".join(texts)


def _title(ir: ModelIR) -> Part:
    counts = ir.parameters
    parameters = f"{_billions(counts.total)} parameters, {_billions(counts.active)} for one token"
    return Part(
        (
            words(MARGIN, 16, ir.name, "title ink"),
            words(MARGIN, 38, f"{ir.plan.description}; {parameters}", "dim"),
        ),
        42,
    )


def _billions(count: int) -> str:
    return f"{count / 1e9:,.1f} B" if count >= 10**8 else f"{count / 1e6:,.1f} M"


def _experts_head(ir: ModelIR) -> str:
    if ir.moe is None:
        return "Experts"
    moe = ir.moe
    where = "one MoE layer" if ir.plan.moe else "the MTP layer"
    return f"Experts of {where}: {moe.num_experts}{_in_groups(moe)}"


def _in_groups(moe: Moe) -> str:
    return f" in {moe.n_group} groups of {moe.experts_per_group}" if moe.n_group > 1 else ""


def _headed(head: str, part: Part) -> Part:
    return Part(
        (
            words(MARGIN, 12, head, "head ink"),
            '<g transform="translate(0 22)">',
            *part.lines,
            "</g>",
        ),
        part.height + 22,
    )
