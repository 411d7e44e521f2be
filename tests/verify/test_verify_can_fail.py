"""One detail wrong at a time: `lingen verify` exits 1 and names the first tensor that is off."""

from __future__ import annotations

import json

import pytest
import torch
from damage import edit_json, edited_source, first_off
from lingen.cli import run
from lingen.verify import package as verify_package
from safetensors.torch import load_file, save_file

CONFIG_CHANGES = {
    "rope theta": ("bias-tiny", {"rope_theta": 10000.0}, "main.layer.0.attn_out"),
    "number of norm groups": ("bias-tiny", {"group_norm_size": 4}, "main.layer.0.attn_out"),
    "scaling applied twice": (
        "bias-tiny",
        {"routed_scaling_factor": 6.25},
        "main.layer.1.router_weights",
    ),
    "epsilon of the norms": ("qlora", {"rms_norm_eps": 1e-6}, "main.layer.0.attn_out"),
    "groups that are kept": ("bias-tiny", {"topk_group": 2}, "main.layer.1.router_indices"),
}


@pytest.mark.parametrize(
    ("case", "change", "expected"), CONFIG_CHANGES.values(), ids=CONFIG_CHANGES, indirect=["case"]
)
def test_a_wrong_value_in_the_config_shows(case, change, expected, capsys):
    edit_json(case / "config.json", lambda config: config.update(change))
    assert first_off(case, capsys) == expected


SOURCE_CHANGES = {
    "rope by halves in MLA layers": (
        "bias-tiny",
        "kernels/rope.py",
        "even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)",
        "even, odd = x.float().chunk(2, dim=-1)",
        "main.layer.1.attn_out",
    ),
    "rope by pairs in lightning layers": (
        "bias-tiny",
        "kernels/rope.py",
        "return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], dim=-1)",
        "return torch.cat([rotate_pairs_ref(torch.cat([left, right], -1), *rope), rest], dim=-1)",
        "main.layer.0.attn_out",
    ),
    "epsilon of the inner norms": (
        "qlora",
        "model.py",
        "LORA_NORM_EPS = 1e-06",
        "LORA_NORM_EPS = RMS_NORM_EPS",
        "main.layer.3.attn_out",
    ),
    "router bias in the weights": (
        "bias-tiny",
        "kernels/moe.py",
        "weights = scores.gather(-1, indices)",
        "weights = biased.gather(-1, indices)",
        "main.layer.1.router_weights",
    ),
    "router bias not in the selection": (
        "bias-tiny",
        "kernels/moe.py",
        "biased = scores + expert_bias",
        "biased = scores",
        "main.layer.1.router_indices",
    ),
    "shared experts scaled too": (
        "bias-tiny",
        "model.py",
        "shared.float()",
        "2.5 * shared.float()",
        "main.layer.1.out",
    ),
    "MTP: hidden state before embedding": (
        "mtp",
        "model.py",
        "[self.enorm(embedded), self.hnorm(hidden)]",
        "[self.hnorm(hidden), self.enorm(embedded)]",
        "mtp.layer.4.attn_out",
    ),
    "MTP: no final norm of its own": (
        "mtp",
        "model.py",
        "return self.final_layernorm.add(out, hidden)[0]",
        "return self.final_layernorm.add(out, hidden)[1]",
        "mtp.layer.4.out",
    ),
    "gate before norm": (
        "bias-tiny",
        "kernels/lightning.py",
        "groups = x.float().unflatten",
        "groups = (x.float() * gate.float().sigmoid()).unflatten",
        "main.layer.0.attn_out",
    ),
    "initial state ignored": (
        "bias-tiny",
        "backend.py",
        "has_initial_state = (batch.num_computed_tokens > 0) & ~layout.is_padding",
        "has_initial_state = layout.is_padding",
        "decode.logits",
    ),
    "initial state never ignored": (
        "bias-tiny",
        "backend.py",
        "has_initial_state = (batch.num_computed_tokens > 0) & ~layout.is_padding",
        "has_initial_state = ~layout.is_padding",
        "main.layer.0.attn_out",
    ),
}


@pytest.mark.parametrize(
    ("case", "path", "old", "new", "expected"),
    SOURCE_CHANGES.values(),
    ids=SOURCE_CHANGES,
    indirect=["case"],
)
def test_a_wrong_line_in_the_package_shows(case, path, old, new, expected, monkeypatch, capsys):
    edited_source(monkeypatch, path, (old, new))
    assert first_off(case, capsys) == expected


@pytest.mark.parametrize(
    ("case", "convention", "expected"),
    [
        ("bias-tiny", "main", "main.layer.0.attn_out"),
        ("engine-h128", "main", "main.layer.0.attn_out"),
        ("hybrid-heads6", "alt", "alt_decay.logits"),
        ("engine-h128", "alt", "alt_decay.logits"),
    ],
    indirect=["case"],
)
def test_the_other_decay_offset_shows(case, convention, expected, capsys):
    def flip(data: dict) -> None:
        data["decay_layer_offset"][convention] = -1 - data["decay_layer_offset"][convention]

    edit_json(case / "expected.json", flip)
    assert first_off(case, capsys) == expected


@pytest.mark.parametrize("case", ["bias-tiny"], indirect=True)
def test_a_lightning_case_that_does_not_say_its_decay_offset_is_refused(case, capsys):
    edit_json(case / "expected.json", lambda data: data.pop("decay_layer_offset"))
    assert run(["verify", str(case)]) == 2
    assert "decay_layer_offset.main is missing" in capsys.readouterr().err


WEIGHT_CHANGES = {
    "lm_head.weight": "main.logits",
    "model.layers.0.attention.g_proj.weight": "main.layer.0.attn_out",
    "model.layers.1.attention.kv_b_proj.weight": "main.layer.1.attn_out",
    "model.layers.1.mlp.experts.3.down_proj.weight": "main.layer.1.out",
    "model.layers.1.mlp.gate.weight": "main.layer.1.router_logits",
}


@pytest.mark.parametrize("case", ["bias-tiny"], indirect=True)
@pytest.mark.parametrize(("name", "expected"), WEIGHT_CHANGES.items(), ids=WEIGHT_CHANGES)
def test_one_weight_five_percent_off_shows(case, name, expected, capsys):
    tensors = load_file(case / "weights.safetensors")
    tensors[name] = tensors[name] * 1.05
    save_file(tensors, case / "weights.safetensors")
    assert first_off(case, capsys) == expected


@pytest.mark.parametrize("case", ["tail-layers"], indirect=True)
def test_a_wrong_kind_of_tail_layers_misses_weights_by_name(case, monkeypatch, capsys):
    imported = verify_package.import_config

    def with_linear_tail(*args, overrides=(), **kwargs):
        return imported(*args, overrides=[*overrides, "attention.pattern.tail=linear"], **kwargs)

    monkeypatch.setattr(verify_package, "import_config", with_linear_tail)
    assert run(["verify", str(case)]) == 2
    err = capsys.readouterr().err
    assert "model.layers.4.attention.query_key_value.weight: missing" in err
    assert "model.layers.5.attention.kv_b_proj.weight: unexpected" in err


@pytest.mark.parametrize("case", ["bias-tiny"], indirect=True)
def test_a_nan_in_the_output_is_an_infinite_error(case, capsys):
    tensors = load_file(case / "weights.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, case / "weights.safetensors")
    assert run(["verify", "--json", str(case)]) == 1
    checks = json.loads(capsys.readouterr().out)["cases"][0]["checks"]
    off = next(check for check in checks if not check["passed"])
    assert (off["name"], off["max_abs_error"]) == ("main.final_norm", None)


@pytest.mark.parametrize("case", ["bias-tiny"], indirect=True)
def test_the_table_names_the_first_tensor_that_is_off(case, capsys):
    edit_json(case / "config.json", lambda config: config.update(rope_theta=10000.0))
    assert run(["verify", str(case)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "bias-tiny (seg_la, torch reference): FAILED, first off: main.layer.0.attn_out\n"
    )
    assert out.endswith("\n0 of 1 cases passed, 27 checks\n")


@pytest.mark.parametrize("case", ["bias-tiny"], indirect=True)
def test_another_greedy_token_shows(case, capsys):
    tensors = load_file(case / "golden.safetensors")
    tensors["decode.tokens"][1, 5] += 1
    save_file(tensors, case / "golden.safetensors")
    assert first_off(case, capsys) == "decode.logits"
