"""One plugin, and one run without drafts, for all tests of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import engine
import environment
import plugins
import pytest
import record
from engine import Request, Run
from plugins import Plugin


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """The environment's Python; the environment is built if need be."""
    try:
        return environment.python()
    except environment.Missing as error:
        pytest.exit(f"{error}", returncode=3)


@pytest.fixture(scope="session")
def plugin(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """The plugin that the config of `engine-h128` gives."""
    scratch = tmp_path_factory.mktemp("plugin")
    return plugins.install(plugins.build(scratch), scratch / "overlay")


Serve = Callable[..., Run]


@pytest.fixture
def serve(plugin: Plugin, tmp_path: Path) -> Serve:
    """Serve batches of requests with the plugin and the recorded checkpoint."""
    return _serve(plugin, tmp_path)


@pytest.fixture(scope="module")
def serve_once(plugin: Plugin, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """The same, for a run that several tests look at."""
    return _serve(plugin, tmp_path_factory.mktemp("once"))


@pytest.fixture(scope="session")
def greedy_run(plugin: Plugin, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Both prompts, 24 new tokens each, one rank, no cache, no drafts."""
    return _serve(plugin, tmp_path_factory.mktemp("greedy"))(record.prompts(24, 0, 1))


def _serve(plugin: Plugin, scratch: Path) -> Serve:
    def serve(*batches: list[Request], **arguments: object) -> Run:
        return engine.serve(plugin, record.CASE, list(batches), scratch / "run", **arguments)

    return serve
