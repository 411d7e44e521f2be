"""From a plain tree to a ModelSpec: a class for each section, a float for each float key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from lingen.errors import Position

from .model import (
    PROVENANCE,
    Attention,
    Cache,
    Decay,
    Gqa,
    Kernels,
    Lightning,
    LightningKernels,
    Mla,
    Mlp,
    Model,
    ModelSpec,
    Moe,
    MoeKernels,
    Mtp,
    Parallel,
    Pattern,
    Quantization,
    RopeScaling,
    SGLang,
    Speculative,
)
from .table_entry import MoeTable, TableText

_SECTIONS: dict[str, type] = {
    "Model": Model,
    "RopeScaling": RopeScaling,
    "Attention": Attention,
    "Pattern": Pattern,
    "Lightning": Lightning,
    "Decay": Decay,
    "Mla": Mla,
    "Gqa": Gqa,
    "Mlp": Mlp,
    "Moe": Moe,
    "Mtp": Mtp,
    "Cache": Cache,
    "Speculative": Speculative,
    "Quantization": Quantization,
    "Kernels": Kernels,
    "LightningKernels": LightningKernels,
    "MoeKernels": MoeKernels,
    "MoeTable": MoeTable,
    "Parallel": Parallel,
    "SGLang": SGLang,
}


def build_spec(
    tree: Mapping[str, object],
    file: str,
    sources: tuple[str, ...],
    origins: Mapping[str, Position],
    table_texts: tuple[TableText, ...] = (),
) -> ModelSpec:
    """A ModelSpec from a complete and valid tree; numbers of float keys become floats."""
    sections = _section_values(ModelSpec, tree)
    return ModelSpec(
        **sections, file=file, sources=sources, origins=origins, table_texts=table_texts
    )


def _section_values(section: type, tree: Mapping[str, object]) -> dict[str, object]:
    return {
        part.name: _typed(part.type, tree.get(part.name))
        for part in fields(section)
        if section is not ModelSpec or part.name not in PROVENANCE
    }


def _typed(annotation: str, value: object) -> object:
    # Annotations are text here, since model.py does not evaluate them.
    if value is None:
        return None
    annotation = annotation.removesuffix(" | None")
    if annotation in _SECTIONS:
        section = _SECTIONS[annotation]
        return section(**_section_values(section, value))
    if annotation == "float":
        return float(value)
    item = annotation.removeprefix("tuple[").removesuffix(", ...]")
    if item in _SECTIONS:
        return tuple(_SECTIONS[item](**_section_values(_SECTIONS[item], each)) for each in value)
    return tuple(value) if isinstance(value, list) else value
