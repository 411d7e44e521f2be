"""Kernel tests run in Triton's interpreter, or on a card.

Triton decides at import whether it interprets, so `test_in_interpreter.py` runs each
`test_*_kernels.py` in a process of its own with TRITON_INTERPRET=1. Elsewhere they carry the mark
`gpu`, and are skipped without a card.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lingen.ir import lower
from lingen.spec import load_spec
from lingen.verify.package import generated_package

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TINY = Path(__file__).parents[1] / "specs" / "tiny.yaml"

collect_ignore_glob = ["test_in_interpreter.py"] if IS_INTERPRETED else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if IS_INTERPRETED:
        return
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name.endswith("_kernels.py"):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if IS_INTERPRETED else "cuda"


@pytest.fixture(scope="session")
def kernels() -> Iterator[ModuleType]:
    """The `kernels` folder of a small package with every kind of layer."""
    with generated_package(lower(load_spec(TINY))) as package:
        yield package.kernels


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Memory that nobody wrote holds NaN, also what wrappers allocate."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all() and torch.ones(1).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
