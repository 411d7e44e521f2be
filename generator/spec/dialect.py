"""The YAML that specs are written in: one document of mappings, lists and scalars, with positions.

A subset of YAML 1.2 without anchors, aliases, merge keys, tags and directives: what a file means
can be read off the file. Knows nothing of which keys exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml
from lingen.errors import Position, Problem

from .nodes import (
    REFUSED,
    Entry,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    described,
    dotted_key,
    escaped,
    shortened,
)
from .scalars import BadScalar, resolve_plain
from .source import Unreadable, clean
from .syntax import syntax_problem

MAX_DEPTH = 32
MAX_EVENTS = 10_000


class _Stop(Exception):
    """Reading on makes no sense; the problem is recorded."""


@dataclass(slots=True)
class _Frame:
    """An open mapping or list.

    In a mapping keys and values alternate: `awaits_value` says which is next, and `key` holds the
    key that the value belongs to, None where the key was refused.
    """

    node: MappingNode | ListNode
    awaits_value: bool = False
    key: str | None = None
    key_position: Position | None = None


@dataclass(slots=True)
class _Composer:
    """Builds the tree from PyYAML's events with an explicit stack, so depth costs no recursion."""

    text: str
    display: str
    problems: list[Problem] = field(default_factory=list)
    stack: list[_Frame] = field(default_factory=list)
    root: Node | None = None
    documents: int = 0

    def compose(self) -> bool:
        """Whether the text was read to its end."""
        try:
            # The pure-Python loader: messages of the C one differ.
            for count, event in enumerate(yaml.parse(self.text, yaml.SafeLoader)):
                self._take(event)
                if count >= MAX_EVENTS:
                    self._refuse(event, "too many keys and values for a spec")
                    raise _Stop
        except _Stop:
            return False
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # PyYAML lets numbers in escapes and directives fail with Python's own errors.
            self.problems.append(syntax_problem(error, self.text, self.display))
            return False
        return True

    def _take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._refuse_decoration(event)
            self._place(self._scalar(event))
        elif isinstance(event, yaml.MappingStartEvent):
            self._open(event, MappingNode(self._position(event)))
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open(event, ListNode(self._position(event)))
        elif isinstance(event, yaml.CollectionEndEvent):
            self._place(self.stack.pop().node)
        elif isinstance(event, yaml.AliasEvent):
            self._refuse(event, f"an alias, *{event.anchor}", fix=_INSTEAD_OF_ANCHORS)
            self._place(ScalarNode(self._position(event), REFUSED, f"*{event.anchor}"))
        elif isinstance(event, yaml.DocumentStartEvent):
            self._start_document(event)

    def _start_document(self, event: yaml.DocumentStartEvent) -> None:
        self.documents += 1
        if self.documents > 1:
            self._refuse(
                event, "a second document", expected="one spec in a file", fix="delete the `---`"
            )
            raise _Stop
        if event.tags:
            self._refuse(event, "a %TAG directive", fix="delete it: specs have no tags")
        if event.version not in (None, (1, 2)):
            found = f"%YAML {event.version[0]}.{event.version[1]}"
            self._refuse(event, "another version of YAML", found, "YAML 1.2", "delete the line")

    def _open(self, event: yaml.NodeEvent, node: MappingNode | ListNode) -> None:
        self._refuse_decoration(event)
        if len(self.stack) >= MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} levels deep")
            raise _Stop
        self.stack.append(_Frame(node))

    def _refuse_decoration(self, event: yaml.NodeEvent) -> None:
        if event.anchor is not None:
            self._refuse(event, f"an anchor, &{event.anchor}", fix=_INSTEAD_OF_ANCHORS)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._refuse(event, "a tag", tag, fix="delete it: a value's spelling is its type")

    def _scalar(self, event: yaml.ScalarEvent) -> ScalarNode:
        position = self._position(event)
        written = self.text[event.start_mark.index : event.end_mark.index]
        if event.style is not None:
            if any("\ud800" <= character <= "\udfff" for character in event.value):
                self._refuse(event, "half of a surrogate pair", fix="\\U and eight hex digits")
                return ScalarNode(position, REFUSED, written, is_quoted=True)
            return ScalarNode(position, event.value, written, is_quoted=True)
        value = resolve_plain(event.value)
        if isinstance(value, BadScalar):
            self._refuse(event, value.message, None, value.expected, value.fix)
            value = REFUSED
        return ScalarNode(position, value, written)

    def _place(self, node: Node) -> None:
        """Put a finished node where it belongs: root, item, key or value."""
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        if isinstance(frame.node, ListNode):
            frame.node.items.append(node)
        elif not frame.awaits_value:
            frame.key = self._accepted_key(node, frame.node)
            frame.key_position = node.position
            frame.awaits_value = True
        else:
            frame.awaits_value = False
            if frame.key is not None:
                frame.node.entries[frame.key] = Entry(frame.key_position, node)
            frame.key = None

    def _accepted_key(self, node: Node, mapping: MappingNode) -> str | None:
        """The key's text, or None once its refusal is recorded."""
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            if not (isinstance(node, ScalarNode) and node.value is REFUSED):
                self._problem(node.position, "not a key", described(node), "a name")
            return None
        if node.value == "<<" and not node.is_quoted:
            fix = "`extends: NAME` at the top of the spec"
            self._problem(node.position, "a merge key, <<", fix=fix)
            return None
        first = mapping.entries.get(node.value)
        if first:
            key = dotted_key([*self._path(), node.value])
            found = f"first at line {first.position.line}, again at line {node.position.line}"
            self.problems.append(
                Problem(node.position, key, "written twice", found, fix="delete one of them")
            )
            return None
        return node.value

    def _path(self) -> list[str | int]:
        """Keys and indices that lead to the place being read."""
        path: list[str | int] = []
        for frame in self.stack:
            if isinstance(frame.node, ListNode):
                path.append(len(frame.node.items))
            elif frame.awaits_value and frame.key is not None:
                path.append(frame.key)
        return path

    def _refuse(
        self,
        event: yaml.Event,
        message: str,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        self._problem(self._position(event), message, found, expected, fix)

    def _problem(
        self,
        position: Position,
        message: str,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        key = dotted_key(self._path())
        found = None if found is None else shortened(escaped(found))
        self.problems.append(
            Problem(position, key, shortened(escaped(message)), found, expected, fix)
        )

    def _position(self, event: yaml.Event) -> Position:
        mark = event.start_mark
        return Position(self.display, mark.line + 1, mark.column + 1)


_INSTEAD_OF_ANCHORS = "write the value out, or share it through `extends`"


def parse(text: str, display: str) -> tuple[MappingNode | None, list[Problem]]:
    """The tree of a spec's text, and everything wrong with its form.

    The tree is None when the text could not be read to its end or is no mapping; then there is at
    least one problem. A tree beside problems is whole except for what they name.
    """
    try:
        text = clean(text, display)
    except Unreadable as error:
        return None, error.problems
    composer = _Composer(text, display)
    if not composer.compose():
        return None, composer.problems
    root = composer.root
    if isinstance(root, MappingNode):
        return root, composer.problems
    top = Position(display, 1, 1)
    if root is None or (isinstance(root, ScalarNode) and root.written == ""):
        empty = Problem(top, "", "empty", expected="a spec", fix=_START)
        return None, [*composer.problems, empty]
    wrong = Problem(root.position, "", "not a spec", described(root), "a mapping of keys")
    return None, [*composer.problems, wrong]


_START = "start with `extends: families/NAME`"
