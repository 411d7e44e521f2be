"""Checks one file's tree against specs/schema.json: unknown keys, types, ranges, supported values.

The JSON Schema owns which keys exist, their types and limits; this module owns the wording. Knows
nothing of inheritance, nor of rules between keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, partial
from importlib import resources

from lingen.errors import Problem

from .names import nearest_names
from .nodes import (
    ListNode,
    MappingNode,
    Node,
    Refused,
    ScalarNode,
    described,
    dotted_key,
    find,
    written,
)
from .nodes import plain as plain_values
from .scalars import BadScalar, intended_plain, resolve_plain
from .wording import a_key_of, expectation, spelled

Schema = dict[str, object]
Path = list[str | int]

# Comparing names is slow; whoever has more unknown keys than this has another problem.
MAX_SUGGESTIONS = 50

# The most telling keyword first: of several errors at one value only one is shown.
_KEYWORDS = (
    "type",
    "enum",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
)


@cache
def schema() -> Schema:
    """specs/schema.json. Callers must not change it."""
    return json.loads(resources.files("lingen.specs").joinpath("schema.json").read_text("utf-8"))


def schema_at(path: str) -> Schema | None:
    """The schema of a dotted key; "" is the whole spec. None if there is no such key."""
    found = schema()
    for step in path.split(".") if path else []:
        found = found.get("properties", {}).get(step)
        if found is None:
            return None
    return found


@cache
def known_keys() -> dict[str, Schema]:
    """Every dotted key, sections included, in the schema's order."""
    keys: dict[str, Schema] = {}

    def collect(part: Schema, prefix: str) -> None:
        for name, child in part.get("properties", {}).items():
            keys[f"{prefix}{name}"] = child
            collect(child, f"{prefix}{name}.")

    collect(schema(), "")
    return keys


@cache
def _validator() -> object:
    """A validator for which `true` and `8.0` are no integers, and `true` is no number."""
    from jsonschema.validators import Draft202012Validator, extend

    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) in (int, float),
        }
    )
    return extend(Draft202012Validator, type_checker=types)(schema())


def check_tree(root: MappingNode) -> list[Problem]:
    """Everything in one file that the schema refuses, but for missing keys."""
    problems: list[Problem] = []
    worst: dict[tuple[str | int, ...], tuple[int, object]] = {}
    for error in _validator().iter_errors(plain_values(root)):
        path = tuple(error.absolute_path)
        if error.validator == "additionalProperties":
            unknown = _unknown_keys(find(root, list(path)), list(path), error.schema)
            problems.extend(unknown)
            continue
        rank = _KEYWORDS.index(error.validator)
        if path not in worst or rank < worst[path][0]:
            worst[path] = (rank, error)
    for path, (_, error) in worst.items():
        node = find(root, list(path))
        if not _is_reported(error.validator, node):
            problems.append(_value_problem(error.validator, error.schema, node, list(path)))
    return problems


def _is_reported(keyword: str, node: Node) -> bool:
    """Whether the dialect refused the value already, or an item that might have been the 1."""
    if isinstance(node, ListNode):
        return keyword == "contains" and any(map(partial(_is_reported, "type"), node.items))
    return isinstance(node, ScalarNode) and isinstance(node.value, Refused)


def _unknown_keys(node: MappingNode, path: Path, part: Schema) -> Iterator[Problem]:
    known = part["properties"]
    unknown = [key for key in node.entries if key not in known]
    for count, key in enumerate(unknown):
        message, expected, fix = "unknown key", None, None
        if count < MAX_SUGGESTIONS:
            message, expected, fix = _where_it_belongs(key, path, list(known))
        position = node.entries[key].position
        yield Problem(position, dotted_key([*path, key]), message, None, expected, fix)


def _where_it_belongs(
    key: str, path: Path, siblings: list[str]
) -> tuple[str, str | None, str | None]:
    """Message, what is expected, and fix for an unknown key."""
    exact = _places_of(key)
    if exact:
        section = "the top level" if not path else f"`{dotted_key(path)}`"
        places = " or ".join(_place(place) for place in exact)
        return "known, but not at this level", f"{places}, not {section}", f"move it to {places}"
    near = nearest_names(key, siblings)
    if near:
        return "unknown key", None, near[0]
    near = nearest_names(key, {name.rpartition(".")[2] for name in known_keys()})
    if near:
        return "unknown key", None, " or ".join(_places_of(near[0]))
    return "unknown key", a_key_of(siblings), None


def _places_of(name: str) -> list[str]:
    return [key for key in known_keys() if key.rpartition(".")[2] == name]


def _place(key: str) -> str:
    section = key.rpartition(".")[0]
    return f"`{section}`" if section else "the top level"


def _value_problem(keyword: str, part: Schema, node: Node, path: Path) -> Problem:
    messages = {
        "type": f"not {_type_words(part)}",
        "enum": "not supported",
        "minItems": "too few items",
        "maxItems": "too many items",
        "uniqueItems": "an item stands twice",
        "contains": "1 is missing",
        "minimum": "too small",
        "exclusiveMinimum": "too small",
        "maximum": "too large",
        "exclusiveMaximum": "too large",
        "multipleOf": f"not a multiple of {part.get('multipleOf')}",
    }
    message, found = messages[keyword], described(node)
    if isinstance(node, ListNode) and keyword != "type":
        found = written(node)
    if part.get("type") == "object" and isinstance(node, ScalarNode) and node.value is None:
        message, found = "an empty section", "no keys below it"
    key, expected, fix = dotted_key(path), expectation(part), _fix(keyword, part, node)
    return Problem(node.position, key, message, found, expected, fix)


def _type_words(part: Schema) -> str:
    words = {
        "object": "a section",
        "array": "a list",
        "integer": "an integer",
        "number": "a number",
        "string": "a string",
        "boolean": "a boolean",
        "null": "null",
    }
    types = part.get("type", [])
    types = types if isinstance(types, list) else [types]
    return " or ".join(words[name] for name in types)


def _fix(keyword: str, part: Schema, node: Node) -> str | None:
    """The nearest legal value, where there is one that the author may have meant."""
    if isinstance(node, MappingNode):
        return None
    if isinstance(node, ListNode):
        return _list_fix(keyword, part, node)
    if keyword == "enum" and isinstance(node.value, str):
        choices = [value for value in part["enum"] if isinstance(value, str)]
        near = nearest_names(node.value, choices) if len(choices) > 1 else []
        return near[0] if near else None
    candidates = list(_candidates(keyword, part, node))
    legal = [spelled(value) for value in candidates if is_legal(part, value)]
    return " or ".join(dict.fromkeys(legal)) or None


def _list_fix(keyword: str, part: Schema, node: ListNode) -> str | None:
    """The list without repetitions, or with a 1 in front, if that is all it needs."""
    if keyword not in ("uniqueItems", "contains") or not _holds_scalars(node):
        return None
    first = [1] if keyword == "contains" else []
    values = [*first, *dict.fromkeys(item.value for item in node.items)]
    return spelled(values) if is_legal(part, values) else None


def _holds_scalars(node: ListNode) -> bool:
    return all(
        isinstance(item, ScalarNode) and not isinstance(item.value, Refused) for item in node.items
    )


def _candidates(keyword: str, part: Schema, node: ScalarNode) -> Iterator[object]:
    value = node.value
    if keyword == "minimum":
        yield -value
    elif keyword == "multipleOf":
        step = part["multipleOf"]
        yield value - value % step
        yield value - value % step + step
    elif keyword == "type" and isinstance(value, str):
        for text in (value, intended_plain(value)):
            meant = value if text is None else resolve_plain(text)
            if not isinstance(meant, (BadScalar, str)):
                yield meant
    elif keyword == "type" and isinstance(value, float) and value.is_integer():
        yield int(value)


def is_legal(part: Schema, value: object) -> bool:
    """Whether the schema `part` accepts a value."""
    return _validator().evolve(schema=part).is_valid(value)
