"""ModelSpec and the schema: same keys, lossless round trip, one hash for one meaning."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from lingen.errors import SpecError
from lingen.spec import ModelSpec, dump_yaml, load_spec, load_spec_text
from lingen.spec.building import build_spec
from lingen.spec.schema import known_keys, schema
from spec_bases import BASES, FLASH, LEAVES, SPECS, YARN

NAMES = sorted(path.stem for path in SPECS.glob("*.yaml"))
PLACES = [(base, key) for base, spec in BASES.items() for key in spec.values()]


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

    with_all = build_spec(every_section(schema()), "s.yaml", ("s.yaml",), {})
    assert [key for key in keys(with_all) if key in LEAVES] == list(LEAVES)
    assert set(keys(with_all)) - set(LEAVES) == {*("file", "sources", "origins", "table_texts")}


def every_section(part: dict) -> object:
    """A tree with every key, a null at each."""
    if "properties" not in part:
        return None
    return {name: every_section(child) for name, child in part["properties"].items()}


def test_the_bases_have_every_key_of_the_schema():
    assert {key for _, key in PLACES} == {*LEAVES, "model.rope_scaling"}


@pytest.mark.parametrize("base", BASES)
def test_every_number_key_is_a_float_and_every_list_a_tuple(base):
    for key, value in BASES[base].values().items():
        kinds = str(known_keys()[key].get("type", ""))
        if "number" in kinds and value is not None:
            assert type(value) is float, key
        assert isinstance(value, tuple) == ("array" in kinds), key


def test_values_have_the_sections_of_the_architecture_and_no_other():
    conditional = {section for own in schema()["x-lingen-sections"].values() for section in own}
    for base in BASES.values():
        own = set(schema()["x-lingen-sections"][base.model.architectures[0]])
        keys = base.values().keys()
        assert {each for each in conditional if any(k.startswith(f"{each}.") for k in keys)} == own
        tree = base.as_tree()
        stated = {f"{part}.{name}" for part in ("attention", "kernels") for name in tree[part]}
        assert (stated | set(tree)) & conditional == own


def test_every_architecture_of_the_schema_has_its_sections_its_model_type_and_a_shipped_spec():
    names = known_keys()["model.architectures"]["items"]["enum"]
    assert list(schema()["x-lingen-sections"]) == names
    assert list(schema()["x-lingen-model-types"]) == names
    assert set(schema()["x-lingen-model-types"].values()) == set(
        known_keys()["model.model_type"]["enum"]
    )
    assert {load_spec(SPECS / f"{name}.yaml").model.architectures[0] for name in NAMES} == set(
        names
    )
    for own in schema()["x-lingen-sections"].values():
        assert all("properties" in known_keys()[section] for section in own)


def test_no_scaling_is_a_stated_null_and_scaling_a_section():
    assert FLASH.values()["model.rope_scaling"] is None
    assert FLASH.as_tree()["model"]["rope_scaling"] is None
    yarn = BASES["yarn"]
    assert "model.rope_scaling" not in yarn.values()
    assert yarn.as_tree()["model"]["rope_scaling"] == YARN
    assert yarn.resolved_hash != FLASH.resolved_hash


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_spec_survives_the_way_to_yaml_and_back(name):
    survives(load_spec(SPECS / f"{name}.yaml"))


def test_a_spec_with_scaled_frequencies_survives_the_way_to_yaml_and_back():
    survives(BASES["yarn"])


def survives(spec: ModelSpec) -> None:
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
    if kind == "number" or kind == ["number", "null"]:
        numbers = st.floats(1e-300, 0.99)
        return numbers | st.none() if isinstance(kind, list) else numbers
    if kind == "object":
        names = {name: legal(each) for name, each in part["properties"].items()}
        required = {name: names.pop(name) for name in part["x-lingen-required"]}
        return st.fixed_dictionaries(required, optional=names)
    if kind == ["array", "null"]:
        return st.none() | legal({**part, "type": "array"})
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
    conditional = {"lightning", "mla", "gqa"} & set(names)
    section = st.fixed_dictionaries(
        {name: trees(part["properties"][name]) for name in names if name not in conditional},
        optional={name: trees(part["properties"][name]) for name in conditional},
    )
    return section | st.none() if "null" in part["type"] else section


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


@pytest.mark.parametrize(("base", "key"), PLACES)
def test_every_key_has_a_part_in_equality_and_in_the_hash(base, key):
    changed = replaced(BASES[base], key.split("."), "changed")
    assert changed != BASES[base]
    assert changed.resolved_hash != BASES[base].resolved_hash


def replaced(part: object, steps: list[str], value: object) -> object:
    inner = replaced(getattr(part, steps[0]), steps[1:], value) if len(steps) > 1 else value
    return dataclasses.replace(part, **{steps[0]: inner})


def test_a_spec_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FLASH.moe.n_group = 4
    assert isinstance(FLASH, ModelSpec)


@pytest.mark.parametrize("base", BASES)
def test_values_are_sorted_by_key(base):
    assert list(BASES[base].values()) == sorted(BASES[base].values())


@pytest.mark.parametrize(("base", "key"), PLACES)
def test_a_key_stated_nowhere_is_missing_and_named(base, key):
    tree = BASES[base].as_tree()
    *sections, name = key.split(".")
    part = tree
    for section in sections:
        part = part[section]
    del part[name]
    with pytest.raises(SpecError) as caught:
        load_spec_text(dump_yaml(tree), "s.yaml")
    (problem,) = caught.value.problems
    assert problem.key == key
    matters = known_keys()[key].get("x-lingen-mathematics", False)
    assert problem.message == "missing" + ", and it changes the mathematics" * matters
