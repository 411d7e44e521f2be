"""`lingen explain --svg`: true to the model, legible on any page, the same bytes everywhere."""

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from lingen.cli import run
from lingen.ir import lower
from lingen.ir.plan import AttentionKind, MlpKind
from lingen.pictures import bars, elements, palette, picture
from lingen.pictures.experts import example_choice
from lingen.spec import load_spec

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
FLASH = "specs/ling-2.6-flash.yaml"
SVG = "{http://www.w3.org/2000/svg}"
ONE_STAGE = "parallel.pp=[1]"
NO_MTP = "mtp.num_nextn_predict_layers=0"
MOST_BYTES = 40 * 1024

VARIANTS = {
    "three-layers": ["model.num_hidden_layers=3", ONE_STAGE, NO_MTP],
    "no-experts": ["mlp.first_k_dense_replace=32", NO_MTP],
    "experts-in-mtp-only": ["mlp.first_k_dense_replace=32"],
    "lightning-only": [
        "attention.pattern.layer_group_size=64", "attention.pattern.tail=linear", NO_MTP,
    ],
    "no-lightning": ["attention.pattern.layer_group_size=1"],
    "long-groups": [
        "model.num_hidden_layers=130", "attention.pattern.layer_group_size=64", ONE_STAGE,
    ],
    "short-groups": [
        "model.num_hidden_layers=160", "attention.pattern.layer_group_size=2", ONE_STAGE,
    ],
    "many-groups-of-experts": [
        "moe.num_experts=512", "moe.n_group=64", "moe.topk_group=7", "moe.num_experts_per_tok=10",
        "moe.num_shared_experts=3",
    ],
    "one-group-of-experts": ["moe.n_group=1", "moe.topk_group=1"],
    "odd-groups": [
        "moe.num_experts=18", "moe.n_group=3", "moe.topk_group=2", "moe.num_experts_per_tok=5",
        "moe.num_shared_experts=0",
    ],
    "every-expert": [
        "moe.num_experts=8", "moe.n_group=2", "moe.topk_group=2", "moe.num_experts_per_tok=8",
    ],
}  # fmt: skip
MODELS = {
    **{name: (f"specs/{name}.yaml", []) for name in NAMES},
    **{name: (FLASH, settings) for name, settings in VARIANTS.items()},
}


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def model(name):
    path, settings = MODELS[name]
    return lower(load_spec(path, settings))


def drawn(ir):
    return ElementTree.fromstring(picture(ir))


def texts(root):
    return [node.text for node in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", NAMES)
def test_the_checked_in_picture_is_up_to_date(name):
    wanted = picture(model(name)).encode()
    assert (ROOT / f"docs/pictures/{name}.svg").read_bytes() == wanted, (
        f"run `lingen explain {name} --svg docs/pictures/{name}.svg`"
    )


def test_every_checked_in_picture_has_its_spec():
    assert sorted(path.stem for path in (ROOT / "docs/pictures").glob("*.svg")) == NAMES


@pytest.mark.parametrize("name", MODELS)
def test_there_is_a_cell_of_its_kind_for_every_layer(name):
    ir = model(name)
    found = [node.get("href") for node in drawn(ir).iter(f"{SVG}use")]
    wanted = [f"#{layer.attention}-{layer.mlp}" for layer in ir.plan.layers]
    wanted += [f"#{ir.plan.full_kind}-moe"] if ir.mtp else []
    assert found == wanted


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_in_it_is_defined_and_explained(name):
    ir = model(name)
    root = drawn(ir)
    defined = {node.get("id") for node in root.iter(f"{SVG}g")} - {None}
    assert {node.get("href")[1:] for node in root.iter(f"{SVG}use")} == defined
    names = {kind.name for table in (palette.ATTENTION, palette.MLP) for kind in table.values()}
    wanted = {palette.ATTENTION[kind.split("-")[0]].name for kind in defined}
    wanted |= {palette.MLP[kind.split("-")[1]].name for kind in defined}
    assert names & set(texts(root)) == wanted


@pytest.mark.parametrize("name", MODELS)
def test_there_is_a_cell_for_every_expert_and_a_mark_for_every_chosen_one(name):
    ir = model(name)
    root = drawn(ir)
    grids = [node for node in root.iter(f"{SVG}path") if node.get("class") in ("idle", "left")]
    chosen = [node for node in root.iter(f"{SVG}rect") if node.get("width") == "10"]
    if ir.moe is None:
        assert (grids, chosen) == ([], [])
        assert "No experts: every layer has a dense MLP." in texts(root)
        return
    assert len(grids) == ir.moe.n_group
    assert sum(node.get("class") == "idle" for node in grids) == ir.moe.topk_group
    cells = [node.get("d").count("h8") for node in grids]
    assert cells == [ir.moe.experts_per_group] * ir.moe.n_group
    assert len(chosen) == ir.moe.num_experts_per_tok
    assert ("S" in texts(root)) == ir.moe.has_shared_experts


@pytest.mark.parametrize("name", [name for name in MODELS if model(name).moe])
def test_the_example_keeps_the_groups_and_experts_that_the_model_keeps(name):
    moe = model(name).moe
    choice = example_choice(moe)
    assert len(choice) == moe.topk_group
    assert set(choice) <= set(range(moe.n_group))
    assert sum(map(len, choice.values())) == moe.num_experts_per_tok
    for experts in choice.values():
        assert len(set(experts)) == len(experts)
        assert set(experts) <= set(range(moe.experts_per_group))


@pytest.mark.parametrize("name", MODELS)
def test_it_is_small_and_nothing_leaves_the_page(name):
    ir = model(name)
    root = drawn(ir)
    assert len(picture(ir).encode()) <= MOST_BYTES
    assert root.get("width") == "860"
    right = 860 - elements.MARGIN
    for node in root.iter():
        x, width = int(node.get("x", 0)), int(node.get("width", 0))
        if node.tag == f"{SVG}text":
            width = elements.width_of(node.text) if node.get("text-anchor") is None else 8
        elif node.tag == f"{SVG}use":
            width = 16
        if node is not root:
            assert x >= 0 and x + width <= right, ElementTree.tostring(node)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_reaches_below_the_page(name):
    root = drawn(model(name))

    def lowest(node, y):
        move = re.fullmatch(r"translate\(-?\d+ (-?\d+)\)", node.get("transform", ""))
        y += int(move[1]) if move else 0
        own = y + int(node.get("y", 0)) + int(node.get("height", 0))
        children = [lowest(child, y) for child in node if child.tag != f"{SVG}defs"]
        return max([own, *children])

    content = max(lowest(child, 0) for child in root)
    assert content <= int(root.get("height"))


def test_a_viewer_that_cannot_see_it_is_told():
    root = drawn(model("ling-2.6-flash"))
    assert root.get("role") == "img"
    ids = root.get("aria-labelledby").split()
    words = {node.get("id"): node.text for node in root if node.get("id")}
    assert words[ids[0]] == "ling-2.6-flash: layers, experts and memory"
    assert words[ids[1]] == (
        "32 layers: 28 lightning and 4 MLA, 1 dense and 31 MoE, and one MTP layer."
        " 256 routed experts in 8 groups of 32: a token uses 8."
        " A request holds 168 MiB of recurrent state, and 144 MiB of keys and values at"
        " 32,768 tokens."
    )


def test_bars_carry_their_numbers_and_share_a_scale():
    root = drawn(model("ling-2.6-1t"))
    found = texts(root)
    assert "Recurrent state, whatever the length: 3 × 280 MiB" in found
    assert "Keys and values at 32,768 tokens: 11,520 bytes each" in found
    assert {"840 MiB", "360 MiB"} <= set(found)
    state, kv = (int(node.get("width")) for node in root.iter(f"{SVG}rect")
                 if node.get("height") == "16")  # fmt: skip
    assert kv == state * 360 // 840


def test_models_without_one_of_the_caches_say_so():
    assert "Recurrent state: none" in texts(drawn(model("no-lightning")))
    assert "Keys and values: none" in texts(drawn(model("lightning-only")))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 MiB"), (64 << 10, "0.0625 MiB"), (9 << 19, "4.5 MiB"), (1440 << 20, "1,440 MiB")],
)
def test_bytes_are_written_in_mib(count, text):
    assert bars.mib(count) == text


def luminance(color):
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


PAGES = {"light": "#ffffff", "dark": "#0d1117"}
FILLS = [kind.color for table in (palette.ATTENTION, palette.MLP) for kind in table.values()]
FILLS.append(palette.SHARED)


def test_contrast_is_that_of_the_definition():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", PAGES)
def test_words_are_legible_on_both_pages(scheme):
    assert all(contrast(ink, PAGES[scheme]) >= 4.5 for ink in palette.INKS[scheme])
    # No one colour reaches 4.5 on both: this is what viewers without schemes get.
    assert contrast(palette.ANY_INK, PAGES[scheme]) >= 3.8


@pytest.mark.parametrize("fill", FILLS)
def test_letters_are_legible_on_fills_and_fills_on_both_pages(fill):
    assert contrast(palette.ON_FILL, fill) >= 4.5
    assert all(contrast(fill, page) >= 3 for page in PAGES.values())


def test_every_word_follows_the_page_or_stands_on_a_fill():
    for node in drawn(model("ling-2.6-flash")).iter(f"{SVG}text"):
        assert {"ink", "dim", "on"} & set(node.get("class").split())
        assert node.get("fill") is None


def test_kinds_differ_in_more_than_colour():
    for table in (palette.ATTENTION, palette.MLP):
        for one, other in combinations(table.values(), 2):
            assert one.mark != other.mark
            assert one.color != other.color


def test_every_kind_of_layer_has_a_row():
    assert set(get_args(AttentionKind)) <= set(palette.ATTENTION)
    assert set(get_args(MlpKind)) == set(palette.MLP)


def test_text_is_escaped():
    markup = elements.words(0, 0, 'a<b> & "c"', "ink")
    assert ElementTree.fromstring(markup).text == 'a<b> & "c"'


def test_two_processes_draw_the_same_bytes(tmp_path):
    outputs = []
    for seed in ("0", "1"):
        result = subprocess.run(
            [sys.executable, "-m", "lingen.cli", "explain", "ling-2.6-1t", "--svg", "-"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        outputs.append(result.stdout)
    assert outputs[0] == outputs[1] == picture(model("ling-2.6-1t")).encode()


def test_the_command_writes_the_file_and_replaces_it(tmp_path, capsys):
    place = tmp_path / "p.svg"
    place.write_text("old")
    assert run(["explain", FLASH, "--svg", str(place)]) == 0
    assert capsys.readouterr().out == f"written   {place}\n"
    assert place.read_text() == picture(model("ling-2.6-flash"))
    assert [each.name for each in tmp_path.iterdir()] == ["p.svg"]


@pytest.mark.parametrize("other", ["--json", "--resolved"])
def test_a_picture_goes_with_no_other_form(other, capsys, tmp_path):
    place = tmp_path / "p.svg"
    assert run(["explain", FLASH, "--svg", str(place), other]) == 2
    assert capsys.readouterr().err.startswith("--svg stands alone\n")
    assert not place.exists()


def test_a_folder_is_no_place_for_a_picture(tmp_path, capsys):
    assert run(["explain", FLASH, "--svg", str(tmp_path)]) == 2
    assert "a folder" in capsys.readouterr().err
