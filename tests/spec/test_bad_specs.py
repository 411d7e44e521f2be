"""Each folder of tests/bad_specs is one mistake and the whole message it must give."""

import inspect
import re
from pathlib import Path

import pytest
from lingen.errors import SpecError
from lingen.spec import load_spec, load_spec_text
from lingen.spec.dialect import parse
from lingen.spec.rules import RULES
from lingen.spec.scalars import resolve_plain
from lingen.spec.schema import known_keys, schema

BAD_SPECS = Path(__file__).parent.parent / "bad_specs"
CASES = sorted(path.name for path in BAD_SPECS.iterdir())
RULE_CASES = [rule.name for rule in RULES]


def expected(case: str) -> str:
    return (BAD_SPECS / case / "expected.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES)
def test_bad_spec_gives_exactly_the_expected_message(case, monkeypatch):
    monkeypatch.chdir(BAD_SPECS / case)
    with pytest.raises(SpecError) as caught:
        load_spec("spec.yaml")
    assert caught.value.render() + "\n" == expected(case)
    assert caught.value.exit_code == 2


def test_there_are_cases():
    assert len(CASES) > 175


@pytest.mark.parametrize("rule", RULES, ids=RULE_CASES)
def test_every_rule_has_a_case_that_only_it_refuses(rule):
    text = expected(rule.name)
    assert text.count("\nspec.yaml:") == 0
    assert re.match(rf"spec\.yaml:\d+:\d+: ({'|'.join(map(re.escape, rule.keys))}): ", text)


@pytest.mark.parametrize("rule", RULES, ids=RULE_CASES)
def test_arguments_of_every_rule_are_its_keys_in_order(rule):
    names = [rule.label(key).replace(".", "_") for key in rule.keys]
    for function in (rule.why_not, *rule.candidates.values()):
        parameters = list(inspect.signature(function).parameters)
        assert parameters in (names, ["_"]), function


def test_a_key_of_a_rule_is_named_by_its_last_part_or_with_its_section_where_two_end_alike():
    labels = {rule.name: [rule.label(key) for key in rule.keys] for rule in RULES}
    assert labels["expert-groups"] == ["n_group", "num_experts"]
    assert labels["one-head-dim"] == ["gqa.head_dim", "lightning.head_dim"]
    assert all(len(set(names)) == len(names) for names in labels.values())


def test_every_section_that_only_some_architectures_have_has_a_case_in_another():
    sections = {section for own in schema()["x-lingen-sections"].values() for section in own}
    misplaced = {
        match[1]
        for case in CASES
        for match in re.finditer(r": ([\w.]+): \w+ has no such section$", expected(case), re.M)
    }
    assert misplaced == sections


def test_rules_have_distinct_names():
    assert len(set(RULE_CASES)) == len(RULES)


def test_every_list_of_supported_values_has_a_case():
    enums = {key for key, part in known_keys().items() if "enum" in part.get("items", part)}
    refused = {
        match[1]
        for case in CASES
        for match in re.finditer(
            r"^spec.yaml:\d+:\d+: ([\w.]+)(?:\[\d+\])?: not supported$", expected(case), re.M
        )
    }
    assert enums == refused


def test_messages_name_no_python_types_and_no_schema_keywords():
    words = r"\b(str|int|NoneType|bool|dict|tuple|None|True|False|additionalProperties|minimum)\b"
    for case in CASES:
        assert not re.search(words, re.sub(r"!!int|int\(|quant=True", "", expected(case))), case


@pytest.mark.parametrize("case", RULE_CASES)
def test_every_value_that_a_rule_proposes_mends_the_spec(case, monkeypatch):
    monkeypatch.chdir(BAD_SPECS / case)
    rule = next(rule for rule in RULES if rule.name == case)
    fix = re.search(r"^  fix       (.*)$", expected(case), re.M)
    proposals = _proposals(fix[1], rule.keys)
    assert proposals
    for key, value in proposals:
        text = _with_value(Path("spec.yaml").read_text(), key, value)
        assert load_spec_text(text, "spec.yaml", "."), (key, value)


def _proposals(fix: str, keys: tuple[str, ...]) -> list[tuple[str, str]]:
    """`n_group 4 or 8, or num_experts 60` as pairs of dotted key and value."""
    if len(keys) == 1:
        return [(keys[0], value) for value in fix.split(" or ")]
    pairs = []
    for part in fix.split(", or "):
        name, _, values = part.partition(" ")
        [key] = [key for key in keys if f".{key}".endswith(f".{name}")]
        pairs += [(key, value) for value in values.split(" or ")]
    return pairs


def _with_value(text: str, key: str, value: str) -> str:
    """The spec's text with the one line that holds `key` changed."""
    name = key.rpartition(".")[2]
    changed, count = re.subn(rf"^( *{name}:) .*$", rf"\1 {value}", text, flags=re.M)
    assert count == 1, f"{key} is not in the spec exactly once"
    return changed


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_ten_thousand_levels_on_one_line_end_in_an_error(opening):
    root, problems = parse(f"a:\n  {opening * 10_000}", "deep.yaml")
    assert root is None
    assert "nested more than 32 levels deep" in problems[-1].message


def test_ten_thousand_levels_of_indentation_end_in_an_error():
    # One space deeper on each line: 10,000 levels would be 50 MB, so the size limit stops it.
    text = "".join(f"{' ' * level}a:\n" for level in range(10_000))
    _, problems = parse(text, "deep.yaml")
    assert [problem.message for problem in problems] == ["too large for a spec"]
    text = "".join(f"{' ' * level}a:\n" for level in range(700))
    _, problems = parse(text, "deep.yaml")
    assert [problem.message for problem in problems] == ["nested more than 32 levels deep"]


def test_a_number_in_a_message_is_one_a_spec_can_hold():
    for case in RULE_CASES:
        fix = re.search(r"^  fix       (.*)$", expected(case), re.M)[1]
        for number in re.findall(r"(?<![\w.-])[0-9][0-9.e-]*(?![\w.-])", fix):
            assert isinstance(resolve_plain(number), (int, float))
