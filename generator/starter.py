"""Starter specs: what a family leaves open, as comments to be filled in.

A starter is text, not values: built as it stands, it fails and names every key that is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lingen.errors import LingenError, Position, Problem, SpecError
from lingen.spec import shipped_specs
from lingen.spec.dump import flow
from lingen.spec.extends import Layer, merge, read_chain
from lingen.spec.missing import missing_keys
from lingen.spec.nodes import Entry, MappingNode, Node, escaped, find, leaves, plain
from lingen.spec.rules_model import nearest_name, why_not_name
from lingen.spec.schema import check_tree, known_keys, schema_at
from lingen.spec.source import shown_path
from lingen.spec.wording import accepted

# What siblings of one family differ in, beyond what the family leaves open.
MOST_CHANGED = (
    "model.vocab_size",
    "model.rope_theta",
    "model.max_position_embeddings",
    "model.eos_token_id",
    "model.norm_head",
    "attention.pattern.layer_group_size",
    "attention.lightning.head_dim",
    "attention.lightning.group_norm_size",
    "attention.lightning.decay.layer_offset",
    "attention.lightning.backend",
    "attention.mla.q_lora_rank",
    "attention.mla.kv_lora_rank",
    "attention.gqa.num_key_value_heads",
    "attention.gqa.head_dim",
    "attention.gqa.partial_rotary_factor",
    "attention.gqa.use_qk_norm",
    "moe.num_experts",
    "moe.num_experts_per_tok",
    "moe.num_shared_experts",
    "moe.n_group",
    "moe.topk_group",
    "moe.routed_scaling_factor",
    "moe.renormalize",
    "mtp.num_nextn_predict_layers",
    "cache.speculative.num_draft_tokens",
    "parallel.tp",
    "parallel.pp",
    "sglang.tp_size",
    "sglang.pp_size",
)

NAME = "model.name"
_NAME_ARGUMENT = Position("NAME", 1, 1)
_EXTENDS_OPTION = Position("--extends", 1, 1)


@dataclass(frozen=True, slots=True)
class Starter:
    """The text of a starter spec, and the keys in it that wait for a value."""

    text: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """A key of the starter, without its indentation, and the comment behind it."""

    code: str
    about: str = ""

    @property
    def comment(self) -> str:
        return f"# {self.about}" if self.about else ""


def start_spec(name: str, extends: str | None, output: str | None, force: bool) -> None:
    """Write a starter to `output`, else to `specs/NAME.yaml`, and say what to do next.

    With output `-` the text goes to stdout and the advice to stderr.

    Raises LingenError where the file is there already (without `force`) or cannot be written, and
    as make_starter does. Nothing is written then.
    """
    from lingen.hf.output import write_spec

    stem = "unnamed" if why_not_name(name) else name
    place = Path("specs", f"{stem}.yaml") if output in (None, "-") else Path(output)
    starter = make_starter(name, extends, place)
    if output == "-":
        print(starter.text, end="")
        print(_advice(starter, place), file=sys.stderr)
        return
    if os.path.lexists(place) and not force:
        raise LingenError(
            f"{shown_path(place)}: exists already\n"
            "  fix       --force to replace it, or another file with -o\nNothing was written."
        )
    write_spec(place, starter.text, force=True)
    print(f"written   {shown_path(place)}\n{_advice(starter, place)}")


def _advice(starter: Starter, place: Path) -> str:
    build = f"`lingen build {shown_path(place)}`"
    if not starter.missing:
        return f"Nothing is missing. Next: change what differs, then {build}."
    keys = "1 key waits" if len(starter.missing) == 1 else f"{len(starter.missing)} keys wait"
    return f"{keys} for a value. Next: fill in the file, then {build}."


def make_starter(name: str, extends: str | None, place: Path) -> Starter:
    """A starter for a model of that name. Nothing is written.

    Args:
        extends: what the spec completes, as `extends` writes it.
        place: where the spec will stand: parents are looked up beside it.
    Raises:
        SpecError: everything wrong with the name, with `extends` and with what it names.
        LingenError: no `extends`.
    """
    if extends is None:
        raise LingenError(
            "no family given\n"
            f"  expected  --extends FAMILY, one of {', '.join(shipped_specs())}, or a spec beside"
            f" {shown_path(place)}\nNothing was written."
        )
    display = shown_path(place)
    try:
        first = f"extends: {flow(extends)}\n"
    except ValueError:
        first = 'extends: "?"\n'
    chain = read_chain(first, display, place, check_tree)
    problems = [*_name_problems(name), *(_of_the_option(p, display) for p in chain.problems)]
    if problems:
        raise SpecError(problems)
    merged = merge(chain.layers)
    stated = dict(leaves(merged))
    _open_sections(merged, chain.layers)
    open_keys = {problem.key for problem in missing_keys(merged, chain.layers)} - {NAME}
    missing = tuple(key for key in known_keys() if key in open_keys)
    lines = {NAME: _Line(f"name: {flow(name)}")}
    lines |= {key: _missing_line(key) for key in missing}
    lines |= {key: _stated_line(key, stated[key]) for key in MOST_CHANGED if key in stated}
    text = _header(extends, missing) + "\n".join(_sections(lines)) + "\n"
    return Starter(text, missing)


def _name_problems(name: str) -> Iterator[Problem]:
    refusal = why_not_name(name)
    if refusal:
        legal = next((word for word in nearest_name(name) if why_not_name(word) is None), None)
        found = flow(name) if name.isprintable() else ascii(name)
        yield Problem(_NAME_ARGUMENT, NAME, refusal.message, found, refusal.expected, legal)


def _of_the_option(problem: Problem, display: str) -> Problem:
    """The problem at its option if it is about the one line that stands for the new spec."""
    if problem.position.file != display:
        return problem
    return replace(problem, position=_EXTENDS_OPTION)


def _open_sections(merged: MappingNode, layers: tuple[Layer, ...]) -> None:
    """Give the tree every section it lacks, empty, so that its missing keys come one by one."""
    here = Position("", 1, 1)
    while True:
        found = [problem.key for problem in missing_keys(merged, layers)]
        sections = [key for key in found if schema_at(key).get("type") == "object"]
        if not sections:
            return
        for key in sections:
            *path, last = key.split(".")
            entries = find(merged, path).entries
            entries[last] = Entry(here, MappingNode(here))


def _missing_line(key: str) -> _Line:
    part = schema_at(key)
    comment = part["description"].removesuffix(".")
    if "enum" in part or part.get("type") == "boolean":
        comment += f" ({accepted(part)})"
    return _Line(f"# {_last(key)}:", comment)


def _stated_line(key: str, node: Node) -> _Line:
    place = node.position
    return _Line(f"# {_last(key)}: {flow(plain(node))}", escaped(f"{place.file}:{place.line}"))


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _header(extends: str, missing: tuple[str, ...]) -> str:
    """The comment at the top and the line that names the family."""
    todo = (
        "# Lines with a key and no value wait for one. Remove the `# ` in front of the key and of\n"
        "# every section above it, and put the value between the colon and the comment.\n"
        if missing
        else "# Nothing is missing: state what differs from the parent.\n"
    )
    return (
        "# yaml-language-server: $schema=schema.json\n"
        "#\n"
        f"{todo}"
        "# Lines with a value show what holds now and where it is stated; change them alike.\n"
        "# Then run `lingen build` on this file.\n"
        "\n"
        f"extends: {flow(extends)}\n"
    )


def _sections(lines: dict[str, _Line], prefix: str = "") -> list[str]:
    """The lines below a section (`prefix` ends in a dot, or is empty), its own keys first."""
    indent = "  " * prefix.count(".")
    inside = {key: line for key, line in lines.items() if key.startswith(prefix)}
    own = [line for key, line in inside.items() if "." not in key[len(prefix) :]]
    width = max((len(line.code) for line in own), default=0)
    texts = [f"{indent}{line.code:<{width}}  {line.comment}".rstrip() for line in own]
    names = (key[len(prefix) :].partition(".")[0] for key in inside if "." in key[len(prefix) :])
    for name in sorted(set(names), key=lambda name: list(known_keys()).index(f"{prefix}{name}")):
        section = f"{prefix}{name}"
        code = f"{name}:" if NAME.startswith(f"{section}.") else f"# {name}:"
        about = schema_at(section)["description"].removesuffix(".")
        texts += [*([] if indent else [""]), f"{indent}{code}  # {about}"]
        texts += _sections(lines, f"{section}.")
    return texts
