"""The lookup's own source, for packages that carry it."""

from __future__ import annotations

from importlib import resources

from lingen.planner.source import module_body


def lookup_source() -> str:
    """Everything that `find_tables` needs, without the module's docstring and imports."""
    return module_body(resources.files("lingen.tuned").joinpath("lookup.py").read_text("utf-8"))
