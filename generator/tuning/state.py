"""What a search knows so far, in a file that survives a kill between any two moments.

The file stands beside the table that it is for, and goes away with the table's last write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lingen.errors import LingenError
from lingen.files import replace_file
from lingen.spec.source import shown_path
from lingen.tuned.lookup import Row
from lingen.tuning.rows import PRODUCTS


@dataclass(frozen=True, slots=True)
class Key:
    """What times are true of. One changed value makes a state worthless.

    kernels: sha256 of the sources of the kernels.
    """

    kernels: str
    device: str
    triton: str
    num_experts: int
    width: int
    hidden: int
    top_k: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The rows for a number of tokens, measured beside the default ones.

    microseconds: of a call with `up` and `down`; default_microseconds: with the kernels' own rows,
    alternately in one run.  is_default: `up` and `down` are those.
    """

    up: Row
    down: Row
    is_default: bool
    microseconds: float
    default_microseconds: float


RowKey = tuple[tuple[str, int | bool], ...]


def row_key(row: Row) -> RowKey:
    """Alike for rows that mean the same."""
    return tuple(sorted((key, value) for key, value in row.items() if value is not False))


@dataclass(slots=True)
class State:
    """times: microseconds by product, tokens and row; None for a row that cannot run.

    choices: by tokens, those that were measured beside the default.
    """

    path: Path
    key: Key
    times: dict[tuple[str, int, RowKey], float | None] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)

    def save(self) -> None:
        """Whole, or not at all, and without a wait: this is done after every row."""
        times = [
            {"product": product, "tokens": tokens, "row": dict(row), "microseconds": time}
            for (product, tokens, row), time in self.times.items()
        ]
        choices = {str(tokens): asdict(choice) for tokens, choice in self.choices.items()}
        found = {"key": asdict(self.key), "times": times, "choices": choices}
        replace_file(self.path, json.dumps(found) + "\n", is_lasting=False)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def open_state(path: Path, key: Key, restart: bool) -> State:
    """The state at `path`, or an empty one where there is none or `restart` drops it.

    LingenError for one of another key, and for a file that is none.
    """
    if restart or not path.exists():
        return State(path, key)
    try:
        found = json.loads(path.read_text("utf-8"))
        old, state = found["key"], State(path, key)
        for entry in found["times"]:
            state.times[_place(entry)] = _time(entry["microseconds"])
        for tokens, choice in found["choices"].items():
            state.choices[int(tokens)] = Choice(**choice)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refused(path, f"not the state of a search: {error}") from None
    changed = _changes(old, asdict(key))
    if changed:
        raise _refused(path, "of another search than this one would be", *changed)
    return state


def _place(entry: Mapping) -> tuple[str, int, RowKey]:
    if entry["product"] not in PRODUCTS:
        raise ValueError(f"{entry['product']!r} is no product")
    return entry["product"], int(entry["tokens"]), row_key(entry["row"])


def _time(value: object) -> float | None:
    if value is not None and not isinstance(value, float):
        raise ValueError(f"{value!r} is no time")
    return value


def _changes(old: Mapping, new: Mapping) -> tuple[str, str] | tuple[()]:
    """What was found and what is expected, of the values that differ."""
    names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    if not names:
        return ()
    texts = [", ".join(f"{name} {values.get(name)}" for name in names) for values in (old, new)]
    return texts[0], texts[1]


def _refused(path: Path, wrong: str, found: str | None = None, expected: str = "") -> LingenError:
    lines = [f"{shown_path(path)}: {wrong}"]
    if found is not None:
        lines += [f"  found     {found}", f"  expected  {expected}"]
    lines.append("  fix       --restart to drop it and measure everything anew")
    return LingenError("\n".join([*lines, "Nothing was written."]))
