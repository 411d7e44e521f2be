from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lingen.emit.render import render, render_all
from lingen.emit.selection import shipped_folder
from lingen.emit.templates import RenderError, TemplateSet, shipped_template
from lingen.errors import LingenError
from lingen.ir import lower
from lingen.spec import load_spec
from lingen.targets import TARGETS, OutputFile, Target, target_named
from miniature import (
    CACHE_PY,
    MODEL_PY,
    TARGET,
    TEMPLATES,
    TinyIR,
    body,
    one_file,
    reader,
    tiny_files,
)


def test_a_package_is_its_templates_filled_formatted_and_stamped():
    files = tiny_files()
    assert list(files) == ["cache.py", "manifest.json", "model.py", "trace.json"]
    assert files["model.py"].decode() == MODEL_PY
    assert files["cache.py"].decode() == CACHE_PY


def test_a_file_whose_condition_fails_is_not_made():
    files = tiny_files(TinyIR(has_cache=False))
    assert list(files) == ["manifest.json", "model.py", "trace.json"]


def test_block_tags_leave_no_lines_behind():
    text = """\
{#- in: ir.kinds; out: a table -#}
KINDS = (
    {% for kind in ir.kinds %}
    {{ kind | py }},
    {% endfor %}
)
"""
    assert body(text) == 'KINDS = (\n    "lightning",\n    "mla",\n)\n'


def test_the_final_newline_is_kept_and_a_missing_one_is_added():
    assert body("x = 1") == "x = 1\n"
    assert body("x = 1\n") == "x = 1\n"


def test_crlf_and_bom_in_a_template_do_not_reach_the_output():
    assert body("x = 1\r\ny = 2\r\n") == "x = 1\ny = 2\n"


def test_long_lines_are_wrapped_at_one_hundred_columns():
    text = "x = call({{ ir.name | py }}, " + ", ".join(f"argument_{i}" for i in range(9)) + ")\n"
    assert max(map(len, body(text).splitlines())) <= 100


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "x = 1\ny = {{ ir.hiden_size }}\n",
            "templates/m.py.j2:2: 'miniature.TinyIR object' has no attribute",
        ),
        ("x = 1\n{{ hidden }}\n", "templates/m.py.j2:2: 'hidden' is undefined"),
        ("\n\n{% if width %}x = 1{% endif %}\n", "templates/m.py.j2:3: 'width' is undefined"),
        (
            "{% for k in ir.layers %}{% endfor %}",
            "templates/m.py.j2:1: 'miniature.TinyIR object' has no",
        ),
        ("\n{{ ir.layers | length }}\n", "templates/m.py.j2:2: 'miniature.TinyIR object' has no"),
        (
            "\n{{ ir.gone | py }}\n",
            "templates/m.py.j2:2: 'miniature.TinyIR object' has no attribute 'gone'",
        ),
        ("x = 1\n{% endfor %}\n", "templates/m.py.j2:2: Encountered unknown tag 'endfor'"),
        ("x\n{{ ir.name | nope }}\n", "templates/m.py.j2:2: No filter named 'nope'."),
        ("x\n{{ ir.name | random }}\n", "templates/m.py.j2:2: No filter named 'random'."),
        ("x\n{{ lipsum() }}\n", "templates/m.py.j2:2: 'lipsum' is undefined"),
        ("x\n{{ ir.eps }}\n", "templates/m.py.j2:2: TypeError: 1e-06 (float) is printed without"),
        ("x\n{{ none }}\n", "templates/m.py.j2:2: TypeError: None (NoneType) is printed without"),
        ("x\n{{ 1.5 }}\n", "templates/m.py.j2:2: TypeError: 1.5 (float) is printed without"),
        ("x\n{{ 'class' | ident }}\n", "templates/m.py.j2:2: ValueError: 'class' does not make"),
        ("x\n{% include 'gone.j2' %}\n", "templates/m.py.j2:2: no template templates/gone.j2"),
        ("x\n\n{% include 'part.j2' %}\n", "templates/part.j2:2: 'inner' is undefined"),
    ],
)
def test_a_failing_template_is_named_with_line_and_variable(template, message):
    with pytest.raises(RenderError) as failure:
        one_file(template, part="y = 1\n{{ inner }}\n")
    assert str(failure.value).startswith(message)
    assert failure.value.exit_code == 2


def test_a_template_that_a_target_lists_and_nobody_wrote_is_named():
    target = Target("tiny", "", (OutputFile("m.py", "gone.py.j2"),))
    with pytest.raises(RenderError, match=r"^templates/gone\.py\.j2: no template"):
        render(TinyIR(), target, {}.__getitem__)


def test_invalid_python_names_the_generated_line_and_the_template():
    with pytest.raises(RenderError) as failure:
        one_file("x = 1\ny = ({{ ir.name }}\nz = = 2\n")
    assert str(failure.value) == (
        "tiny/m.py:2: templates/m.py.j2 made text that is not valid: '(' was never closed\n"
        "  found     'y = (tiny'"
    )


@pytest.mark.parametrize("text", ["return 1\n", "x = '\0'\n", "x = 1\n{{ '\\r' }}\n"])
def test_text_that_python_cannot_compile_is_refused(text):
    with pytest.raises(RenderError, match=r"^tiny/m\.py:\d: templates/m\.py\.j2 made text"):
        one_file(text)


@pytest.mark.parametrize(
    "name", ['a"b', "a'b", "a\\b", "a\nb", "{{ x }}", "class", '"""', "\r\u2028"]
)
def test_any_name_survives_being_written_into_source(name):
    ir = TinyIR(
        name=name, spec=dataclasses.replace(TinyIR().spec, header_name=f"specs/{name}.yaml")
    )
    source = one_file("NAME = {{ ir.name | py }}\n", ir)["m.py"]
    namespace: dict = {}
    exec(source, namespace)
    assert namespace["NAME"] == name
    assert source.count(b"\n") == 2


def test_one_failure_leaves_the_other_packages_complete():
    broken = Target("tiny", "", (OutputFile("m.py", "broken.j2"),))
    read = (TEMPLATES | {"broken.j2": "{{ gone }}"}).__getitem__
    first, second, third = render_all(
        [(TinyIR(), TARGET), (TinyIR(), broken), (TinyIR(), TARGET)], read
    )
    assert isinstance(second, LingenError)
    assert first == third == tiny_files()


def test_a_lookup_error_inside_the_ir_is_not_taken_for_an_absent_template():
    class Ir(TinyIR):
        def fact(self):
            raise KeyError("kernel")

    with pytest.raises(RenderError, match=r"^templates/m\.py\.j2:1: KeyError: 'kernel'$"):
        one_file("{{ ir.fact() }}", Ir())


def test_the_record_of_templates_is_complete_whatever_was_rendered_before():
    sources = {
        "a.j2": "{% import 'shared.j2' as s %}{{ s.m() }}",
        "b.j2": "{% import 'shared.j2' as s %}{{ s.m() }}{% include 'leaf.j2' %}",
        "shared.j2": "{% import 'deep.j2' as d %}{% macro m() %}x{% endmacro %}",
        "deep.j2": "",
        "leaf.j2": "",
    }
    templates = TemplateSet(sources.__getitem__)
    shared = ("templates/deep.j2", "templates/shared.j2")
    assert templates.render("a.j2", TinyIR()).templates == ("templates/a.j2", *shared)
    assert templates.render("b.j2", TinyIR()).templates == (
        "templates/b.j2",
        "templates/deep.j2",
        "templates/leaf.j2",
        "templates/shared.j2",
    )
    assert templates.render("a.j2", TinyIR()).templates == ("templates/a.j2", *shared)


def test_a_template_not_taken_is_not_recorded():
    files = one_file(
        "{% if ir.has_cache %}x = 1\n{% else %}{% include 'other.j2' %}{% endif %}", other="y = 1\n"
    )
    manifest = json.loads(files["manifest.json"])
    assert manifest["files"]["m.py"]["templates"] == ["templates/m.py.j2"]


def test_the_torch_target_has_a_pinned_set_of_files():
    assert [file.path for file in target_named("torch").files] == [
        "__init__.py",
        "backend.py",
        "cache.py",
        "kernels/__init__.py",
        "kernels/dispatch.py",
        "kernels/gqa.py",
        "kernels/lightning.py",
        "kernels/mla.py",
        "kernels/moe.py",
        "kernels/norm.py",
        "kernels/rope.py",
        "model.py",
        "parallel.py",
        "planner.py",
        "tables.py",
        "weights.py",
    ]


def test_the_sglang_target_has_a_pinned_set_of_files():
    ir = lower(load_spec(shipped_folder() / "ling-2.6-flash.yaml"))
    module = "ling_2_6_flash_sglang"
    assert [file.path for file in target_named("sglang").files_for(ir)] == [
        "pyproject.toml",
        f"{module}/__init__.py",
        f"{module}/check.py",
        f"{module}/launch.py",
        f"{module}/pinned.py",
        f"{module}/plugin.py",
        f"{module}/tables.py",
        f"{module}/models/__init__.py",
        f"{module}/models/bailing_moe_v2_5.py",
        f"{module}/models/bailing_moe_nextn.py",
    ]


def test_a_model_without_an_mtp_layer_has_no_draft_class():
    ir = lower(load_spec(shipped_folder() / "ring-2.5-1t.yaml"))
    paths = {file.path.rpartition("/")[2] for file in target_named("sglang").files_for(ir)}
    assert "bailing_moe_v2_5.py" in paths
    assert "bailing_moe_nextn.py" not in paths


@pytest.mark.parametrize("name", TARGETS)
def test_every_template_of_a_target_is_shipped(name):
    target = target_named(name)
    for file in (*target.files, *target.outer_files):
        assert shipped_template(file.template)


def test_text_that_is_no_toml_is_refused_with_its_line():
    with pytest.raises(RenderError) as failure:
        one_file('[project]\nname = "a"\nname = b\n', path="pyproject.toml")
    assert str(failure.value).startswith("tiny/pyproject.toml:3: templates/m.py.j2 made text that")


def test_toml_has_the_header_and_is_not_reformatted():
    files = one_file("[project]\nname   = 'a'\n", path="pyproject.toml")
    header, _, body = files["pyproject.toml"].partition(b"\n")
    assert header.startswith(b"# Generated by lingen from specs/tiny.yaml.")
    assert body == b"[project]\nname   = 'a'\n"


@pytest.mark.parametrize("name", ["../pyproject.toml", "/etc/hostname", "torch", "torch/gone.j2"])
def test_only_templates_are_read(name):
    with pytest.raises(KeyError):
        shipped_template(name)


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(LingenError) as failure:
        target_named("tensorrt")
    assert str(failure.value) == "tensorrt: unknown target\n  expected  torch, sglang"


SCRIPT = """
import hashlib, os, sys
os.umask(int(sys.argv[1], 8))
sys.path.insert(0, sys.argv[2])
from miniature import tiny_files
for path, data in tiny_files().items():
    print(path, hashlib.sha256(data).hexdigest())
"""


def test_the_same_bytes_under_any_hash_seed_locale_folder_and_clock_zone(tmp_path):
    want = "".join(f"{p} {hashlib.sha256(d).hexdigest()}\n" for p, d in tiny_files().items())
    (tmp_path / "ruff.toml").write_text("line-length = 20\n")
    (tmp_path / "pyproject.toml").write_text("[tool.ruff.format]\nquote-style = 'single'\n")
    settings = [
        ("0", "C", "UTC", "022", "/"),
        ("1", "tr_TR.UTF-8", "Asia/Kathmandu", "077", str(tmp_path)),
        ("random", "C.UTF-8", "America/St_Johns", "000", str(Path(__file__).parent)),
    ]
    for seed, locale, zone, umask, cwd in settings:
        env = os.environ | {"PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, umask, str(Path(__file__).parent)],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.stderr) == (want, "")


def test_two_renderings_are_equal_and_touch_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tiny_files() == tiny_files()
    assert list(tmp_path.iterdir()) == []


def test_one_changed_fact_changes_only_its_line_and_the_hashes():
    old, new = tiny_files(), tiny_files(TinyIR(hidden_size=128))
    assert old["cache.py"] == new["cache.py"]
    changed = [
        (before, after)
        for before, after in zip(
            old["model.py"].splitlines(), new["model.py"].splitlines(), strict=True
        )
        if before != after
    ]
    assert [after for _, after in changed[1:]] == [b"HIDDEN_SIZE = 128"]
    assert reader()("tiny/cache.py.j2") == TEMPLATES["tiny/cache.py.j2"]
