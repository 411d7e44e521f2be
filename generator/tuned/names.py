"""Table file names back to what they say, and the shape of a model's experts on one rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lingen.tuned.lookup import TableKey

_NAME = re.compile(
    r"E=(?P<experts>[1-9][0-9]*),N=(?P<width>[1-9][0-9]*),device_name=(?P<device>[^,/]+?)"
    r"(?:,dtype=(?P<dtype>[a-z0-9_]+?))?"
    r"(?:,block_shape=\[(?P<rows>[1-9][0-9]*), (?P<columns>[1-9][0-9]*)\])?"
    r"(?P<channel>,per_channel_quant=True)?(?P<down>_down)?\.json"
)
NAME_FORM = (
    "E=<experts>,N=<width>,device_name=<device, _ for blanks>[,dtype=<dtype>]"
    "[,block_shape=[<n>, <k>]][,per_channel_quant=True].json"
)


@dataclass(frozen=True, slots=True)
class TableName:
    """What a file name says. The key's device is as the name has it, with `_` for blanks."""

    key: TableKey
    is_down: bool


def parse_name(name: str) -> TableName | None:
    """None for what is no table's name in the engine's exact spelling."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    shape = (int(match["rows"]), int(match["columns"])) if match["rows"] else None
    key = TableKey(
        num_experts=int(match["experts"]),
        width=int(match["width"]),
        device=match["device"],
        dtype=match["dtype"],
        block_shape=shape,
        per_channel_quant=match["channel"] is not None,
    )
    return TableName(key, match["down"] is not None)


def moe_shape(
    num_experts: int, moe_intermediate_size: int, tp: int, ep: int = 1
) -> tuple[int, int]:
    """(E, N) of the down weight [E, hidden, N] on one rank.

    `ep` of the `tp` ranks share out the experts, and the rest split the width of each expert.
    """
    return num_experts // ep, moe_intermediate_size // (tp // ep)
