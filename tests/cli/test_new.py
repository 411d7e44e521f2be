"""`lingen new`: a starter that names what is missing, and builds once that is filled in."""

import os
import re
from pathlib import Path

import pytest
import yaml
from lingen import starter
from lingen.cli import run
from lingen.errors import SpecError
from lingen.spec import load_spec, load_spec_text, shipped_specs
from lingen.spec.dump import flow
from lingen.spec.schema import schema_at

ROOT = Path(__file__).parents[2]
FAMILY = "families/bailing-moe-v2.5"
LEFT_OPEN = re.compile(r"( *)# (\w+):(?: +# .*)?")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(name="toy", extends=FAMILY):
    return starter.make_starter(name, extends, Path(f"specs/{name}.yaml"))


def filled_in(text, missing, values):
    """The starter as a person completes it: keys and their sections uncommented, values put in."""
    wanted = {
        ".".join(key.split(".")[: n + 1]) for key in missing for n in range(key.count(".") + 1)
    }
    lines, path = [], []
    for line in text.splitlines():
        match = re.match(r"( *)(# )?(\w+):", line)
        if match and (match[2] or not match[1]):
            depth = len(match[1]) // 2
            path = [*path[:depth], match[3]]
            key = ".".join(path)
            if key in missing:
                line = f"{match[1]}{match[3]}: {flow(values[key])}"
            elif key in wanted:
                line = line.replace("# ", "", 1) if match[2] else line
        lines.append(line)
    return "\n".join(lines) + "\n"


def problems_of(text):
    with pytest.raises(SpecError) as caught:
        load_spec_text(text, "specs/toy.yaml")
    return {problem.key: problem.message for problem in caught.value.problems}


def test_the_file_starts_with_the_schema_and_what_to_do(capsys):
    assert run(["new", "toy", "--extends", FAMILY]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        "written   specs/toy.yaml\n"
        "9 keys wait for a value. Next: fill in the file, then `lingen build specs/toy.yaml`.\n"
    )
    lines = Path("specs/toy.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=schema.json"
    assert yaml.safe_load("\n".join(lines)) == {"extends": FAMILY, "model": {"name": "toy"}}


def test_every_key_that_the_family_leaves_open_has_its_line_and_description():
    result = made()
    flash = load_spec(ROOT / "specs/ling-2.6-flash.yaml")
    own = {key for key in flash.values() if flash.origin(key).file == flash.file}
    assert set(result.missing) == own - {
        "model.name",
        "targets",
        "sglang.tp_size",
        "kernels.moe.tables",
    }
    for key in result.missing:
        about = re.escape(schema_at(key)["description"].removesuffix("."))
        line = rf"(?m)^ +# {key.rpartition('.')[2]}: +# {about}"
        assert re.search(line, result.text), key


def test_the_untouched_starter_fails_and_names_what_is_missing():
    result = made()
    problems = problems_of(result.text)
    assert {message.partition(",")[0] for message in problems.values()} == {"missing"}
    assert all(key in problems or key.partition(".")[0] in problems for key in result.missing), (
        problems
    )


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ling-2.6-flash", "families/ling-2.6"),
        ("ling-2.6-1t", "families/ling-2.6"),
        ("ring-mini-linear-2.0", "families/bailing-moe-linear-v2"),
        ("ling-mini-2.0", "families/bailing-moe-v2"),
    ],
)
def test_filled_in_it_is_the_shipped_spec_under_another_name(name, family):
    result = made(extends=family)
    shipped = load_spec(ROOT / f"specs/{name}.yaml").values()
    spec = load_spec_text(filled_in(result.text, result.missing, shipped), "specs/toy.yaml")
    # The family has values for these, which the shipped specs replace.
    replaced = {key: shipped[key] for key in REPLACED & {*shipped}}
    assert {**spec.values(), **replaced, "model.name": name} == shipped


REPLACED = {
    "targets",
    "sglang.tp_size",
    "sglang.pp_size",
    "quantization.fp8_mtp",
    "kernels.moe.tables",
}


def test_one_value_left_out_is_still_missing():
    result = made()
    shipped = load_spec(ROOT / "specs/ling-2.6-flash.yaml").values()
    rest = [key for key in result.missing if key != "model.hidden_size"]
    text = filled_in(result.text, rest, shipped)
    assert problems_of(text) == {"model.hidden_size": "missing, and it changes the mathematics"}


def test_family_values_are_shown_with_their_origin():
    spec = load_spec(ROOT / "specs/ling-2.6-flash.yaml")
    text = made().text
    for key in ("model.rope_theta", "moe.num_experts", "parallel.tp"):
        place = spec.origin(key)
        family = f"specs/families/{Path(place.file).name}:{place.line}"
        assert re.search(rf"(?m)^ +# {key.rpartition('.')[2]}: .+  # {family}$", text), key


def test_sections_stand_in_the_order_of_the_schema():
    top = re.findall(r"(?m)^(?:# )?(\w+):", made().text)
    known = [key for key in schema_at("")["properties"] if key in top]
    assert top == known


@pytest.mark.parametrize("extends", [name for name in shipped_specs() if "runtime" not in name])
def test_a_starter_of_every_shipped_spec_lacks_nothing_but_values(extends):
    result = made(extends=extends)
    if result.missing:
        assert all(message.startswith("missing") for message in problems_of(result.text).values())
    else:
        assert load_spec_text(result.text, "specs/toy.yaml").model.name == "toy"


def test_a_parent_that_states_everything_leaves_nothing_to_fill_in(capsys):
    assert run(["new", "toy", "--extends", "ling-2.6-flash"]) == 0
    assert capsys.readouterr().out == (
        "written   specs/toy.yaml\n"
        "Nothing is missing. Next: change what differs, then `lingen build specs/toy.yaml`.\n"
    )
    assert run(["build", "specs/toy.yaml"]) == 0


def test_a_family_without_sections_opens_them_one_by_one():
    Path("specs/families").mkdir(parents=True)
    Path("specs/families/bare.yaml").write_text(
        "model:\n  architectures: [BailingMoeV2_5ForCausalLM]\n"
    )
    missing = made(extends="families/bare").missing
    assert {"targets", "cache.speculative.topk", "attention.lightning.decay.epsilon"} <= {*missing}
    assert "model.architectures" not in missing
    shipped = load_spec(ROOT / "specs/ling-2.6-flash.yaml").values()
    assert {*missing} == {*shipped} - {"model.name", "model.architectures"}


def test_dash_prints_the_file_and_keeps_advice_off_stdout(capsys, tmp_path):
    assert run(["new", "toy", "--extends", FAMILY, "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert out == made().text
    assert err.startswith("9 keys wait for a value.")
    assert list(tmp_path.iterdir()) == []


def test_another_file_can_be_named(capsys):
    assert run(["new", "toy", "--extends", FAMILY, "-o", "here.yaml"]) == 0
    assert "`lingen build here.yaml`" in capsys.readouterr().out
    assert Path("here.yaml").read_text() == made().text


def test_an_existing_file_stays_without_force(capsys):
    Path("specs").mkdir()
    Path("specs/toy.yaml").write_text("mine\n")
    assert run(["new", "toy", "--extends", FAMILY]) == 2
    assert capsys.readouterr().err == (
        "specs/toy.yaml: exists already\n"
        "  fix       --force to replace it, or another file with -o\n"
        "Nothing was written.\n"
    )
    assert Path("specs/toy.yaml").read_text() == "mine\n"
    assert run(["new", "toy", "--extends", FAMILY, "--force"]) == 0
    assert Path("specs/toy.yaml").read_text() == made().text


def test_a_write_that_fails_leaves_the_old_file(monkeypatch, capsys):
    Path("specs").mkdir()
    Path("specs/toy.yaml").write_text("mine\n")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert run(["new", "toy", "--extends", FAMILY, "--force"]) == 2
    assert "specs/toy.yaml: cannot be written: No space left" in capsys.readouterr().err
    assert os.listdir("specs") == ["toy.yaml"]
    assert Path("specs/toy.yaml").read_text() == "mine\n"


def test_everything_wrong_with_the_arguments_is_said_at_their_place(capsys, tmp_path):
    assert run(["new", "Toy_1", "--extends", "bailing-moe-v2.5"]) == 2
    assert capsys.readouterr().err == (
        "--extends:1:1: extends: no such spec\n"
        "  found     bailing-moe-v2.5\n"
        "  expected  a spec beside this one, or one that comes with lingen\n"
        "  fix       families/bailing-moe-v2.5\n"
        "NAME:1:1: model.name: not a name for a model\n"
        "  found     Toy_1\n"
        "  expected  lower-case letters and digits in parts joined by `-` or `.`, a letter first\n"
        "  fix       toy-1\n"
        "2 errors. Nothing was written.\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "class", "", "a\0b", "x" * 65, "a\nb"])
def test_a_name_that_is_none_writes_nothing(name, capsys, tmp_path):
    assert run(["new", name, "--extends", FAMILY]) == 2
    assert capsys.readouterr().err.startswith("NAME:1:1: model.name: ")
    assert list(tmp_path.iterdir()) == []


def test_without_a_family_the_known_ones_are_listed(capsys):
    assert run(["new", "toy"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("no family given\n  expected  --extends FAMILY, one of ")
    assert FAMILY in err


def test_a_family_beside_the_file_comes_first(capsys):
    Path("specs/families").mkdir(parents=True)
    Path("specs/families/own.yaml").write_text(
        f"extends: {FAMILY}\nmodel:\n  hidden_size: 64\n  rope_theta: 7\n"
    )
    result = made(extends="families/own")
    assert "model.hidden_size" not in result.missing
    assert re.search(r"# rope_theta: 7 +# specs/families/own\.yaml:4\n", result.text)


def test_what_is_wrong_with_the_family_is_said_in_its_file(capsys):
    Path("specs/families").mkdir(parents=True)
    Path("specs/families/own.yaml").write_text("modle: 1\n")
    assert run(["new", "toy", "--extends", "families/own"]) == 2
    assert capsys.readouterr().err.startswith("specs/families/own.yaml:1:1: modle: unknown key")


def test_replacing_a_file_that_it_would_extend_is_a_cycle(capsys):
    Path("specs").mkdir()
    Path("specs/toy.yaml").write_text("extends: ling-2.6-flash\n")
    assert run(["new", "toy", "--extends", "toy", "--force"]) == 2
    assert capsys.readouterr().err.startswith("--extends:1:1: extends: extends itself")
