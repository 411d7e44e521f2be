"""Imports, builds and installs a plugin for the recorded case, as a user does."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import environment
import overlay
from lingen.cli import run

CASE = environment.HERE.parent / "golden" / "engine-h128"


@dataclass(frozen=True)
class Plugin:
    overlay: Path  # goes on PYTHONPATH
    name: str  # of its entry point
    package: str


def build(scratch: Path, *settings: str, config: Path = CASE / "config.json") -> Path:
    """A built distribution's folder. Each setting, `section.key=value`, lies over the config's."""
    spec = scratch / "engine-h128.yaml"
    chosen = [word for setting in settings for word in ("--set", setting)]
    assert run(["import", str(config), "--output", str(spec), *chosen]) == 0
    out = scratch / "generated"
    assert run(["build", str(spec), "--target", "sglang", "--out", str(out)]) == 0
    (project,) = out.glob("*/pyproject.toml")
    return project.parent


def install(distribution: Path, target: Path) -> Plugin:
    """The distribution and the CPU platform, installed into the new folder `target`."""
    project = tomllib.loads((distribution / "pyproject.toml").read_text())["project"]
    ((name, function),) = project["entry-points"]["sglang.srt.plugins"].items()
    overlay.install(environment.python(), [distribution, overlay.CPU_PLATFORM], target)
    return Plugin(target, name, function.partition(":")[0].partition(".")[0])
