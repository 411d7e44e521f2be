"""A folder for PYTHONPATH with what one test adds to the environment, which stays as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import environment

CPU_PLATFORM = environment.HERE / "platform_plugin"


def install(python: Path, distributions: list[Path], target: Path) -> Path:
    """Install the distributions (folders with a `pyproject.toml`) into `target`; returns it.

    Their entry points are found there, as in site-packages. Nothing is downloaded.
    """
    # pip builds inside the source folder: give it copies, so that checkouts stay clean.
    copies = [_copy(folder, target.with_name(f"{target.name}-sources")) for folder in distributions]
    environment.run(
        [
            *environment.pip_install(python),
            *("--no-build-isolation", "--no-index", "--target", target),
            *copies,
        ],
        f"install {', '.join(folder.name for folder in distributions)}",
    )
    return target


def _copy(folder: Path, into: Path) -> Path:
    skipped = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(folder, into / folder.name, ignore=skipped))
