"""The Jinja environment: strict, deterministic, and errors that name template, line and variable.

Templates are instrumented, so that a rendering tells where each piece of its text comes from. Knows
nothing of the IR, of formatting or of disks other than the shipped templates.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

import jinja2
from lingen.emit.filters import FILTERS, printable
from lingen.emit.instrument import instrumented
from lingen.emit.recording import Piece, Recorder, unwatched
from lingen.errors import LingenError

ReadTemplate = Callable[[str], str]
"""Source of a template by its name below `templates/`; raises KeyError if there is none."""

_FOLDER = "templates/"
_GLOBALS = ("range", "dict", "namespace", "joiner")


class RenderError(LingenError):
    """A template failed, or what it made is not valid."""


def shipped_template(name: str) -> str:
    """The source of one of lingen's own templates. KeyError: there is none of that name."""
    from importlib import resources

    parts = name.split("/")
    if ".." in parts or name.startswith("/"):
        raise KeyError(name)
    try:
        return resources.files("lingen.templates").joinpath(*parts).read_text("utf-8-sig")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise KeyError(name) from error


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text, the same text as pieces with their origins, and the sorted paths (`templates/…`) of
    all templates that were loaded for it."""

    text: str
    pieces: list[Piece]
    templates: tuple[str, ...]


class TemplateSet:
    """Renders templates by name and says which templates took part, and where.

    Each rendering gets its own environment, so that the record of loads is complete whatever was
    rendered before; compiled code is shared, so a process compiles a template once.
    """

    def __init__(self, read: ReadTemplate = shipped_template) -> None:
        self._read = read
        self._sources: dict[str, str] = {}

    def render(
        self, name: str, ir: Any, condition: Callable[[Any], object] | None = None
    ) -> Rendered:
        """Template `name` with `ir` in its context. `condition`: what decided that it is rendered
        at all; whatever it reads from the IR counts for every piece."""
        recorder = Recorder()
        watched = recorder.watch(ir)
        if condition is not None:
            condition(watched)
        loader = _RecordingLoader(self._source)
        environment = _environment(loader, recorder)
        try:
            marked = environment.get_template(name).render(ir=watched)
        except (LingenError, AssertionError):
            raise
        except Exception as error:
            raise _explained(error, name) from error
        text, pieces = recorder.pieces(marked, _NAMES)
        return Rendered(text, pieces, tuple(sorted(_FOLDER + loaded for loaded in loader.loaded)))

    def _source(self, name: str) -> str:
        if name not in self._sources:
            self._sources[name] = self._read(name)
        return self._sources[name]


class _RecordingLoader(jinja2.BaseLoader):
    def __init__(self, source: ReadTemplate) -> None:
        self._source = source
        self.loaded: set[str] = set()

    def load(
        self,
        environment: jinja2.Environment,
        name: str,
        globals: MutableMapping[str, Any] | None = None,
    ) -> jinja2.Template:
        try:
            source = self._source(name)
        except KeyError as error:
            raise jinja2.TemplateNotFound(name) from error
        self.loaded.add(name)
        if (name, source) not in _COMPILED:
            _COMPILED[name, source] = _compiled(environment, name, source)
        code = _COMPILED[name, source]
        return environment.template_class.from_code(environment, code, globals or {})


_COMPILED: dict[tuple[str, str], CodeType] = {}
"""Compiled templates by name and source, so that sharing them is safe."""

_NAMES: list[str] = []
"""Names of the compiled templates; their marks hold the index."""


def _compiled(environment: jinja2.Environment, name: str, source: str) -> CodeType:
    filename = _FOLDER + name
    tree = environment.parse(source, name, filename)
    _NAMES.append(name)
    return environment.compile(instrumented(tree, len(_NAMES) - 1), name, filename)


class _MarkingEnvironment(jinja2.Environment):
    """What instrumented templates take marks from. A property: a call would cost more."""

    recorder: Recorder

    mark_begin = property(lambda self: self.recorder.mark("{"))
    mark_printed = property(lambda self: self.recorder.mark("?"))
    mark_added = property(lambda self: self.recorder.mark("+"))
    mark_dropped = property(lambda self: self.recorder.mark("-"))

    def mark_turn(self, *targets: object) -> str:
        return self.recorder.mark_turn(*targets)


def _environment(loader: jinja2.BaseLoader, recorder: Recorder) -> jinja2.Environment:
    environment = _MarkingEnvironment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        finalize=printable,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    # Same input, same bytes: nothing random is within a template's reach.
    environment.globals = {name: environment.globals[name] for name in _GLOBALS}
    del environment.filters["random"]
    environment.filters.update({name: _of_plain(filter_) for name, filter_ in FILTERS.items()})
    environment.recorder = recorder
    return environment


def _of_plain(filter_: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: filter_(unwatched(value))


def _explained(error: Exception, top: str) -> RenderError:
    """`templates/torch/model.py.j2:12: …`: the innermost template line on the error's way."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return RenderError(f"{error.filename or _FOLDER + top}:{error.lineno}: {error.message}")
    place = _template_line(error.__traceback__) or _FOLDER + top
    if isinstance(error, jinja2.TemplateNotFound):
        missing = ", ".join(_FOLDER + name for name in error.templates)
        return RenderError(f"{place}: no template {missing}")
    if isinstance(error, jinja2.UndefinedError):
        return RenderError(f"{place}: {error.message}")
    return RenderError(f"{place}: {type(error).__name__}: {error}")


def _template_line(traceback: TracebackType | None) -> str | None:
    place = None
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename.startswith(_FOLDER):
            place = f"{filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
