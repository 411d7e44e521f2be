"""What can be the fate of a config.json key: used, ignored with a reason, checked, or refused.

Knows nothing of which keys there are: `lingen.hf.table` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Values = Mapping[str, object]


@dataclass(eq=False)
class Refused(Exception):
    """A value that cannot be taken over, as message texts."""

    message: str
    expected: str
    fix: str | None = None


@dataclass(eq=False)
class NotUsed(Exception):
    """A value that says nothing: the key is ignored for this reason."""

    reason: str


def same(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Used:
    """The value becomes that of `spec_key`. `convert` may raise Refused or NotUsed.

    Rows of one spec key are spellings of one fact: all that are present must agree. An object that
    `convert` returns becomes a section; `completion` says, key by key, what it means that the
    config's object does not state one.
    """

    spec_key: str
    convert: Callable[[object], object] = same
    completion: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Any value is accepted and has no effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Only:
    """One of `values` is accepted and has no effect, since it is what is always done."""

    values: tuple[object, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Agrees:
    """The value repeats what other keys say.

    `expected` gets the values of `spec_keys` and returns what is accepted. Where the config has not
    all of them there is nothing to compare: that is reported on its own. With `gives`, the last of
    `spec_keys` follows from the value where the config does not state it: `gives` gets the value
    and the others.
    """

    spec_keys: tuple[str, ...]
    expected: Callable[..., tuple[object, ...]]
    words: str
    reason: str
    gives: Callable[..., object] | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """An object whose keys have rows of their own. `rest`: the fate of all other keys in it; None
    refuses them. null is an absent object."""

    rows: Mapping[str, Row]
    rest: Ignored | None = None


Row = Used | Ignored | Only | Agrees | Nested


@dataclass(frozen=True, slots=True)
class Absent:
    """What it means that no spelling of a spec key is in the config.

    value: what the spec says then, or `compute`: its function of the values of `spec_keys`.
        `from_family`: the family decides.
    is_null: whether null means the same as absence.
    """

    note: str
    value: object = None
    spec_keys: tuple[str, ...] = ()
    compute: Callable[..., object] = same
    from_family: bool = False
    is_null: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """Models of one name under `architectures`.

    table: every key of their config.json. absences: spec keys that the config need not state; every
    other spec key that a row uses must be there.
    """

    architecture: str
    model_type: str
    family: str
    table: Mapping[str, Row]
    absences: Mapping[str, Absent]
