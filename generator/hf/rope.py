"""Reads `rope_scaling`: none, or YaRN with every value that its formulas take."""

from __future__ import annotations

from lingen.hf.rows import Refused
from lingen.spec.nodes import shown_key

# What it means that an object of type yarn does not state a key.
YARN_COMPLETION = {
    "beta_fast": "the default of the transformers library",
    "beta_slow": "the default of the transformers library",
    "mscale": "the attention factor follows from `factor` alone",
    "mscale_all_dim": "the softmax scale stays as it is",
}
_YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": None, "mscale_all_dim": None}
_YARN_STATED = ("factor", "original_max_position_embeddings")
_TYPE_KEYS = ("rope_type", "type")


def rope_type(value: object) -> object:
    if value != "default":
        raise Refused(
            "scaled rotary frequencies are not read from here",
            "default, and the scaling under rope_scaling",
        )
    return None


def rope_scaling(value: object) -> object:
    """null and `{"rope_type": "default"}` are no scaling; an object of type yarn is completed."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Refused("not a scaling", "null, or an object with rope_type")
    kinds = [value[key] for key in _TYPE_KEYS if key in value]
    stated = {key: item for key, item in value.items() if key not in _TYPE_KEYS}
    if kinds and all(kind == "default" for kind in kinds) and not stated:
        return None
    if not kinds or any(kind != "yarn" for kind in kinds):
        raise Refused(
            "scaled rotary frequencies other than YaRN are not supported yet",
            "rope_type default alone, or rope_type yarn",
        )
    return _yarn(stated)


def _yarn(stated: dict[str, object]) -> dict[str, object]:
    unknown = stated.keys() - _YARN_DEFAULTS.keys() - set(_YARN_STATED)
    if unknown:
        raise Refused(
            f"{', '.join(map(shown_key, sorted(unknown)))}: not supported with yarn yet",
            ", ".join([*_YARN_STATED, *_YARN_DEFAULTS]),
        )
    missing = [key for key in _YARN_STATED if stated.get(key) is None]
    if missing:
        raise Refused(f"yarn without {' and '.join(missing)}", f"also {' and '.join(missing)}")
    optional = {
        key: default if stated.get(key) is None else stated[key]
        for key, default in _YARN_DEFAULTS.items()
    }
    return {"rope_type": "yarn", **{key: stated[key] for key in _YARN_STATED}, **optional}
