"""What an imported spec says that no config.json can: sizes, and drafts that fit.

Takes the family's values and keeps those that the rules between keys accept.
"""

from __future__ import annotations

from lingen.errors import Position
from lingen.hf.reading import set_leaf
from lingen.spec.nodes import ListNode, MappingNode, ScalarNode, leaves, plain
from lingen.spec.rules import RULES

TP = "parallel.tp"
PP = "parallel.pp"
SERVED = {TP: "sglang.tp_size", PP: "sglang.pp_size"}
DRAFTS = "cache.speculative.num_draft_tokens"
MTP_LAYERS = "mtp.num_nextn_predict_layers"


def derived_values(merged: MappingNode, position: Position) -> MappingNode:
    """A tree of the derived values, to lie over the family's and under everything else."""
    values = {key: plain(node) for key, node in leaves(merged)}
    tree = MappingNode(position)
    for key in (TP, PP):
        if key in values:
            kept = [ScalarNode(position, size, str(size)) for size in _that_fit(key, values)]
            set_leaf(tree, key, ListNode(position, kept))
            served = values.get(SERVED[key])
            if served is not None:
                size = max(size.value for size in kept if size.value <= served)
                set_leaf(tree, SERVED[key], ScalarNode(position, size, str(size)))
    if values.get(MTP_LAYERS) == 0 and values.get(DRAFTS, 0) != 0:
        set_leaf(tree, DRAFTS, ScalarNode(position, 0, "0"))
    return tree


def _that_fit(key: str, values: dict[str, object]) -> list[int]:
    """The sizes of a list that no rule refuses on their own; 1 is one of them."""
    rules = [
        rule
        for rule in RULES
        if key in rule.keys and rule.of_items and all(each in values for each in rule.keys)
    ]

    def fits(size: int) -> bool:
        tried = {**values, key: [size]}
        return not any(rule.why_not(*(tried[each] for each in rule.keys)) for rule in rules)

    return [size for size in values[key] if fits(size)]
