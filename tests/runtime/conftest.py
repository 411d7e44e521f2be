"""The generated package of tests/specs/tiny.yaml, and a model of it with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from lingen.ir import ModelIR
from lingen.verify.package import generated_package
from small_models import fill_randomly, lowered
from torch import nn


@pytest.fixture(scope="session")
def tiny_ir() -> ModelIR:
    return lowered()


@pytest.fixture(scope="session")
def tiny(tiny_ir: ModelIR) -> Iterator[ModuleType]:
    with generated_package(tiny_ir) as package:
        yield package


@pytest.fixture(scope="session")
def tiny_model(tiny: ModuleType) -> nn.Module:
    return fill_randomly(tiny.ForCausalLM())
