"""Records, while a template renders, which facts of the IR each piece of its text was made from.

The template gets the IR behind `Watched` objects, which log what is read; the marks that
`instrument.py` put into the template carry the log into the text. Knows nothing of spec keys or of
formatting.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from lingen.emit.instrument import MARK_END, MARK_START

_MARK = re.compile(f"{MARK_START}(.)([^{MARK_END}]*){MARK_END}")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text, perhaps empty, and where it comes from.

    template, line: of its first character. is_literal: written in the template, so each line of it
    is one template line further. own: paths of the IR that it prints. outer: paths that decide
    whether it is there, from the innermost block outwards.
    """

    text: str
    template: str
    line: int
    is_literal: bool
    own: tuple[str, ...]
    outer: tuple[str, ...]


class Recorder:
    """Follows one rendering: what is read goes into the next mark."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._parts: dict[str, None] = {}
        self._reads: list[tuple[str, ...]] = []
        self._ir: object = None

    def watch(self, ir: object) -> Watched:
        """`ir` as a template may see it: the same values, and every read is logged."""
        self._ir = ir
        return _watched_type(type(ir))(ir, "", "", self)

    def path_of(self, value: object, path: str) -> str:
        """Where an object that a property returned stands in the IR, or else `path`."""
        return self._paths.get(id(value), path)

    @cached_property
    def _paths(self) -> dict[int, str]:
        return {id(value): path for value, path in reversed([*_parts_of(self._ir, "")])}

    def log_value(self, path: str) -> None:
        self._values[path] = None

    def log_part(self, path: str) -> None:
        """A part on the way to values, such as `mla`: whether it is there may matter."""
        self._parts[path] = None

    def mark(self, kind: str) -> str:
        """A mark that holds all reads since the last one, those of values first."""
        self._reads.append((*self._values, *self._parts))
        self._values.clear()
        self._parts.clear()
        return f"{MARK_START}{kind}{len(self._reads) - 1}{MARK_END}"

    def mark_turn(self, *targets: object) -> str:
        """The marks that begin a turn of a loop: of its head, and of the members it is at."""
        watched = [target for target in targets if isinstance(target, Watched)]
        for member in watched:
            # Which members there are does not matter once it is known which one this is.
            self._parts.pop(member._lingen_container, None)
        head = self.mark("^")
        members = [member._lingen_path for member in watched]
        if not watched and targets and isinstance(targets[0], str):
            members = [f"[{targets[0]}]"]
        self._parts.update(dict.fromkeys(members))
        return head + self.mark("~")

    def pieces(self, marked: str, templates: Sequence[str]) -> tuple[str, list[Piece]]:
        """The rendered text without its marks, and the same text as pieces.

        `templates`: names of the templates by the numbers that stand for them.
        """
        parts = _MARK.split(marked)
        reader = _MarkReader(self._reads, templates)
        for text, kind, content in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
            reader.read(text, kind, content)
        reader.end(parts[-1])
        return "".join(parts[::3]), reader.pieces


class _MarkReader:
    """Follows the marks of a text through its blocks."""

    def __init__(self, reads: list[tuple[str, ...]], templates: Sequence[str]) -> None:
        self.pieces: list[Piece] = []
        self._reads = reads
        self._templates = templates
        self._blocks: list[tuple[str, ...]] = []
        # What the head of each open loop read, by the loop's depth: it counts for all turns.
        self._heads: dict[int, tuple[str, ...]] = {}
        self._outer: tuple[str, ...] | None = None
        self._own: tuple[str, ...] = ()
        self._text = ""

    def read(self, text: str, kind: str, content: str) -> None:
        self._text += text
        if kind in "=>":
            self._add_piece(kind, content)
        elif kind == "?":
            self._own = self._reads[int(content)]
        else:
            self._change_blocks(kind, content)
            self._outer = None

    def end(self, text: str) -> None:
        """`text` stands behind the last mark: a filter has put it behind a captured text."""
        rest = self._text + text
        if rest and self.pieces:
            self.pieces.append(dataclasses.replace(self.pieces[-1], text=rest, is_literal=False))

    def _add_piece(self, kind: str, content: str) -> None:
        if self._outer is None:
            self._outer = tuple(path for block in reversed(self._blocks) for path in block)
        line, _, template = content.partition(" ")
        place = (self._templates[int(template)], int(line), kind == "=")
        self.pieces.append(Piece(self._text, *place, self._own, self._outer))
        self._text, self._own = "", ()

    def _change_blocks(self, kind: str, content: str) -> None:
        if kind == "{":
            self._blocks.append(self._reads[int(content)])
        elif kind == "[":
            self._blocks.append(())
        elif kind == "^":
            reads = self._reads[int(content)]
            self._blocks[-1] = self._heads.setdefault(len(self._blocks), reads)
        elif kind == "~":
            self._blocks[-1] = _at_member(self._reads[int(content)], self._blocks[-1])
        elif kind == "+":
            self._blocks[-1] = self._reads[int(content)] + self._blocks[-1]
        elif kind == "}":
            self._heads.pop(len(self._blocks), None)
            self._blocks.pop()


def _at_member(members: tuple[str, ...], head: tuple[str, ...]) -> tuple[str, ...]:
    """What decides about a turn of a loop. Rows of plain values, `("hidden_size", 64)`, are named
    by their first: that name takes the place of the whole table, if the head read nothing else."""
    if not (members and members[0].startswith("[")):
        return members + head
    is_table = bool(head) and all(head[0].startswith(f"{part}.") for part in head[1:])
    return (head[0] + members[0], *head[1:]) if is_table else head


class Watched:
    """Stands for an object of the IR: attributes are the object's, and reading one is logged.

    An attribute that is an object again, or a tuple of objects, comes back watched; any other value
    comes back as it is.
    """

    __slots__ = ("_lingen_container", "_lingen_object", "_lingen_path", "_lingen_recorder")

    def __init__(self, value: object, path: str, container: str, recorder: Recorder) -> None:
        """`container`: path of the tuple that `value` is a member of, if it is."""
        self._lingen_object = value
        self._lingen_path = path
        self._lingen_container = container
        self._lingen_recorder = recorder

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._lingen_object, name)
        if name.startswith("__"):
            return value
        path = f"{self._lingen_path}.{name}" if self._lingen_path else name
        is_field = name in _field_names(type(self._lingen_object))
        return _watched(value, path, is_field, self._lingen_recorder)

    def __bool__(self) -> bool:
        return bool(self._lingen_object)

    def __eq__(self, other: object) -> bool:
        return self._lingen_object == unwatched(other)

    def __hash__(self) -> int:
        return hash(self._lingen_object)

    def __repr__(self) -> str:
        return repr(self._lingen_object)


class _WatchedTuple(tuple):
    """A tuple of watched objects. It is a tuple for every purpose; whose, its members know."""


def unwatched(value: Any) -> Any:
    """What a filter may see: the value itself, without marks where it is captured text."""
    if isinstance(value, Watched):
        return value._lingen_object
    if isinstance(value, _WatchedTuple):
        return tuple(unwatched(member) for member in value)
    if isinstance(value, str) and MARK_START in value:
        return _MARK.sub("", value)
    return value


def _watched(value: Any, path: str, is_field: bool, recorder: Recorder) -> Any:
    if _is_object(value):
        recorder.log_part(path)
        place = path if is_field else recorder.path_of(value, path)
        return _watched_type(type(value))(value, place, "", recorder)
    if isinstance(value, tuple) and value and all(map(_is_object, value)):
        recorder.log_part(path)
        return _WatchedTuple(_members(value, path, is_field, recorder))
    recorder.log_value(path)
    return value


def _members(
    values: tuple[Any, ...], path: str, is_field: bool, recorder: Recorder
) -> Iterator[Watched]:
    for value in values:
        place = _member_path(path, value)
        place = place if is_field else recorder.path_of(value, place)
        yield _watched_type(type(value))(value, place, path, recorder)


def _parts_of(value: Any, path: str) -> Iterator[tuple[object, str]]:
    """Every object below `value` that a field holds, with its path."""
    for field in dataclasses.fields(value) if _is_object(value) else ():
        part, place = getattr(value, field.name), f"{path}.{field.name}".lstrip(".")
        members = part if isinstance(part, tuple) else ()
        found = [(part, place)] if _is_object(part) else []
        found += [(each, _member_path(place, each)) for each in members if _is_object(each)]
        for each, each_path in found:
            yield each, each_path
            yield from _parts_of(each, each_path)


def _member_path(path: str, member: Any) -> str:
    """A member is named by its first field: `weights.groups[mla]`, `plan.layers[3]`."""
    return f"{path}[{getattr(member, dataclasses.fields(member)[0].name)}]"


@cache
def _field_names(watched: type) -> frozenset[str]:
    fields = dataclasses.fields(watched) if dataclasses.is_dataclass(watched) else ()
    return frozenset(field.name for field in fields)


def _is_object(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@cache
def _watched_type(watched: type) -> type[Watched]:
    """A class under the name of the watched one, so that messages name that."""
    names = {"__module__": watched.__module__, "__qualname__": watched.__qualname__}
    return type(watched.__name__, (Watched,), {"__slots__": (), **names})
