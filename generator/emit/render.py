"""IR to files: templates, formatting, header, trace and manifest, all in memory.

Pure: the same IR, target and templates give the same bytes, and no output folder is touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lingen.emit.alignment import LineOrigin, align
from lingen.emit.formatter import Unformattable, format_sources
from lingen.emit.header import can_hold_header, with_header
from lingen.emit.manifest import MANIFEST, FileOrigin, make_manifest
from lingen.emit.recording import Piece
from lingen.emit.sidecar import TRACE, KeysOf, make_sidecar
from lingen.emit.templates import ReadTemplate, RenderError, TemplateSet, shipped_template
from lingen.errors import LingenError
from lingen.ir.provenance import spec_keys
from lingen.targets import Target, target_named
from lingen.targets.tuned import tuned_files

Files = dict[str, bytes]
"""The files of one package by their path inside it, sorted by path."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """One file as its template made it, before formatting."""

    path: str
    text: str
    pieces: list[Piece]
    template: str
    templates: tuple[str, ...]


def render(
    ir: Any,
    target: Target | str,
    read: ReadTemplate = shipped_template,
    keys_of: KeysOf = spec_keys,
) -> Files:
    """All files of one package, `trace.json` and `manifest.json` included.

    Raises RenderError for a template that fails or makes invalid Python, EnvironmentLacks without
    the pinned formatter.
    """
    [result] = render_all([(ir, target)], read, keys_of)
    if isinstance(result, LingenError):
        raise result
    return result


def render_all(
    jobs: Sequence[tuple[Any, Target | str]],
    read: ReadTemplate = shipped_template,
    keys_of: KeysOf = spec_keys,
) -> list[Files | LingenError]:
    """The files of each (IR, target), in order, or the error that kept one from being made.

    One failure leaves the others complete. The formatter runs once for all.
    """
    templates = TemplateSet(read)
    drafts = [_drafts_or_error(ir, _resolved(target), templates) for ir, target in jobs]
    sources = [d.text for made in drafts if isinstance(made, list) for d in made if _is_python(d)]
    formatted = iter(format_sources(sources))
    results: list[Files | LingenError] = []
    for (ir, target), made in zip(jobs, drafts, strict=True):
        if isinstance(made, LingenError):
            results.append(made)
            continue
        texts = [next(formatted) if _is_python(draft) else draft.text for draft in made]
        results.append(_finished_or_error(ir, _resolved(target), made, texts, keys_of))
    return results


def _resolved(target: Target | str) -> Target:
    return target_named(target) if isinstance(target, str) else target


def _is_python(draft: _Draft) -> bool:
    return draft.path.endswith(".py")


def _drafts_or_error(ir: Any, target: Target, templates: TemplateSet) -> list[_Draft] | LingenError:
    package = target.package_name(ir)
    try:
        drafts = []
        for file in sorted(target.files_for(ir), key=lambda file: file.path):
            made = templates.render(file.template, ir, file.condition)
            name = f"templates/{file.template}"
            draft = _Draft(file.path, made.text, made.pieces, name, made.templates)
            _refuse_invalid(package, draft)
            drafts.append(draft)
        return drafts
    except LingenError as error:
        return error


def _finished_or_error(
    ir: Any,
    target: Target,
    drafts: list[_Draft],
    texts: Iterable[str | Unformattable],
    keys_of: KeysOf,
) -> Files | LingenError:
    files: Files = {}
    lines: dict[str, list[LineOrigin | None]] = {}
    for draft, text in zip(drafts, texts, strict=True):
        if isinstance(text, Unformattable):
            return _invalid(target.package_name(ir), draft, text.line, text.reason)
        body = text.encode()
        has_header = can_hold_header(draft.path)
        files[draft.path] = with_header(body, ir.spec.header_name) if has_header else body
        lines[draft.path] = [*([None] if has_header else []), *align(draft.pieces, text)]
    files[TRACE] = make_sidecar(ir.spec, lines, files, keys_of)
    data = tuned_files(target, ir)
    files |= {file.path: file.data for file in data}
    origins = [FileOrigin(d.path, files[d.path], d.templates) for d in drafts]
    origins += [FileOrigin(path, files[path], ()) for path in (TRACE, *(f.path for f in data))]
    tuned = [{"file": file.path, **file.facts} for file in data]
    files[MANIFEST] = make_manifest(ir, target.name, origins, tuned)
    return dict(sorted(files.items()))


def _refuse_invalid(package: str, draft: _Draft) -> None:
    """Raise RenderError for text that no file of its kind may hold."""
    if "\r" in draft.text:
        line = draft.text[: draft.text.index("\r")].count("\n") + 1
        raise _invalid(package, draft, line, "a carriage return is not written as `\\r`")
    if draft.path.endswith(".toml"):
        _refuse_invalid_toml(package, draft)
    if not _is_python(draft):
        return
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(draft.text, draft.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _invalid(package, draft, error.lineno or 1, error.msg) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise _invalid(package, draft, 1, str(error) or "too deeply nested") from error


def _refuse_invalid_toml(package: str, draft: _Draft) -> None:
    import tomllib

    try:
        tomllib.loads(draft.text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        line = int(place[1]) if place else draft.text.count("\n")
        raise _invalid(package, draft, line, str(error)) from error


def _invalid(package: str, draft: _Draft, line: int, reason: str) -> RenderError:
    lines = draft.text.split("\n")
    shown = lines[line - 1].strip() if line <= len(lines) else ""
    return RenderError(
        f"{package}/{draft.path}:{line}: {draft.template} made text that is not valid: {reason}\n"
        f"  found     {shown!r:.120}"
    )
