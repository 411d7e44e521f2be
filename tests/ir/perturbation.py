"""Which facts of the IR each spec key decides, found by giving keys other values and looking.

A fact is a field or a property of the IR by its path: `plan.num_dense`, `plan.layers[*].mlp`,
`weights.groups[mla].weights[attention.dense.weight].shape`. The path of an object, `mla` or
`weights.groups[mla]`, is the fact that it is there.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from lingen.errors import SpecError
from lingen.ir import ModelIR, lower
from lingen.spec import ModelSpec, load_spec

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "specs" / "schema.json").read_text())

YARN = [
    f"model.rope_scaling.{setting}"
    for setting in (
        "rope_type=yarn",
        "factor=4",
        "original_max_position_embeddings=32768",
        "beta_fast=32",
        "beta_slow=1",
        "mscale=0.707",
        "mscale_all_dim=1",
    )
]

# Specs from which keys are flipped, one by one: an effect of a key may need the other keys so.
BASES: dict[str, tuple[str, list[str]]] = {
    "flash": ("ling-2.6-flash", []),
    "tail": ("ling-2.6-flash", ["model.num_hidden_layers=35"]),
    "only tail": (
        "ling-2.6-flash",
        [
            "model.num_hidden_layers=4",
            "parallel.pp=[1]",
            "attention.pattern.layer_group_size=8",
            "attention.pattern.tail=linear",
            "mtp.num_nextn_predict_layers=0",
        ],
    ),
    "only full tail": ("ling-2.6-flash", ["model.num_hidden_layers=4", "parallel.pp=[1]"]),
    "one layer": (
        "ling-2.6-flash",
        [
            "model.num_hidden_layers=1",
            "parallel.pp=[1]",
            "mlp.first_k_dense_replace=1",
            "mtp.num_nextn_predict_layers=0",
        ],
    ),
    "no lightning": ("ling-2.6-flash", ["attention.pattern.layer_group_size=1"]),
    "biases": (
        "ling-2.6-flash",
        ["model.use_bias=true", "model.use_qkv_bias=true", "moe.num_shared_experts=2"],
    ),
    "drafting": (
        "ling-2.6-flash",
        ["cache.extra_buffer=overlap", "cache.speculative.num_draft_tokens=4"],
    ),
    "small pages, odd vocabulary": (
        "ling-2.6-flash",
        ["cache.page_size=1", "targets=[torch]", "model.vocab_size=157185"],
    ),
    "one expert": (
        "ling-2.6-flash",
        ["moe.num_experts_per_tok=1", "moe.num_shared_experts=0", "mlp.first_k_dense_replace=0"],
    ),
    "stretched": ("ling-2.6-flash", YARN),
    "ring": ("ring-mini-linear-2.0", []),
    "ring, tail": ("ring-mini-linear-2.0", ["model.num_hidden_layers=22"]),
    "ring, only tail": (
        "ring-mini-linear-2.0",
        ["model.num_hidden_layers=4", "parallel.pp=[1]", "attention.pattern.tail=linear"],
    ),
    "ring, only full tail": (
        "ring-mini-linear-2.0",
        ["model.num_hidden_layers=4", "parallel.pp=[1]", "attention.pattern.tail=full"],
    ),
    "gqa": ("ling-mini-2.0", ["model.use_bias=true", "model.use_qkv_bias=true"]),
    "gqa drafting": (
        "ling-mini-2.0",
        [
            "mtp.num_nextn_predict_layers=1",
            "cache.extra_buffer=overlap",
            "cache.speculative.num_draft_tokens=4",
        ],
    ),
    "stretched gqa": ("ling-mini-2.0", YARN),
    "softmax": ("ling-lite-1.5", []),
}

# One value is supported so far, or the key decides which sections a spec has: nothing to flip.
NOT_FLIPPED = frozenset(
    {
        "model.architectures",
        "model.model_type",
        "model.hidden_act",
        "model.rope_scaling",
        "model.rope_scaling.rope_type",
        "model.tie_word_embeddings",
        "attention.lightning.linear_silu",
        "attention.lightning.decay.formula",
        "attention.mla.rope_interleave",
        "moe.score_function",
        "moe.expert_bias",
        "moe.router_dtype",
        "cache.speculative.topk",
        "parallel.ep",
        "targets",
        # Names files that lie beside the spec: tests/tuned changes those.
        "kernels.moe.tables",
    }
)


def base_spec(base: str, *settings: str) -> ModelSpec:
    """The spec of a base with other values for some keys. Raises SpecError if it is not legal."""
    name, overrides = BASES[base]
    keys = {setting.partition("=")[0] for setting in settings}
    kept = [text for text in overrides if text.partition("=")[0] not in keys]
    return load_spec(ROOT / "specs" / f"{name}.yaml", overrides=[*kept, *settings])


@functools.cache
def effects() -> dict[str, dict[str, tuple[str, str]]]:
    """Fact → each spec key that changes it in some legal way → the base and setting of one."""
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for base in BASES:
        spec = base_spec(base)
        before = lower(spec)
        for key, value in spec.values().items():
            for other in () if key in NOT_FLIPPED else alternatives(key, value):
                paths = _changed_by(spec, before, key, other)
                new = {path for path in paths if key not in found[path]}
                setting = f"{key}={_written(other)}"
                if new and _is_legal(base, setting):
                    for path in new:
                        found[path][key] = (base, setting)
    return {path: keys for path, keys in found.items() if keys}


def _is_legal(base: str, setting: str) -> bool:
    try:
        lower(base_spec(base, setting))
    except SpecError:
        return False
    return True


def _changed_by(spec: ModelSpec, before: ModelIR, key: str, other: object) -> set[str]:
    try:
        after = lower(_replaced(spec, key.split("."), other))
        return {generic(path) for path in changed(before, after)}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # The rules refuse such a value, or _is_legal finds out that they should.
        return {"lowering"}


def _replaced(part: object, steps: list[str], value: object) -> object:
    if len(steps) > 1:
        value = _replaced(getattr(part, steps[0]), steps[1:], value)
    return dataclasses.replace(part, **{steps[0]: value})


def _written(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def generic(path: str) -> str:
    """Members that are named by a number stand for each other: `plan.layers[*].mlp`."""
    return re.sub(r"\[[0-9]+\]", "[*]", path)


def changed(before: object, after: object, prefix: str = "") -> Iterator[str]:
    """Facts that differ between two IRs. What a part says counts where it is there in both."""
    if before == after:
        return
    for name, is_field in _facts_of(type(before)):
        old, new, path = getattr(before, name), getattr(after, name), f"{prefix}{name}"
        if not is_field:
            yield from [path] if _outline(old) != _outline(new) else []
        elif dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
            yield from changed(old, new, f"{path}.")
        elif _are_parts(old) and _are_parts(new):
            yield from _changed_members(_members(old), _members(new), path)
        elif old != new:
            yield path


def _changed_members(old: dict[str, object], new: dict[str, object], path: str) -> Iterator[str]:
    if list(old) != list(new):
        yield path
    for label in old.keys() ^ new.keys():
        yield f"{path}[{label}]"
    for label in old.keys() & new.keys():
        yield from changed(old[label], new[label], f"{path}[{label}].")


def all_facts() -> set[str]:
    """Every fact of the bases' IRs."""
    return {generic(path) for base in BASES for path in facts(lower(base_spec(base)))}


def facts(part: object, prefix: str = "") -> Iterator[str]:
    for name, is_field in _facts_of(type(part)):
        value, path = getattr(part, name), f"{prefix}{name}"
        yield path
        if is_field and dataclasses.is_dataclass(value):
            yield from facts(value, f"{path}.")
        elif is_field and _are_parts(value):
            for label, member in _members(value).items():
                yield f"{path}[{label}]"
                yield from facts(member, f"{path}[{label}].")


@functools.cache
def _facts_of(part: type) -> list[tuple[str, bool]]:
    """Fields and properties, but the spec that the IR was made from."""
    fields = [(field.name, True) for field in dataclasses.fields(part) if field.name != "spec"]
    properties = inspect.getmembers(part, lambda member: isinstance(member, property))
    return [*fields, *((name, False) for name, _ in properties)]


def _are_parts(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(dataclasses.is_dataclass, value))


def _members(parts: tuple[object, ...]) -> dict[str, object]:
    return {str(getattr(part, dataclasses.fields(part)[0].name)): part for part in parts}


def _outline(value: object) -> object:
    """A property's value; of parts that stand elsewhere in the IR, only which ones they are."""
    if dataclasses.is_dataclass(value):
        return type(value)
    return list(_members(value)) if _are_parts(value) else value


def alternatives(key: str, value: object) -> list[object]:
    """Other values for a key; not all of them are legal."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        others = [2 * value, value // 2, 4 * value, value + 1, value - 1, 0, 1, None]
        return [other for other in dict.fromkeys(others) if other != value]
    if isinstance(value, float):
        return [2 * value, value / 2, value * 10, 0.0, 1.0, None]
    if isinstance(value, tuple):
        return [*(value[:count] for count in range(1, len(value))), tuple(64 for _ in value)]
    if isinstance(value, str):
        return [choice for choice in (*_choices(key), "another-name") if choice != value]
    return [8, 0.5]


def _choices(key: str) -> list[str]:
    node = SCHEMA
    for step in key.split("."):
        node = _resolved(node).get("properties", {}).get(step, {})
    return [str(choice) for choice in _resolved(node).get("enum", ())]


def _resolved(node: dict) -> dict:
    while "$ref" in node:
        target = SCHEMA
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node
