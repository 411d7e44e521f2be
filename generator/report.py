"""What `lingen explain` says of a model: layers, parameters, caches, and where values come from.

Asks the IR for every fact and computes none but products of them. Knows nothing of torch.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

from lingen.errors import Position
from lingen.ir.lower import lower
from lingen.ir.plan import Layer
from lingen.ir.tables import TunedTable
from lingen.ir.types import ModelIR
from lingen.spec.dump import ITEM, dump_yaml
from lingen.spec.model import ModelSpec
from lingen.spec.nodes import escaped

WIDTH = 80
_LABEL_WIDTH = 19
KV_EXAMPLE_TOKENS = 32 * 1024
DECAY_OFFSET = "attention.lightning.decay.layer_offset"

_STRIP_WIDTH = 71
_LETTERS = {"lightning": "L", "mla": "M", "gqa": "G"}


def explain(spec: ModelSpec, resolved: bool, as_json: bool, color: bool) -> str:
    """What the command prints."""
    if resolved:
        return _json(resolved_json(spec)) if as_json else resolved_yaml(spec)
    ir = lower(spec)
    return _json(explain_json(ir)) if as_json else explain_text(ir, color)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def layer_strip(ir: ModelIR) -> str:
    """One letter per layer, a space between groups, the MTP layer behind a plus, and a legend.

    A capital has experts, a small letter a dense MLP. Each line starts with the index of its first
    layer and holds whole groups where they fit.
    """
    letters = [(_LETTERS[layer.attention], layer.mlp) for layer in ir.plan.layers]
    cells = [letter if mlp == "moe" else letter.lower() for letter, mlp in letters]
    groups = _groups("".join(cells), ir.plan.group_size)
    lines = _lines(groups)
    if ir.mtp:
        lines[-1] = (lines[-1][0], f"{lines[-1][1]} + {_LETTERS[ir.plan.full_kind]}")
    digits = len(str(lines[-1][0]))
    strip = [f"{first:>{digits}}  {text}" for first, text in lines]
    return "\n".join([*strip, _legend(ir)])


def _legend(ir: ModelIR) -> str:
    """What the letters of the strip mean, of those that are in it."""
    full = ir.plan.full_kind
    names = f"{_LETTERS[full]} {full.upper()}"
    kinds = [(ir.plan.has_lightning, "L lightning"), (ir.plan.has_full, names)]
    parts = [", ".join(text for is_there, text in kinds if is_there)]
    mlps = [(ir.plan.moe, "capital: experts"), (ir.plan.dense, "small: dense MLP")]
    parts.append(", ".join(text for is_there, text in mlps if is_there))
    if ir.mtp:
        parts.append(f"+ {_LETTERS[full]}: MTP layer")
    return "; ".join(parts)


def _groups(cells: str, group_size: int) -> list[str]:
    size = min(group_size, _STRIP_WIDTH)
    if group_size == 1:
        size = _STRIP_WIDTH
    return [cells[start : start + size] for start in range(0, len(cells), size)]


def _lines(groups: list[str]) -> list[tuple[int, str]]:
    """Index of the first layer and text of each line."""
    lines: list[tuple[int, str]] = []
    first = 0
    for group in groups:
        if lines and len(lines[-1][1]) + 1 + len(group) <= _STRIP_WIDTH:
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} {group}")
        else:
            lines.append((first, group))
        first += len(group)
    return lines


def derived_facts(ir: ModelIR) -> dict[str, str]:
    """What follows from a spec, by the labels and in the words of the report; no spec values."""
    facts = {"layers": ir.plan.description, "layer strip": layer_strip(ir)}
    section = ""
    for label, text in (*_parameter_rows(ir), *_cache_rows(ir), *_rotary_rows(ir)):
        is_part = label.startswith(" ")
        facts[f"{section}, {label.strip()}" if is_part else label] = text
        section = section if is_part else label
    facts["parameters"] = _parameters(ir.parameters.total)
    return facts


def explain_json(ir: ModelIR) -> dict[str, object]:
    """The stable form for programs; cache figures are those of tp 1 and pp 1."""
    return {
        "name": ir.name,
        "layers": [_layer_json(layer) for layer in ir.plan.layers],
        "parameters": {
            "total": ir.parameters.total,
            "active": ir.parameters.active,
            "mtp": ir.parameters.mtp,
        },
        "cache": {
            "state_bytes_per_slot": ir.cache.state_bytes_per_slot,
            "kv_bytes_per_token": ir.cache.kv_bytes_per_token,
            "slots_per_request": ir.cache.slots_per_request,
        },
        "ir": ir.to_json(),
    }


def _layer_json(layer: Layer) -> dict[str, object]:
    return {"index": layer.index, "attention": layer.attention, "mlp": layer.mlp}


def resolved_yaml(spec: ModelSpec) -> str:
    """The merged spec as YAML, each value followed by a comment with its file and line."""
    keys = (key for key, _ in _leaves(spec.as_tree(), ""))
    entries = (texts.position for texts in spec.table_texts)
    texts = dump_yaml(spec.as_tree()).splitlines()
    lines = []
    for line, following in zip(texts, [*texts[1:], ""], strict=True):
        # A value that ends in a colon would be in quotes, so this is a section or a list's key.
        if line.endswith(":"):
            lines.append(line)
            if _is_item(following):
                next(keys)
        else:
            place = next(entries) if _is_item(line) else spec.origin(next(keys))
            lines.append(f"{line}  # {_place(place)}")
    return "\n".join(lines) + "\n"


def resolved_json(spec: ModelSpec) -> dict[str, object]:
    """Every dotted key with its value, file and line."""
    return {
        key: {"value": value, "file": spec.origin(key).file, "line": spec.origin(key).line}
        for key, value in _leaves(spec.as_tree(), "")
    }


def _leaves(tree: dict[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_item(line: str) -> bool:
    """Whether a dumped line is a mapping in a list."""
    return line.lstrip().startswith(ITEM.lstrip())


def _place(place: Position) -> str:
    return escaped(f"{place.file}:{place.line}")


def explain_text(ir: ModelIR, color: bool) -> str:
    """The report for people: at most WIDTH columns, and nothing is lost without colour."""
    sections = [_model_rows(ir), _parameter_rows(ir), _cache_rows(ir), _attention_rows(ir)]
    sections += [_table_rows(ir)] if ir.moe else []
    texts = [table(list(rows), color) for rows in sections]
    strip = "".join(f"  {line}\n" for line in layer_strip(ir).splitlines())
    return "\n".join([texts[0] + strip, *texts[1:]])


def table(rows: list[tuple[str, str]], color: bool) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold" if color else "", no_wrap=True, width=_LABEL_WIDTH)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label), Text(text))
    file = io.StringIO()
    console = Console(
        file=file,
        width=WIDTH,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        legacy_windows=False,
    )
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _model_rows(ir: ModelIR) -> Iterator[tuple[str, str]]:
    yield "name", ir.name
    yield "architecture", f"{ir.architecture} ({ir.model_type})"
    yield "tp sizes", ", ".join(str(size) for size in ir.parallel.tp)
    yield "layers", ir.plan.description


def _parameter_rows(ir: ModelIR) -> Iterator[tuple[str, str]]:
    counts = ir.parameters
    yield "parameters", _parameters(counts.total) + (", without the MTP layer" if ir.mtp else "")
    yield "  active", f"{_parameters(counts.active)}, of one token"
    yield "  MTP layer", _parameters(counts.mtp) if ir.mtp else "none"


def _parameters(count: int) -> str:
    return f"{count / 1e9:.3f} B ({count:,})"


def _cache_rows(ir: ModelIR) -> Iterator[tuple[str, str]]:
    cache = ir.cache
    state, slots, kv = cache.state_bytes_per_slot, cache.slots_per_request, cache.kv_bytes_per_token
    drafts = "the MTP layer's included" if cache.num_draft_tokens and ir.mtp else None
    yield "state per slot", byte_text(state)
    yield "slots per request", str(slots)
    yield "state per request", byte_text(state * slots)
    yield "KV per token", byte_text(kv) + (f", {drafts}" if drafts else "")
    yield f"KV at {KV_EXAMPLE_TOKENS:,} tokens", byte_text(kv * KV_EXAMPLE_TOKENS)
    if ir.gqa:
        yield "key-value heads", f"{ir.gqa.num_key_value_heads}, each {ir.gqa.head_dim} wide"
    else:
        yield "latent width", str(ir.mla.latent_width) if ir.mla else "none"


def byte_text(count: int) -> str:
    """`58,720,256 bytes (56 MiB)`"""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count:,} bytes ({count / size:.4g} {unit})"
    return f"{count:,} bytes"


def _attention_rows(ir: ModelIR) -> Iterator[tuple[str, str]]:
    yield from _rotary_rows(ir)
    if ir.lightning:
        place = _place(ir.spec.origin(DECAY_OFFSET))
        yield "decay layer_offset", f"{ir.lightning.decay.layer_offset} ({place})"
        yield "lightning backend", ir.lightning.backend
    yield "kernels", f"Triton: {', '.join(ir.kernels.in_triton)}"
    if ir.kernels.in_torch:
        yield "  plain torch", ", ".join(_reason(ir, name) for name in ir.kernels.in_torch)


def _reason(ir: ModelIR, name: str) -> str:
    """The part's name, and why it has no kernels where that is for its sizes."""
    if name != "lightning":
        return name
    return f"lightning (head_dim {ir.lightning.head_dim}: no power of two >= 16)"


def _table_rows(ir: ModelIR) -> Iterator[tuple[str, str]]:
    """One row for each up table; its `_down` table is said beside it."""
    tables = [table for table in ir.tables if not table.is_down]
    plural = "" if len(tables) == 1 else "s"
    yield "expert kernels", f"{len(tables) or 'no'} tuned table{plural}"
    for table in tables:
        yield f"  {table.device}", table_text(table)


def table_text(table: TunedTable) -> str:
    """`fp8_w8a8 [128, 128], N 512 (tp 2), triton 3.5.1`"""
    dtype = f"{table.dtype} {list(table.block_shape)}" if table.block_shape else table.dtype
    dtype += " per channel" if table.per_channel_quant else ""
    sizes = ", ".join(str(size) for size in table.tp)
    parts = [f"{dtype}, N {table.width} (tp {sizes})", f"triton {table.triton}"]
    if table.is_alias:
        parts.append(f"tuned on {table.tuned_on}")
    if len(table.targets) == 1:
        parts.append(f"{table.targets[0]} only")
    if not table.has_down:
        parts.append("no _down table: up's rows serve both")
    return ", ".join(parts)


def _rotary_rows(ir: ModelIR) -> Iterator[tuple[str, str]]:
    if ir.lightning:
        yield "rotated, lightning", f"{ir.lightning.rotary_dim} of {ir.lightning.head_dim}"
    if ir.mla:
        width = ir.mla.qk_rope_head_dim
        yield "rotated, MLA", f"{width} of {width}"
    if ir.gqa:
        yield "rotated, GQA", f"{ir.gqa.rotary_dim} of {ir.gqa.head_dim}"
