"""The shipped plugins' modules, on stand-ins for the engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from engine_stubs import plugin_ir, plugin_modules

# The list of published tensors is that of the tests of the other target.
sys.path.append(str(Path(__file__).parents[1] / "runtime"))


@pytest.fixture(scope="session", params=["ling-2.6-flash", "ling-2.6-1t"])
def plugin(request, tmp_path_factory):
    with plugin_modules(plugin_ir(request.param), tmp_path_factory.mktemp("plugin")) as modules:
        yield modules


@pytest.fixture(scope="session")
def flash(tmp_path_factory):
    ir = plugin_ir("ling-2.6-flash")
    with plugin_modules(ir, tmp_path_factory.mktemp("flash")) as modules:
        yield modules
