"""What the README shows is true: its code, its strip, its commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """Contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_no_placeholder_is_left():
    assert not re.findall(r"^[A-Z_]+$", README, flags=re.MULTILINE)


def test_every_file_they_name_exists():
    for text in (README, CONTRIBUTING):
        for name in re.findall(
            r"[`(]((?:docs|specs|tests|generator|templates)/[\w./-]+)[`)]", text
        ):
            assert (ROOT / name).exists(), name


def test_the_generated_code_it_shows_is_in_the_package():
    [shown] = blocks("python")
    assert shown in (ROOT / "generated" / "ling_2_6_flash" / "model.py").read_text()


def test_the_layer_strip_is_what_explain_prints():
    [strip] = blocks("text")
    printed = lingen("explain", "specs/ling-2.6-flash.yaml", cwd=ROOT)
    assert strip in printed


def test_every_command_it_lists_exists():
    listed = set(re.findall(r"^\| `lingen (\w+)", README, re.MULTILINE))
    helped = lingen("--help", cwd=ROOT).partition("Commands:")[2]
    assert listed == set(re.findall(r"^  (\w+)  ", helped, re.MULTILINE))


def test_the_two_commands_are_targets_of_the_makefile():
    shown = re.findall(r"^make ([\w-]+)", "".join(blocks("sh")), re.MULTILINE)
    assert shown == ["build", "test"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*shown, "test-long"} <= set(targets)


def lingen(*arguments: str, cwd: Path) -> str:
    command = [Path(sys.executable).with_name("lingen"), *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


LAUNCH = re.compile(r"^(ling[\w-]+-sglang)-launch (.*)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("distribution", "line"), LAUNCH.findall("".join(blocks("sh"))), ids=" ".join
)
def test_its_launch_commands_start_the_server_with_what_they_say(distribution, line, tmp_path):
    package = distribution.replace("-", "_")
    project = tomllib.loads((ROOT / "generated" / package / "pyproject.toml").read_text())
    assert project["project"]["scripts"][f"{distribution}-launch"] == f"{package}.launch:main"
    arguments = shlex.split(line)
    done = subprocess.run(
        [sys.executable, "-m", f"{package}.launch", "--dry-run", *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "generated" / package)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    started = shlex.split(done.stdout.splitlines()[-1])
    assert started[:2] == ["sglang", "serve"]
    passed = [word for word in arguments if word != "--draft"]
    assert started[-len(passed) :] == passed
    assert ("NEXTN" in started) == ("--draft" in arguments)
    stages = started[started.index("--pp-size") + 1]
    assert stages == ("2" if "1t" in distribution else "1")


def test_it_shows_each_way_to_launch():
    shown = LAUNCH.findall("".join(blocks("sh")))
    assert {name for name, _ in shown} == {"ling-2-6-flash-sglang", "ling-2-6-1t-sglang"}
    for name in {name for name, _ in shown}:
        assert any("--draft" in line for other, line in shown if other == name)
    assert any("--tp-size 8" in line for _, line in shown)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the tree, where commands may write."""
    for name in ("specs", "generated", "examples", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("block", [*blocks("console"), *blocks("console", CONTRIBUTING)])
def test_its_commands_run_as_written_and_print_what_it_shows(block, checkout):
    # A reader may have followed the text in this very tree.
    for spec in re.findall(r"specs/[\w.-]+\.yaml", block):
        (checkout / spec).unlink(missing_ok=True)
        package = Path(spec).stem.replace("-", "_").replace(".", "_")
        shutil.rmtree(checkout / "generated" / package, ignore_errors=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = command.partition("\n")
        result = subprocess.run(
            line, shell=True, cwd=checkout, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{line}\n{result.stderr}"
        if shown:
            assert result.stdout == shown
