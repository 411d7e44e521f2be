"""The experts of a generated package with random weights, called as its model calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from lingen.tuning.rows import Shape
from lingen.tuning.search import Pair
from torch import Tensor


class Experts:
    """Weights of one layer on one rank, and inputs for any number of tokens.

    On `meta` nothing has memory: where launches are switched off, calls compile kernels and
    compute nothing.
    """

    def __init__(self, package: ModuleType, shape: Shape, device: str) -> None:
        self.moe: Any = package.kernels.moe
        self.shape = shape
        self.device = torch.device(device)
        self.router = self._normal(shape.num_experts, shape.hidden).float() / shape.hidden**0.5
        self.bias = torch.zeros(shape.num_experts, device=self.device)
        self.weights = {
            **self._weight("gate_up", 2 * shape.width, shape.hidden),
            **self._weight("down", shape.hidden, shape.width),
        }
        self._inputs: dict[tuple[int, int], dict[str, Any]] = {}

    def default_rows(self, num_tokens: int) -> Pair:
        return self.moe.default_rows(num_tokens, self.shape.form)

    def calls(self, num_tokens: int, pair: Pair, count: int) -> list[Callable[[], Tensor]]:
        """`count` calls with `num_tokens` tokens, of which each chooses other experts."""
        up, down = pair
        return [
            partial(self.moe.experts, **self.arguments(num_tokens, index), up_row=up, down_row=down)
            for index in range(count)
        ]

    def arguments(self, num_tokens: int, index: int) -> dict[str, Any]:
        """Of `experts`, but for the rows.

        Each index has tokens of its own, and the experts that the package's router gives them.
        """
        place = num_tokens, index
        if place not in self._inputs:
            hidden = self._normal(num_tokens, self.shape.hidden)
            routing = self.moe.route(hidden, self.router, self.bias)
            self._inputs[place] = {"hidden": hidden, "routing": routing}
        return {**self._inputs[place], **self.weights}

    def _weight(self, name: str, rows: int, columns: int) -> dict[str, Tensor]:
        """[E, rows, columns], and in fp8 scales per row or block that leave values near 1."""
        shape, form = self.shape, self.shape.form
        size = (shape.num_experts, rows, columns)
        if form == "bf16":
            weight = torch.empty(size, dtype=torch.bfloat16, device=self.device)
        else:
            weight = torch.empty(size, dtype=torch.float8_e4m3fn, device=self.device)
        for expert in weight:
            expert.copy_(self._normal(rows, columns))  # one at a time: all would not fit twice
        found = {f"{name}_proj": weight}
        if form != "bf16":
            block_rows, block_columns = shape.scale_block or (1, columns)
            scales = (shape.num_experts, -(-rows // block_rows), -(-columns // block_columns))
            scale = torch.full(scales, columns**-0.5, device=self.device)
            found[f"{name}_scale"] = scale if shape.scale_block else scale[:, :, 0].contiguous()
        return found

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device=self.device)
