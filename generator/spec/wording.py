"""How messages spell values, and what the schema expects, in words.

Knows JSON Schema's keywords, but not which keys specs have.
"""

from __future__ import annotations

from .dump import flow

Schema = dict[str, object]


def spelled(value: object) -> str:
    """A value as a spec would have it."""
    return flow(value)


def listed(words: list[str], conjunction: str = "or") -> str:
    """`a, b or c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def a_key_of(names: list[str]) -> str:
    return f"one of {', '.join(names)}"


def expectation(part: Schema) -> str:
    """What the schema accepts, in words, and why no more: `an integer from 1 to 1024`."""
    reason = part.get("x-lingen-reason")
    return accepted(part) + (f"; {reason}" if reason else "")


def accepted(part: Schema) -> str:
    """The same without the reason for refusing what is left out."""
    if "enum" in part:
        return listed([spelled(value) for value in part["enum"]])
    types = part["type"] if isinstance(part["type"], list) else [part["type"]]
    words = [_KINDS[name](part) for name in types]
    return listed(words)


def _array(part: Schema) -> str:
    values = accepted(part["items"])
    if part.get("maxItems") == 1:
        return f"a list of one: {values}"
    exact = part.get("minItems") == part.get("maxItems")
    return (
        ("a list of exactly {minItems}" if exact else "a list").format(**part)
        + f", each item {values}"
        + (", none twice" if part.get("uniqueItems") else "")
        + (", 1 among them" if "contains" in part else "")
    )


def _number(part: Schema, noun: str) -> str:
    low, above = part.get("minimum"), part.get("exclusiveMinimum")
    high, below = part.get("maximum"), part.get("exclusiveMaximum")
    multiple = f" and a multiple of {part['multipleOf']}" if "multipleOf" in part else ""
    if low is not None and high is not None:
        return f"{noun} from {_round(low)} to {_round(high)}{multiple}"
    lower = f"above {_round(above)}" if above is not None else f"of at least {_round(low)}"
    upper = f"below {_round(below)}" if below is not None else f"at most {_round(high)}"
    return f"{noun} {lower} and {upper}"


def _round(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else spelled(limit)


_KINDS = {
    "object": lambda part: f"a mapping with {', '.join(part['properties'])}",
    "array": _array,
    "integer": lambda part: _number(part, "an integer"),
    "number": lambda part: _number(part, "a number"),
    "string": lambda part: "a string",
    "boolean": lambda part: "true or false",
    "null": lambda part: "null",
}
