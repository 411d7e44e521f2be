"""From a spec's text to a ModelSpec: read, inherit, check, build, in this order.

All problems of all files are reported together; what depends on a whole and well-typed spec,
missing keys and rules between keys, is looked at once the files themselves are right.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lingen.errors import Problem, SpecError

from .building import build_spec
from .extends import Layer, merge, read_chain
from .missing import missing_keys
from .model import ModelSpec
from .nodes import origins, plain
from .overrides import DISPLAY, parse_overrides
from .rules import check_rules
from .schema import check_tree
from .sections import misplaced_sections
from .source import Unreadable, read_file, shown_path
from .tables import read_tables


def load_spec(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> ModelSpec:
    """The spec in a file, merged with all it extends.

    Args:
        path: the file; messages show it as given.
        overrides: KEY=VALUE texts that lie over the file, such as `moe.num_experts=64`.
    Raises:
        SpecError: everything wrong with the file, its parents and the overrides.
    """
    display = shown_path(path)
    try:
        text = read_file(path, display)
    except Unreadable as error:
        raise SpecError(error.problems) from None
    return _load(text, display, Path(path), overrides)


def load_spec_text(
    text: str,
    display_name: str,
    search_dir: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
) -> ModelSpec:
    """The spec in `text`, as if it stood in a file of that name in `search_dir`.

    Without `search_dir` only the specs that come with lingen can be extended.
    """
    path = None if search_dir is None else Path(search_dir) / Path(display_name).name
    return _load(text, shown_path(display_name), path, overrides)


def _load(text: str, display: str, path: Path | None, overrides: Sequence[str]) -> ModelSpec:
    chain = read_chain(text, display, path, check_tree)
    set_tree, set_problems = parse_overrides(overrides)
    _raise_if_any([*chain.problems, *set_problems, *check_tree(set_tree)])
    merged = merge((Layer(DISPLAY, None, set_tree), *chain.layers))
    _raise_if_any(
        [
            *missing_keys(merged, chain.layers),
            *misplaced_sections(merged),
            *check_rules(merged, display),
        ]
    )
    table_texts, table_problems = read_tables(merged, chain.layers)
    _raise_if_any(table_problems)
    places = dict(sorted(origins(merged)))
    sources = tuple(layer.display for layer in chain.layers)
    return build_spec(plain(merged), display, sources, places, table_texts)


def _raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise SpecError(problems)
