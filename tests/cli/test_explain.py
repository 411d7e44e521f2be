"""`lingen explain`: the report for people, the JSON for programs, and where values come from."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from lingen import report
from lingen.cli import run
from lingen.hf import import_config_data
from lingen.ir import lower
from lingen.spec import load_spec, load_spec_text

ROOT = Path(__file__).parents[2]
NAMES = ["ling-2.6-flash", "ling-2.6-1t", "ring-2.5-1t"]
BASE = json.loads((ROOT / "tests/configs/ling-2.6-flash.json").read_text())


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def shipped(name):
    return load_spec(f"specs/{name}.yaml")


def strip(overrides=(), **changes):
    spec = import_config_data({**BASE, **changes}, name="toy", overrides=overrides).spec
    return report.layer_strip(lower(spec)).splitlines()


def test_strip_of_flash_is_four_groups_and_the_mtp_layer():
    assert report.layer_strip(lower(shipped("ling-2.6-flash"))) == (
        "0  lLLLLLLM LLLLLLLM LLLLLLLM LLLLLLLM + M\n"
        "L lightning, M MLA; capital: experts, small: dense MLP; + M: MTP layer"
    )


def test_strip_of_the_1t_model_starts_each_line_with_a_layer_index():
    assert report.layer_strip(lower(shipped("ring-2.5-1t"))) == (
        " 0  llllLLLM LLLLLLLM LLLLLLLM LLLLLLLM LLLLLLLM LLLLLLLM LLLLLLLM LLLLLLLM\n"
        "64  LLLLLLLM LLLLLLLM\n"
        "L lightning, M MLA; capital: experts, small: dense MLP"
    )


@pytest.mark.parametrize(("tail", "cells"), [("full", "MM"), ("linear", "LL")])
def test_layers_after_the_last_whole_group_are_a_group_of_their_own(tail, cells):
    lines = strip([f"attention.pattern.tail={tail}"], num_hidden_layers=10)
    assert lines[0] == f"0  lLLLLLLM {cells} + M"


def test_legend_names_only_what_is_there():
    changes = {"first_k_dense_replace": 0, "num_nextn_predict_layers": 0, "layer_group_size": 1}
    assert strip(**changes) == [f"0  {'M' * 32}", "M MLA; capital: experts"]
    changes["first_k_dense_replace"] = 32
    assert strip(**changes) == [f"0  {'m' * 32}", "M MLA; small: dense MLP"]


@pytest.mark.parametrize("num_layers", [1, 71, 72, 500])
@pytest.mark.parametrize("group_size", [1, 8, 100])
def test_strip_fits_the_width_and_has_every_layer(num_layers, group_size):
    changes = {"num_hidden_layers": num_layers, "layer_group_size": group_size}
    *lines, legend = strip(**changes)
    assert max(map(len, [*lines, legend])) <= report.WIDTH - 2
    cells = "".join(line.split("+")[0].split(maxsplit=1)[1] for line in lines).replace(" ", "")
    assert len(cells) == num_layers
    firsts = [int(line.split()[0]) for line in lines]
    assert firsts[0] == 0 and firsts == sorted(firsts)


def test_human_report_of_flash():
    assert (
        report.explain(shipped("ling-2.6-flash"), False, False, False)
        == """\
name                 ling-2.6-flash
architecture         BailingMoeV2_5ForCausalLM (bailing_hybrid)
tp sizes             1, 2, 4, 8
layers               32 layers: 28 lightning and 4 MLA, 1 dense and 31 MoE
  0  lLLLLLLM LLLLLLLM LLLLLLLM LLLLLLLM + M
  L lightning, M MLA; capital: experts, small: dense MLP; + M: MTP layer

parameters           104.187 B (104,186,915,584), without the MTP layer
  active             7.449 B (7,449,488,128), of one token
  MTP layer          3.307 B (3,307,493,632)

state per slot       58,720,256 bytes (56 MiB)
slots per request    3
state per request    176,160,768 bytes (168 MiB)
KV per token         4,608 bytes (4.5 KiB)
KV at 32,768 tokens  150,994,944 bytes (144 MiB)
latent width         576

rotated, lightning   64 of 128
rotated, MLA         64 of 64
decay layer_offset   0 (specs/families/bailing-moe-v2.5.yaml:{line})
lightning backend    seg_la
kernels              Triton: lightning, MLA, experts, norms

expert kernels       15 tuned tables
  NVIDIA H200        bfloat16, N 1024 (tp 1), triton 3.6.0, torch only
  NVIDIA H200        fp8_w8a8 per channel, N 1024 (tp 1), triton 3.6.0, torch
                     only
  NVIDIA H200        fp8_w8a8 [128, 128], N 1024 (tp 1), triton 3.6.0, torch
                     only
  NVIDIA H200        bfloat16, N 512 (tp 2), triton 3.6.0, torch only
  NVIDIA H200        fp8_w8a8 per channel, N 512 (tp 2), triton 3.6.0, torch
                     only
  NVIDIA H200        fp8_w8a8 [128, 128], N 512 (tp 2), triton 3.6.0, torch only
  NVIDIA H200        fp8_w8a8 [128, 128], N 256 (tp 4), triton 3.1.0, sglang
                     only, no _down table: up's rows serve both
  NVIDIA H20         fp8_w8a8 [128, 128], N 256 (tp 4), triton 3.5.1, sglang
                     only
  NVIDIA H20-3e      fp8_w8a8 [128, 128], N 256 (tp 4), triton 3.5.1, sglang
                     only
  NVIDIA H20         fp8_w8a8 [128, 128], N 512 (tp 2), triton 3.5.1, sglang
                     only
  NVIDIA H20-3e      fp8_w8a8 [128, 128], N 512 (tp 2), triton 3.5.1, sglang
                     only
  NVIDIA H20-3e      bfloat16, N 512 (tp 2), triton 3.5.1, sglang only
  NVIDIA H20         bfloat16, N 512 (tp 2), triton 3.5.1, sglang only
  NVIDIA H200        fp8_w8a8 [128, 128], N 512 (tp 2), triton 3.6.0, sglang
                     only
  NVIDIA H200        bfloat16, N 512 (tp 2), triton 3.6.0, sglang only
""".replace("{line}", str(shipped("ling-2.6-flash").origin(report.DECAY_OFFSET).line))
    )


@pytest.mark.parametrize("name", NAMES)
def test_human_report_fits_80_columns_and_colour_adds_nothing_but_colour(name):
    plain = report.explain(shipped(name), False, False, False)
    coloured = report.explain(shipped(name), False, False, True)
    assert max(map(len, plain.splitlines())) <= 80
    assert plain.isascii() and "\x1b" not in plain
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == plain.split()


def test_a_model_of_mla_layers_alone_has_no_rows_on_lightning():
    spec = import_config_data({**BASE, "layer_group_size": 1}, name="toy").spec
    text = report.explain(spec, False, False, False)
    assert "state per slot       0 bytes" in text
    assert "decay" not in text and "backend" not in text
    assert "rotated, MLA         64 of 64" in text


@pytest.mark.parametrize(
    ("name", "overrides", "triton", "torch"),
    [
        ("ling-2.6-1t", [], ["lightning", "MLA", "experts", "norms"], []),
        ("ring-mini-linear-2.0", [], ["lightning", "experts", "norms"], ["GQA"]),
        ("ling-mini-2.0", [], ["experts", "norms"], ["GQA"]),
        (
            "ling-2.6-flash",
            ["attention.lightning.head_dim=96"],
            ["MLA", "experts", "norms"],
            ["lightning"],
        ),
    ],
)
def test_kernels_are_told_from_plain_torch(name, overrides, triton, torch):
    ir = lower(load_spec(f"specs/{name}.yaml", overrides))
    facts = report.explain_json(ir)["ir"]["kernels"]
    assert facts == {"in_triton": triton, "in_torch": torch}
    lines = report.explain_text(ir, color=False).splitlines()
    assert f"kernels              Triton: {', '.join(triton)}" in lines
    text = [line for line in lines if line.startswith("  plain torch")]
    assert len(text) == bool(torch)
    assert all(part in text[0] for part in torch)
    assert any("(head_dim 96: no power of two >= 16)" in line for line in text) == bool(overrides)


def test_drafting_adds_the_mtp_layer_to_the_kv_row():
    settings = ["cache.speculative.num_draft_tokens=4"]
    spec = import_config_data(BASE, name="toy", overrides=settings).spec
    text = report.explain(spec, False, False, False)
    assert "KV per token         5,760 bytes (5.625 KiB), the MTP layer's included" in text


@pytest.mark.parametrize("name", NAMES)
def test_json_has_the_documented_shape(name, capsys):
    assert run(["explain", f"specs/{name}.yaml", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    ir = lower(shipped(name))
    assert list(data) == ["name", "layers", "parameters", "cache", "ir"]
    assert data["name"] == name
    assert data["layers"] == [
        {"index": layer.index, "attention": layer.attention, "mlp": layer.mlp}
        for layer in ir.plan.layers
    ]
    assert list(data["parameters"]) == ["total", "active", "mtp"]
    assert list(data["cache"]) == [
        "state_bytes_per_slot", "kv_bytes_per_token", "slots_per_request",
    ]  # fmt: skip
    assert data["ir"] == ir.to_json()


def test_json_of_flash_has_the_published_numbers(capsys):
    run(["explain", "specs/ling-2.6-flash.yaml", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["parameters"] == {
        "total": 104_186_915_584, "active": 7_449_488_128, "mtp": 3_307_493_632,
    }  # fmt: skip
    assert data["layers"][0] == {"index": 0, "attention": "lightning", "mlp": "dense"}
    assert data["layers"][31] == {"index": 31, "attention": "mla", "mlp": "moe"}
    assert data["cache"] == {
        "state_bytes_per_slot": 56 * 2**20, "kv_bytes_per_token": 4608, "slots_per_request": 3,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_resolved_yaml_loads_to_the_same_values_here_and_elsewhere(name, capsys):
    assert run(["explain", f"specs/{name}.yaml", "--resolved"]) == 0
    text = capsys.readouterr().out
    spec = shipped(name)
    assert load_spec_text(text, "specs/resolved.yaml") == spec
    assert yaml.safe_load(text) == spec.as_tree()


def test_resolved_yaml_points_at_the_line_of_each_value(capsys):
    run(["explain", "specs/ring-2.5-1t.yaml", "--resolved"])
    seen = set()
    for line in capsys.readouterr().out.splitlines():
        if line.endswith(":"):
            continue
        line = line.replace("- {", "- ", 1)
        statement, _, place = line.partition("  # ")
        file, _, number = place.rpartition(":")
        source = Path(file).read_text().splitlines()[int(number) - 1]
        assert source.split(":")[0].strip() == statement.split(":")[0].strip()
        seen.add(file)
    assert seen == set(shipped("ring-2.5-1t").sources)


def test_resolved_json_gives_value_file_and_line_of_every_key(capsys):
    assert run(["explain", "specs/ring-2.5-1t.yaml", "--resolved", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    spec = shipped("ring-2.5-1t")
    assert set(data) == set(spec.values())
    key = "mtp.num_nextn_predict_layers"
    line = spec.origin(key).line
    assert data[key] == {"value": 0, "file": "specs/ring-2.5-1t.yaml", "line": line}
    assert data["parallel.tp"]["value"] == [1, 2, 4, 8]


def test_a_shipped_spec_is_explained_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["explain", "ling-2.6-flash"]) == 0
    assert "104.187 B" in capsys.readouterr().out


def test_a_wrong_spec_exits_2_with_its_place(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text("extends: ling-2.6-flash\nmodel:\n  name: bad\n  hidden_size: 8.0\n")
    assert run(["explain", str(bad)]) == 2
    assert capsys.readouterr().err.startswith(f"{bad}:4:16: model.hidden_size: not an integer\n")


def _explain_in_a_process(*arguments, **environment):
    code = (
        "import sys; from lingen.cli import run; code = run(sys.argv[1:]);"
        "print(sorted({'torch', 'rich'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "explain", "specs/ling-2.6-flash.yaml", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )


def test_a_pipe_gets_no_colour_whatever_the_environment_forces():
    done = _explain_in_a_process(FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="200")
    assert done.stdout == report.explain(shipped("ling-2.6-flash"), False, False, False)


@pytest.mark.parametrize("form", [(), ("--json",), ("--resolved",)])
def test_torch_is_never_imported(form):
    assert _explain_in_a_process(*form).stderr in ("[]\n", "['rich']\n")


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_colour_unless_no_color_is_set(monkeypatch, capsys, no_color, is_coloured):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    run(["explain", "specs/ling-2.6-flash.yaml"])
    assert ("\x1b[" in capsys.readouterr().out) is is_coloured
