"""`lingen trace` as it is typed: what it prints, and every reason why it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lingen import cli
from lingen.emit.atomic import RefusedOverwrite, write_tree
from lingen.emit.check import check_package
from traced import package

TEXT = """\
{#- in: ir -#}
SIZE = {{ ir.hidden_size }}

{% if ir.attention %}
HEADS = [{{ ir.attention.lora | py }}]
{% endif %}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A package `generated/tiny` without spec and templates, in the current folder."""
    write_tree(tmp_path / "generated", "tiny", package(TEXT, path="kernels/m.py"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "generated" / "tiny"


@pytest.fixture
def lingen(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_line_with_its_template_line_and_its_keys(folder, lingen):
    assert lingen("trace", "generated/tiny/kernels/m.py:4") == (
        0,
        """\
generated/tiny/kernels/m.py:4: HEADS = [None]
  template  templates/m.j2:5
  spec      specs/families/shipped.yaml:9 attention.lora
            specs/other.yaml:2 attention.heads
""",
        "",
    )


def test_a_whole_file_line_by_line(folder, lingen):
    assert lingen("trace", "generated/tiny/kernels/m.py") == (
        0,
        """\
    1  header: written by lingen
    2  templates/m.j2:2  specs/tiny.yaml:4 model.hidden_size
    3  blank
    4  templates/m.j2:5  specs/families/shipped.yaml:9 attention.lora, \
specs/other.yaml:2 attention.heads
""",
        "",
    )


def test_a_line_that_no_key_decided_has_its_template_line_alone(tmp_path, lingen):
    write_tree(tmp_path, "tiny", package("x = 1\n"))
    code, out, _ = lingen("trace", f"{tmp_path}/tiny/m.py:2")
    assert (code, out) == (0, f"{tmp_path}/tiny/m.py:2: x = 1\n  template  templates/m.j2:1\n")


def test_the_header_and_blank_lines_say_so(folder, lingen):
    assert lingen("trace", "generated/tiny/kernels/m.py:1")[1].endswith(
        "\n  template  header: written by lingen\n"
    )
    assert lingen("trace", "generated/tiny/kernels/m.py:3")[1] == (
        "generated/tiny/kernels/m.py:3:\n  template  blank\n"
    )


def test_json_has_the_same_shape_for_a_line_and_for_a_file(folder, lingen):
    code, out, err = lingen("trace", "generated/tiny/kernels/m.py", "--json")
    assert (code, err) == (0, "")
    nothing = {"template": None, "template_line": None, "spec": []}
    lines = [
        {"line": 1, **nothing},
        {
            "line": 2,
            "template": "templates/m.j2",
            "template_line": 2,
            "spec": [{"file": "specs/tiny.yaml", "line": 4, "key": "model.hidden_size"}],
        },
        {"line": 3, **nothing},
        {
            "line": 4,
            "template": "templates/m.j2",
            "template_line": 5,
            "spec": [
                {"file": "specs/families/shipped.yaml", "line": 9, "key": "attention.lora"},
                {"file": "specs/other.yaml", "line": 2, "key": "attention.heads"},
            ],
        },
    ]
    assert json.loads(out) == {"file": "generated/tiny/kernels/m.py", "lines": lines}
    for number, line in enumerate(lines, start=1):
        place = f"generated/tiny/kernels/m.py:{number}"
        _, out, _ = lingen("trace", "--json", place)
        assert json.loads(out) == {"file": "generated/tiny/kernels/m.py", "lines": [line]}


def test_any_folder_and_any_spelling_of_the_path_will_do(folder, lingen, monkeypatch):
    want = lingen("trace", "generated/tiny/kernels/m.py:2")[1].partition("\n")[2]
    monkeypatch.chdir(folder / "kernels")
    for place in ("m.py:2", "../kernels/m.py:2", f"{folder}/kernels/m.py:2"):
        code, out, _ = lingen("trace", place)
        assert (code, out.partition("\n")[2]) == (0, want)


def test_a_package_that_was_copied_elsewhere_is_traced_there(folder, lingen, tmp_path):
    shutil.copytree(folder, tmp_path / "copy of it")
    assert lingen("trace", "copy of it/kernels/m.py:2")[0] == 0


def test_a_checkout_with_other_line_endings_is_traced(folder, lingen):
    for path in (folder / "kernels" / "m.py", folder / "trace.json"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    code, out, _ = lingen("trace", "generated/tiny/kernels/m.py:2")
    assert (code, out.split("\n")[0]) == (0, "generated/tiny/kernels/m.py:2: SIZE = 64")


def test_another_trace_json_in_a_folder_above_is_no_obstacle(folder, lingen, tmp_path):
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (folder.parent / "trace.json").write_bytes(package("y = 1\n")["trace.json"])
    assert lingen("trace", "generated/tiny/kernels/m.py:2")[0] == 0


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("generated/tiny/n.py", "generated/tiny/n.py: no such file\n"),
        ("generated/tiny/n.py:3", "generated/tiny/n.py: no such file\n"),
        ("generated/tiny/kernels/m.py/x:3", "generated/tiny/kernels/m.py/x: no such file\n"),
        ("generated/tiny", "generated/tiny: a folder\n  expected  FILE or FILE:LINE\n"),
        ("generated/tiny:3", "generated/tiny: a folder\n  expected  FILE or FILE:LINE\n"),
        (
            "generated/tiny/kernels/m.py:5",
            "generated/tiny/kernels/m.py:5: no such line\n  expected  a line from 1 to 4\n",
        ),
        (
            "generated/tiny/kernels/m.py:0",
            "generated/tiny/kernels/m.py:0: no such line\n  expected  a line from 1 to 4\n",
        ),
        (
            "generated/tiny/kernels/m.py:x",
            "generated/tiny/kernels/m.py:x: no such file\n",
        ),
        (
            "generated/tiny/manifest.json:3",
            "generated/tiny/manifest.json: not among the files whose lines "
            "generated/tiny/trace.json tells\n",
        ),
    ],
)
def test_what_cannot_be_traced_is_told(folder, lingen, place, message):
    assert lingen("trace", place) == (2, "", message)


def test_a_file_that_lingen_did_not_make_is_told(tmp_path, lingen, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("a\n")
    assert lingen("trace", "notes.md:1") == (
        2,
        "",
        "notes.md: not a file that lingen generated\n",
    )


def test_a_package_without_its_sidecar_is_told(folder, lingen):
    (folder / "trace.json").unlink()
    assert lingen("trace", "generated/tiny/kernels/m.py:2") == (
        2,
        "",
        "generated/tiny/kernels/m.py: no trace.json in its package\n"
        "  fix       run `lingen build`, with --force if the file was edited\n",
    )


def test_a_file_that_changed_since_is_told(folder, lingen):
    path = folder / "kernels" / "m.py"
    path.write_bytes(path.read_bytes().replace(b"64", b"65"))
    assert lingen("trace", "generated/tiny/kernels/m.py:2") == (
        2,
        "",
        "generated/tiny/kernels/m.py: changed since generated/tiny/trace.json was written\n"
        "  fix       run `lingen build`, with --force if the file was edited\n",
    )


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff"])
def test_a_sidecar_that_cannot_be_read_is_told(folder, lingen, data):
    (folder / "trace.json").write_bytes(data)
    assert lingen("trace", "generated/tiny/kernels/m.py:2") == (
        2,
        "",
        "generated/tiny/trace.json: not a trace of this version of lingen\n"
        "  fix       run `lingen build`, with --force if the file was edited\n",
    )


def test_a_sidecar_whose_runs_do_not_fit_is_told(folder, lingen):
    path = folder / "trace.json"
    path.write_bytes(path.read_bytes().replace(b'"1 0:2 1"', b'"7 0:2 1"'))
    code, _, err = lingen("trace", "generated/tiny/kernels/m.py:2")
    assert (code, err.split("\n")[0]) == (
        2,
        "generated/tiny/trace.json: not a trace of this version of lingen",
    )


def test_the_command_runs_where_there_are_neither_specs_nor_templates(folder, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "lingen.cli", "trace", "generated/tiny/kernels/m.py:2"],
        cwd=tmp_path,
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "  template  templates/m.j2:2\n" in done.stdout


FILES = package(TEXT, path="kernels/m.py")


def found_by_check(folder: Path) -> dict[str, str]:
    return {
        difference.path: difference.kind
        for difference in check_package(Path("generated"), "tiny", FILES)
    }


def test_check_reports_a_missing_sidecar(folder):
    assert found_by_check(folder) == {}
    (folder / "trace.json").unlink()
    assert found_by_check(folder) == {"generated/tiny/trace.json": "missing"}


def test_check_reports_a_sidecar_that_a_build_would_write_otherwise(folder):
    write_tree(Path("generated"), "tiny", package("{#- new -#}\n" + TEXT, path="kernels/m.py"))
    assert found_by_check(folder) == {
        "generated/tiny/manifest.json": "changed",
        "generated/tiny/trace.json": "changed",
    }


def test_check_reports_a_sidecar_that_was_edited_and_build_refuses_to_drop_the_edit(folder):
    path = folder / "trace.json"
    path.write_bytes(path.read_bytes().replace(b'"1 0:2 1"', b'"1 0:3 1"'))
    [difference] = check_package(Path("generated"), "tiny", FILES)
    assert (difference.kind, difference.repair) == ("edited", "force")
    recorded = json.loads(FILES["trace.json"])["content"]
    assert difference.message.startswith(f"edited by hand (content hash {recorded} recorded, ")
    with pytest.raises(RefusedOverwrite, match=r"trace\.json: edited by hand"):
        write_tree(Path("generated"), "tiny", FILES)
    write_tree(Path("generated"), "tiny", FILES, force=True)
    assert found_by_check(folder) == {}


def test_a_sidecar_is_known_as_lingens_without_the_manifest(folder):
    (folder / "manifest.json").unlink()
    write_tree(Path("generated"), "tiny", package(TEXT + "x = 1\n", path="kernels/m.py"))
    assert (folder / "manifest.json").exists()


def test_a_trace_json_of_someone_else_is_not_overwritten(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(RefusedOverwrite, match=r"trace\.json: not written by lingen"):
        write_tree(tmp_path, "tiny", FILES, force=True)
