"""Decides by `architectures` whether a config.json can be imported at all.

`model_type` alone never decides: generations with different mathematics share one.
"""

from __future__ import annotations

from lingen.errors import LingenError, Position, Problem, SpecError
from lingen.hf.rows import Generation
from lingen.hf.table import GENERATIONS
from lingen.spec.names import nearest_names
from lingen.spec.nodes import Entry, ListNode, MappingNode, ScalarNode, described, escaped

_KDA = "KDA attention"
NOT_YET = {
    "BailingMoeV3ForCausalLM": _KDA,
    "BailingMoeV3VLForConditionalGeneration": _KDA,
    "BailingHybridForCausalLM": _KDA,
}
_ENDING = "ForCausalLM"
KDA_KEY = "short_conv_kernel_size"


class UnsupportedArchitecture(LingenError):
    """A model that lingen knows but cannot generate yet. One line."""


def generation_of(config: MappingNode, display: str) -> Generation:
    """The generation that `architectures` names, if `model_type` goes with it.

    Raises:
        UnsupportedArchitecture: recognised, but not supported yet.
        SpecError: unknown, ambiguous, missing, or in contradiction with `model_type`.
    """
    name, place = _architecture(config, display)
    if name in NOT_YET:
        raise UnsupportedArchitecture(
            f"{place}: architectures: {name} ({NOT_YET[name]}) is not supported yet"
        )
    if name not in GENERATIONS:
        known = ", ".join(GENERATIONS)
        message, fix = "unknown architecture", _nearest(name)
        problem = Problem(place, "architectures", message, escaped(name), known, fix)
        raise SpecError([problem])
    kernel = config.entries.get(KDA_KEY)
    if kernel and not _is_null(kernel):
        raise UnsupportedArchitecture(
            f"{kernel.position}: {KDA_KEY}: KDA attention is not supported yet,"
            f" and {name} (line {place.line}) has none"
        )
    _check_model_type(config, GENERATIONS[name], place, display)
    return GENERATIONS[name]


def _nearest(name: str) -> str | None:
    """The generation that was meant. Names are compared without the ending that all share."""
    by_stem = {known.removesuffix(_ENDING): known for known in (*GENERATIONS, *NOT_YET)}
    stem = name[: -len(_ENDING)] if name.lower().endswith(_ENDING.lower()) else name
    near = [by_stem[found] for found in nearest_names(stem, by_stem)]
    return near[0] if near and near[0] in GENERATIONS else None


def _architecture(config: MappingNode, display: str) -> tuple[str, Position]:
    expected = f"a list of one name: {', '.join(GENERATIONS)}"
    entry = config.entries.get("architectures")
    if entry is None or _is_null(entry):
        place = entry.position if entry else Position(display, 1, 1)
        fix = "state it: model_type alone does not tell the generations apart"
        raise SpecError([Problem(place, "architectures", "missing", None, expected, fix)])
    node = entry.node
    items = node.items if isinstance(node, ListNode) else []
    if len(items) == 1 and isinstance(items[0], ScalarNode) and isinstance(items[0].value, str):
        return items[0].value, items[0].position
    found = f"a list of {len(items)}" if isinstance(node, ListNode) else described(node)
    raise SpecError(
        [Problem(node.position, "architectures", "not exactly one name", found, expected)]
    )


def _check_model_type(
    config: MappingNode, generation: Generation, place: Position, display: str
) -> None:
    model_type = generation.model_type
    expected = f"{model_type}, which goes with {generation.architecture} (line {place.line})"
    entry = config.entries.get("model_type")
    if entry is None:
        problem = Problem(Position(display, 1, 1), "model_type", "missing", None, expected)
        raise SpecError([problem])
    node = entry.node
    if not isinstance(node, ScalarNode) or node.value != model_type:
        message = "contradicts architectures"
        raise SpecError([Problem(node.position, "model_type", message, described(node), expected)])


def _is_null(entry: Entry) -> bool:
    return isinstance(entry.node, ScalarNode) and entry.node.value is None
