"""ModelSpec and the schema: same keys, lossless round trip, one hash for one meaning."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from lingen.errors import SpecError
from lingen.spec import ModelSpec, dump_yaml, load_spec, load_spec_text
from lingen.spec.model import build_spec
from lingen.spec.rules import RULES, repairs
from lingen.spec.schema import known_keys, schema

SPECS = Path(__file__).parent.parent.parent / "specs"
NAMES = ["ling-2.6-1t", "ling-2.6-flash", "ring-2.5-1t"]
FLASH = load_spec(SPECS / "ling-2.6-flash.yaml")
LEAVES = {key: part for key, part in known_keys().items() if "properties" not in part}
del LEAVES["extends"]


def test_the_schema_is_a_valid_json_schema():
    Draft202012Validator.check_schema(schema())


def test_every_key_of_the_schema_is_described_and_closed():
    for key, part in known_keys().items():
        assert part["description"].endswith("."), key
        if "properties" in part:
            assert part["additionalProperties"] is False, key
            required = [name for name in part["properties"] if name != "extends"]
            assert part["x-lingen-required"] == required, key


def test_every_number_of_the_schema_is_bounded():
    for key, part in LEAVES.items():
        for number in (part, part.get("items", {})):
            kinds = str(number.get("type", ""))
            if "enum" not in number and ("integer" in kinds or "number" in kinds):
                assert {"minimum", "exclusiveMinimum"} & set(number), key
                assert {"maximum", "exclusiveMaximum"} & set(number), key


def test_the_model_has_exactly_the_keys_of_the_schema_in_its_order():
    def keys(part: object, prefix: str = "") -> list[str]:
        found = []
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if dataclasses.is_dataclass(value):
                found += keys(value, f"{prefix}{field.name}.")
            else:
                found.append(f"{prefix}{field.name}")
        return found

    assert [key for key in keys(FLASH) if key in LEAVES] == list(LEAVES)
    assert set(keys(FLASH)) - set(LEAVES) == {"file", "sources", "origins"}


def test_every_number_key_is_a_float_and_every_list_a_tuple():
    for key, part in LEAVES.items():
        value = FLASH.values()[key]
        if part.get("type") == "number":
            assert type(value) is float, key
        assert isinstance(value, tuple) == (part.get("type") == "array"), key


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_spec_survives_the_way_to_yaml_and_back(name):
    spec = load_spec(SPECS / f"{name}.yaml")
    text = dump_yaml(spec.as_tree())
    again = load_spec_text(text, "elsewhere.yaml")
    assert again == spec
    assert again.values() == spec.values()
    assert again.resolved_hash == spec.resolved_hash
    assert again.sources == ("elsewhere.yaml",)
    assert dump_yaml(again.as_tree()) == text


@pytest.mark.parametrize("name", NAMES)
def test_the_name_in_a_shipped_spec_is_its_file_name(name):
    assert load_spec(SPECS / f"{name}.yaml").model.name == name


def legal(part: dict) -> st.SearchStrategy:
    """Values of one schema part, far from all limits where those are wide."""
    if "enum" in part:
        return st.sampled_from(part["enum"])
    kind = part["type"]
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    if kind == "number":
        return st.floats(1e-300, 0.99)
    if kind == "array":
        unique = part.get("uniqueItems", False)
        return st.lists(
            legal(part["items"]), min_size=part["minItems"], max_size=2, unique=unique
        )  # fmt: skip
    integers = st.integers(part["minimum"], part["maximum"])
    return integers | st.none() if isinstance(kind, list) else integers


def trees(part: dict) -> st.SearchStrategy:
    if "properties" not in part:
        return legal(part)
    names = [name for name in part["properties"] if name != "extends"]
    return st.fixed_dictionaries({name: trees(part["properties"][name]) for name in names})


@given(trees(schema()))
def test_any_typed_tree_survives_the_way_to_yaml_and_back(tree):
    from lingen.spec.dialect import parse
    from lingen.spec.nodes import plain

    spec = build_spec(tree, "s.yaml", ("s.yaml",), {})
    root, problems = parse(dump_yaml(spec.as_tree()), "s.yaml")
    assert not problems
    again = build_spec(plain(root), "t.yaml", ("t.yaml",), {})
    assert again == spec
    assert again.resolved_hash == spec.resolved_hash


@pytest.mark.parametrize("theta", ["6000000", "6e6", "6000000.0", "6.0e+6", "+6000000"])
def test_spellings_of_one_number_have_one_hash(theta):
    text = f"extends: ling-2.6-flash\nmodel:\n  rope_theta: {theta}\n"
    assert load_spec_text(text, "s.yaml").resolved_hash == FLASH.resolved_hash


def test_comments_and_order_have_no_part_in_the_hash():
    text = "# a\nmoe: {topk_group: 4, 'n_group': 8}  # b\nextends: ling-2.6-flash\n"
    assert load_spec_text(text, "s.yaml").resolved_hash == FLASH.resolved_hash


@pytest.mark.parametrize("key", LEAVES)
def test_every_key_has_a_part_in_equality_and_in_the_hash(key):
    changed = replaced(FLASH, key.split("."), "changed")
    assert changed != FLASH
    assert changed.resolved_hash != FLASH.resolved_hash


def replaced(part: object, steps: list[str], value: object) -> object:
    inner = replaced(getattr(part, steps[0]), steps[1:], value) if len(steps) > 1 else value
    return dataclasses.replace(part, **{steps[0]: inner})


def test_a_spec_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FLASH.moe.n_group = 4
    assert isinstance(FLASH, ModelSpec)


def test_values_are_sorted_by_key():
    assert list(FLASH.values()) == sorted(LEAVES)


@pytest.mark.parametrize("key", LEAVES)
def test_a_key_stated_nowhere_is_missing_and_named(key):
    tree = FLASH.as_tree()
    *sections, name = key.split(".")
    part = tree
    for section in sections:
        part = part[section]
    del part[name]
    with pytest.raises(SpecError) as caught:
        load_spec_text(dump_yaml(tree), "s.yaml")
    (problem,) = caught.value.problems
    assert problem.key == key
    matters = LEAVES[key].get("x-lingen-mathematics", False)
    assert problem.message == "missing" + ", and it changes the mathematics" * matters


CHANGED = (
    "model.num_attention_heads",
    "model.num_hidden_layers",
    "attention.lightning.group_norm_size",
    "mlp.first_k_dense_replace",
    "moe.num_experts",
    "moe.n_group",
    "moe.topk_group",
    "moe.num_experts_per_tok",
    "moe.moe_intermediate_size",
)
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128])


TP = st.lists(SIZES, max_size=3).map(lambda sizes: list(dict.fromkeys([1, *sizes])))


@given(st.fixed_dictionaries({key: SIZES for key in CHANGED} | {"parallel.tp": TP}))
def test_every_repair_mends_its_rule_and_breaks_no_other(changes):
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in FLASH.values().items()}
    values |= changes
    broken = broken_rules(values)
    for name, rule in broken.items():
        for key, proposals in repairs(rule, values).items():
            assert 1 <= len(proposals) <= 2
            for value in proposals:
                still = broken_rules({**values, key: value})
                assert name not in still
                assert set(still) <= set(broken)


def broken_rules(values: dict[str, object]) -> dict[str, object]:
    return {
        rule.name: rule for rule in RULES if rule.why_not(*(values[key] for key in rule.keys))
    }  # fmt: skip
