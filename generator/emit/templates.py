"""The Jinja environment: strict, deterministic, and errors that name template, line and variable.

Knows nothing of the IR, of formatting or of disks other than the shipped templates.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import jinja2
from jinja2.bccache import Bucket
from lingen.emit.filters import FILTERS, printable
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


class TemplateSet:
    """Renders templates by name and says which templates took part.

    Each rendering gets its own environment, so that the record of loads is complete whatever was
    rendered before; compiled code is shared, so a process compiles a template once.
    """

    def __init__(self, read: ReadTemplate = shipped_template) -> None:
        self._read = read
        self._sources: dict[str, str] = {}

    def render(self, name: str, **context: Any) -> tuple[str, tuple[str, ...]]:
        """The text of template `name`, and the sorted paths (`templates/…`) of all it loaded."""
        loader = _RecordingLoader(self._source)
        environment = _environment(loader, _COMPILED)
        try:
            text = environment.get_template(name).render(**context)
        except (LingenError, AssertionError):
            raise
        except Exception as error:
            raise _explained(error, name) from error
        return text, tuple(sorted(_FOLDER + loaded for loaded in loader.loaded))

    def _source(self, name: str) -> str:
        if name not in self._sources:
            self._sources[name] = self._read(name)
        return self._sources[name]


class _RecordingLoader(jinja2.BaseLoader):
    def __init__(self, source: ReadTemplate) -> None:
        self._source = source
        self.loaded: set[str] = set()

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        try:
            source = self._source(template)
        except KeyError as error:
            raise jinja2.TemplateNotFound(template) from error
        self.loaded.add(template)
        return source, _FOLDER + template, lambda: True


class _CompiledInMemory(jinja2.BytecodeCache):
    """Compiled templates by name and checksum of the source, so that sharing them is safe."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledInMemory()


def _environment(loader: jinja2.BaseLoader, compiled: jinja2.BytecodeCache) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=loader,
        bytecode_cache=compiled,
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
    environment.filters.update(FILTERS)
    return environment


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
