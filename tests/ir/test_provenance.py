"""The table of spec keys behind the IR, held against what flipping each key changes."""

from __future__ import annotations

import pytest
from lingen.ir import lower
from lingen.ir.provenance import spec_keys
from lingen.spec import load_spec
from perturbation import BASES, NOT_FLIPPED, ROOT, all_facts, base_spec, effects


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, tuple[str, str]]]:
    return effects()


@pytest.fixture(scope="module")
def every_fact(found) -> set[str]:
    return all_facts() | found.keys()


def test_no_fact_lacks_a_key_that_decides_it(found, every_fact):
    lacking = [
        f"{fact}: add {key}, since {setting} changes it ({base})"
        for fact in sorted(every_fact)
        for key, (base, setting) in sorted(found.get(fact, {}).items())
        if key not in spec_keys(fact)
    ]
    assert lacking == [], "rows of generator/ir/provenance.py or weight_provenance.py lack keys"


def test_no_fact_lists_a_key_that_never_changes_it(found, every_fact):
    idle = [
        f"{fact}: drop {key}"
        for fact in sorted(every_fact)
        for key in spec_keys(fact)
        if key not in found.get(fact, {}) and key not in NOT_FLIPPED
    ]
    assert idle == [], "rows list keys without effect, or BASES lacks a spec that shows it"


def test_no_legal_spec_fails_to_lower(found):
    assert "lowering" not in found


def test_every_key_is_flipped_or_known_to_have_one_value(found):
    keys = {key for base in BASES for key in base_spec(base).values()}
    flipped = {key for effect in found.values() for key in effect}
    assert sorted(keys - flipped - NOT_FLIPPED) == []
    assert sorted(flipped & NOT_FLIPPED) == []


def test_the_keys_of_a_row_are_each_named_once_and_known(every_fact):
    known = {key for base in BASES for key in base_spec(base).values()}
    for fact in sorted(every_fact):
        keys = spec_keys(fact)
        assert len(keys) == len(set(keys)), fact
        assert set(keys) <= known, fact


def test_every_config_fact_is_decided_by_keys_of_its_own(found):
    for path in sorted((ROOT / "specs").glob("*.yaml")):
        spec = load_spec(path)
        values = spec.values()
        for name, value in lower(spec).weights.config_facts:
            keys = [key for key in spec_keys(f"weights.config_facts[{name}]") if key in values]
            stated = [values[key] for key in keys]
            if name == "rotary_dim":
                factor, head_dim = stated[0], stated[-1]
                stated = [int(factor * head_dim)]
            assert value in stated, f"{path.stem}: {name}"


@pytest.mark.parametrize(
    ("fact", "keys"),
    [
        ("moe.n_group", ("moe.n_group",)),
        ("mla.latent_width", ("attention.mla.kv_lora_rank", "attention.mla.qk_rope_head_dim")),
        ("plan.layers[31].mlp", ("mlp.first_k_dense_replace",)),
        ("spec.model.name", ("model.name",)),
        ("weights.groups[nope]", ()),
        ("weights.groups[mla].weights[nope].shape", ()),
        ("weights.config_facts[nope]", ()),
        ("nothing.of.the.kind", ()),
        ("nothing", ()),
    ],
)
def test_some_rows(fact, keys):
    assert spec_keys(fact) == keys
