"""The generated model modules without the engine: what they import from it is a bare stand-in.

A stand-in is an empty `nn.Module` class; what a test needs of one it sets on the module. The real
engine runs in tests/sglang.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

from lingen.emit.render import render
from lingen.ir import ModelIR, lower
from lingen.spec import load_spec
from torch import nn

SPECS = Path(__file__).parents[2] / "specs"
MODEL = "bailing_moe_v2_5"
DRAFT = "bailing_moe_nextn"
STUBBED = ("sglang", "transformers")


def plugin_ir(name: str, *settings: str) -> ModelIR:
    """A shipped spec with values replaced, each `section.key=value`."""
    return lower(load_spec(SPECS / f"{name}.yaml", settings))


@contextmanager
def plugin_modules(ir: ModelIR, folder: Path) -> Iterator[SimpleNamespace]:
    """The model module and the draft module (None without an MTP layer) of the plugin, imported."""
    package = ir.sglang.package
    for path, data in render(ir, "sglang").items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    root = folder / package
    stubs = {}
    for file in (root / "models").glob("*.py"):
        for module, names in engine_imports(file):
            add_stub(stubs, module, names)
    hidden = {
        name: sys.modules.pop(name) for name in list(sys.modules) if is_replaced(name, package)
    }
    sys.modules.update(stubs)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        model = importlib.import_module(f"{package}.models.{MODEL}")
        has_draft = (root / "models" / f"{DRAFT}.py").is_file()
        draft = importlib.import_module(f"{package}.models.{DRAFT}") if has_draft else None
        yield SimpleNamespace(model=model, draft=draft, ir=ir)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if is_replaced(name, package)]:
            del sys.modules[name]
        sys.modules.update(hidden)


def is_replaced(module: str, package: str) -> bool:
    return module.partition(".")[0] in (package, *STUBBED)


def engine_imports(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Modules and names that a file imports from what is stubbed, at any depth."""
    for node in ast.walk(ast.parse(file.read_text())):
        is_import = isinstance(node, ast.ImportFrom) and node.level == 0
        if is_import and node.module.partition(".")[0] in STUBBED:
            yield node.module, [alias.name for alias in node.names]


def add_stub(stubs: dict[str, ModuleType], module: str, names: list[str]) -> None:
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        stubs.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    for name in names:
        if not hasattr(stubs[module], name):
            setattr(stubs[module], name, StandIn.named(name))


class StandIn(nn.Module):
    """Takes any arguments and keeps them."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        super().__init__()
        self.arguments, self.keywords = arguments, keywords

    @staticmethod
    def named(name: str) -> type[StandIn]:
        return type(name, (StandIn,), {})
