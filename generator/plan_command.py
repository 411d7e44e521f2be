"""The options of `lingen plan`: parse, call, print. Nothing is decided here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from lingen.errors import LingenError

if TYPE_CHECKING:
    from lingen.ir.types import ModelIR
    from lingen.planner import DoesNotFit
    from lingen.sizing.request import Asked, Request

Text = str | None
Number = int | None


def plan(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A spec file or a shipped spec.")],
    cache_gib: Annotated[
        Text, typer.Option(metavar="X", help="GiB per GPU for the cache, a decimal.")
    ] = None,
    cache_bytes: Annotated[Number, typer.Option(metavar="N", help="The same in bytes.")] = None,
    device: Annotated[
        Text, typer.Option(metavar="h100|h200|h20|h20-3e|b200", help="Instead: what a card leaves.")
    ] = None,
    weights: Annotated[Text, typer.Option(metavar="bf16|fp8", help="Weights on the card.")] = None,
    mem_fraction: Annotated[
        Text, typer.Option(metavar="F", help="Part of the card for weights and cache.")
    ] = None,
    context_len: Annotated[
        Number, typer.Option(metavar="N", help="How many requests of N tokens fit.")
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="Tensor-parallel ranks.")] = 1,
    dp: Annotated[int, typer.Option(metavar="N", help="Replicas; they share the counts.")] = 1,
    pp: Annotated[int, typer.Option(metavar="N", help="Pipeline stages.")] = 1,
    max_running_requests: Annotated[
        Number, typer.Option(metavar="N", help="Requests at the same time, over all replicas.")
    ] = None,
    max_state_slots: Annotated[
        Number, typer.Option(metavar="N", help="State slots, instead of what the ratio gives.")
    ] = None,
    draft_tokens: Annotated[
        Number, typer.Option(metavar="N", help="Tokens drafted per step; 0 drafts none.")
    ] = None,
    verify_states: Annotated[
        Text, typer.Option(metavar="replay|snapshot", help="What a draft token keeps.")
    ] = None,
    ratio: Annotated[
        Text, typer.Option(metavar="R", help="State bytes to KV bytes, a decimal.")
    ] = None,
    page_size: Annotated[Number, typer.Option(metavar="N", help="Tokens of a KV page.")] = None,
    no_prefix_cache: Annotated[
        bool, typer.Option("--no-prefix-cache", help="Requests share nothing.")
    ] = False,
    extra_buffer: Annotated[
        Text, typer.Option(metavar="none|no-overlap|overlap", help="Slots for snapshots.")
    ] = None,
    compat: Annotated[
        list[str] | None,
        typer.Option(metavar="sglang|sglang-pr", help="Also what SGLang computes; repeatable."),
    ] = None,
    sweep_knob: Annotated[
        Text, typer.Option("--sweep", metavar="KNOB", help="A table over the values of an option.")
    ] = None,
    svg: Annotated[
        Text, typer.Option("--svg", metavar="FILE|-", help="The sweep as a picture; - prints it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Split cache memory into state slots, draft rows and KV pages; exit 2 if nothing fits."""
    from lingen.emit.selection import find_specs
    from lingen.ir import lower
    from lingen.planner import DoesNotFit
    from lingen.sizing import output
    from lingen.sizing.request import Asked, read_request
    from lingen.spec import load_spec

    try:
        ir = lower(load_spec(find_specs([spec], False)[0]))
    except LingenError as error:
        raise LingenError(str(error).removesuffix("Nothing was written.").rstrip()) from None
    asked = Asked(
        cache_gib, cache_bytes, device, weights, mem_fraction, context_len, tp, dp, pp,
        max_running_requests, max_state_slots, draft_tokens, verify_states, ratio, page_size,
        False if no_prefix_cache else None, extra_buffer, tuple(compat or ()),
    )  # fmt: skip
    if svg is not None and (sweep_knob is None or as_json or compat or context_len is not None):
        raise LingenError(
            "--svg draws a sweep\n  expected  --sweep KNOB beside it; no --json, --compat or"
            " --context-len, which it does not show"
        )
    if sweep_knob is not None:
        from lingen.sizing.sweep import sweep, sweep_json, sweep_text

        points = sweep(ir, asked, sweep_knob)
        first = points[0]
        if first.refusal is not None and not any(point.plan for point in points):
            raise _refused(ir, first.asked, first.request, first.refusal, as_json)
        if svg is not None:
            from lingen.pictures import write_picture
            from lingen.sizing.picture import sweep_picture

            write_picture(sweep_picture(ir.name, sweep_knob, points), svg)
            return
        print((sweep_json if as_json else sweep_text)(sweep_knob, points))
        return
    request = read_request(ir, asked)
    try:
        found = request.plan()
    except DoesNotFit as refusal:
        raise _refused(ir, asked, request, refusal, as_json) from None
    if as_json:
        print(output.plan_json(request, found))
        return
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(output.plan_text(request, found, color), end="")


def _refused(
    ir: ModelIR, asked: Asked, request: Request, refusal: DoesNotFit, as_json: bool
) -> Exception:
    """What ends the command, exit code 2: a text for people; JSON is printed here."""
    from lingen.sizing.output import refusal_json, refusal_text
    from lingen.sizing.remedies import card_remedies

    remedies = card_remedies(ir, asked, refusal)
    if not as_json:
        return LingenError(refusal_text(request, refusal, remedies))
    print(refusal_json(request, refusal, remedies))
    return typer.Exit(2)
