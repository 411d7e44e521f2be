"""What a rule between keys is made of.

Knows nothing of files: a rule sees values only, so it can also be asked about values nobody wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a combination of values is refused, and what is expected, as message texts."""

    message: str
    expected: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A predicate over the values of `keys`.

    `why_not` gets the values in the order of `keys` and returns None for a legal combination.
    `candidates` proposes values for a key, nearest first, from the current values; integers, lists
    and enums have proposals of their own. of_items: a list is refused for its single items, so that
    those that are fine on their own are fine together.
    """

    keys: tuple[str, ...]
    why_not: Callable[..., Refusal | None]
    candidates: dict[str, Callable[..., Iterable[object]]] = field(default_factory=dict)
    of_items: bool = True

    @property
    def name(self) -> str:
        return self.why_not.__name__.removeprefix("why_not_").replace("_", "-")

    def label(self, key: str) -> str:
        """How messages name a key: its last part, with its section where two keys end alike."""
        steps = key.split(".")
        alike = [other for other in self.keys if other.rpartition(".")[2] == steps[-1]]
        return ".".join(steps[-2:] if len(alike) > 1 else steps[-1:])


def why_not_split(width_key: str, width: int, tp: Sequence[int]) -> Refusal | None:
    """Why `width` cannot be split evenly over each of the tensor-parallel sizes."""
    bad = [size for size in tp if width % size]
    if not bad:
        return None
    return Refusal(
        f"{width_key} is not a multiple of tp {join(bad)}",
        f"{width_key} that each size in parallel.tp divides",
    )


def join(values: Iterable[object]) -> str:
    """`2, 4 and 8`"""
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
