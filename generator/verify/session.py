"""Drives a generated model step by step over poisoned caches, and records what its parts return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


class Session:
    """Some requests of one model, with caches that nobody wrote before: they hold NaN.

    Request r uses the last slots first and pages that are far apart, so that a slip between
    request, slot and page shows.
    """

    def __init__(
        self, package: ModuleType, model: nn.Module, num_requests: int, max_tokens: int
    ) -> None:
        self.package = package
        self.model = model
        self.device = model.lm_head.weight.device
        page_size = package.cache.PAGE_SIZE
        pages_each = -(-max_tokens // page_size)
        self.tp = getattr(model, "tp", None)  # models that declare no other size have none
        pools = package.Pools.of_size(
            num_requests + 1,
            num_requests * pages_each,
            device=self.device,
            **({"tp": self.tp.size} if self.tp else {}),
        )
        for tensor in pools.tensors():
            tensor.fill_(torch.nan)
        self.pools = pools
        self.backend = package.HybridBackend(pools)
        self.num_computed = [0] * num_requests
        self.slots = list(range(num_requests, 0, -1))
        self.pages = [
            list(range(request, num_requests * pages_each, num_requests))
            for request in range(num_requests)
        ]

    def prepare(self, tokens: dict[int, list[int]]):
        """The step that feeds `tokens`, request → new tokens, in the dict's order."""
        requests = list(tokens)
        batch = self.package.ForwardBatch.from_lists(
            input_ids=list(tokens.values()),
            num_computed_tokens=[self.num_computed[r] for r in requests],
            slots=[self.slots[r] for r in requests],
            page_table=[self.pages[r] for r in requests],
            device=self.device,
        )
        for request, new in tokens.items():
            self.num_computed[request] += len(new)
        return self.backend.prepare(batch)

    def restart(self) -> None:
        """Begin every request anew: its slot and pages keep what they hold."""
        self.num_computed = [0] * len(self.num_computed)

    def run(self, tokens: dict[int, list[int]]) -> dict[int, Tensor]:
        """Feed tokens; returns each request's hidden states after the final norm, [new, D]."""
        hidden = self.model(self.prepare(tokens), self.backend)
        return split_requests(hidden, tokens)

    def decode_padded(self, tokens: dict[int, int]) -> dict[int, Tensor]:
        """Feed one token per request, a padded row before each and one behind; [1, D] each."""
        pad = self.package.PAD_SLOT
        rows = [row for r, token in tokens.items() for row in (None, (r, token))] + [None]
        batch = self.package.ForwardBatch.from_lists(
            input_ids=[[row[1] if row else 0] for row in rows],
            num_computed_tokens=[self.num_computed[row[0]] if row else 0 for row in rows],
            slots=[self.slots[row[0]] if row else pad for row in rows],
            page_table=[self.pages[row[0]] if row else [] for row in rows],
            device=self.device,
        )
        hidden = self.model(self.backend.prepare(batch), self.backend)
        for request in tokens:
            self.num_computed[request] += 1
        return {row[0]: hidden[i : i + 1] for i, row in enumerate(rows) if row}

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] → [..., V], on the CPU."""
        return self.model.compute_logits(hidden).cpu()

    def states(self, requests: list[int]) -> dict[int, Tensor]:
        """Recurrent state of each lightning layer, [len(requests), H, K, V] on the CPU.

        Heads are those of all tensor-parallel ranks.
        """
        slots = [self.slots[r] for r in requests]
        cache = self.package.cache
        layers = [i for i, kind in enumerate(cache.LAYER_KINDS) if kind == cache.LIGHTNING]
        states = {layer: self.pools.state[i, slots] for i, layer in enumerate(layers)}
        if self.tp:
            states = {layer: self.tp.all_gather(state, 1) for layer, state in states.items()}
        return {layer: state.cpu() for layer, state in states.items()}


def split_requests(rows: Tensor, tokens: dict[int, list[int]]) -> dict[int, Tensor]:
    """[T, …] → request → its rows, in the order the tokens were fed."""
    parts = rows.split([len(new) for new in tokens.values()])
    return dict(zip(tokens, parts, strict=True))


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect, while it runs, what each part of the model returns, flat over tokens.

    Names are those of the recorded tensors without their scenario: `embed`, `final_norm`, and per
    layer `attn_out`, `out`, `router_logits`, `router_indices`, `router_weights`, the last two in
    ascending order of the indices. The MTP layer is the layer behind the last.
    """
    seen: dict[str, Tensor] = {}

    def keep(name: str):
        def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            seen[name] = output.detach().cpu()

        return hook

    def keep_routing(prefix: str):
        def hook(gate: nn.Module, inputs: tuple, routing: Any) -> None:
            weights, indices = routing.weights.detach().cpu(), routing.indices.detach().cpu().long()
            order = indices.argsort(dim=-1)
            seen[f"{prefix}.router_logits"] = gate.logits(inputs[0]).detach().cpu()
            seen[f"{prefix}.router_weights"] = weights.gather(-1, order)
            seen[f"{prefix}.router_indices"] = indices.gather(-1, order)

        return hook

    layers = dict(enumerate(model.layers))
    if getattr(model, "mtp", None) is not None:
        layers[len(layers)] = model.mtp
    handles = [
        model.word_embeddings.register_forward_hook(keep("embed")),
        model.norm.register_forward_hook(keep("final_norm")),
    ]
    for index, layer in layers.items():
        prefix = f"layer.{index}"
        handles.append(layer.register_forward_hook(keep(f"{prefix}.out")))
        handles.append(layer.attention.register_forward_hook(keep(f"{prefix}.attn_out")))
        gate = getattr(layer.mlp, "gate", None)
        if gate is not None:
            handles.append(gate.register_forward_hook(keep_routing(prefix)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
