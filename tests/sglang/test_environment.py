"""The engine's environment and processes: nothing half-built is used, nothing outlives its test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import engine
import environment
import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LINGEN_CACHE", str(tmp_path))
    return tmp_path


def fake_run(command: list[object], purpose: str) -> str:
    """Instead of venv and pip: the folders that they would leave."""
    if "venv" in command:
        (Path(str(command[-1])) / "lib/python3.11/site-packages").mkdir(parents=True)
    return "versions"


def test_a_half_built_environment_is_built_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(command: list[object], purpose: str) -> str:
        if "venv" not in command:
            raise environment.Missing("no network")
        return fake_run(command, purpose)

    monkeypatch.setattr(environment, "run", interrupted)
    with pytest.raises(environment.Missing, match="no network"):
        environment.python()
    left_over = environment.folder() / "lib"
    assert left_over.is_dir() and not (environment.folder() / environment.READY).exists()
    (left_over / "half").touch()
    monkeypatch.setattr(environment, "run", fake_run)
    assert environment.python() == environment.folder() / "bin" / "python"
    assert not (left_over / "half").exists()


def test_a_ready_environment_is_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "run", fake_run)
    environment.python()
    monkeypatch.setattr(environment, "run", None)
    assert environment.python().parent.parent.parent == cache


def test_other_pins_are_another_environment(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment.folder()
    other = tmp_path / "requirements.txt"
    other.write_text(environment.REQUIREMENTS.read_text() + "one-more==1\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", other)
    assert environment.folder() != before


def test_every_requirement_is_exact() -> None:
    assert all(pin.count("==") == 1 for pin in environment.pins())


def test_what_is_missing_is_said_with_status_3(cache: Path) -> None:
    program = (
        "import environment, sys; environment.PYTHON_VERSION = (3, 0); sys.exit(environment.main())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=environment.HERE,
        env=os.environ | {"LINGEN_CACHE": str(cache)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 3
    assert result.stderr.startswith("sglang environment: the SGLang environment needs python3.0 ")
    assert "Traceback" not in result.stderr


def test_a_hanging_run_fails_and_leaves_no_process(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has a process group of its own, as the engine's may have."""
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'], process_group=0)\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(engine, "TIMEOUT", 1)
    with pytest.raises(pytest.fail.Exception, match="ran longer than 1 s") as failure:
        engine._run([sys.executable, "-c", program], dict(os.environ), tmp_path)
    child = int(str(failure.value).split()[1])
    assert _ended(child)


def test_a_failed_run_shows_the_end_of_its_output(cache: Path, tmp_path: Path) -> None:
    program = "print('what went wrong'); raise SystemExit(7)"
    with pytest.raises(pytest.fail.Exception, match=r"(?s)what went wrong.*status 7"):
        engine._run([sys.executable, "-c", program], dict(os.environ), tmp_path)


def _ended(pid: int) -> bool:
    for _ in range(50):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False
