"""Runs the rules between keys on a merged spec, and finds the nearest values that obey them all.

Owns the wording of a conflict: both keys, both values, both places, and a fix that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lingen.errors import Position, Problem, SpecError

from .model import ModelSpec
from .nodes import MappingNode, described, leaves, plain
from .rule import Refusal, Rule
from .rules_attention import ATTENTION_RULES
from .rules_model import MODEL_RULES, TARGETS
from .rules_moe import MOE_RULES
from .rules_sglang import SGLANG_RULES
from .schema import is_legal, schema_at
from .sections import misplaced_sections
from .wording import listed, spelled

RULES: tuple[Rule, ...] = (*MODEL_RULES, *ATTENTION_RULES, *MOE_RULES)
TARGET_RULES: dict[str, tuple[Rule, ...]] = {"sglang": SGLANG_RULES}

# How far from a refused number a legal one is looked for.
MAX_DISTANCE = 4096
MAX_FIXED_KEYS = 3

Values = Mapping[str, object]


def check_rules(merged: MappingNode, spec_file: str) -> list[Problem]:
    """A problem for each broken rule; rules with a missing or misplaced key are left out."""
    misplaced = tuple(f"{problem.key}." for problem in misplaced_sections(merged))
    nodes = {key: node for key, node in leaves(merged) if not key.startswith(misplaced)}
    values = {key: plain(node) for key, node in nodes.items()}
    places = {key: node.position for key, node in nodes.items()}
    problems = []
    for rule in RULES:
        refusal = _refusal(rule, values)
        if refusal:
            here = _key_to_point_at(rule, places, spec_file)
            found = _found(rule, here, values, places)
            if len(rule.keys) == 1:
                found = described(nodes[here])
            fix = _fix_text(rule, values)
            message = refusal.message.removeprefix(f"{rule.label(here)} is ")
            problems.append(Problem(places[here], here, message, found, refusal.expected, fix))
    return problems


def refuse_target(spec: ModelSpec, target: str, is_listed: bool) -> None:
    """Raise SpecError if the target cannot be made of the spec.

    is_listed: whether `targets` names it; then the spec has obeyed the rules that ask that key.
    """
    general = () if is_listed else tuple(rule for rule in RULES if TARGETS in rule.keys)
    for rules in (general, TARGET_RULES.get(target, ())):
        problems = list(_target_problems(rules, spec, target))
        if problems:
            raise SpecError(problems)


def _target_problems(rules: tuple[Rule, ...], spec: ModelSpec, target: str) -> Iterator[Problem]:
    values = {**spec.values(), TARGETS: (target,)} if rules else {}
    for rule in rules:
        refusal = _refusal(rule, values)
        if refusal:
            keys = [key for key in rule.keys if key != TARGETS]
            texts = [f"{rule.label(key)} {spelled(values[key])}" for key in keys]
            found = ", ".join([*texts, f"target {target}"])
            place = spec.origin(keys[0])
            yield Problem(place, keys[0], refusal.message, found, refusal.expected)


def _refusal(rule: Rule, values: Values) -> Refusal | None:
    if any(key not in values for key in rule.keys):
        return None
    return rule.why_not(*(values[key] for key in rule.keys))


def _key_to_point_at(rule: Rule, places: Mapping[str, Position], spec_file: str) -> str:
    """The first key that the author can change in the spec itself, else the first."""
    for file in ("--set", spec_file):
        for key in rule.keys:
            if places[key].file == file:
                return key
    return rule.keys[0]


def _found(rule: Rule, here: str, values: Values, places: Mapping[str, Position]) -> str:
    texts = []
    for key in (here, *(key for key in rule.keys if key != here)):
        place = places[key]
        where = f"line {place.line}"
        if place.file != places[here].file:
            where = f"{place.file}:{place.line}"
        text = f"{rule.label(key)} {spelled(values[key])}"
        texts.append(text if key == here else f"{text} ({where})")
    return ", ".join(texts)


def _fix_text(rule: Rule, values: Values) -> str | None:
    if len(rule.keys) == 1:
        found = [spelled(value) for value in repairs(rule, values).get(rule.keys[0], [])]
        return listed(found) or None
    texts = [
        f"{rule.label(key)} {listed([spelled(value) for value in found])}"
        for key, found in repairs(rule, values).items()
    ]
    return ", or ".join(texts[:MAX_FIXED_KEYS]) or None


def repairs(rule: Rule, values: Values) -> dict[str, list[object]]:
    """For each key of a broken rule, the nearest values that mend it and break no other rule.

    Rules already broken by other keys do not count. A key without such a value is left out.
    """
    broken = {other for other, r in enumerate(RULES) if _refusal(r, values)}
    found: dict[str, list[object]] = {}
    for key in rule.keys:
        for may_stay in (frozenset(), frozenset(broken - {RULES.index(rule)})):
            works = list(_mended(key, rule, values, may_stay))
            if works:
                found[key] = works
                break
    return found


def _mended(key: str, rule: Rule, values: Values, may_stay: frozenset[int]) -> Iterator[object]:
    """At most one value on each side of the present one, or two of those a rule proposes."""
    touching = [
        other for index, other in enumerate(RULES) if key in other.keys and index not in may_stay
    ]
    part = schema_at(key)
    for side in _candidates(key, rule, values, part):
        for candidate in side:
            changed = {**values, key: candidate}
            if _is_legal(part, candidate) and not any(
                _refusal(other, changed) for other in touching
            ):
                yield candidate
                break


def _is_legal(part: Mapping[str, object], value: object) -> bool:
    """A quick range check for integers; the schema's own for all else."""
    if (
        type(value) is int
        and part.get("type") == "integer"
        and not {"enum", "multipleOf"} & set(part)
    ):
        return part["minimum"] <= value <= part["maximum"]
    return is_legal(part, value)


def _candidates(
    key: str, rule: Rule, values: Values, part: Mapping[str, object]
) -> list[Iterable[object]]:
    """Sequences of proposals, nearest first; one value is taken from each."""
    value = values[key]
    if key in rule.candidates:
        return [rule.candidates[key](*(values[name] for name in rule.keys))]
    if isinstance(value, bool):
        return [[not value]]
    if isinstance(value, int):
        return [range(value - 1, value - MAX_DISTANCE, -1), range(value + 1, value + MAX_DISTANCE)]
    if isinstance(value, list):
        return [[_kept_items(key, rule, values)]]
    return [part.get("enum", [])]


def _kept_items(key: str, rule: Rule, values: Values) -> list[object]:
    """The list without the items that a rule refuses on their own."""
    touching = [other for other in RULES if key in other.keys and other.of_items]
    return [
        item
        for item in values[key]
        if not any(_refusal(other, {**values, key: [item]}) for other in touching)
    ]
