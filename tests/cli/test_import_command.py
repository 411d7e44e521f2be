"""`lingen import` as a command: names, families, settings, and the file it writes."""

import json

import pytest
from flash_config import (
    BASE,
    DECAY_OFFSET,
    FLASH,
    TESTS,
    imported,
    problems,
    refusal,
)
from lingen.cli import run
from lingen.errors import SpecError
from lingen.hf import import_config
from lingen.spec import load_spec, load_spec_text


def test_a_setting_lies_over_the_config_and_is_written():
    result = imported([f"{DECAY_OFFSET}=-1", "model.hidden_size=2048"])
    assert result.spec.attention.lightning.decay.layer_offset == -1
    assert result.spec.model.hidden_size == 2048
    assert "-1 was set by hand" in result.text
    assert DECAY_OFFSET not in result.from_family
    assert load_spec_text(result.text, "specs/toy.yaml") == result.spec


def test_a_wrong_setting_is_named_as_one():
    problem = refusal(["moe.n_group=7"])
    assert problem.position.file == "--set"
    assert problem.key == "moe.n_group"


def test_parallel_sizes_are_those_of_the_family_that_fit():
    assert imported(num_attention_heads=6, group_norm_size=6, drop=[
        "num_kv_heads_for_linear_attn"]).spec.parallel.tp == (1, 2)  # fmt: skip
    assert imported(num_hidden_layers=3).spec.parallel.pp == (1, 2)
    assert imported(moe_shared_expert_intermediate_size=3).spec.parallel.tp == (1,)
    assert imported(["model.num_attention_heads=4"]).spec.parallel.tp == (1, 2, 4)
    assert imported(["parallel.tp=[1, 16]"]).spec.parallel.tp == (1, 16)
    refused = problems(["parallel.tp=[1, 3]"])
    assert "parallel.tp: num_attention_heads is not a multiple of tp 3" in refused


def test_drafts_of_the_family_are_dropped_without_an_mtp_layer(tmp_path):
    family = tmp_path / "drafting.yaml"
    family.write_text(
        "extends: families/bailing-moe-v2.5\ncache:\n  speculative:\n    num_draft_tokens: 4\n"
    )

    def drafts(name):
        config = TESTS / f"configs/{name}.json"
        place = tmp_path / f"{name}.yaml"
        spec = import_config(config, extends="drafting", spec_path=place).spec
        return spec.cache.speculative.num_draft_tokens

    assert (drafts("ling-2.6-1t"), drafts("ring-2.5-1t")) == (4, 0)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("configs/Ling 2.7 (beta).json", "ling-2.7-beta"),
        ("Ling-2.6-flash/config.json", "ling-2.6-flash"),
        ("1T/config.json", "model-1t"),
        ("class.json", "class-model"),
    ],
)
def test_the_name_comes_from_the_file_or_its_folder(tmp_path, path, name):
    place = tmp_path / path
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(BASE))
    assert import_config(place).spec.model.name == name


def test_a_place_without_a_usable_name_asks_for_one(tmp_path):
    place = tmp_path / "語.json"
    place.write_text(json.dumps(BASE))
    with pytest.raises(SpecError, match=r"--name:1:1: model\.name: missing"):
        import_config(place)
    assert import_config(place, name="given").spec.model.name == "given"


def test_an_illegal_name_is_refused_with_a_legal_one():
    with pytest.raises(SpecError) as caught:
        import_config(FLASH, name="Ling_2.6")
    (problem,) = caught.value.problems
    assert (str(problem.position), problem.fix) == ("--name:1:1", "--name ling-2.6")


def test_another_parent_may_be_extended_and_a_missing_one_is_named():
    assert import_config(FLASH, extends="ling-2.6-1t").spec.sources[1] == "specs/ling-2.6-1t.yaml"
    with pytest.raises(SpecError) as caught:
        import_config(FLASH, extends="families/bailing-moe-v2.6")
    (problem,) = caught.value.problems
    assert str(problem.position) == "--extends:1:1"
    assert "families/bailing-moe-v2.5" in problem.fix


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_a_spec_that_loads_to_the_same(cwd, capsys):
    assert run(["import", str(FLASH)]) == 0
    out, err = capsys.readouterr()
    written = cwd / "specs/ling-2.6-flash.yaml"
    assert load_spec(written) == import_config(FLASH).spec
    assert [path.name for path in written.parent.iterdir()] == ["ling-2.6-flash.yaml"]
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == (
        "specs/ling-2.6-flash.yaml: BailingMoeV2_5ForCausalLM, "
        "on top of specs/families/bailing-moe-v2.5.yaml, specs/families/runtime.yaml"
    )
    assert lines[1:3] == ["43 keys of config.json used", "7 keys ignored:"]
    assert "  use_cache                     the generated runtime always has caches" in lines
    family = next(i for i, line in enumerate(lines) if "values from the family" in line)
    assert lines[family + 1].split()[:2] == [DECAY_OFFSET, "0"]


def test_an_existing_file_is_replaced_only_by_force(cwd, capsys):
    (cwd / "specs").mkdir()
    mine = cwd / "specs/ling-2.6-flash.yaml"
    mine.write_text("mine")
    assert run(["import", str(FLASH)]) == 2
    assert capsys.readouterr().err.startswith("specs/ling-2.6-flash.yaml: exists already\n")
    assert mine.read_text() == "mine"
    assert run(["import", str(FLASH), "--force"]) == 0
    assert mine.read_text() == import_config(FLASH).text


def test_a_dash_prints_the_spec_and_writes_nothing(cwd, capsys):
    assert run(["import", str(FLASH), "--name", "toy", "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert out == imported().text
    assert "43 keys of config.json used" in err
    assert list(cwd.iterdir()) == []


def test_the_output_may_be_named(cwd):
    assert run(["import", str(FLASH), "-o", "mine.yaml", "--name", "toy"]) == 0
    assert (cwd / "mine.yaml").read_text() == imported().text


def test_a_parent_beside_the_output_is_found(cwd):
    (cwd / "specs").mkdir()
    (cwd / "specs/ours.yaml").write_text(
        f"extends: families/bailing-moe-v2.5\n{_nested(DECAY_OFFSET, -1)}"
    )
    assert run(["import", str(FLASH), "--extends", "ours"]) == 0
    spec = load_spec("specs/ling-2.6-flash.yaml")
    assert spec.attention.lightning.decay.layer_offset == -1


def _nested(key, value):
    steps = key.split(".")
    lines = [f"{'  ' * depth}{step}:" for depth, step in enumerate(steps)]
    return "\n".join(lines) + f" {value}\n"


def test_a_spec_cannot_extend_the_file_that_it_replaces(cwd, capsys):
    assert run(["import", str(FLASH), "--name", "toy"]) == 0
    arguments = ["import", str(FLASH), "--name", "toy", "--extends", "toy", "--force"]
    assert run(arguments) == 2
    assert "extends itself" in capsys.readouterr().err


def test_nothing_is_written_where_anything_is_wrong(cwd, capsys):
    (cwd / "bad.json").write_text(json.dumps({**BASE, "surprise": 1}))
    assert run(["import", "bad.json"]) == 2
    assert "bad.json:1:" in capsys.readouterr().err
    assert sorted(path.name for path in cwd.iterdir()) == ["bad.json"]


def test_a_failed_write_leaves_the_old_file_and_no_other(cwd, monkeypatch, capsys):
    run(["import", str(FLASH)])
    before = (cwd / "specs/ling-2.6-flash.yaml").read_bytes()

    def no_rename(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lingen.hf.output.os.replace", no_rename)
    assert run(["import", str(FLASH), "--force", "--set", "model.hidden_size=2048"]) == 2
    assert capsys.readouterr().err == (
        "specs/ling-2.6-flash.yaml: cannot be written: No space left on device\n"
    )
    assert (cwd / "specs/ling-2.6-flash.yaml").read_bytes() == before
    assert len(list((cwd / "specs").iterdir())) == 1


def test_the_text_holds_no_path_and_is_the_same_each_time(cwd):
    (cwd / "toy.json").write_text(json.dumps(BASE))
    assert import_config("toy.json").text == import_config(cwd / "toy.json").text
    assert str(cwd) not in import_config(cwd / "toy.json").text
