"""`python -m PLUGIN.launch`: the environment, the command, and what a user may change of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

FLASH, BIG = "ling_2_6_flash_sglang", "ling_2_6_1t_sglang"
SHARED = (
    "--page-size 64 --kv-cache-dtype auto --mamba-ssm-dtype float32 --mamba-full-memory-ratio 0.9 "
    "--mamba-radix-cache-strategy extra_buffer"
)
DRAFTING = (
    "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4"
)


def dry(site, plugin: str, line: str, **variables: str) -> tuple[dict[str, str], str]:
    """The variables and the command that `--dry-run` prints for a line of arguments."""
    done = site.run("-m", f"{plugin}.launch", "--dry-run", *shlex.split(line), **variables)
    assert done.returncode == 0
    assert re.fullmatch(rf"{plugin}: .+\n", done.stderr), "one note, on the tables"
    *exports, command = done.stdout.splitlines()
    words = [shlex.split(export) for export in exports]
    assert all(first == "export" for first, _ in words)
    pairs = (pair.partition("=") for _, pair in words)
    return {name: value for name, _, value in pairs}, command


@pytest.mark.parametrize(
    ("plugin", "line", "command"),
    [
        (FLASH, "--model-path M", f"--tp-size 4 --pp-size 1 {SHARED} --model-path M"),
        (FLASH, "--model-path M --tp-size 8", f"--pp-size 1 {SHARED} --model-path M --tp-size 8"),
        (
            FLASH,
            "--model-path M --draft",
            f"--tp-size 4 --pp-size 1 {SHARED} {DRAFTING} --model-path M",
        ),
        (
            BIG,
            "--model-path M --nnodes 2 --node-rank 1 --dist-init-addr h:1",
            f"--tp-size 8 --pp-size 2 {SHARED} --model-path M --nnodes 2 --node-rank 1 "
            "--dist-init-addr h:1",
        ),
    ],
)
def test_the_recommended_command(both, plugin, line, command):
    variables, printed = dry(both, plugin, line)
    assert printed == f"sglang serve {command}"
    assert variables.keys() == {"SGLANG_PLUGINS", "PYTHONSAFEPATH", "SGLANG_MOE_CONFIG_DIR"}
    assert variables["SGLANG_PLUGINS"] == plugin
    assert variables["PYTHONSAFEPATH"] == "1"
    cache = both.folder.parent / "cache" / plugin
    assert Path(variables["SGLANG_MOE_CONFIG_DIR"]).parent == cache


def test_drafting_over_stages_sets_the_engines_switch(both):
    variables, command = dry(both, BIG, "--model-path M --draft")
    assert variables["SGLANG_ENABLE_PP_SPEC"] == "1"
    assert DRAFTING in command
    for plugin, line in (
        (BIG, "--model-path M --draft --pp-size 1"),
        (BIG, "--model-path M --draft --pipeline-parallel-size=1"),
        (FLASH, "--model-path M --draft"),
        (BIG, "--model-path M"),
        (BIG, "--model-path M --plain"),
    ):
        assert "SGLANG_ENABLE_PP_SPEC" not in dry(both, plugin, line)[0], line
    line = "--model-path M --pp-size 2 --speculative-algorithm EAGLE --plain"
    assert dry(both, FLASH, line)[0]["SGLANG_ENABLE_PP_SPEC"] == "1"


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ("--tp-size 2", "--tp-size 4"),
        ("--tp-size=2", "--tp-size 4"),
        ("--tensor-parallel-size 2", "--tp-size 4"),
        ("--tensor-parallel 2", "--tp-size 4"),
        ("--tp 2", "--tp-size 4"),
        ("--page-size 128", "--page-size 64"),
        ("--mamba-ssm-dtype bfloat16", "--mamba-ssm-dtype float32"),
        ("--mamba-full-memory-ratio 0.5", "--mamba-full-memory-ratio 0.9"),
        ("--mamba-radix-cache-strategy no_buffer", "--mamba-radix-cache-strategy extra_buffer"),
        ("--speculative-num-steps 1", "--speculative-num-steps 3"),
    ],
)
def test_an_argument_that_is_given_replaces_the_recommended_one(both, given, gone):
    plain = dry(both, FLASH, "--model-path M --draft")[1]
    command = dry(both, FLASH, f"--model-path M --draft {given}")[1]
    assert gone in plain
    assert command == f"{plain.replace(gone + ' ', '')} {given}"


def test_other_arguments_pass_through_as_they_are(both):
    line = "--model-path M --trust-remote-code --json-model-override-args '{\"a b\": 1}' --x=y"
    assert dry(both, FLASH, line)[1].endswith(line)


def test_the_model_may_come_first_without_its_name(both):
    assert dry(both, FLASH, "org/model --port 1")[1].endswith(" --model-path org/model --port 1")


def test_plain_recommends_nothing(both):
    assert dry(both, FLASH, "--plain --draft M")[1] == f"sglang serve {DRAFTING} --model-path M"
    assert dry(both, FLASH, "--plain --config f.yaml")[1] == "sglang serve --config f.yaml"


def test_a_config_file_that_would_lose_is_refused(both):
    done = both.run("-m", f"{FLASH}.launch", "--dry-run", "--config", "f.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{FLASH}: --config: this model's arguments would win over the file; "
        "--plain leaves them out\n"
    )


def test_further_plugins_and_tables_can_be_chosen(both):
    line, tables = "M --with-plugins a,b", {"SGLANG_MOE_CONFIG_DIR": "/mine"}
    variables, _ = dry(both, FLASH, line, SGLANG_PLUGINS="other", **tables)
    assert variables["SGLANG_PLUGINS"] == f"{FLASH},a,b"
    assert "SGLANG_MOE_CONFIG_DIR" not in variables


def test_a_dry_run_writes_nothing(flash):
    dry(flash, FLASH, "M")
    assert not (flash.folder.parent / "cache").exists()


@pytest.fixture
def server(flash) -> str:
    """A PATH whose command `sglang` is of another Python, and must not be started."""
    command = flash.folder.parent / "commands" / "sglang"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho another >&2\n")
    command.chmod(0o755)
    return f"{command.parent}{os.pathsep}{os.environ['PATH']}"


def test_it_starts_what_a_dry_run_prints(flash, server):
    variables, command = dry(flash, FLASH, "M --draft --pp-size 2", PATH=server)
    done = flash.run("-m", f"{FLASH}.launch", "M", "--draft", "--pp-size", "2", PATH=server)
    assert (done.returncode, done.stderr) == (0, "")
    checked, started = done.stdout.splitlines()
    assert checked.startswith(f"{FLASH}: SGLang 0.5.23 serves ")
    assert json.loads(started) == {
        "arguments": shlex.split(command)[2:],
        "variables": variables,
    }
    assert (Path(variables["SGLANG_MOE_CONFIG_DIR"]) / "configs").is_dir()


def test_nothing_starts_if_the_check_fails(flash, server):
    (flash.folder / FLASH / "plugin.py").write_text("raise ValueError('no')\n")
    done = flash.run("-m", f"{FLASH}.launch", "M", PATH=server)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{FLASH}: Failed to load plugin {FLASH}: ValueError: no\n"


def test_without_a_command_of_its_own_the_same_python_starts_the_server(flash, server):
    """Never another `sglang` on PATH, whose Python the check did not look at."""
    start = f"""
import os, sys
import sysconfig
from {FLASH} import launch
sysconfig.get_path = lambda name: "/nowhere"
os.execve = lambda *arguments: print(*arguments[1][:-1])
sys.argv = ["launch", "--plain", "M"]
launch.main()
"""
    done = flash.run("-c", start, PATH=server)
    started = done.stdout.splitlines()[-1]
    assert started == f"{sys.executable} -m sglang.launch_server --model-path"


def test_notes_say_what_becomes_of_the_tables(both):
    line = ("-m", f"{FLASH}.launch", "--dry-run", "M")
    made = both.run(*line)
    assert made.stderr.startswith(f"{FLASH}: a dry run does not make /")
    kept = both.run(*line, SGLANG_MOE_CONFIG_DIR="/mine")
    assert kept.stderr == (
        f"{FLASH}: SGLANG_MOE_CONFIG_DIR is set already: this model's tuned tables are not used\n"
    )


def test_a_bare_double_dash_is_dropped(both):
    assert dry(both, FLASH, "-- M --port 1") == dry(both, FLASH, "M --port 1")


def test_the_console_script_is_not_shadowed_by_a_folder_of_the_name(flash, server, tmp_path):
    here = tmp_path / "here"
    (here / FLASH).mkdir(parents=True)
    (here / FLASH / "__init__.py").write_text("raise ValueError\n")
    script = flash.folder / "bin" / "ling-2-6-flash-sglang-launch"
    done = flash.run(script, "M", cwd=here, PATH=server)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_without_an_mtp_layer_has_no_option_to_draft():
    from lingen.emit.render import render
    from lingen.emit.selection import shipped_folder
    from lingen.ir import lower
    from lingen.spec import load_spec

    ir = lower(load_spec(shipped_folder() / "ring-2.5-1t.yaml"))
    text = render(ir, "sglang")["ring_2_5_1t_sglang/launch.py"].decode()
    assert "draft" not in text.lower()
    compile(text, "launch.py", "exec")
