"""Formats generated Python with the pinned ruff, all files of a build in one process.

Knows nothing of templates or of the output folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lingen.errors import EnvironmentLacks

RUFF_VERSION = "0.17.6"
"""The formatter is part of the output: this is the version pinned in pyproject.toml."""

_OPTIONS = (
    "format",
    "--isolated",
    "--no-cache",
    "--line-length=100",
    "--target-version=py311",
    f"--config=required-version='=={RUFF_VERSION}'",
)
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
_PARSE_FAILURE = re.compile(r"Failed to parse (\d+)\.py:(\d+):(\d+): (.*)")


@dataclass(frozen=True, slots=True)
class Unformattable:
    """Why one source could not be formatted. `line` counts from 1."""

    line: int
    reason: str


def format_sources(sources: Sequence[str]) -> list[str | Unformattable]:
    """Each Python source formatted, in order; line endings are LF and the last line is complete.

    The result depends on the sources alone: no configuration file, no environment variable and no
    ruff found on PATH takes part. Raises EnvironmentLacks if the pinned ruff is not installed.
    """
    if not sources:
        return []
    import tempfile

    binary = _ruff_binary()
    with tempfile.TemporaryDirectory(prefix="lingen-") as folder:
        paths = [Path(folder, f"{index}.py") for index in range(len(sources))]
        for path, source in zip(paths, sources, strict=True):
            path.write_bytes(source.encode())
        failures = _run_ruff(binary, folder, [path.name for path in paths])
        return [
            failures.get(index) or path.read_bytes().decode() for index, path in enumerate(paths)
        ]


def _ruff_binary() -> str:
    """The ruff that belongs to this Python's `ruff` package, never another one on PATH."""
    try:
        import ruff

        return ruff.find_ruff_bin()
    except (ImportError, FileNotFoundError) as error:
        raise EnvironmentLacks(
            f"ruff {RUFF_VERSION} formats the output and is not installed: "
            f"run `pip install ruff=={RUFF_VERSION}`."
        ) from error


def _run_ruff(binary: str, folder: str, names: list[str]) -> dict[int, Unformattable]:
    import subprocess

    try:
        done = subprocess.run(
            [binary, *_OPTIONS, "--", *names],
            cwd=folder,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise EnvironmentLacks(f"{binary} does not run: {error.strerror}.") from error
    if done.returncode == 0:
        return {}
    failures = {
        int(index): Unformattable(int(line), reason)
        for index, line, _, reason in _PARSE_FAILURE.findall(done.stderr)
    }
    if not failures:
        raise _refusal(binary, done.stderr)
    return failures


def _refusal(binary: str, stderr: str) -> EnvironmentLacks:
    """ruff ran and formatted nothing: its version is not the pinned one, or it is broken."""
    running = re.search(r"running version `([^`]+)`", stderr)
    if running:
        return EnvironmentLacks(
            f"ruff {RUFF_VERSION} formats the output, ruff {running[1]} is installed: "
            f"run `pip install ruff=={RUFF_VERSION}`."
        )
    return EnvironmentLacks(f"{binary} failed: {' '.join(stderr.split())[:300]}")
