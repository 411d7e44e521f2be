"""Specs: a strict YAML dialect with positions, inheritance, a schema, and rules between keys."""

from .dump import dump_yaml
from .extends import shipped_folder, shipped_specs
from .loader import load_spec, load_spec_text
from .model import ModelSpec

__all__ = [
    "ModelSpec",
    "dump_yaml",
    "load_spec",
    "load_spec_text",
    "shipped_folder",
    "shipped_specs",
]
