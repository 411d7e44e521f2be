"""What a package does not use has no say in it: other families' templates change no byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lingen.emit.render import Files, render
from small_models import lowered

ROOT = Path(__file__).parents[2]
TEMPLATES = {
    path.relative_to(ROOT / "templates").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "templates").rglob("*.j2"))
}
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
GQA = ("torch/backend/gqa.j2", "torch/kernels/gqa.py.j2", "torch/model/gqa.j2")
MLA = (
    "torch/backend/mla.j2",
    *("torch/kernels/mla.py.j2", "torch/kernels/mla/decode.j2", "torch/kernels/mla/prefill.j2"),
    "torch/model/mla.j2",
)
LIGHTNING = (
    "torch/backend/lightning.j2",
    "torch/kernels/lightning.py.j2",
    *("torch/kernels/lightning/decode.j2", "torch/kernels/lightning/prefill.j2"),
    "torch/model/lightning.j2",
)
SOFTMAX = ("torch/kernels/moe/route_softmax.j2",)
SIGMOID = ("torch/kernels/moe/route_sigmoid_grouped.j2",)


def rendered(spec: str, edited: tuple[str, ...] = (), added: dict[str, str] | None = None) -> Files:
    """The package of `specs/SPEC.yaml`, with a line more in each of the edited templates."""
    templates = {**TEMPLATES, **(added or {})}
    for name in edited:
        templates[name] += "\n# edited\n"
    return render(lowered(spec=ROOT / "specs" / f"{spec}.yaml"), "torch", templates.__getitem__)


@pytest.mark.parametrize(
    ("spec", "unused", "used"),
    [
        ("ling-2.6-flash", (GQA, SOFTMAX), (MLA, LIGHTNING, SIGMOID)),
        ("ring-mini-linear-2.0", (MLA, SOFTMAX), (GQA, LIGHTNING, SIGMOID)),
        ("ling-mini-2.0", (MLA, LIGHTNING, SOFTMAX), (GQA, SIGMOID)),
        ("ling-lite-1.5", (MLA, LIGHTNING, SIGMOID), (GQA, SOFTMAX)),
    ],
)
def test_an_edit_changes_the_packages_that_use_the_template_and_no_other(spec, unused, used):
    before = rendered(spec)
    for part in unused:
        assert rendered(spec, part) == before, part
    for part in used:
        after = rendered(spec, part)
        assert after.keys() == before.keys()
        assert after != before, part


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_templates_that_the_manifest_does_not_name_are_never_read(spec):
    files = render(lowered(spec=spec), "torch")
    named = {
        template.removeprefix("templates/")
        for file in json.loads(files["manifest.json"])["files"].values()
        for template in file["templates"]
    }
    assert named < TEMPLATES.keys()
    kept = {name: text for name, text in TEMPLATES.items() if name in named}
    assert render(lowered(spec=spec), "torch", kept.__getitem__) == files


def test_a_template_that_nothing_includes_changes_nothing():
    added = {"torch/model/kda.j2": "class KimiDeltaAttention: ...\n"}
    assert rendered("ling-2.6-flash", added=added) == rendered("ling-2.6-flash")


def test_siblings_of_one_family_are_the_same_code_with_other_numbers():
    """Code that does not depend on the model is not told apart by its name."""
    flash, big = rendered("ling-2.6-flash"), rendered("ling-2.6-1t")
    differing = [
        (a, b)
        for a, b in zip(
            flash["backend.py"].decode().splitlines(),
            big["backend.py"].decode().splitlines(),
            strict=True,
        )
        if a != b
    ]
    assert len(differing) == 2  # the header and the docstring
