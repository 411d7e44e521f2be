"""The plugin's own commands on the real engine: what tests/plugin shows on a stand-in holds there.

A check takes about 10 s, most of it the engine's imports.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import environment
import pytest
from plugins import Plugin

pytestmark = pytest.mark.sglang

MODEL = "BailingMoeV2_5ForCausalLM"
SECOND = """
def register():
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.register(__name__ + ".models", overwrite=True, strict=True)
"""
PARSED = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print("parsed", json.dumps(vars(parser.parse_args(sys.argv[1:])), default=str))
"""
TABLES = """
import os, sys
import {package}.tables as tables
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as engine
configs = os.path.join(os.path.dirname(os.path.realpath(engine.__file__)), "configs")
folder = tables.write_tables(tables.find_tables())
print(os.path.realpath(tables._engine_folder()) == configs, folder)
"""


def python(
    site: Path, *arguments: object, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the engine's Python with the plugins of one folder."""
    kept = {k: v for k, v in environment.clean_environment().items() if "SGLANG" not in k}
    own = {"PYTHONPATH": str(site), "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [environment.python(), *map(str, arguments)],
        cwd=cwd,
        env=kept | own | {"XDG_CACHE_HOME": str(cwd / "cache")} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def site(plugin: Plugin, tmp_path: Path) -> Path:
    """A copy of the folder with the plugin, which a test may change."""
    return Path(shutil.copytree(plugin.overlay, tmp_path / "site"))


def check(plugin: Plugin, site: Path, cwd: Path, selected: str) -> tuple[int, str]:
    """Exit code and the one line of a check."""
    done = python(site, "-m", f"{plugin.package}.check", cwd=cwd, SGLANG_PLUGINS=selected)
    text = done.stdout + done.stderr
    assert text.count("\n") == 1, text
    return done.returncode, text.removeprefix(f"{plugin.package}: ")[:-1]


def test_the_check_passes_with_the_plugin_selected(plugin, site, tmp_path):
    code, text = check(plugin, site, tmp_path, plugin.name)
    assert (code, text) == (
        0,
        f"SGLang 0.5.23 serves {MODEL} and BailingMoeForCausalLMNextN from this package",
    )


def test_a_model_whose_import_raises_is_told_by_the_check_alone(plugin, site, tmp_path):
    module = site / plugin.package / "models" / "bailing_moe_nextn.py"
    module.write_text("raise ValueError('broken on purpose')\n")
    code, text = check(plugin, site, tmp_path, plugin.name)
    assert code == 1
    assert plugin.name in text
    assert text.endswith(": ValueError: broken on purpose")


def test_a_second_plugin_for_the_same_class_is_named(plugin, site, tmp_path):
    package, info = site / "second_plugin", site / "second_plugin-1.dist-info"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text(SECOND)
    (package / "models" / "__init__.py").touch()
    (package / "models" / "m.py").write_text(
        f"class {MODEL}:\n    pass\n\n\nEntryClass = {MODEL}\n"
    )
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: second-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nsecond = second_plugin:register\n"
    )
    code, text = check(plugin, site, tmp_path, f"{plugin.name},second")
    assert code == 1
    assert text.startswith("second_plugin registers the same class")


def test_another_engine_version_is_named(plugin, site, tmp_path):
    (site / "sglang").mkdir()
    (site / "sglang" / "__init__.py").write_text("__version__ = '0.5.22'\n")
    code, text = check(plugin, site, tmp_path, plugin.name)
    assert (code, text) == (1, f"written for SGLang 0.5.23, found 0.5.22 in {site / 'sglang'}")


def test_a_folder_of_the_packages_name_is_named(plugin, site, tmp_path):
    here = tmp_path / "here"
    (here / plugin.package).mkdir(parents=True)
    code, text = check(plugin, site, here, plugin.name)
    assert code == 1
    assert text.startswith(f"{here / plugin.package} stands before the installed ")


def test_the_engine_takes_the_launchers_arguments(plugin, site, tmp_path):
    done = python(site, "-m", f"{plugin.package}.launch", "M", "--dry-run", "--draft", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith(f"{plugin.package}: a dry run does not make ")
    words = done.stdout.splitlines()[-1].split()
    assert words[:2] == ["sglang", "serve"]
    done = python(site, "-c", PARSED, *words[2:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("parsed ")]
    parsed = json.loads(line.removeprefix("parsed "))
    expected = {
        "model_path": "M",
        "tp_size": 4,
        "pp_size": 1,
        "page_size": 64,
        "kv_cache_dtype": "auto",
        "mamba_ssm_dtype": "float32",
        "mamba_full_memory_ratio": 0.9,
        "mamba_radix_cache_strategy": "extra_buffer",
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    assert {name: parsed[name] for name in expected} == expected


def test_the_launchers_tables_are_the_engines_and_ours(plugin, site, tmp_path):
    own = site / plugin.package / "tuned" / "configs" / "triton_3_5_1"
    own.mkdir(parents=True, exist_ok=True)
    (own / "ours.json").write_text("{}")
    done = python(site, "-c", TABLES.format(package=plugin.package), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same_folder, folder = done.stdout.split()[-2:]
    assert same_folder == "True"
    names = os.listdir(Path(folder) / "configs")
    assert "triton_3_6_0" in names
    assert all(name.startswith("triton_") for name in names)
    tables = os.listdir(Path(folder) / "configs" / "triton_3_5_1")
    assert "ours.json" in tables
    assert len(tables) > 10
