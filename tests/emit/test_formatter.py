from __future__ import annotations

import os
import stat
import tempfile
import tomllib
from pathlib import Path

import pytest
import ruff
from lingen.emit import formatter
from lingen.emit.formatter import RUFF_VERSION, Unformattable, format_sources
from lingen.errors import EnvironmentLacks


def fake_ruff(folder: Path, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "ruff"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_pin_is_the_one_in_pyproject():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"ruff=={RUFF_VERSION}" in project["project"]["dependencies"]


def test_sources_come_back_formatted_in_order():
    assert format_sources(["a = { 'x':1 }", "b=2\n\n\n\n"]) == ['a = {"x": 1}\n', "b = 2\n"]
    assert format_sources([]) == []


def test_a_source_with_a_syntax_error_is_told_by_line_and_spoils_no_other():
    first, second = format_sources(["a=1\n", "x = 1\ndef (:\n"])
    assert first == "a = 1\n"
    assert second == Unformattable(2, "Expected an identifier")


def test_another_ruff_first_on_path_is_not_used(tmp_path, monkeypatch):
    fake_ruff(tmp_path, "echo wrong >&2; exit 9\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert format_sources(["a=1\n"]) == ["a = 1\n"]
    monkeypatch.setenv("PATH", "")
    assert format_sources(["a=1\n"]) == ["a = 1\n"]


def test_configuration_files_and_variables_do_not_matter(tmp_path, monkeypatch):
    (tmp_path / "ruff.toml").write_text("[format]\nquote-style = 'single'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("RUFF_OUTPUT_FORMAT", "nonsense")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert format_sources(["a = 'x'\n"]) == ['a = "x"\n']
    assert [path.name for path in tmp_path.iterdir()] == ["ruff.toml"]


def test_an_installed_ruff_of_another_version_is_one_line_with_both(monkeypatch):
    other = [option.replace(RUFF_VERSION, "0.1.2") for option in formatter._OPTIONS]
    monkeypatch.setattr(formatter, "_OPTIONS", tuple(other))
    monkeypatch.setattr(formatter, "RUFF_VERSION", "0.1.2")
    with pytest.raises(EnvironmentLacks) as failure:
        format_sources(["a=1\n"])
    assert str(failure.value) == (
        f"ruff 0.1.2 formats the output, ruff {RUFF_VERSION} is installed: "
        "run `pip install ruff==0.1.2`."
    )
    assert failure.value.exit_code == 3


def test_a_missing_ruff_is_one_line_with_the_command(monkeypatch):
    def missing():
        raise FileNotFoundError("ruff")

    monkeypatch.setattr(ruff, "find_ruff_bin", missing)
    with pytest.raises(EnvironmentLacks) as failure:
        format_sources(["a=1\n"])
    assert str(failure.value) == (
        f"ruff {RUFF_VERSION} formats the output and is not installed: "
        f"run `pip install ruff=={RUFF_VERSION}`."
    )


@pytest.mark.parametrize("script", ["echo 'out of\nluck' >&2; exit 2\n", "kill -9 $$\n"])
def test_a_broken_ruff_is_one_line(tmp_path, monkeypatch, script):
    path = fake_ruff(tmp_path, script)
    monkeypatch.setattr(ruff, "find_ruff_bin", lambda: str(path))
    with pytest.raises(EnvironmentLacks, match=r"\A.*ruff failed: [^\n]*\Z"):
        format_sources(["a=1\n"])
