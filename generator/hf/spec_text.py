"""The text of an imported spec: what config.json says, key by key, and comments on what it cannot.

No time, path or user in it: the same config gives the same text.
"""

from __future__ import annotations

from lingen.hf.reading import Reading
from lingen.spec.dump import dump_yaml, flow
from lingen.spec.nodes import MappingNode, escaped, leaves, plain
from lingen.spec.schema import known_keys

DECAY_OFFSET = "attention.lightning.decay.layer_offset"


def spec_text(
    own: MappingNode, merged: MappingNode, extends: str, reading: Reading, settings: MappingNode
) -> str:
    """YAML of the values in `own`, in the schema's order, on top of `extends`."""
    values = {key: plain(node) for key, node in leaves(own)}
    tree: dict[str, object] = {"extends": extends}
    for key in known_keys():
        if key in values:
            _put(tree, key, values[key])
    comments = {
        key: f"config.json has no such key: {meaning}"
        for key, (_, meaning) in reading.assumed.items()
    }
    comments["parallel"] = "the family's sizes that divide heads, widths and layers"
    comments |= {key: "set by hand on import" for key, _ in leaves(settings)}
    return _header(merged, extends, settings) + dump_yaml(tree, comments)


def _put(tree: dict[str, object], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value


def _header(merged: MappingNode, extends: str, settings: MappingNode) -> str:
    values = {key: plain(node) for key, node in leaves(merged)}
    architecture = values["model.architectures"][0]
    opening = f"# Imported from a config.json of {escaped(architecture)}.\n"
    if DECAY_OFFSET not in values:
        return f"{opening}\n"
    offset = flow(values[DECAY_OFFSET])
    if DECAY_OFFSET in dict(leaves(settings)):
        decay = f"{offset} was set by hand on import."
    else:
        decay = f"{escaped(extends)} says {offset}."
    return (
        f"{opening}# It is silent on {DECAY_OFFSET}, on which\n# public code disagrees: {decay}\n\n"
    )
