"""Two targets of one spec: which are built, which are refused, and what commands say of them."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from lingen.cli import run

ROOT = Path(__file__).parents[2]
PLUGIN = "ling_2_6_flash_sglang"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with the shipped specs."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    return tmp_path


def lingen(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(arguments)
    return code, *capsys.readouterr()


def packages() -> list[str]:
    return sorted(path.name for path in Path("generated").iterdir())


def test_a_spec_gives_the_packages_of_its_targets(capsys):
    assert lingen(capsys, "build", "ling-2.6-flash", "ling-mini-2.0")[0] == 0
    assert packages() == ["ling_2_6_flash", PLUGIN, "ling_mini_2_0"]


def test_one_target_alone_can_be_built_and_checked(capsys):
    assert lingen(capsys, "build", "ling-2.6-flash", "--target", "sglang")[0] == 0
    assert packages() == [PLUGIN]
    assert lingen(capsys, "check", "ling-2.6-flash", "--target", "sglang")[0] == 0
    assert lingen(capsys, "check", "ling-2.6-flash")[0] == 1


def test_of_all_specs_a_target_means_those_that_list_it(capsys):
    code, out, _ = lingen(capsys, "build", "--all", "--target", "sglang")
    assert code == 0
    assert packages() == ["ling_2_6_1t_sglang", PLUGIN]
    code, out, _ = lingen(capsys, "check", "--all", "--target", "sglang")
    assert code == 0
    assert out.startswith("Up to date: 6 specs found, 2 packages rendered, ")


def test_a_target_that_no_spec_lists_is_no_success(capsys):
    for spec in ("ling-2.6-flash", "ling-2.6-1t"):
        path = Path(f"specs/{spec}.yaml")
        path.write_text(path.read_text().replace("targets: [torch, sglang]", "targets: [torch]"))
    for command in ("build", "check"):
        code, _, err = lingen(capsys, command, "--all", "--target", "sglang")
        assert (code, err) == (2, "sglang: no spec lists this target\nNothing was written.\n")


def test_a_spec_that_is_named_need_not_list_the_target(capsys):
    assert lingen(capsys, "build", "ring-2.5-1t", "--target", "sglang")[0] == 0
    assert packages() == ["ring_2_5_1t_sglang"]
    assert lingen(capsys, "check", "ring-2.5-1t", "--target", "sglang")[0] == 0
    _, out, _ = lingen(capsys, "check", "--all", "--format", "json")
    strays = [each["path"] for each in json.loads(out)["differences"] if each["kind"] == "orphan"]
    assert strays == ["generated/ring_2_5_1t_sglang"]


def test_a_model_that_the_target_cannot_serve_is_refused_with_file_line_and_key(capsys):
    code, out, err = lingen(
        capsys, "build", "ling-2.6-flash", "specs/ling-mini-2.0.yaml", "--target", "sglang"
    )
    assert (code, out) == (2, "")
    assert err == (
        "specs/families/bailing-moe-v2.yaml:12:18: model.architectures: "
        "the sglang target does not serve this architecture\n"
        "  found     architectures [BailingMoeV2ForCausalLM], target sglang\n"
        "  expected  BailingMoeV2_5ForCausalLM with it\n"
        "Nothing was written.\n"
    )
    assert not Path("generated").exists()


def test_a_hand_edit_inside_the_module_is_refused(capsys):
    lingen(capsys, "build", "ling-2.6-flash", "--target", "sglang")
    edited = Path("generated", PLUGIN, PLUGIN, "plugin.py")
    edited.write_text(edited.read_text() + "x = 1\n")
    toml = Path("generated", PLUGIN, "pyproject.toml")
    toml.write_text(toml.read_text().replace("0.5.23", "0.5.24"))
    code, _, err = lingen(capsys, "build", "ling-2.6-flash")
    assert code == 1
    assert "-x = 1\n" in err
    assert "sglang==0.5.24" in err
    _, out, _ = lingen(capsys, "check", "ling-2.6-flash", "--target", "sglang", "--format", "json")
    kinds = {each["path"]: each["kind"] for each in json.loads(out)["differences"]}
    assert kinds == {edited.as_posix(): "edited", toml.as_posix(): "edited"}
    assert lingen(capsys, "build", "ling-2.6-flash", "--force")[0] == 0


def test_a_file_no_longer_produced_is_removed_from_the_module(capsys):
    lingen(capsys, "build", "ling-2.6-flash", "--target", "sglang")
    spec = Path("specs/ling-2.6-flash.yaml")
    spec.write_text(spec.read_text() + "\nmtp:\n  num_nextn_predict_layers: 0\n")
    code, out, _ = lingen(capsys, "build", "ling-2.6-flash", "--target", "sglang")
    assert code == 0
    draft = f"generated/{PLUGIN}/{PLUGIN}/models/bailing_moe_nextn.py"
    assert f"removed   {draft}\n" in out
    assert not Path(draft).exists()


def test_lines_of_the_plugin_can_be_traced(capsys):
    lingen(capsys, "build", "ling-2.6-flash", "--target", "sglang")
    launch = Path("generated", PLUGIN, PLUGIN, "launch.py")
    lines = launch.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if '"--tp-size": "4"' in line)
    code, out, _ = lingen(capsys, "trace", f"{launch}:{number}", "--json")
    [line] = json.loads(out)["lines"]
    assert (code, line["template"]) == (0, "templates/sglang/launch.py.j2")
    assert line["spec"][0]["key"] == "sglang.tp_size"
    assert line["spec"][0]["file"] == "specs/ling-2.6-flash.yaml"
    code, out, _ = lingen(capsys, "trace", f"generated/{PLUGIN}/pyproject.toml:7")
    assert code == 0
    assert "templates/sglang/pyproject.toml.j2:7" in out


def test_explain_tells_how_the_plugin_serves(capsys):
    code, out, _ = lingen(capsys, "explain", "ling-2.6-flash", "--json")
    plugin = json.loads(out)["ir"]["sglang"]
    assert code == 0
    assert plugin["launch"]["tp_size"] == 4
    assert lingen(capsys, "explain", "ling-mini-2.0", "--json")[1].count('"sglang": null') == 1


def test_the_distribution_says_which_engine_it_needs(capsys):
    lingen(capsys, "build", "ling-2.6-1t", "--target", "sglang")
    text = Path("generated/ling_2_6_1t_sglang/pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    assert project["name"] == "ling-2-6-1t-sglang"
    assert project["dependencies"] == ["sglang==0.5.23"]
