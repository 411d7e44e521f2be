"""The planner's own source, for packages that carry it."""

from __future__ import annotations

import ast
from importlib import resources

# In this order: what comes first needs nothing of what follows.
_MODULES = ("geometry.py", "options.py", "solve.py", "refusal.py", "allocator.py")


def planner_source() -> str:
    """Everything that `plan_cache` needs, without docstrings of modules and without imports."""
    texts = [
        resources.files("lingen.planner").joinpath(name).read_text("utf-8") for name in _MODULES
    ]
    return "\n\n".join(module_body(text) for text in texts)


def module_body(text: str) -> str:
    """The source behind the last import of a module."""
    imports = [
        node.end_lineno or 0
        for node in ast.parse(text).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    return "\n".join(text.splitlines()[max(imports) :]).strip() + "\n"
