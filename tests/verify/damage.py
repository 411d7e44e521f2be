"""Damages a copy of a case, or the package that verify makes of it, in one place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lingen.cli import run
from lingen.emit.render import render
from lingen.verify import package as verify_package

GOLDEN = Path(__file__).parents[1] / "golden"


def edit_json(file: Path, change: Callable[[dict], None]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def first_off(case: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The tensor that the failing report names first."""
    assert run(["verify", "--json", str(case)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False
    checks = report["cases"][0]["checks"]
    return next(check["name"] for check in checks if not check["passed"])


def edited_source(monkeypatch: pytest.MonkeyPatch, path: str, *edits: tuple[str, str]) -> None:
    """Make the package that verify renders differ in one file: each text by another, once."""

    def damaged(ir, target):
        files = render(ir, target)
        text = files[path].decode()
        for old, new in edits:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
            text = text.replace(old, new)
        return {**files, path: text.encode()}

    monkeypatch.setattr(verify_package, "render", damaged)
