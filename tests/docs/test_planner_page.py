"""Every command that docs/planner.md shows prints what the page says."""

import re
from pathlib import Path

import pytest
from lingen.cli import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/planner.md").read_text(encoding="utf-8")
CASES = re.findall(r"^```console\n\$ lingen (.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)


def test_the_page_has_its_worked_cases():
    assert len(CASES) >= 5


@pytest.mark.parametrize(("command", "printed"), CASES, ids=[command for command, _ in CASES])
def test_a_command_prints_what_the_page_shows(command, printed, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    run(command.split())
    found = capsys.readouterr()
    assert found.out + found.err == printed
