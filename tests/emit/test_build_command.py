"""`lingen build` and `lingen check` from the command line down, on miniature models."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lingen import cli
from lingen.emit import build as build_module
from lingen.emit import render as render_module
from lingen.emit.selection import shipped_folder
from lingen.errors import EnvironmentLacks, LingenError, Position, Problem, SpecError
from lingen.spec import load_spec
from miniature import TARGET, TEMPLATES, TinyIR, TinySpec, tree


def lowered(path: Path) -> TinyIR:
    """A spec here is one line: the hidden size, or `bad`, or `targets NAME`."""
    text = path.read_text().strip()
    name = path.stem.replace("again-", "")
    if text == "bad":
        shared = Problem(Position("specs/family.yaml", 1, 1), "moe", "shared by its children")
        own = Problem(Position(path.as_posix(), 1, 1), "model", "bad")
        raise SpecError([own, shared])
    spec = TinySpec(header_name=f"specs/{name}.yaml")
    ir = TinyIR(name=name, package=name.replace("-", "_"), spec=spec)
    if text.startswith("targets "):
        return dataclasses.replace(ir, targets=(text.split()[1],))
    return dataclasses.replace(ir, hidden_size=int(text) if text != "broken" else None)


def target_named(name: str):
    if name != "tiny":
        raise LingenError(f"{name}: unknown target")
    return TARGET


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with specs one and two; specs and templates are the miniature ones."""
    monkeypatch.chdir(tmp_path)
    templates = dict(TEMPLATES)
    render_all = functools.partial(render_module.render_all, read=templates.__getitem__)
    monkeypatch.setattr(build_module, "_lowered", lowered)
    monkeypatch.setattr(build_module, "target_named", target_named)
    monkeypatch.setattr(build_module, "render_all", render_all)
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "one.yaml").write_text("64")
    (tmp_path / "specs" / "two.yaml").write_text("128")
    return tmp_path


@pytest.fixture
def lingen(capsys):
    """Runs the command in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        return code, *capsys.readouterr()

    return run


def last_line(text: str) -> str:
    return text.rstrip("\n").split("\n")[-1]


def test_build_prints_one_line_per_file(project, lingen):
    assert lingen("build", "specs/one.yaml") == (
        0,
        "written   generated/one/cache.py\n"
        "written   generated/one/model.py\n"
        "written   generated/one/trace.json\n"
        "written   generated/one/manifest.json\n",
        "",
    )
    assert lingen("build", "specs/one.yaml")[1].startswith("unchanged generated/one/cache.py\n")


def test_build_all_then_check_all_is_up_to_date(project, lingen):
    assert lingen("build", "--all")[0] == 0
    assert lingen("check", "--all") == (
        0,
        "Up to date: 2 specs found, 2 packages rendered, 8 files compared.\n",
        "",
    )
    assert sorted(os.listdir("generated")) == ["one", "two"]


def test_the_output_folder_can_be_chosen(project, lingen):
    assert lingen("build", "specs/one.yaml", "--out", "a/b")[0] == 0
    assert sorted(tree(project / "a" / "b")) == [
        "one/cache.py",
        "one/manifest.json",
        "one/model.py",
        "one/trace.json",
    ]


def test_check_of_a_stale_tree_exits_with_1_and_ends_with_the_command(project, lingen):
    lingen("build", "--all", "--out", "out")
    (project / "specs" / "one.yaml").write_text("65")
    code, out, err = lingen("check", "--all", "--out", "out")
    assert (code, err) == (1, "")
    assert out.startswith("out/one/manifest.json:")
    assert "\n+HIDDEN_SIZE = 65\n" in out
    assert last_line(out) == (
        "Run `lingen build --all --out out`. 3 files differ: "
        "2 specs found, 2 packages rendered, 8 files compared."
    )


def test_check_all_reports_what_no_spec_produces(project, lingen):
    lingen("build", "--all")
    (project / "specs" / "two.yaml").unlink()
    (project / "generated" / "stray.txt").write_text("")
    code, out, _ = lingen("check", "--all", "--format", "json")
    assert code == 1
    assert [(d["path"], d["kind"]) for d in json.loads(out)["differences"]] == [
        ("generated/stray.txt", "orphan"),
        ("generated/two", "orphan"),
    ]
    assert lingen("check", "specs/one.yaml")[0] == 0


def test_the_package_of_a_spec_that_cannot_be_read_is_no_orphan(project, lingen):
    lingen("build", "--all")
    (project / "specs" / "two.yaml").write_text("bad")
    code, out, _ = lingen("check", "--all", "--format", "json")
    assert (code, json.loads(out)) == (2, {"up_to_date": False, "differences": []})


def test_check_names_the_spec_that_fails_and_compares_the_others(project, lingen):
    lingen("build", "--all")
    (project / "specs" / "one.yaml").write_text("broken")
    (project / "specs" / "three.yaml").write_text("bad")
    (project / "generated" / "two" / "cache.py").unlink()
    code, out, err = lingen("check", "--all")
    assert code == 2
    assert (
        "templates/tiny/sizes.j2:1: TypeError: None (NoneType) is printed without a filter; "
        "`| py` writes it as source\n  spec      specs/one.yaml\n"
    ) in err
    assert "specs/three.yaml:1:1: model: bad" in err
    assert out == (
        "generated/two/cache.py: missing\n"
        "Repair the specs that failed; run `lingen build --all`. 2 specs failed, 1 file differs: "
        "3 specs found, 1 package rendered, 4 files compared.\n"
    )


def test_build_with_one_invalid_spec_writes_nothing_and_tells_every_error(project, lingen):
    lingen("build", "--all")
    before = tree(project / "generated")
    (project / "specs" / "one.yaml").write_text("65")
    (project / "specs" / "three.yaml").write_text("bad")
    (project / "specs" / "two.yaml").write_text("bad")
    code, out, err = lingen("build", "--all")
    assert (code, out) == (2, "")
    assert err == (
        "specs/family.yaml:1:1: moe: shared by its children\n"
        "specs/three.yaml:1:1: model: bad\n"
        "specs/two.yaml:1:1: model: bad\n"
        "2 of 3 errors are in `model`. Nothing was written.\n"
    )
    assert tree(project / "generated") == before


def test_build_with_a_failing_template_writes_nothing(project, lingen):
    (project / "specs" / "two.yaml").write_text("broken")
    (project / "specs" / "three.yaml").write_text("bad")
    code, out, err = lingen("build", "--all")
    assert (code, out) == (2, "")
    assert "specs/three.yaml:1:1: model: bad\n" in err
    assert "  spec      specs/two.yaml\n" in err
    assert last_line(err) == "Nothing was written."
    assert not (project / "generated").exists()


def test_a_hand_edit_is_refused_with_exit_1_and_dropped_by_force(project, lingen):
    lingen("build", "--all")
    edited = project / "generated" / "two" / "model.py"
    edited.write_text(edited.read_text() + "x = 1\n")
    code, out, err = lingen("build", "--all")
    assert (code, out) == (1, "")
    assert "\n-x = 1\n" in err
    assert last_line(err) == "Nothing was written."
    assert last_line(lingen("check", "--all")[1]).startswith(
        "Run `lingen build --all`; add --force to drop the hand edits. 1 file differs"
    )
    code, out, err = lingen("build", "--all", "--force")
    assert (code, err) == (0, "")
    assert "written   generated/two/model.py\n" in out


def test_two_specs_for_one_package_are_refused(project, lingen):
    (project / "specs" / "again-one.yaml").write_text("64")
    assert lingen("build", "--all") == (
        2,
        "",
        "specs/one.yaml: makes the package one, and so does specs/again-one.yaml\n"
        "  fix       give one of them another model.name\nNothing was written.\n",
    )


def test_one_spec_named_twice_is_built_once(project, lingen):
    code, out, _ = lingen("build", "specs/one.yaml", str(project / "specs" / "one.yaml"))
    assert (code, out.count("\n")) == (0, 4)


def test_relative_and_absolute_spec_paths_give_the_same_bytes(project, lingen):
    lingen("build", "specs/one.yaml", "--out", "a")
    lingen("build", str(project / "specs" / "one.yaml"), "--out", "b")
    assert tree(project / "a") == tree(project / "b")


def test_a_chosen_target_leaves_the_others_alone(project, lingen):
    (project / "specs" / "two.yaml").write_text("targets sglang")
    code, _, err = lingen("build", "--all")
    assert (code, err) == (
        2,
        "sglang: unknown target\n  spec      specs/two.yaml\nNothing was written.\n",
    )
    assert lingen("build", "specs/one.yaml", "--target", "tiny")[0] == 0
    assert lingen("build", "specs/one.yaml", "--target", "nope") == (
        2,
        "",
        "nope: unknown target\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no spec given\n  expected  SPEC… or --all\n"),
        (["--all", "specs/one.yaml"], "--all already means every spec; found beside it: specs/one"),
        (["specs/on.yaml"], "specs/on.yaml: no such spec\n  fix       specs/one.yaml\n"),
        (["specs/x*.yaml", "gone"], "specs/x*.yaml: no such spec\ngone: no such spec\n"),
        (["specs"], "specs: a folder\n  expected  a spec file, or --all\n"),
        (["ling-2.6-1"], "ling-2.6-1: no such spec\n  fix       ling-2.6-1t\n"),
    ],
)
@pytest.mark.parametrize("command", ["build", "check"])
def test_a_command_that_means_no_spec_exits_with_2(project, lingen, command, arguments, message):
    code, out, err = lingen(command, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)


@pytest.mark.parametrize("command", ["build", "check"])
def test_an_empty_spec_folder_is_no_success(project, lingen, command):
    for spec in (project / "specs").iterdir():
        spec.unlink()
    assert lingen(command, "--all") == (2, "", "specs: no spec (*.yaml) in this folder\n")
    (project / "specs" / "one.yml").write_text("64")
    assert lingen(command, "--all") == (2, "", "specs/one.yml: a spec's name ends in .yaml\n")


def test_without_a_spec_folder_all_means_the_shipped_specs(project, lingen):
    for spec in (project / "specs").iterdir():
        spec.unlink()
    (project / "specs").rmdir()
    from lingen.emit.selection import find_specs

    assert find_specs([], all_specs=True) == sorted(shipped_folder().glob("*.yaml"))
    assert find_specs(["ling-2.6-1t"], all_specs=False) == [shipped_folder() / "ling-2.6-1t.yaml"]


def test_an_unknown_format_lists_the_known_ones(project, lingen):
    code, out, err = lingen("check", "--all", "--format", "xml")
    assert (code, out) == (2, "")
    assert err == "--format xml: unknown format\n  expected  text, github, json\n"


def test_github_format_annotates(project, lingen):
    code, out, _ = lingen("check", "specs/one.yaml", "--format", "github")
    assert code == 1
    assert out.startswith("::error file=generated/one/cache.py,line=1::missing\n")


@pytest.mark.parametrize("arguments", [["build", "--nope"], ["nope"], ["build", "--out"], []])
def test_a_usage_error_exits_with_2_without_a_traceback(lingen, arguments):
    code, out, err = lingen(*arguments)
    assert code == 2
    assert "Traceback" not in out + err
    assert "Error: " in err or "Usage: lingen" in out + err


def test_help_and_version_exit_with_0(lingen):
    assert lingen("--version") == (0, "lingen 0.1.0\n", "")
    code, out, _ = lingen("build", "--help")
    assert code == 0
    assert "--force" in out


@pytest.mark.parametrize(
    ("error", "code", "stderr"),
    [
        (LingenError("wrong"), 2, "wrong\n"),
        (EnvironmentLacks("ruff is gone"), 3, "ruff is gone\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(project, lingen, monkeypatch, error, code, stderr):
    def fail(path):
        raise error

    monkeypatch.setattr(build_module, "render_all", fail)
    assert lingen("build", "--all") == (code, "", stderr)


def test_a_bug_exits_with_70_and_a_traceback(project, lingen, monkeypatch):
    monkeypatch.setattr(build_module, "render_all", lambda jobs: 1 / 0)
    code, out, err = lingen("build", "--all")
    assert (code, out) == (70, "")
    assert err.startswith("This is a bug in lingen.\nTraceback")
    assert err.endswith("ZeroDivisionError: division by zero\n")


def test_an_unreadable_output_folder_is_one_line(project, lingen):
    (project / "generated").write_text("")
    code, _, err = lingen("build", "--all")
    assert (code, err) == (2, "generated: cannot write the output: File exists\n")


COMMAND = [sys.executable, "-m", "lingen.cli"]


def test_the_installed_command_builds_checks_and_says_what_differs(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    built = run("build", "ling-2.6-flash")
    assert (built.returncode, built.stderr) == (0, "")
    assert run("check", "ling-2.6-flash").returncode == 0
    (tmp_path / "generated" / "ling_2_6_flash" / "model.py").unlink()
    checked = run("check", "ling-2.6-flash")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert "\x1b" not in checked.stdout
    gone = run("build", "specs/gone.yaml")
    assert (gone.returncode, gone.stdout) == (2, "")
    assert gone.stderr.startswith("specs/gone.yaml: no such spec\n")


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    build = subprocess.Popen(
        [*COMMAND, "check", "ling-2.6-flash"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert build.stdout and build.stderr
    build.stdout.close()
    assert build.stderr.read() == b""
    assert build.wait() == 141


def test_the_shipped_specs_give_the_same_bytes_in_any_surroundings(tmp_path):
    trees = []
    for seed, locale, cwd in [("0", "C", "a"), ("random", "tr_TR.UTF-8", "b")]:
        (tmp_path / cwd).mkdir()
        env = os.environ | {"PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": "Asia/Kathmandu"}
        subprocess.run(
            [*COMMAND, "build", "--all"], cwd=tmp_path / cwd, env=env, check=True, stdout=-3
        )
        trees.append(tree(tmp_path / cwd / "generated"))
    assert trees[0] == trees[1]
    specs = [load_spec(path) for path in shipped_folder().glob("*.yaml")]
    packages = {path.partition("/")[0] for path in trees[0]}
    assert len(packages) == sum(len(spec.targets) for spec in specs)
    files = {path for path in trees[0] if "/tuned/configs/" not in path}
    plugins = {path for path in files if path.partition("/")[0].endswith("_sglang")}
    assert len(plugins) == 12 * sum("sglang" in spec.targets for spec in specs)
    manifests = [path for path in files - plugins if path.endswith("/manifest.json")]
    assert len(manifests) == len(specs)
