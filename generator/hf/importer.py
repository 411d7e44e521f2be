"""From a config.json to a validated spec and its text. The one place that joins file and family.

Every problem of the file, the family's name, the spec's name and the settings is reported at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lingen.errors import LingenError, Position, Problem, SpecError
from lingen.hf.architectures import generation_of
from lingen.hf.json_text import parse_json, read_json
from lingen.hf.reader import read_config
from lingen.hf.reading import Reading, set_leaf
from lingen.hf.sizes import derived_values
from lingen.hf.spec_text import DECAY_OFFSET, spec_text
from lingen.spec import ModelSpec, load_spec_text
from lingen.spec.dump import flow
from lingen.spec.extends import Chain, Layer, merge, read_chain
from lingen.spec.missing import missing_keys
from lingen.spec.nodes import MappingNode, ScalarNode, leaves, plain
from lingen.spec.overrides import DISPLAY as SET
from lingen.spec.overrides import parse_overrides
from lingen.spec.rules import check_rules
from lingen.spec.rules_model import nearest_name, why_not_name
from lingen.spec.schema import check_tree
from lingen.spec.source import shown_path

NAME = "model.name"
_NAME_OPTION = Position("--name", 1, 1)
_EXTENDS_OPTION = Position("--extends", 1, 1)


@dataclass(frozen=True, slots=True)
class Imported:
    """A spec made from a config.json.

    text: the spec as YAML; `spec` is what it loads to.
    used: config key → spec key. ignored: config key → reason. Together every key of the file.
    from_family: spec key → `value (file:line)`, of what a config.json cannot say, the decay first.
    notes: what a person should know, most important first.
    """

    spec: ModelSpec
    text: str
    used: dict[str, str]
    ignored: dict[str, str]
    from_family: dict[str, str]
    notes: tuple[str, ...]


def import_config(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    extends: str | None = None,
    overrides: Sequence[str] = (),
    spec_path: str | os.PathLike[str] | None = None,
) -> Imported:
    """Read a config.json. Nothing is written.

    Args:
        path: the file; messages show it as given.
        name: of the model; else the file's stem, or its folder's name for `config.json`.
        extends: the family, else that of the architecture.
        overrides: KEY=VALUE texts of spec keys, applied last.
        spec_path: where the spec will stand: parents are looked up beside it. Without it only specs
            that come with lingen can be extended, and the spec's file is `specs/NAME.yaml`.
    Raises:
        SpecError: everything wrong with the file, the names and the settings.
        LingenError: an architecture that is known, but not supported yet.
    """
    display = shown_path(path)
    name = name if name is not None else name_from(path)
    return _import(read_json(path, display), display, name, extends, overrides, spec_path)


def import_config_data(
    config: Mapping[str, object],
    *,
    name: str,
    extends: str | None = None,
    overrides: Sequence[str] = (),
) -> Imported:
    """The same for a config in memory, shown in messages as a file `config.json`."""
    try:
        text = json.dumps(config, indent=1)
    except (TypeError, ValueError, RecursionError) as error:
        raise LingenError(f"config.json: not JSON: {error}") from None
    display = "config.json"
    return _import(parse_json(text, display), display, name, extends, overrides, None)


def name_from(path: str | os.PathLike[str]) -> str | None:
    """A legal model name after the file or, for `config.json`, its folder; None if there is none.

    The path's own words count, not what links point to.
    """
    absolute = Path(os.path.abspath(path))
    word = absolute.parent.name if absolute.name == "config.json" else absolute.stem
    return next((legal for legal in nearest_name(word) if why_not_name(legal) is None), None)


def _import(
    config: MappingNode,
    display: str,
    name: str | None,
    extends: str | None,
    overrides: Sequence[str],
    spec_path: str | os.PathLike[str] | None,
) -> Imported:
    generation = generation_of(config, display)
    extends = generation.family if extends is None else extends
    chain = _chain(extends, spec_path)
    settings, problems = parse_overrides(overrides)
    reading = read_config(config, display, generation, dict(leaves(settings)))
    problems += [*chain.problems, *check_tree(settings), *reading.problems]
    problems += _name_problems(name, settings, reading)
    _raise_if_any(problems)
    own = merge((Layer(SET, None, settings), Layer(display, None, reading.tree)))
    families = chain.layers[1:]
    merged = merge((Layer(display, None, own), *families))
    derived = derived_values(merged, Position(display, 1, 1))
    own = merge((Layer(display, None, own), Layer(display, None, derived)))
    merged = merge((Layer(display, None, own), *families))
    broken = [reading.in_config_terms(problem) for problem in check_rules(merged, display)]
    _raise_if_any([*missing_keys(merged, chain.layers), *broken])
    text = spec_text(own, merged, extends, reading, settings)
    file = spec_path or f"specs/{plain(merged.entries['model'].node)['name']}.yaml"
    folder = None if spec_path is None else Path(spec_path).parent
    spec = load_spec_text(text, os.fspath(file), folder)
    return _imported(spec, text, reading)


def _chain(extends: str, spec_path: str | os.PathLike[str] | None) -> Chain:
    """The family and its parents, behind a layer that only extends it."""
    try:
        text = f"extends: {flow(extends)}\n"
    except ValueError:
        text = 'extends: "?"\n'
    path = None if spec_path is None else Path(spec_path)
    chain = read_chain(text, _EXTENDS_OPTION.file, path, check_tree)
    problems = tuple(
        replace(problem, position=_EXTENDS_OPTION)
        if problem.position.file == _EXTENDS_OPTION.file
        else problem
        for problem in chain.problems
    )
    return Chain(chain.layers, problems)


def _name_problems(name: str | None, settings: MappingNode, reading: Reading) -> list[Problem]:
    """Put the name into the config's tree, unless a setting gives it, and say if it is illegal."""
    if NAME in dict(leaves(settings)):
        return []
    if name is None:
        fix = "--name NAME"
        return [Problem(_NAME_OPTION, NAME, "missing: the file's place gives no name", fix=fix)]
    refusal = why_not_name(name)
    if refusal:
        legal = next((word for word in nearest_name(name) if why_not_name(word) is None), None)
        fix = f"--name {legal}" if legal else None
        found = flow(name) if name.isprintable() else ascii(name)
        return [Problem(_NAME_OPTION, NAME, refusal.message, found, refusal.expected, fix)]
    set_leaf(reading.tree, NAME, ScalarNode(_NAME_OPTION, name, name))
    return []


def _raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise SpecError(problems)


def _imported(spec: ModelSpec, text: str, reading: Reading) -> Imported:
    from_family = {}
    for key, value in spec.values().items():
        place = spec.origin(key)
        if place.file != spec.file:
            from_family[key] = f"{flow(value)} ({place.file}:{place.line})"
    offset = from_family.get(DECAY_OFFSET)
    notes = []
    if offset:
        from_family = {DECAY_OFFSET: offset, **from_family}
        notes.append(
            f"{DECAY_OFFSET}: config.json is silent on it; taken from the family: {offset}"
        )
    for key, (value, meaning) in reading.assumed.items():
        notes.append(f"{key}: {flow(value)}, since config.json has no such key: {meaning}")
    for key in ("parallel.tp", "parallel.pp"):
        notes.append(f"{key}: {flow(spec.values()[key])}, of the family's sizes those that fit")
    return Imported(spec, text, reading.used, reading.ignored, from_family, tuple(notes))


def import_to_file(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    extends: str | None = None,
    overrides: Sequence[str] = (),
    output: str | None = None,
    force: bool = False,
) -> tuple[Imported, Path | None]:
    """Import and write the spec to `output`, else to `specs/NAME.yaml` below the current folder.

    With output `-` nothing is written, and the place returned is None.

    Raises as import_config does, and LingenError where the file is there already (without `force`)
    or cannot be written. Nothing is written then.
    """
    from lingen.hf.output import write_spec

    chosen = name if name is not None else name_from(path)
    stem = chosen if chosen and why_not_name(chosen) is None else "unnamed"
    has_place = output not in (None, "-")
    place = Path(output) if has_place else Path("specs", f"{stem}.yaml")
    imported = import_config(path, name=name, extends=extends, overrides=overrides, spec_path=place)
    if output == "-":
        return imported, None
    if not has_place:
        place = Path("specs", f"{imported.spec.model.name}.yaml")
    write_spec(place, imported.text, force)
    return imported, place
