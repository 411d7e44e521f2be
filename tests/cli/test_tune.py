"""`lingen tune`: what it refuses, and what it says where there is no card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lingen.cli import run

ROOT = Path(__file__).parents[2]
FLASH = "specs/ling-2.6-flash.yaml"


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--dtype", "int4"],
            "--dtype int4: unknown\n  expected  bf16, fp8_channel, fp8_block\n",
        ),
        (
            ["--dtype", "bf16", "--tp", "3"],
            "--tp 3: moe.moe_intermediate_size 1024 is not a multiple of it\n"
            "  expected  a divisor of 1024 that parallel.tp declares\n",
        ),
        (
            ["--dtype", "bf16", "--tp", "512"],
            "--tp 512: ling-2.6-flash does not declare it in parallel.tp\n  expected  1, 2, 4, 8\n",
        ),
        (["--dtype", "bf16", "--tp", "0"], "--tp 0: too small\n  expected  at least 1\n"),
        (
            ["--dtype", "bf16", "--token-counts", "1,,8"],
            "--token-counts 1,,8: not a list of counts\n  expected  as 1,8,64\n",
        ),
        (
            ["--dtype", "bf16", "--budget", "-1"],
            "--budget -1.0: too small\n  expected  at least 0\n",
        ),
        (["--dtype", "bf16", "--workers", "-1"], "--workers -1: too small\n"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(arguments, expected, capsys):
    assert run(["tune", FLASH, *arguments]) == 2
    assert capsys.readouterr().err.startswith(expected)


def spec(folder: Path, text: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(f"extends: ling-2.6-flash\nmodel:\n  name: mine\n{text}")
    return str(file)


def test_experts_spread_over_ranks_are_refused(tmp_path, capsys):
    mine = spec(tmp_path, "parallel:\n  ep: 2\ntargets: [torch]\n")
    assert run(["tune", mine, "--dtype", "bf16", "--tp", "4"]) == 2
    error = capsys.readouterr().err
    assert "parallel.ep" in error and "2" in error


def test_weights_that_the_spec_does_not_load_are_refused(tmp_path, capsys):
    mine = spec(
        tmp_path,
        "quantization:\n  checkpoint_formats: [bfloat16]\nkernels:\n  moe:\n    tables: []\n",
    )
    assert run(["tune", mine, "--dtype", "fp8_block"]) == 2
    assert capsys.readouterr().err == (
        "--dtype fp8_block: mine does not load such weights\n"
        "  expected  quantization.checkpoint_formats with fp8_block, not bfloat16\n"
        "Nothing was written.\n"
    )


def test_a_rank_narrower_than_a_block_of_weights_is_refused(tmp_path, capsys):
    mine = spec(tmp_path, "moe:\n  moe_intermediate_size: 512\nkernels:\n  moe:\n    tables: []\n")
    assert run(["tune", mine, "--dtype", "fp8_block", "--tp", "8"]) == 2
    assert capsys.readouterr().err == (
        "--tp 8: moe.moe_intermediate_size of a rank is 64, no multiple of the weights' blocks\n"
        "  expected  a multiple of quantization.weight_block_size, [128, 128]\n"
        "Nothing was written.\n"
    )


def without(hidden: str, *arguments: str) -> subprocess.CompletedProcess:
    code = (
        f"import importlib.util as u; find = u.find_spec\n{hidden}\n"
        "from lingen.cli import run; import sys; sys.exit(run(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "tune", FLASH, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_says_what_is_not_installed():
    hide = "u.find_spec = lambda n, *a: None if n in ('torch', 'triton') else find(n, *a)"
    result = without(hide, "--dtype", "bf16")
    assert result.returncode == 3
    assert result.stderr == (
        "tune runs the experts of a package, and torch and triton cannot be imported\n"
        "  fix       pip install 'lingen[runtime]'\n"
    )


def test_it_needs_a_card(tmp_path):
    hide = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''"
    result = without(hide, "--dtype", "bf16", "--tp", "2", "-o", str(tmp_path / "out"))
    assert result.returncode == 3
    assert result.stderr == (
        "tune measures on a CUDA card, and torch finds none here\n"
        "  fix       run it on a machine with the card that the tables are for\n"
    )
    assert not (tmp_path / "out").exists()


def test_wrong_options_are_found_before_a_card_is_looked_for():
    assert without("", "--dtype", "bf8").returncode == 2


def test_its_json_has_the_documented_keys(tmp_path):
    sys.path.insert(0, str(ROOT / "tests/tuning"))
    from fake_card import FakeMeasurer, tuned
    from lingen.tuning.output import as_json, as_text

    outcome = tuned(tmp_path, FakeMeasurer())
    found = json.loads(as_json(outcome))
    assert list(found) == [
        "table", "down_table", "measured", "key", "tokens", "tried", "skipped", "seconds",
    ]  # fmt: skip
    assert list(found["tokens"]["8"]) == [
        "up", "down", "is_default", "microseconds", "default_microseconds",
    ]  # fmt: skip
    assert Path(found["table"]).is_file() and Path(found["down_table"]).is_file()
    text = as_text(outcome, "- file: x")
    assert text.splitlines()[0].split()[:2] == ["tokens", "table"]
    assert f"written   {outcome.files.up}" in text
