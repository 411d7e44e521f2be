"""Typical mistakes of the siblings, one at a time: each is found, and the first tensor named."""

from __future__ import annotations

import pytest
from damage import edit_json, edited_source, first_off

GQA_ATTENTION = "main.layer.0.attn_out"

CONFIG_CHANGES = {
    "whole head rotated": (
        "v2-gqa",
        {"partial_rotary_factor": 1.0, "rotary_dim": 16},
        GQA_ATTENTION,
    ),
    "whole head rotated, with drafts": ("v2-mtp", {"partial_rotary_factor": 1.0}, GQA_ATTENTION),
    "norm_topk_prob reversed": (
        "v1-gqa",
        {"norm_topk_prob": False},
        "main.layer.0.router_weights",
    ),
    "norm_topk_prob reversed the other way": (
        "v1-normhead",
        {"norm_topk_prob": True},
        "main.layer.1.router_weights",
    ),
    "head not normalised": ("v1-normhead", {"norm_head": False}, "main.logits"),
    "head normalised": ("v1-gqa", {"norm_head": True}, "main.logits"),
    "norm groups": ("linear-v2-gqa", {"group_norm_size": 4}, "main.layer.0.attn_out"),
    "norm epsilon": ("linear-v2-tail", {"rms_norm_eps": 1e-6}, "main.layer.0.attn_out"),
}


@pytest.mark.parametrize(
    ("case", "change", "expected"), CONFIG_CHANGES.values(), ids=CONFIG_CHANGES, indirect=["case"]
)
def test_a_wrong_value_in_the_config_shows(case, change, expected, capsys):
    edit_json(case / "config.json", lambda config: config.update(change))
    assert first_off(case, capsys) == expected


NORM_AFTER_ROPE = (
    "q = rotate_halves(self.query_layernorm(q.float()), rope).to(v.dtype)",
    "q = self.query_layernorm(rotate_halves(q.float(), rope)).to(v.dtype)",
)
SOURCE_CHANGES = {
    "query norm after the rotation": ("v2-gqa", "model.py", *NORM_AFTER_ROPE, GQA_ATTENTION),
    "query heads on the wrong key heads": (
        "v2-gqa",
        "kernels/gqa.py",
        "queries = q[start:end].float().unflatten(1, (keys.shape[1], -1))  # [t, G, H / G, K]",
        "queries = q[start:end].float().unflatten(1, (-1, keys.shape[1])).transpose(1, 2)",
        GQA_ATTENTION,
    ),
    "sigmoid in place of softmax": (
        "v1-normhead",
        "kernels/moe.py",
        "scores = logits.softmax(dim=-1)",
        "scores = logits.sigmoid()",
        "main.layer.1.router_weights",
    ),
    "head normalised by rows": (
        "v1-normhead",
        "weights.py",
        "(torch.stack(squares).sum(dim=0).sqrt() + 1e-7)",
        "(rows.float().norm(dim=1, keepdim=True) + 1e-7)",
        "main.logits",
    ),
    "keys of the wrong layers": (
        "linear-v2-gqa",
        "backend.py",
        "(by_kind[kind], kinds[:layer_idx].count(kind))",
        "(by_kind[kind], 0)",
        "main.layer.0.state",
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


@pytest.mark.parametrize("case", ["v2-mtp"], indirect=True)
def test_drafting_from_before_the_final_norm_shows(case, monkeypatch, capsys):
    edited_source(
        monkeypatch,
        "model.py",
        ("return self.norm(hidden)", "self.unnormed = hidden\n        return self.norm(hidden)"),
        (
            "self.word_embeddings(next_ids), hidden,",
            "self.word_embeddings(next_ids), self.unnormed,",
        ),
    )
    assert first_off(case, capsys) == "mtp.layer.3.attn_out"


@pytest.mark.parametrize(
    ("case", "convention", "expected"),
    [
        ("linear-v2-gqa", "main", "main.layer.0.attn_out"),
        ("linear-v2-tail", "alt", "alt_decay.logits"),
    ],
    indirect=["case"],
)
def test_the_other_decay_offset_shows(case, convention, expected, capsys):
    def flip(data: dict) -> None:
        data["decay_layer_offset"][convention] = -1 - data["decay_layer_offset"][convention]

    edit_json(case / "expected.json", flip)
    assert first_off(case, capsys) == expected
