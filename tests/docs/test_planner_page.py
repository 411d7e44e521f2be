"""Every command and every row of docs/planner.md is planned again and says what the page says."""

import importlib
import json
import re
from pathlib import Path

import pytest
from lingen.cli import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/planner.md").read_text(encoding="utf-8")
CASES = re.findall(r"^```console\n\$ lingen (.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
# Command above a table, and its rows of text.
TABLES = re.findall(
    r"`lingen plan ([^`]+)`\n\n\| .*\n\|[-:|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE
)
ROWS = [
    (command, [cell.strip() for cell in line.strip("|").split("|")])
    for command, lines in TABLES
    for line in lines.splitlines()
]
BUFFER_ROWS = [
    (command, cells) for command, cells in ROWS if len(cells) == 5 and "--device" in command
]
CARD_ROWS = [(command, cells) for command, cells in ROWS if len(cells) == 9]
GAIN_ROWS = [(command, cells) for command, cells in ROWS if "--device" not in command]
GIB = 1 << 30


@pytest.fixture
def planned(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)

    def call(command):
        assert run(["plan", *command.split(), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def test_the_page_has_its_worked_cases():
    assert len(CASES) >= 7
    assert (len(CARD_ROWS), len(BUFFER_ROWS), len(GAIN_ROWS)) == (3 * 6, 3, 5)


@pytest.mark.parametrize(("command", "cells"), CARD_ROWS)
def test_a_worked_case_is_what_is_planned(command, cells, planned):
    drafts, *states = cells[0].split(", ")
    command += f" --draft-tokens {0 if drafts == 'none' else drafts}"
    command += "".join(f" --verify-states {value}" for value in states)
    command += {"yes": "", "no": " --no-prefix-cache"}[cells[1]]
    found = planned(command)
    requests = found["max_running_requests"]
    assert cells[2:] == [
        f"{found['weight_bytes'] / GIB:.1f}",
        f"{found['bytes']['budget'] / GIB:.1f}",
        f"{found['max_state_slots']:,}",
        f"{requests:,}",
        f"{found['verify_rows']:,}",
        f"{found['kv_tokens']:,}",
        f"{found['kv_pages'] // requests * found['page_size']:,}",
    ]


@pytest.mark.parametrize(("command", "cells"), BUFFER_ROWS)
def test_an_extra_buffer_takes_what_the_page_says(command, cells, planned):
    found = planned(f"{command} --extra-buffer {cells[0]}")
    keys = ("slots_per_request", "max_state_slots", "max_running_requests", "kv_tokens")
    assert cells[1:] == [f"{found[key]:,}" for key in keys]


@pytest.mark.parametrize(("command", "cells"), GAIN_ROWS)
def test_the_gain_is_over_the_closed_form(command, cells, planned):
    asked, slots, closed_form, gain, rows = cells
    found = planned(f"{command} --max-running-requests {asked}")
    share = 8 * GIB * 9 // 19
    size = found["state_bytes_per_slot"]
    expected = (share - size * (1 + 4)) * 3 // (size * (3 + 4))
    assert [found["max_state_slots"], expected] == [int(slots), int(closed_form)]
    assert found["max_state_slots"] - expected == int(gain) > 0
    assert found["verify_rows"] == int(rows) == min(int(asked), found["max_state_slots"] // 3)


def test_the_lines_for_a_package_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "generated"))
    package = importlib.import_module("ling_2_6_flash")
    [lines] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names = dict(vars(package))
    exec(lines.replace('"cuda"', '"meta"'), names)
    sizes = [tensor.nbytes for tensor in names["pools"].tensors()]
    plan = names["plan"]
    assert sizes == [plan.state_bytes, plan.verify_bytes, plan.kv_bytes]
    assert len(names["held"].pages) == -(-1000 // plan.page_size)


@pytest.mark.parametrize(("command", "printed"), CASES, ids=[command for command, _ in CASES])
def test_a_command_prints_what_the_page_shows(command, printed, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    run(command.split())
    found = capsys.readouterr()
    assert found.out + found.err == printed
