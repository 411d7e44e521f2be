"""Times the mixture of experts of the flash package on one GPU, beside torch.

    python bench/moe.py

Medians of CUDA graph replays in one process, in microseconds per layer. Calls of one graph choose
different experts, so that weights come from memory as they do in a model of many layers.
`experts` is gate_up, SiLU, down and the weighted sum, given the router's lists; `with router` adds
the router. Rows are those of the package's tables. torch's `grouped_mm` runs on the same inputs,
and sorts tokens by expert itself. `block` is router, routed and shared experts, one after the other
and with the side stream. SGLang's times were measured on another day. Prints tables and writes
bench/results/moe-DATE.json.
"""

from __future__ import annotations

import datetime
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from lingen.tuning.experts import Experts
from lingen.tuning.rows import Shape
from replays import REPLAYS, median
from torch import Tensor
from torch.nn import functional as F

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "generated"))
PACKAGE = "ling_2_6_flash"
package = importlib.import_module(PACKAGE)
model = importlib.import_module(f"{PACKAGE}.model")
moe = importlib.import_module(f"{PACKAGE}.kernels.moe")
tables = importlib.import_module(f"{PACKAGE}.tables")

FORMS = ("bf16", "fp8_channel", "fp8_block")
TOKENS = (1, 8, 32, 128, 512, 4096)
ROUTER_TOKENS = (1, 8, 32, 64, 512, 4096)
BLOCK = (128, 128)
# Calls of one graph; together they read several times what the L2 cache holds.
NUM_CALLS = {1: 8, 8: 2}
NUM_ROUTER_CALLS = 20
BATCHES = (1, 8, 32)
NUM_BLOCKS = 4
STEP = SimpleNamespace(batch=SimpleNamespace(is_prefill=False, is_decode=True))
# SGLang 0.5.23 on another NVIDIA H200, torch 2.11.0, triton 3.6.0, 2026-12-01: fused_moe with the
# best of three configs; for the router, a float32 product of torch and moe_fused_gate.
SGLANG: dict[str, dict[int, float]] = {
    "experts bf16": {1: 60, 8: 340, 32: 906, 128: 1428, 512: 1506, 4096: 2268},
    "experts fp8_channel": {},
    "experts fp8_block": {1: 40, 32: 469, 128: 743, 4096: 2025},
    "router": {1: 8.6, 32: 17.6, 512: 51.1},
    "block bf16": {},
}


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, dict[str, dict[str, float]]] = {}
    with torch.no_grad():
        for form in FORMS:
            layer = Layer(form)
            results[f"experts {form}"] = {f"{count} tokens": layer.times(count) for count in TOKENS}
            if form == "bf16":
                counts = ROUTER_TOKENS
                results["router"] = {f"{n} tokens": layer.router_times(n) for n in counts}
            del layer
            torch.cuda.empty_cache()
        results["block bf16"] = blocks_times()
    for subject, rows in results.items():
        beside = {f"{count} tokens": time for count, time in SGLANG[subject].items()}
        show(subject, {name: row | sglang(beside.get(name)) for name, row in rows.items()})
    found = {
        "median_microseconds": results,
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "replays": REPLAYS,
    }
    file = ROOT / "bench/results" / f"moe-{datetime.date.today().isoformat()}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")


def sglang(time: float | None) -> dict[str, float]:
    return {} if time is None else {"SGLang": time}


def show(subject: str, rows: dict[str, dict[str, float]]) -> None:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    print(f"{subject + ', µs':24}" + "".join(f"{column:>14}" for column in columns))
    for name, row in rows.items():
        cells = (f"{row[c]:14.1f}" if c in row else " " * 14 for c in columns)
        print(f"{name:24}" + "".join(cells))


class Layer:
    """Router and routed experts of one layer, in one form of weights, with random weights."""

    def __init__(self, form: str) -> None:
        is_fp8, block = form != "bf16", BLOCK if form == "fp8_block" else None
        sizes = (model.NUM_EXPERTS, model.MOE_INTERMEDIATE_SIZE)
        shape = Shape(*sizes, model.HIDDEN_SIZE, moe.NUM_EXPERTS_PER_TOK, form, block)
        self.experts = Experts(package, shape, "cuda")
        key = tables.TableKey(
            *sizes,
            torch.cuda.get_device_name(),
            "fp8_w8a8" if is_fp8 else None,
            block,
            form == "fp8_channel",
        )
        self.tables = tables.find_tables(tables.CONFIGS, key, triton.__version__)

    def times(self, count: int) -> dict[str, float]:
        up, down = self.experts.default_rows(count)
        if self.tables is not None:
            up, down = self.tables.up_row(count), self.tables.down_row(count)
        num_calls = NUM_CALLS.get(count, 1)
        inputs = [self.experts.arguments(count, index) for index in range(num_calls)]

        def routed(routing: Any, **call: Tensor) -> Tensor:
            routing = moe.route(call["hidden"], self.experts.router, self.experts.bias)
            return moe.experts(routing=routing, **call, up_row=up, down_row=down)

        found = {
            "experts": median(self.experts.calls(count, (up, down), num_calls)),
            "with router": median([lambda call=call: routed(**call) for call in inputs]),
        }
        if self.experts.shape.form == "bf16":
            found["grouped_mm"] = median([lambda call=call: grouped_mm(**call) for call in inputs])
        return found

    def router_times(self, count: int) -> dict[str, float]:
        weight, bias = self.experts.router, self.experts.bias
        hidden = normal(count, model.HIDDEN_SIZE)
        kernels = lambda: moe.route(hidden, weight, bias)  # noqa: E731
        plain = lambda: moe.route_ref(F.linear(hidden.float(), weight), bias)  # noqa: E731
        return {
            "router": median([kernels] * NUM_ROUTER_CALLS),
            "torch": median([plain] * NUM_ROUTER_CALLS),
        }


def grouped_mm(hidden: Tensor, routing: Any, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """[T, D] float32: torch's grouped products over tokens that are sorted here."""
    chosen, order = routing.indices.flatten().sort(stable=True)
    experts = torch.arange(len(gate_up_proj), device="cuda", dtype=chosen.dtype)
    ends = torch.searchsorted(chosen, experts, right=True).int()
    tokens = order // routing.indices.shape[1]
    gate_up = F.grouped_mm(hidden[tokens], gate_up_proj.transpose(1, 2), offs=ends)
    gate, up = gate_up.chunk(2, dim=-1)
    out = F.grouped_mm(F.silu(gate) * up, down_proj.transpose(1, 2), offs=ends)
    weighted = out.float() * routing.weights.flatten()[order, None]
    return torch.zeros_like(hidden, dtype=torch.float32).index_add_(0, tokens, weighted)


def blocks_times() -> dict[str, dict[str, float]]:
    """Whole blocks in bf16, of several layers, so that shared experts come from memory as well."""
    side_stream = model.SideStream()
    blocks = [block(side_stream) for _ in range(NUM_BLOCKS)]
    found = {}
    for batch in BATCHES:
        hidden = [normal(batch, model.HIDDEN_SIZE) for _ in blocks]
        calls = [lambda b=b, h=h: b(h, STEP) for b, h in zip(blocks, hidden, strict=True)]
        side_stream.takes = lambda hidden: False
        one_stream = median(calls)
        del side_stream.takes  # what the class says: while a graph is captured
        found[f"batch {batch}"] = {"one stream": one_stream, "side stream": median(calls)}
    return found


def block(side_stream: Any) -> torch.nn.Module:
    with torch.device("cuda"):
        made = model.MoE(side_stream)
    for parameter in made.parameters():
        parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    made.gate.expert_bias.data.zero_()
    return made


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


if __name__ == "__main__":
    main()
