"""Inheritance: where parents are looked up, how trees merge, and what chains are refused."""

import shutil
from pathlib import Path

import pytest
from lingen.errors import SpecError
from lingen.spec import load_spec, load_spec_text, shipped_folder, shipped_specs

SPECS = Path(__file__).parent.parent.parent / "specs"

TINY = """\
extends: families/bailing-moe-v2.5
model:
  name: tiny
  hidden_size: 512
  num_hidden_layers: 8
  num_attention_heads: 8
  eos_token_id: 1
attention:
  lightning:
    group_norm_size: 4
mlp:
  intermediate_size: 1024
  first_k_dense_replace: 1
moe:
  moe_intermediate_size: 128
  moe_shared_expert_intermediate_size: 128
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def problems_of(text: str, **arguments: object) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec_text(text, "s.yaml", **arguments)
    return [str(problem.render()) for problem in caught.value.problems]


def test_the_shipped_specs_can_be_named():
    assert {"ling-2.6-1t", "ling-2.6-flash", "ring-2.5-1t"} <= set(shipped_specs())
    assert "families/bailing-moe-v2.5" in shipped_specs()
    assert (shipped_folder() / "schema.json").is_file()


def test_a_parent_beside_the_spec_wins_over_a_shipped_one(tmp_path):
    family = (SPECS / "families" / "bailing-moe-v2.5.yaml").read_text()
    write(tmp_path, spec=TINY)
    assert load_spec(tmp_path / "spec.yaml").sources[1] == "specs/families/bailing-moe-v2.5.yaml"
    write(tmp_path, **{"families__bailing-moe-v2.5": family.replace("157184", "1000")})
    text = TINY.replace("eos_token_id: 1", "eos_token_id: 1\n  pad_token_id: 0")
    write(tmp_path, spec=text)
    spec = load_spec(tmp_path / "spec.yaml")
    assert spec.model.vocab_size == 1000
    assert spec.sources[1] == str(tmp_path / "families" / "bailing-moe-v2.5.yaml")
    assert spec.origin("model.vocab_size").file == spec.sources[1]


def test_a_shipped_spec_keeps_its_shipped_family_whatever_lies_beside_the_child(tmp_path):
    write(tmp_path, spec="extends: ling-2.6-1t\n", **{"families__ling-2.6": "moe: 1\n"})
    assert load_spec(tmp_path / "spec.yaml") == load_spec(SPECS / "ling-2.6-1t.yaml")


def test_parents_of_a_family_are_found_from_its_folder_and_from_the_specs(tmp_path):
    write(tmp_path, spec="extends: families/a\nmodel:\n  name: b\n")
    write(tmp_path, families__a="extends: c\n", families__c="extends: families/d\n")
    write(tmp_path, families__d=TINY)
    spec = load_spec(tmp_path / "spec.yaml")
    assert [Path(source).stem for source in spec.sources] == [
        "spec", "a", "c", "d", "bailing-moe-v2.5", "runtime"
    ]  # fmt: skip
    assert spec.model.name == "b"


def test_the_suffix_of_a_parent_may_be_written(tmp_path):
    write(tmp_path, spec=TINY.replace("v2.5\n", "v2.5.yaml\n"))
    assert load_spec(tmp_path / "spec.yaml") == load_spec_text(TINY, "s.yaml")


def test_mappings_merge_and_scalars_and_lists_replace():
    spec = load_spec_text(TINY + "parallel:\n  tp: [1, 2]\n", "s.yaml")
    assert spec.parallel.tp == (1, 2)
    assert spec.parallel.pp == (1, 2, 4)
    assert spec.attention.lightning.group_norm_size == 4
    assert spec.attention.lightning.head_dim == 128


def test_origins_name_the_file_and_place_that_decided():
    spec = load_spec_text(TINY, "s.yaml")
    assert str(spec.origin("model.hidden_size")) == "s.yaml:4:16"
    assert spec.origin("moe.n_group").file == "specs/families/bailing-moe-v2.5.yaml"
    assert set(spec.origins) == set(spec.values())
    with pytest.raises(KeyError):
        spec.origin("moe")


def test_a_cycle_of_three_names_the_chain(tmp_path):
    write(tmp_path, a="extends: b\n", b="extends: c\n", c="extends: b\n")
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "a.yaml")
    (problem,) = caught.value.problems
    b, c = tmp_path / "b.yaml", tmp_path / "c.yaml"
    assert problem.found == f"{b} -> {c} -> {b}"
    assert problem.position.file == str(c)


def test_a_cycle_through_a_symbolic_link_is_seen(tmp_path):
    write(tmp_path, a="extends: b\n")
    (tmp_path / "b.yaml").symlink_to(tmp_path / "a.yaml")
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "a.yaml")
    assert caught.value.problems[0].message == "extends itself"
    assert caught.value.problems[0].found == f"{tmp_path / 'a.yaml'} -> {tmp_path / 'b.yaml'}"


def test_eight_parents_are_allowed_and_nine_are_not(tmp_path):
    # The family behind TINY has a parent of its own.
    chain = {f"p{index}": f"extends: p{index + 1}\n" for index in range(6)}
    write(tmp_path, **chain, p6=TINY)
    assert len(load_spec(tmp_path / "p0.yaml").sources) == 9
    write(tmp_path, p7="extends: p0\n")
    with pytest.raises(SpecError, match="more than 8 parents"):
        load_spec(tmp_path / "p7.yaml")


@pytest.mark.parametrize(
    "name",
    ["/etc/x", "../x", "a/../x", "./x", "a//b", "a/", "'a\\b'", '"a\\0b"', "C:/x", "''", '"a\\nb"',
     "." , "..", '"' + "x" * 201 + '"'],
)  # fmt: skip
def test_names_that_could_leave_the_specs_are_refused(name, tmp_path):
    (text,) = problems_of(f"extends: {name}\n", search_dir=tmp_path)
    assert text.startswith("s.yaml:1:10: extends: ")
    assert "no such spec" not in text


def test_a_parent_that_is_no_regular_file_is_refused(tmp_path):
    (tmp_path / "x.yaml").mkdir()
    (text,) = problems_of("extends: x\n", search_dir=tmp_path)
    assert "not a regular file, but a folder" in text


def test_a_missing_parent_names_the_nearest_in_the_folder(tmp_path):
    write(tmp_path, mine="a: 1\n")
    (text,) = problems_of("extends: mine2\n", search_dir=tmp_path)
    assert text.endswith("fix       mine")
    (text,) = problems_of("extends: bailing-moe-v2.5\n")
    assert text.endswith("fix       families/bailing-moe-v2.5")
    (text,) = problems_of("extends: runtim\n")
    assert text.endswith("fix       families/runtime")
    (text,) = problems_of("extends: zzz\n")
    assert "fix" not in text


def test_text_without_a_folder_extends_shipped_specs_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, mine=TINY)
    (text,) = problems_of("extends: mine\n")
    assert "no such spec" in text
    assert load_spec_text("extends: mine\n", "s.yaml", tmp_path).model.name == "tiny"


def test_the_spec_is_the_same_from_any_folder_and_by_any_path(tmp_path, monkeypatch):
    shutil.copytree(SPECS, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    relative = load_spec("copy/ling-2.6-flash.yaml")
    absolute = load_spec(SPECS / "ling-2.6-flash.yaml")
    assert relative == absolute
    assert relative.resolved_hash == absolute.resolved_hash
    assert relative.header_name == absolute.header_name == "specs/ling-2.6-flash.yaml"
    assert relative.sources == (
        "copy/ling-2.6-flash.yaml",
        "copy/families/ling-2.6.yaml",
        "copy/families/bailing-moe-v2.5.yaml",
        "copy/families/runtime.yaml",
    )


def test_an_override_lies_over_the_spec():
    overrides = ["moe.num_experts=64", "parallel.tp=[1, 2]", "model.rope_theta=1e4",
                 'model.name="other"', " cache.prefix_cache = false ", "cache.extra_buffer=none",
                 "attention.mla.q_lora_rank=null"]  # fmt: skip
    spec = load_spec_text(TINY, "s.yaml", overrides=overrides)
    assert spec.moe.num_experts == 64
    assert spec.parallel.tp == (1, 2)
    assert spec.model.rope_theta == 1e4
    assert spec.model.name == "other"
    assert spec.cache.prefix_cache is False
    assert spec.attention.mla.q_lora_rank is None
    assert spec.origin("moe.num_experts").file == "--set"
    assert spec.sources == (
        "s.yaml", "specs/families/bailing-moe-v2.5.yaml", "specs/families/runtime.yaml"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("moe.num_experts", "--set:1:1: not a setting"),
        ("=3", "--set:1:1: not a setting"),
        ("moe..x=3", "--set:1:1: not a setting"),
        ("moe.num_expert=3", "--set:1:1: moe.num_expert: unknown key\n  fix       num_experts"),
        ("num_experts=3", "--set:1:1: num_experts: known, but not at this level"),
        ('moe.num_experts="8"', "--set:1:17: moe.num_experts: not an integer"),
        ("moe.num_experts=8.0", "--set:1:17: moe.num_experts: not an integer"),
        ("moe.num_experts=", "--set:1:17: moe.num_experts: not an integer"),
        ("moe.num_experts=0123", "--set:1:17: moe.num_experts: 0123 starts with a zero"),
        ("moe.num_experts=[1", "--set:1:17: moe.num_experts: `[` is not closed"),
        ("moe.num_experts=[1]\nb: 2", "--set:1:17: moe.num_experts: more than one value"),
        ("moe.num_experts=1\t2", "--set:1:17: moe.num_experts: a tab"),
        ("parallel.tp=[1, {a: 1}]", "--set:1:13: parallel.tp[1]: not an integer"),
        ("moe=3", "--set:1:5: moe: not a section"),
        ("model.name.x=3", "--set:1:1: model.name: not a string"),
        ("extends=x", "--set:1:1: extends: cannot be set"),
        ("model.rope_scaling=yarn", "--set:1:20: model.rope_scaling: not a section or null"),
        ("model.rope_scaling={factor: 2}", "--set:1:20: model.rope_scaling: "),
        ("model.rope_scaling.factor=2", "s.yaml:2:1: model.rope_scaling.beta_fast: missing"),
        ("model.rope_scaling.type=yarn", "--set:1:1: model.rope_scaling.type: unknown key"),
        ("attention.gqa.head_dim=64", "--set:1:1: attention.gqa: BailingMoeV2_5ForCausalLM has no"),
        ("moe.n_group=7", "--set:1:13: moe.n_group: num_experts is not a multiple of n_group"),
    ],
)
def test_a_wrong_override_is_refused_with_its_key(override, message):
    (text, *_) = problems_of(TINY, overrides=[override])
    assert text.startswith(message)


def test_one_value_of_a_scaling_is_set_over_a_spec_that_has_one():
    scaling = (
        "extends: ling-2.6-flash\nmodel:\n  rope_scaling:\n    rope_type: yarn\n    factor: 2\n"
        "    original_max_position_embeddings: 131072\n    beta_fast: 32\n    beta_slow: 1\n"
        "    mscale: null\n    mscale_all_dim: null\n"
    )
    spec = load_spec_text(scaling, "s.yaml", overrides=["model.rope_scaling.factor=4"])
    assert (spec.model.rope_scaling.factor, spec.model.rope_scaling.beta_fast) == (4.0, 32.0)
    assert spec.origin("model.rope_scaling.factor").file == "--set"
    without = load_spec_text(scaling, "s.yaml", overrides=["model.rope_scaling=null"])
    assert without == load_spec(SPECS / "ling-2.6-flash.yaml")


def test_an_override_given_twice_is_refused():
    (text,) = problems_of(TINY, overrides=["moe.n_group=8", "moe.n_group=4"])
    assert text == "--set:1:1: moe.n_group: set twice"
    (text,) = problems_of(TINY, overrides=["moe.n_group=8", "moe.n_group.x=4"])
    assert text == "--set:1:1: moe.n_group.x: set twice"


def test_a_fix_to_a_conflict_with_the_family_points_into_the_spec():
    (text,) = problems_of(TINY + "  n_group: 7\n")
    assert text.startswith("s.yaml:17:12: moe.n_group: num_experts is not a multiple")
    assert "num_experts 256 (specs/families/bailing-moe-v2.5.yaml:" in text
