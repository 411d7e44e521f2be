"""Modules of the generator import downwards only, and few of them need torch."""

import ast
from pathlib import Path

import pytest

GENERATOR = Path(__file__).parents[2] / "generator"
MODULES = sorted(GENERATOR.rglob("*.py"))

# A part imports parts of a lower rank, and itself.
RANKS = {
    "lingen": 0,
    "errors": 0,
    "files": 0,
    "planner": 0,
    "tuned": 0,
    "spec": 1,
    "ir": 2,
    "hf": 2,
    "targets": 3,
    "starter": 3,
    "emit": 4,
    "report": 4,
    "diff": 5,
    "pictures": 5,
    "verify": 5,
    "sizing": 6,
    "tuning": 6,
    "plan_command": 7,
    "tune_command": 7,
    "cli": 8,
}
HEAVY = {"torch", "safetensors", "triton", "numpy", "transformers"}
RUN_PACKAGES = {"verify", "tuning"}


def part_of(module):
    """`lingen.spec.model` → `spec`; `lingen` itself → `lingen`."""
    steps = module.split(".")
    return steps[1] if len(steps) > 1 and steps[1] in RANKS else steps[0]


def module_name(path):
    steps = path.relative_to(GENERATOR).with_suffix("").parts
    return ".".join(("lingen", *(step for step in steps if step != "__init__")))


def imports(path, source=None):
    """Every module that a file imports, those inside functions too, by absolute name."""
    tree = ast.parse(path.read_text() if source is None else source)
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def wrong_imports(path, source=None):
    own = part_of(module_name(path))
    found = []
    for target in imports(path, source):
        root = target.split(".")[0]
        if root in HEAVY and own not in RUN_PACKAGES:
            found.append(target)
        if root != "lingen":
            continue
        part = part_of(target)
        if part != own and RANKS[part] >= RANKS[own] and RANKS[part] > 0:
            found.append(target)
    return found


def test_every_part_of_the_generator_has_a_rank():
    parts = {path.relative_to(GENERATOR).parts[0].removesuffix(".py") for path in MODULES}
    assert parts - {"__init__"} <= set(RANKS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(GENERATOR)))
def test_imports_point_downwards_and_torch_stays_out(path):
    assert wrong_imports(path) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("spec/loader.py", "from lingen.ir import lower"),
        ("spec/loader.py", "def f():\n    import lingen.hf"),
        ("spec/loader.py", "from ..ir.types import ModelIR"),
        ("ir/lower.py", "from lingen import report"),
        ("planner/solve.py", "from lingen.ir.cache import DTYPE_BYTES"),
        ("ir/lower.py", "from lingen.hf import import_config"),
        ("hf/reading.py", "from lingen.ir import lower"),
        ("targets/torch.py", "from lingen.emit.render import render"),
        ("errors.py", "from lingen.spec import load_spec"),
        ("report.py", "from lingen.cli import run"),
        ("report.py", "from lingen.pictures import draw"),
        ("emit/build.py", "from lingen.diff import diff_models"),
        ("starter.py", "from lingen.emit.build import build"),
        ("emit/build.py", "import torch.nn"),
        ("cli.py", "def f():\n    from safetensors import safe_open"),
    ],
)
def test_a_wrong_import_is_found(file, source):
    assert len(wrong_imports(GENERATOR / file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("ir/lower.py", "from lingen.spec.model import ModelSpec"),
        ("spec/loader.py", "from .model import ModelSpec"),
        ("cli.py", "from lingen.emit.build import build"),
        ("emit/header.py", "from lingen import __version__"),
        ("verify/run.py", "import torch"),
        ("tuning/card.py", "import torch"),
    ],
)
def test_a_right_import_is_accepted(file, source):
    assert wrong_imports(GENERATOR / file, source) == []
