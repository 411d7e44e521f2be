from __future__ import annotations

import json

import pytest
from lingen.emit.atomic import write_tree
from lingen.emit.check import Difference, check_package, check_strays
from lingen.emit.check_output import CheckReport, as_github, as_json, as_text
from lingen.emit.header import with_header
from lingen.errors import LingenError, Position, Problem, SpecError
from miniature import TinyIR, tiny_files, tree

OLD = tiny_files()
NEW = tiny_files(TinyIR(hidden_size=128))
SMALLER = tiny_files(TinyIR(has_cache=False))


@pytest.fixture
def out(tmp_path, monkeypatch):
    """A fresh package `out/tiny` in the current folder."""
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    write_tree(Path("out"), "tiny", OLD)
    return Path("out")


def found(out, files) -> dict[str, str]:
    before = tree(out)
    differences = check_package(out, "tiny", files)
    assert tree(out) == before
    assert [d.path for d in differences] == sorted(d.path for d in differences)
    assert all(difference.diff for difference in differences)
    return {difference.path: difference.kind for difference in differences}


def only(out, files) -> Difference:
    [difference] = check_package(out, "tiny", files)
    return difference


def test_a_fresh_package_has_no_difference(out):
    assert found(out, OLD) == {}


def test_a_stale_package_is_changed_and_the_diff_leads_to_the_build(out):
    assert found(out, NEW) == {
        "out/tiny/manifest.json": "changed",
        "out/tiny/model.py": "changed",
        "out/tiny/trace.json": "changed",
    }
    difference = check_package(out, "tiny", NEW)[1]
    assert difference.message == "differs from what `lingen build` would write (+2 -2)"
    assert difference.line == 1
    old, new = (files["model.py"].decode().split("\n")[0] for files in (OLD, NEW))
    assert (
        difference.diff
        == f"""\
--- out/tiny/model.py
+++ out/tiny/model.py (lingen build)
@@ -1,7 +1,7 @@
-{old}
+{new}
 \"\"\"The model.\"\"\"
 
-HIDDEN_SIZE = 64
+HIDDEN_SIZE = 128
 KINDS = ("lightning", "mla")
 
 
"""
    )


def test_a_missing_file_is_missing(out):
    (out / "tiny" / "cache.py").unlink()
    assert found(out, OLD) == {"out/tiny/cache.py": "missing"}
    assert '+PAGE = "tiny"' in only(out, OLD).diff


def test_a_missing_package_is_all_its_files(out):
    kinds = {d.path: d.kind for d in check_package(out, "gone", OLD)}
    assert kinds == {f"out/gone/{path}": "missing" for path in OLD}


def test_a_hand_edit_is_told_from_a_stale_file_by_its_hash(out):
    model = out / "tiny" / "model.py"
    model.write_bytes(OLD["model.py"].replace(b"= 64\n", b"= 65\n"))
    assert found(out, OLD) == {"out/tiny/model.py": "edited"}
    difference = only(out, OLD)
    stamp = OLD["model.py"].split(b"content: ")[1][:8].decode()
    assert difference.message.startswith(f"edited by hand (content hash {stamp} in header, ")
    assert difference.message.endswith(" found) (+1 -1)")
    assert (difference.line, difference.repair) == (4, "force")


def test_an_edited_manifest_is_edited(out):
    manifest = out / "tiny" / "manifest.json"
    manifest.write_bytes(OLD["manifest.json"].replace(b"0.1.0", b"0.1.1"))
    assert found(out, OLD) == {"out/tiny/manifest.json": "edited"}


def test_another_formatter_version_is_a_changed_manifest(out, monkeypatch):
    monkeypatch.setattr("lingen.emit.manifest.RUFF_VERSION", "0.17.7")
    difference = only(out, tiny_files())
    assert (difference.path, difference.kind) == ("out/tiny/manifest.json", "changed")
    assert '+    "version": "0.17.7"' in difference.diff


def test_crlf_is_line_endings_only_never_an_empty_diff(out):
    for path in OLD:
        (out / "tiny" / path).write_bytes(OLD[path].replace(b"\n", b"\r\n"))
    assert found(out, OLD) == {f"out/tiny/{path}": "changed" for path in OLD}
    assert {d.diff for d in check_package(out, "tiny", OLD)} == {"line endings only"}


def test_a_missing_final_newline_shows(out):
    (out / "tiny" / "cache.py").write_bytes(OLD["cache.py"][:-1])
    assert "\\ No newline at end of file" in only(out, OLD).diff


def test_bytes_that_are_no_text_show(out):
    (out / "tiny" / "cache.py").write_bytes(OLD["cache.py"].replace(b"tiny", b"\xff"))
    assert '-PAGE = "\\xff"' in only(out, OLD).diff


def test_a_file_no_longer_produced_is_an_orphan_that_build_removes(out):
    (difference,) = (d for d in check_package(out, "tiny", SMALLER) if d.kind == "orphan")
    assert (difference.path, difference.message) == ("out/tiny/cache.py", "no longer produced")
    assert difference.repair == "build"
    assert '-PAGE = "tiny"' in difference.diff


def test_strays_in_a_package_are_orphans_at_any_depth(out):
    package = out / "tiny"
    (package / "notes.txt").write_text("")
    (package / "kernels" / "deep").mkdir(parents=True)
    (package / "kernels" / "a.py").write_bytes(OLD["cache.py"])
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "model.cpython-311.pyc").write_text("")
    (package / "link").symlink_to("/")
    assert found(out, OLD) == {
        "out/tiny/kernels/a.py": "orphan",
        "out/tiny/kernels/deep": "orphan",
        "out/tiny/link": "orphan",
        "out/tiny/notes.txt": "orphan",
    }
    assert {d.repair for d in check_package(out, "tiny", OLD)} == {"hand"}


def test_what_pip_leaves_in_a_distribution_is_no_orphan_and_elsewhere_is(out):
    for folder in ("build/lib", "tiny.egg-info", "deep/build"):
        (out / "tiny" / folder).mkdir(parents=True)
        (out / "tiny" / folder / "left.txt").write_text("")
    left = {"out/tiny/build/lib/left.txt": "orphan", "out/tiny/tiny.egg-info/left.txt": "orphan"}
    own = {"out/tiny/deep/build/left.txt": "orphan"}
    assert found(out, OLD) == left | own
    distribution = {**OLD, "pyproject.toml": b"[project]\n"}
    (out / "tiny" / "pyproject.toml").write_bytes(b"[project]\n")
    assert found(out, distribution) == own


def test_a_leftover_of_a_killed_build_is_an_orphan_that_build_removes(out):
    (out / "tiny" / ".model.py.01234567.lingen-tmp").write_text("half")
    assert only(out, OLD).message == "left by a build that was interrupted"
    write_tree(out, "tiny", OLD)
    assert found(out, OLD) == {}


def test_links_in_place_of_output_are_not_followed(out, tmp_path):
    (tmp_path / "same.py").write_bytes(OLD["cache.py"])
    (out / "tiny" / "cache.py").unlink()
    (out / "tiny" / "cache.py").symlink_to(tmp_path / "same.py")
    assert only(out, OLD).message == "a symbolic link in place of the file"
    (out / "linked").symlink_to("tiny")
    [difference] = check_package(out, "linked", OLD)
    assert difference.message == "a symbolic link stands in place of the package"


def test_whatever_check_says_build_repairs_is_repaired(out):
    (out / "tiny" / ".x.01234567.lingen-tmp").write_text("half")
    (out / "tiny" / "model.py").unlink()
    assert {d.repair for d in check_package(out, "tiny", SMALLER)} == {"build"}
    write_tree(out, "tiny", SMALLER)
    assert found(out, SMALLER) == {}


def test_packages_and_files_that_no_spec_produces_are_strays(out):
    write_tree(out, "retired", OLD)
    (out / "README.md").write_text("")
    (out / "__pycache__").mkdir()
    (out / "mine").mkdir()
    (out / "mine" / "a.py").write_text("x = 1\n")
    strays = check_strays(out, {"tiny"}, complete=True)
    assert [(s.path, s.kind, s.message) for s in strays] == [
        ("out/README.md", "orphan", "not produced by any spec"),
        ("out/retired", "orphan", "a package that no spec produces"),
    ]
    assert [s.path for s in check_strays(out, {"tiny"}, complete=False)] == ["out/README.md"]
    assert check_strays(out / "gone", set(), complete=True) == []


def test_a_retired_distribution_without_manifest_is_known_by_its_one_file_with_a_header(out):
    write_tree(out, "retired", {"pyproject.toml": with_header(b"[project]\n", "specs/a.yaml")})
    [stray] = check_strays(out, {"tiny"}, complete=True)
    assert (stray.path, stray.message) == ("out/retired", "a package that no spec produces")


def test_a_retired_package_without_manifest_is_known_by_its_modules(out):
    write_tree(out, "retired", OLD)
    (out / "retired" / "manifest.json").unlink()
    assert [s.path for s in check_strays(out, {"tiny"}, complete=True)] == ["out/retired"]


def report(*differences: Difference, failures: tuple[LingenError, ...] = ()) -> CheckReport:
    return CheckReport(differences, failures, 2, 1, 11, "lingen build specs/toy.yaml")


CHANGED = Difference("out/model.py", "changed", "--- a\n+++ b\n@@\n-x\n+y\n", "differs (+1 -1)", 7)
EDITED = Difference("out/cache.py", "edited", "--- a\n+++ b\n-x\n", "edited (+0 -1)", 3, "force")
MISSING = Difference("out/a.py", "missing", "--- a\n+++ b\n+x\n", "missing")
STRAY = Difference("out/b.py", "orphan", "stray", "not produced by lingen", repair="hand")


def test_text_ends_with_the_command_and_what_was_compared():
    assert (
        as_text(report(MISSING, EDITED, CHANGED, STRAY))
        == """\
out/a.py: missing
out/cache.py:3: edited (+0 -1)
--- a
+++ b
-x
out/model.py:7: differs (+1 -1)
--- a
+++ b
@@
-x
+y
out/b.py: not produced by lingen
Run `lingen build specs/toy.yaml`; add --force to drop the hand edits; move away what lingen did \
not write or no spec produces. 4 files differ: 2 specs found, 1 package rendered, \
11 files compared."""
    )


def test_text_names_only_the_steps_that_help():
    compared = "2 specs found, 1 package rendered, 11 files compared."
    command = "Run `lingen build specs/toy.yaml`"
    assert report(MISSING).summary() == f"{command}. 1 file differs: {compared}"
    stray = report(STRAY).summary()
    assert stray.startswith("Move away what lingen did not write or no spec produces. 1 file")
    failed = report(failures=(LingenError("x"),)).summary()
    assert failed == f"Repair the specs that failed. 1 spec failed: {compared}"
    assert report().summary() == f"Up to date: {compared}"


def test_text_is_coloured_on_request_alone():
    assert "\x1b[31m-x\x1b[0m" in as_text(report(CHANGED), color=True)
    assert "\x1b" not in as_text(report(CHANGED))


def test_json_has_path_kind_and_diff():
    assert json.loads(as_json(report(CHANGED))) == {
        "up_to_date": False,
        "differences": [{"path": "out/model.py", "kind": "changed", "diff": CHANGED.diff}],
    }
    assert json.loads(as_json(report())) == {"up_to_date": True, "differences": []}
    failed = json.loads(as_json(report(failures=(LingenError("x"),))))
    assert failed == {"up_to_date": False, "differences": []}


def test_github_annotates_and_escapes():
    odd = Difference("out/a,b:c%.py", "changed", "--- a\n+++ b\n-50%\r\n", "differs", 7)
    problem = Problem(Position("specs/toy.yaml", 4, 9), "moe.n_group", "wrong")
    lines = as_github(report(odd, STRAY, failures=(SpecError([problem]), LingenError("x\ny"))))
    assert lines.split("\n")[:-1] == [
        "::error file=specs/toy.yaml,line=4,col=9::specs/toy.yaml:4:9: moe.n_group: wrong",
        "::error::x%0Ay",
        "::error file=out/a%2Cb%3Ac%25.py,line=7::differs%0A--- a%0A+++ b%0A-50%25%0D",
        "::error file=out/b.py,line=1::not produced by lingen",
    ]


def test_github_cuts_a_long_diff():
    diff = "--- a\n+++ b\n" + "+x\n" * 100
    message = as_github(report(Difference("m.py", "changed", diff, "differs"))).split("\n")[0]
    assert message.endswith("%0A… 82 lines more")


def test_a_spec_that_failed_weighs_more_than_a_difference():
    assert report().exit_code == 0
    assert report(CHANGED).exit_code == 1
    assert report(CHANGED, failures=(LingenError("x"),)).exit_code == 2
