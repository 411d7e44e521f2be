"""Decides by `architectures` whether a config.json can be imported at all.

`model_type` alone never decides: generations with different mathematics share one.
"""

from __future__ import annotations

from lingen.errors import LingenError, Position, Problem, SpecError
from lingen.spec.names import nearest_names
from lingen.spec.nodes import Entry, ListNode, MappingNode, ScalarNode, described, escaped

SUPPORTED = {"BailingMoeV2_5ForCausalLM": "bailing_hybrid"}
_KDA = "KDA attention"
_GQA = "GQA attention"
NOT_YET = {
    "BailingMoeV3ForCausalLM": _KDA,
    "BailingMoeV3VLForConditionalGeneration": _KDA,
    "BailingHybridForCausalLM": _KDA,
    "BailingMoeLinearV2ForCausalLM": f"lightning and {_GQA}",
    "BailingMoeV2ForCausalLM": _GQA,
    "BailingMoeForCausalLM": _GQA,
}
KDA_KEY = "short_conv_kernel_size"


class UnsupportedArchitecture(LingenError):
    """A model that lingen knows but cannot generate yet. One line."""


def check_architecture(config: MappingNode, display: str) -> None:
    """Return if the config is of a supported architecture with the model_type that goes with it.

    Raises:
        UnsupportedArchitecture: recognised, but not supported yet.
        SpecError: unknown, ambiguous, missing, or in contradiction with `model_type`.
    """
    name, place = _architecture(config, display)
    if name in NOT_YET:
        raise UnsupportedArchitecture(
            f"{place}: architectures: {name} ({NOT_YET[name]}) is not supported yet"
        )
    if name not in SUPPORTED:
        known = ", ".join(SUPPORTED)
        near = nearest_names(name, [*SUPPORTED, *NOT_YET])
        fix = near[0] if near and near[0] in SUPPORTED else None
        problem = Problem(place, "architectures", "unknown architecture", escaped(name), known, fix)
        raise SpecError([problem])
    kernel = config.entries.get(KDA_KEY)
    if kernel and not _is_null(kernel):
        raise UnsupportedArchitecture(
            f"{kernel.position}: {KDA_KEY}: KDA attention is not supported yet,"
            f" and {name} (line {place.line}) has none"
        )
    _check_model_type(config, name, place, display)


def _architecture(config: MappingNode, display: str) -> tuple[str, Position]:
    expected = f"a list of one name: {', '.join(SUPPORTED)}"
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


def _check_model_type(config: MappingNode, name: str, place: Position, display: str) -> None:
    expected = f"{SUPPORTED[name]}, which goes with {name} (line {place.line})"
    entry = config.entries.get("model_type")
    if entry is None:
        problem = Problem(Position(display, 1, 1), "model_type", "missing", None, expected)
        raise SpecError([problem])
    node = entry.node
    if not isinstance(node, ScalarNode) or node.value != SUPPORTED[name]:
        message = "contradicts architectures"
        raise SpecError([Problem(node.position, "model_type", message, described(node), expected)])


def _is_null(entry: Entry) -> bool:
    return isinstance(entry.node, ScalarNode) and entry.node.value is None
