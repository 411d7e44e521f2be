"""The settings that are tried for a number of tokens, as rows of a table. Pure Python.

A program computes BLOCK_SIZE_M x BLOCK_SIZE_N of a product, BLOCK_SIZE_K at a time. Which tiles are
worth a try was found by wide sweeps on an NVIDIA H200: with few rows per expert the weights stream
through, and bytes in flight count; with many, the matrix units do.
"""

from __future__ import annotations

from dataclasses import dataclass

from lingen.tuned.lookup import Row

PRODUCTS = ("up", "down")
TOKEN_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK = 128
_WEIGHT_BYTES = {"bf16": 2, "fp8_channel": 1, "fp8_block": 1}
_TMA = True

# By BLOCK_SIZE_M: BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, num_warps, num_stages, and USE_TMA.
# The first are the most promising. An up program holds as many columns of gate as of up.
_Tile = tuple[int, ...]
_UP_16_BITS: dict[int, tuple[_Tile, ...]] = {
    16: (
        (32, 128, 1, 4, 4),
        (32, 256, 1, 4, 3),
        (128, 128, 1, 8, 3, _TMA),
        (64, 128, 1, 4, 3),
        (128, 128, 1, 8, 3),
        (64, 128, 1, 4, 4, _TMA),
        (64, 64, 1, 4, 5),
        (32, 128, 1, 4, 5),
        (32, 128, 1, 4, 4, _TMA),
        (64, 128, 1, 4, 3, _TMA),
        (32, 256, 1, 4, 3, _TMA),
        (64, 256, 1, 8, 3),
        (128, 64, 1, 4, 4, _TMA),
    ),
    32: (
        (64, 128, 1, 4, 3),
        (128, 128, 1, 8, 3, _TMA),
        (64, 128, 1, 4, 3, _TMA),
        (128, 64, 1, 4, 4, _TMA),
        (128, 64, 1, 4, 3),
        (64, 64, 1, 4, 4),
        (128, 128, 1, 8, 3),
        (64, 128, 1, 8, 3, _TMA),
        (32, 128, 1, 4, 4),
    ),
    64: (
        (64, 128, 1, 4, 3),
        (128, 64, 1, 8, 4, _TMA),
        (64, 128, 1, 4, 3, _TMA),
        (128, 64, 1, 4, 4, _TMA),
        (128, 64, 2, 8, 4, _TMA),
        (64, 64, 1, 4, 4, _TMA),
        (128, 64, 4, 8, 4, _TMA),
        (64, 128, 1, 8, 3, _TMA),
        (128, 64, 1, 8, 4),
    ),
    128: (
        (128, 64, 2, 8, 4, _TMA),
        (128, 64, 1, 8, 4, _TMA),
        (128, 64, 4, 8, 4, _TMA),
        (64, 64, 2, 4, 4, _TMA),
        (128, 64, 1, 8, 3),
        (128, 64, 4, 8, 3, _TMA),
        (128, 64, 2, 8, 3, _TMA),
        (64, 128, 2, 8, 3, _TMA),
        (128, 64, 8, 8, 4, _TMA),
    ),
}
_DOWN_16_BITS: dict[int, tuple[_Tile, ...]] = {
    16: (
        (64, 128, 1, 4, 3),
        (128, 128, 1, 8, 3),
        (64, 128, 1, 4, 4),
        (128, 128, 1, 4, 3, _TMA),
        (64, 256, 1, 4, 3),
        (128, 64, 1, 4, 4),
        (32, 256, 1, 4, 3),
        (64, 128, 1, 4, 3, _TMA),
        (128, 128, 1, 8, 3, _TMA),
        (64, 128, 1, 4, 4, _TMA),
        (32, 128, 1, 4, 5),
        (128, 128, 1, 8, 4),
        (256, 64, 1, 8, 3, _TMA),
    ),
    32: (
        (128, 64, 1, 4, 3),
        (64, 128, 1, 4, 3),
        (128, 128, 1, 8, 3, _TMA),
        (128, 64, 1, 4, 4, _TMA),
        (64, 128, 1, 4, 4),
        (128, 128, 1, 4, 3, _TMA),
        (256, 64, 1, 8, 3, _TMA),
        (128, 128, 1, 8, 3),
    ),
    64: (
        (128, 64, 1, 4, 3),
        (128, 64, 1, 4, 4, _TMA),
        (128, 128, 1, 8, 3, _TMA),
        (256, 64, 1, 8, 3, _TMA),
        (128, 64, 2, 4, 4, _TMA),
        (128, 128, 1, 4, 3, _TMA),
        (256, 64, 2, 8, 4, _TMA),
        (128, 64, 1, 8, 4, _TMA),
    ),
    128: (
        (128, 64, 2, 8, 4, _TMA),
        (256, 64, 2, 8, 4, _TMA),
        (128, 64, 1, 8, 4, _TMA),
        (256, 64, 1, 8, 3, _TMA),
        (128, 128, 2, 8, 3, _TMA),
        (256, 64, 4, 8, 4, _TMA),
        (128, 64, 4, 8, 4, _TMA),
        (256, 64, 8, 8, 4, _TMA),
    ),
}
_UP_8_BITS: dict[int, tuple[_Tile, ...]] = {
    16: (
        (32, 256, 1, 4, 4),
        (64, 128, 1, 4, 4),
        (64, 256, 1, 4, 3),
        (128, 128, 1, 8, 4, _TMA),
        (128, 128, 1, 4, 4),
        (32, 128, 1, 4, 5),
        (128, 256, 1, 8, 3, _TMA),
        (64, 128, 1, 4, 5),
        (64, 128, 1, 4, 4, _TMA),
        (32, 512, 1, 4, 3),
        (128, 128, 1, 4, 4, _TMA),
        (64, 256, 1, 4, 3, _TMA),
        (32, 256, 1, 4, 3),
    ),
    32: (
        (64, 128, 1, 4, 4),
        (128, 128, 1, 4, 4, _TMA),
        (64, 256, 1, 4, 3),
        (128, 128, 1, 8, 4, _TMA),
        (128, 128, 1, 4, 3),
        (64, 128, 1, 4, 4, _TMA),
        (64, 256, 1, 4, 3, _TMA),
        (128, 256, 1, 8, 3, _TMA),
        (64, 128, 1, 4, 5),
    ),
    64: (
        (64, 128, 1, 4, 4),
        (128, 128, 1, 8, 4, _TMA),
        (128, 128, 1, 4, 4, _TMA),
        (64, 128, 1, 4, 4, _TMA),
        (128, 128, 2, 8, 4, _TMA),
        (128, 128, 1, 8, 3, _TMA),
        (64, 256, 1, 4, 3, _TMA),
    ),
    128: (
        (128, 128, 2, 8, 4, _TMA),
        (128, 128, 1, 8, 4, _TMA),
        (64, 128, 2, 4, 4, _TMA),
        (128, 128, 4, 8, 4, _TMA),
        (128, 128, 4, 8, 3, _TMA),
        (128, 128, 2, 8, 3, _TMA),
        (128, 128, 8, 8, 4, _TMA),
        (128, 64, 2, 8, 4, _TMA),
    ),
}
_DOWN_8_BITS: dict[int, tuple[_Tile, ...]] = {
    16: (
        (64, 256, 1, 4, 3),
        (64, 128, 1, 4, 4),
        (128, 128, 1, 4, 4),
        (128, 256, 1, 8, 3),
        (128, 128, 1, 8, 4, _TMA),
        (128, 128, 1, 8, 3),
        (32, 128, 1, 4, 5),
        (64, 128, 1, 4, 5),
        (64, 128, 1, 4, 4, _TMA),
        (128, 128, 1, 4, 4, _TMA),
        (64, 256, 1, 4, 3, _TMA),
        (32, 256, 1, 4, 4),
        (64, 512, 1, 4, 3),
    ),
    32: (
        (128, 128, 1, 4, 3),
        (64, 128, 1, 4, 4),
        (128, 128, 1, 4, 4, _TMA),
        (64, 256, 1, 4, 3),
        (128, 128, 1, 8, 4, _TMA),
        (256, 128, 1, 8, 3, _TMA),
        (64, 128, 1, 4, 4, _TMA),
        (128, 256, 1, 8, 3, _TMA),
    ),
    64: (
        (128, 128, 1, 4, 4),
        (128, 128, 1, 8, 4, _TMA),
        (128, 128, 1, 4, 4, _TMA),
        (256, 128, 1, 8, 3, _TMA),
        (128, 128, 2, 8, 4, _TMA),
        (128, 128, 1, 4, 3, _TMA),
    ),
    128: (
        (128, 128, 2, 8, 4, _TMA),
        (256, 128, 2, 8, 4, _TMA),
        (128, 128, 1, 8, 4, _TMA),
        (256, 128, 1, 8, 3, _TMA),
        (128, 128, 4, 8, 4, _TMA),
        (256, 128, 4, 8, 4, _TMA),
        (256, 128, 2, 8, 3, _TMA),
    ),
}
_TILES = {
    ("bf16", "up"): _UP_16_BITS,
    ("bf16", "down"): _DOWN_16_BITS,
    ("fp8_channel", "up"): _UP_8_BITS,
    ("fp8_channel", "down"): _DOWN_8_BITS,
    ("fp8_block", "up"): _UP_8_BITS,
    ("fp8_block", "down"): _DOWN_8_BITS,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Experts on one rank.

    num_experts, width: E and N of the down weight [E, hidden, N].  hidden: D.  top_k: experts of a
    token.  form: how weights are stored.  scale_block: rows and columns that share a scale, None
    where weights are not scaled in blocks.
    """

    num_experts: int
    width: int
    hidden: int
    top_k: int
    form: str
    scale_block: tuple[int, int] | None = None

    @property
    def weight_bytes(self) -> int:
        return _WEIGHT_BYTES[self.form]


def rows_to_try(shape: Shape, num_tokens: int, product: str, shared_memory: int) -> list[Row]:
    """Rows for one product, the most promising first.

    shared_memory: bytes that a block may use. Left out is what does not fit there, what is larger
    than the product, and what would take two scales for one step along K.
    """
    tiles = _TILES[shape.form, product]
    rows = [_row(m, tile) for m in blocks_of_rows(shape, num_tokens) for tile in tiles[m]]
    return [row for row in rows if _is_possible(row, shape, product, shared_memory)]


def blocks_of_rows(shape: Shape, num_tokens: int) -> list[int]:
    """Values of BLOCK_SIZE_M: around the rows of an expert that has some, on average."""
    slots = num_tokens * shape.top_k
    average = slots / min(slots, shape.num_experts)
    middle = _SMALLEST_BLOCK
    while middle < average:
        middle *= 2
    near = (middle, 2 * middle, middle // 2) if average > _SMALLEST_BLOCK / 2 else (middle,)
    return [size for size in near if _SMALLEST_BLOCK <= size <= _LARGEST_BLOCK]


def _row(block_m: int, tile: _Tile) -> Row:
    block_n, block_k, group, warps, stages, *tma = tile
    row: dict[str, int | bool] = {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": block_n,
        "BLOCK_SIZE_K": block_k,
        "GROUP_SIZE_M": group,
        "num_warps": warps,
        "num_stages": stages,
    }
    return row | ({"USE_TMA": True} if tma else {})


def _is_possible(row: Row, shape: Shape, product: str, shared_memory: int) -> bool:
    columns, depth = (shape.width, shape.hidden) if product == "up" else (shape.hidden, shape.width)
    block_n, block_k = row["BLOCK_SIZE_N"], row["BLOCK_SIZE_K"]
    if block_n > columns or block_k > depth:
        return False
    if shape.scale_block and block_k > shape.scale_block[1]:
        return False
    weight_columns = 2 * block_n if product == "up" else block_n
    tile = (row["BLOCK_SIZE_M"] + weight_columns) * block_k * shape.weight_bytes
    return (row["num_stages"] - 1) * tile <= shared_memory
