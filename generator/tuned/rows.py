"""What a table may say: keys and values of its rows, and whether two tables go together.

A fault names the row and key; who knows the file makes a message of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from lingen.tuned.lookup import Rows, nearest_count

MAX_TOKENS = 4096
"""Up and down tables must agree for every number of tokens from 1 to this."""

DEFAULT_STAGES = 3
"""Triton's `num_stages` where a row does not say."""

WEIGHT_BYTES = {None: 2, "fp8_w8a8": 1}
"""By the engine's word for the weights' type; None: 16 bits."""

_BLOCKS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_REQUIRED = (*_BLOCKS, "GROUP_SIZE_M")
TMA = "USE_TMA"
_KEYS = (*_REQUIRED, "num_warps", "num_stages", TMA)
_MIN_BLOCK = 16
_MAX_BLOCK = 1024
_MAX_WARPS = 32
_MAX_STAGES = 16
_MAX_GROUP = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What rows must keep within.

    shared_memory: bytes that one block may use on `device`.  block_k: columns that share a weight
    scale, None where weights are not scaled in blocks.  weight_bytes: of one weight.
    """

    device: str
    shared_memory: int
    weight_bytes: int
    block_k: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong. `path`: row, or row and key; empty: the table as a whole."""

    path: tuple[str, ...]
    message: str
    found: str | None
    expected: str | None


def table_faults(table: object, limits: Limits, may_use_tma: bool) -> Iterator[Fault]:
    """Everything wrong with a table as JSON has it, in its order.

    may_use_tma: for `_down` tables, and for up tables that the engine never reads.
    """
    if not isinstance(table, dict) or not table:
        yield Fault((), "not a table", None, "an object from token counts to rows, at least one")
        return
    for count, row in table.items():
        if not _is_count(count):
            yield Fault((count,), "not a token count", None, "digits, the first of them not 0")
        elif not isinstance(row, dict):
            yield Fault((count,), "not a row", None, f"an object with {', '.join(_REQUIRED)}")
        else:
            faults = [*_key_faults(row, may_use_tma), *_value_faults(row)]
            yield from (
                Fault((count, *f.path), f.message, f.found, f.expected)
                for f in faults or _fit_faults(row, limits)
            )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and text[0] != "0" and len(text) < 10


def _key_faults(row: Mapping[str, object], may_use_tma: bool) -> Iterator[Fault]:
    for key in _REQUIRED:
        if key not in row:
            yield Fault((), f"{key} is missing", None, f"a row with {', '.join(_REQUIRED)}")
    for key in row:
        if key not in _KEYS:
            yield Fault((key,), "unknown key", None, f"one of {', '.join(_KEYS)}")
    if TMA in row and not may_use_tma:
        expected = "in a _down table only: it decides how the up product's output is laid out"
        yield Fault((TMA,), "in an up table", None, expected)


def _value_faults(row: Mapping[str, object]) -> Iterator[Fault]:
    for key in _BLOCKS:
        if key in row and not _is_power(row[key], _MIN_BLOCK, _MAX_BLOCK):
            yield _value_fault(key, row, f"a power of two from {_MIN_BLOCK} to {_MAX_BLOCK}")
    if "num_warps" in row and not _is_power(row["num_warps"], 1, _MAX_WARPS):
        yield _value_fault("num_warps", row, f"a power of two from 1 to {_MAX_WARPS}")
    for key, largest in (("GROUP_SIZE_M", _MAX_GROUP), ("num_stages", _MAX_STAGES)):
        if key in row and not (type(row[key]) is int and 1 <= row[key] <= largest):
            yield _value_fault(key, row, f"an integer from 1 to {largest}")
    if TMA in row and type(row[TMA]) is not bool:
        yield _value_fault(TMA, row, "true or false")


def _is_power(value: object, least: int, largest: int) -> bool:
    return type(value) is int and least <= value <= largest and value & (value - 1) == 0


def _value_fault(key: str, row: Mapping[str, object], expected: str) -> Fault:
    import json

    return Fault((key,), "impossible", json.dumps(row[key], ensure_ascii=False), expected)


def _fit_faults(row: Mapping[str, int], limits: Limits) -> Iterator[Fault]:
    """Whether legal values fit the card and the weights' scales."""
    block_k = row["BLOCK_SIZE_K"]
    if limits.block_k is not None and block_k > limits.block_k:
        message = "wider than the quantization block: one product would take two scales"
        expected = f"at most {limits.block_k}, the block_shape's second number"
        yield Fault(("BLOCK_SIZE_K",), message, str(block_k), expected)
    needed = shared_memory(row, limits.weight_bytes)
    if needed > limits.shared_memory:
        text = " * ".join(
            [
                f"({_stages(row)} stages - 1)",
                f"({row['BLOCK_SIZE_M']} + {row['BLOCK_SIZE_N']})",
                f"{block_k} * {limits.weight_bytes} bytes",
            ]
        )
        yield Fault(
            (),
            f"needs more shared memory than {limits.device} has",
            f"{text} = {needed}",
            f"at most {limits.shared_memory} bytes: smaller blocks or fewer stages",
        )


def shared_memory(row: Mapping[str, int], weight_bytes: int) -> int:
    """Bytes that the tiles of a row keep in flight: all stages but the one being computed."""
    tile = row["BLOCK_SIZE_M"] + row["BLOCK_SIZE_N"]
    return (_stages(row) - 1) * tile * row["BLOCK_SIZE_K"] * weight_bytes


def _stages(row: Mapping[str, int]) -> int:
    return row.get("num_stages", DEFAULT_STAGES)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Rows chosen for `num_tokens` whose BLOCK_SIZE_M differ, and the counts they are listed at."""

    num_tokens: int
    up: int
    down: int
    up_block: int
    down_block: int


def disagreement(up: Rows, down: Rows) -> Disagreement | None:
    """The first number of tokens from 1 to MAX_TOKENS for which up and down differ.

    Both products share one list of sorted tokens, cut into blocks of BLOCK_SIZE_M.
    """
    for num_tokens in _changes(up, down):
        rows = nearest_count(up, num_tokens), nearest_count(down, num_tokens)
        blocks = up[rows[0]]["BLOCK_SIZE_M"], down[rows[1]]["BLOCK_SIZE_M"]
        if blocks[0] != blocks[1]:
            return Disagreement(num_tokens, *rows, *blocks)
    return None


def _changes(*tables: Rows) -> list[int]:
    """Numbers of tokens at which the chosen row of a table may change, sorted, from 1."""
    places = {1}
    for rows in tables:
        counts = sorted(rows)
        for low, high in pairwise(counts):
            places |= {(low + high) // 2, (low + high) // 2 + 1}
    return sorted(place for place in places if 1 <= place <= MAX_TOKENS)
