"""`lingen diff`: spec values, what follows from them, generated code, and nothing else."""

import ast
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lingen import diff as model_diff
from lingen.cli import run
from lingen.emit.header import with_header
from lingen.emit.render import render
from lingen.ir import lower
from lingen.spec import load_spec

ROOT = Path(__file__).parents[2]
FLASH, BIG = "specs/ling-2.6-flash.yaml", "specs/ling-2.6-1t.yaml"
RING = "specs/ring-2.5-1t.yaml"  # has one target
# A changed line is one line removed and one added.
LINE_BUDGET = 40


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def shown(capsys, *arguments):
    """Exit code and stdout; nothing may be on stderr."""
    code = run(["diff", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def section(text, title):
    """The lines below a title, up to the next empty one."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{title}: "))
    return lines[start : lines.index("", start) if "" in lines[start:] else None]


def python_file(name, path):
    return render(lower(load_spec(f"specs/{name}.yaml")), "torch")[path].decode().splitlines()


def test_stat_shows_a_line_per_value(capsys):
    code, out = shown(capsys, FLASH, BIG, "--stat")
    assert code == 1
    assert out.startswith(f"a  {FLASH}\nb  {BIG}\n\n")
    rows = section(out, "Spec values")
    tables = [row for row in rows if row.startswith("  kernels.moe.tables ")]
    assert len(tables) == 1, "Flash has tables of its own"
    assert [row for row in rows if row not in tables] == [
        "Spec values: 13 differ",
        "  model.name                               ling-2.6-flash -> ling-2.6-1t",
        "  model.hidden_size                        4096 -> 8192",
        "  model.num_hidden_layers                  32 -> 80",
        "  model.num_attention_heads                32 -> 64",
        "  attention.lightning.group_norm_size      4 -> 8",
        "  mlp.intermediate_size                    9216 -> 18432",
        "  mlp.first_k_dense_replace                1 -> 4",
        "  moe.moe_intermediate_size                1024 -> 2048",
        "  moe.moe_shared_expert_intermediate_size  1024 -> 2048",
        "  quantization.fp8_mtp                     true -> false",
        "  sglang.tp_size                           4 -> 8",
        "  sglang.pp_size                           1 -> 2",
    ]


def test_stat_shows_what_follows_and_counts_lines_instead_of_code(capsys):
    _, out = shown(capsys, FLASH, BIG, "--stat")
    facts = section(out, "Derived facts")
    assert "  layer strip            differs" in facts
    assert (
        "  state per slot         58,720,256 bytes (56 MiB) -> 293,601,280 bytes (280 MiB)" in facts
    )
    assert "  KV per token           4,608 bytes (4.5 KiB) -> 11,520 bytes (11.25 KiB)" in facts
    assert not any("rotated" in fact or "slots per request" in fact for fact in facts)
    files = section(out, "Generated files")
    paths = [line.split()[0] for line in files[1:]]
    assert paths == sorted(paths, key=lambda path: (not path.startswith("torch/"), path))
    assert re.fullmatch(r"  torch/model\.py +\+\d+ -\d+", next(f for f in files if "model.py" in f))
    # Without the module's name, which is the model's: otherwise none of them had a counterpart.
    assert {"sglang/pyproject.toml", "sglang/launch.py", "sglang/pinned.py"} <= {*paths}
    # Flash has tables that `lingen tune` made, and what looks them up.
    alone = [line.split()[0] for line in files if "only in" in line]
    assert all(re.match(r"torch/(tuned/|tables\.py)", path) for path in alone), alone
    assert "@@" not in out


def test_values_are_shown_with_their_file_and_line(capsys):
    _, out = shown(capsys, BIG, "specs/ring-2.5-1t.yaml")
    places = [
        load_spec(path).origin("mtp.num_nextn_predict_layers")
        for path in (BIG, "specs/ring-2.5-1t.yaml")
    ]
    assert places[0].file == "specs/families/bailing-moe-v2.5.yaml"
    assert (
        "  mtp.num_nextn_predict_layers\n"
        f"    a  1  ({places[0].file}:{places[0].line})\n"
        f"    b  0  ({places[1].file}:{places[1].line})\n"
    ) in out


def test_a_section_that_one_model_lacks_is_none_on_its_side(capsys):
    _, out = shown(capsys, FLASH, "specs/ling-mini-2.0.yaml", "--stat")
    rows = [re.sub("  +", ": ", line.strip()) for line in out.splitlines()]
    assert "attention.mla.kv_lora_rank: 512 -> none" in rows
    assert "attention.gqa.num_key_value_heads: none -> 4" in rows
    assert "rotated, lightning: 64 of 128 -> none" in rows


def test_the_same_values_in_another_file_are_no_difference(capsys, tmp_path):
    copy = tmp_path / "other-name.yaml"
    copy.write_text("\n# the same\n" + (ROOT / FLASH).read_text())
    code, out = shown(capsys, FLASH, str(copy))
    assert code == 0
    assert re.fullmatch(
        r"No difference: \d+ values, \d+ derived facts, \d+ files compared\.\n", out
    )


def test_shipped_names_and_paths_mean_the_same(capsys):
    assert shown(capsys, "ling-2.6-flash", FLASH)[0] == 0


def test_the_code_is_a_unified_diff_from_a_to_b(capsys):
    _, out = shown(capsys, FLASH, "specs/ring-2.5-1t.yaml")
    before = {*python_file("ling-2.6-flash", "model.py")}
    after = {*python_file("ring-2.5-1t", "model.py")}
    start = out.index("--- a/model.py\n+++ b/model.py\n@@ ")
    body = out[start : out.index("\n--- a/", start + 1)].splitlines()[2:]
    assert {line[1:] for line in body if line.startswith("-")} <= before
    assert {line[1:] for line in body if line.startswith("+")} <= after
    assert "+NUM_HIDDEN_LAYERS = 80" in body
    headers = [line for line in out.splitlines() if "Generated by lingen" in line]
    # A module that looks up tables is there in one of them alone.
    assert set(headers) == {" # Generated by lingen.", "-# Generated by lingen."}


def changed_lines(a, b):
    """The removed and added lines of model.py, without the header."""
    found = model_diff.diff_models(a, b)
    (change,) = (each for each in found.files if each.path.endswith("model.py"))
    return [line for line in change.diff.splitlines()[2:] if line[0] in "+-"]


ALIKE = """\
extends: ling-2.6-flash
model:
  name: ling-2.6-flash
parallel:
  tp: [1, 2, 4]
kernels:
  moe:
    tables: []
"""


@pytest.fixture
def flash(tmp_path):
    """Flash with norm groups that no rank has a part of, and no tables of its own, as 1T."""
    file = tmp_path / "flash-at-4.yaml"
    file.write_text(ALIKE)
    return str(file)


def test_siblings_differ_in_constants_and_tables_alone(flash):
    lines = changed_lines(flash, BIG)
    allowed = re.compile(
        r"[A-Z][A-Z0-9_]* = [\d.e-]+(  # .*)?"  # a constant
        r'|"""The complete model ling-2\.6-\w+\.|\d+ layers: .*'
        r"|"  # the empty line between the two
        r"|HEAD_SLOPES = .*|LAYER_FACTORS = .*"
        r"|    Shares the embedding .* Stored as decoder layer \d+\."
    )
    assert [line for line in lines if not allowed.fullmatch(line[1:])] == []
    assert 0 < len(lines) < LINE_BUDGET


def test_code_below_the_constants_is_the_same_tree_for_siblings(flash):
    trees = []
    for path in (flash, BIG):
        source = render(lower(load_spec(path)), "torch")["model.py"].decode()
        module = ast.parse(source)
        parts = [node for node in module.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        text = "\n".join(ast.unparse(node) for node in parts)
        trees.append(re.sub(r"decoder layer \d+", "decoder layer N", text))
    assert trees[0] == trees[1]


def test_everything_wrong_with_both_specs_is_reported(capsys, tmp_path):
    for name, key in (("first", "hiden_size"), ("second", "vocab_sise")):
        text = f"extends: ling-2.6-flash\nmodel:\n  name: {name}\n  {key}: 1\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    paths = [str(tmp_path / "first.yaml"), str(tmp_path / "second.yaml")]
    assert run(["diff", *paths]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{paths[0]}:4:3: model.hiden_size: unknown key" in err
    assert f"{paths[1]}:4:3: model.vocab_sise: unknown key" in err


def test_a_missing_spec_does_not_hide_what_is_wrong_with_the_other(capsys, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("extends: ling-2.6-flash\nmodle: 1\n")
    assert run(["diff", "nowhere", str(bad)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("nowhere: no such spec\n")
    assert f"{bad}:2:1: modle: unknown key" in err


def test_colour_is_for_terminals_that_want_it(capsys, monkeypatch):
    _, plain = shown(capsys, FLASH, BIG)
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, colored = shown(capsys, FLASH, BIG)
    assert "\x1b[31m-HIDDEN_SIZE = 4096\x1b[0m\n" in colored
    assert "\x1b[32m+HIDDEN_SIZE = 8192\x1b[0m\n" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(capsys, FLASH, BIG)[1] == plain


def test_json_holds_the_same_for_programs(capsys):
    code, out = shown(capsys, FLASH, BIG, "--json")
    data = json.loads(out)
    assert (code, data["differ"], data["a"], data["b"]) == (1, True, FLASH, BIG)
    place = load_spec(FLASH).origin("model.hidden_size")
    (size,) = (each for each in data["values"] if each["key"] == "model.hidden_size")
    assert size["a"] == {"value": 4096, "file": FLASH, "line": place.line}
    assert size["b"]["value"] == 8192
    assert {each["name"] for each in data["facts"]} >= {"layers", "parameters", "KV per token"}
    assert data["targets"] == {"only_a": [], "only_b": []}
    assert all(each["diff"].startswith(f"--- a/{each['path']}\n") for each in data["files"])


def test_json_of_equal_specs_is_empty(capsys):
    code, out = shown(capsys, FLASH, FLASH, "--json")
    data = json.loads(out)
    assert (code, data["differ"]) == (0, False)
    assert (data["values"], data["facts"], data["files"]) == ([], [], [])


@pytest.fixture
def packages(monkeypatch):
    """Replaces what a and b generate."""

    def use(a, b):
        monkeypatch.setattr(model_diff, "render_all", lambda jobs: [a, b])

    return use


def test_headers_and_sidecars_are_no_difference(packages, capsys):
    packages(
        {"m.py": with_header(b"x = 1\n", "specs/a.yaml"), "manifest.json": b"1", "trace.json": b""},
        {"m.py": with_header(b"x = 1\n", "specs/b.yaml"), "manifest.json": b"2"},
    )
    assert shown(capsys, RING, RING)[0] == 0


def test_a_file_of_one_side_is_compared_with_nothing(packages, capsys):
    packages({"same.json": b"1\n"}, {"same.json": b"1\n", "new.json": b"2\n3\n"})
    code, out = shown(capsys, RING, RING)
    assert code == 1
    assert out == (
        f"a  {RING}\nb  {RING}\n"
        "\nSpec values: none differ\n"
        "\nDerived facts: none differ\n"
        "\nGenerated files: 1 differs\n"
        "  new.json  +2 -0, only in b\n"
        "\n--- /dev/null\n+++ b/new.json\n@@ -0,0 +1,2 @@\n+2\n+3\n"
    )


def test_a_target_of_one_side_is_named(packages, capsys, monkeypatch):
    packages({}, {})
    irs = iter([("torch",), ("torch", "other")])
    monkeypatch.setattr(model_diff, "lower", lambda spec: replace(lower(spec), targets=next(irs)))
    code, out = shown(capsys, FLASH, FLASH)
    assert code == 1
    assert "\nTargets only in b, not compared: other\n" in out


def test_facts_hold_no_value_of_the_spec_and_no_place():
    facts = model_diff.derived_facts(lower(load_spec(FLASH)))
    assert facts["parameters"] == "104.187 B (104,186,915,584)"
    assert facts["parameters, active"].startswith("7.449 B")
    assert not any(".yaml" in text for text in facts.values())
