"""Times lightning attention of the flash package on one GPU, beside fla and a plain copy.

    pip install fla-core
    python bench/lightning.py

Medians of CUDA graph replays in one process, in microseconds per layer. States rotate through
STATE_BYTES of pools, so that they come from memory as they do in a model of many layers. A copy
reads and writes as many bytes as the states (decode) or as q, k, v and the output (prefill) hold.
Prints a table and writes bench/results/lightning-DATE.json.
"""

from __future__ import annotations

import datetime
import importlib
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import torch
import triton
from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla
from replays import REPLAYS, median
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "generated"))
PACKAGE = "ling_2_6_flash"
model = importlib.import_module(f"{PACKAGE}.model")
kernels = importlib.import_module(f"{PACKAGE}.kernels.lightning")

HEADS, HEAD_DIM, SCALE = model.NUM_ATTENTION_HEADS, model.HEAD_DIM, model.LIGHTNING_SCALE
LAYER_IDX = 15  # of average decay
STATE_BYTES = 600 << 20
NUM_DRAFTS = 4
BATCHES = (1, 8, 32, 128)
PREFILLS = {"1x1k": [1024], "1x8k": [8192], "1x64k": [65536], "8x4k": [4096] * 8}
LOG_DECAY = torch.tensor(
    [-slope * model.LAYER_FACTORS[LAYER_IDX] for slope in model.HEAD_SLOPES], device="cuda"
)


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, dict[str, dict[str, float]]] = {"decode": {}, "verify": {}, "prefill": {}}
    for batch in BATCHES:
        results["decode"][f"batch {batch}"] = decode(batch)
        if batch in (8, 32):
            results["verify"][f"batch {batch}, {NUM_DRAFTS} drafts"] = verify(batch)
    for name, lengths in PREFILLS.items():
        results["prefill"][name] = prefill(lengths)
    for subject, rows in results.items():
        columns = list(next(iter(rows.values())))
        print(f"{subject + ', µs':26}" + "".join(f"{column:>12}" for column in columns))
        for name, row in rows.items():
            print(f"{name:26}" + "".join(f"{row[column]:12.1f}" for column in columns))
    found = {
        "median_microseconds": results,
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "fla-core": version("fla-core"),
        "state_bytes": STATE_BYTES,
        "replays": REPLAYS,
    }
    file = ROOT / "bench/results" / f"lightning-{datetime.date.today().isoformat()}.json"
    file.write_text(json.dumps(found, indent=1) + "\n")


def decode(batch: int) -> dict[str, float]:
    states = pools(batch)
    qkv, rows = tokens(batch), index(range(batch))
    q, k, v = qkv.unbind(1)
    is_old, none = torch.ones(batch, dtype=torch.bool, device="cuda"), rows[:0]
    gate = torch.randn(batch, HEADS * HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    weights = [torch.rand(dim, device="cuda").bfloat16() for dim in (HEAD_DIM,) * 2]
    norm_weight = torch.rand(HEADS * HEAD_DIM, device="cuda").bfloat16()
    rope = model.rope_table(torch.arange(batch, device="cuda"), model.ROTARY_DIM)
    tail = (rows, is_old, none, LOG_DECAY, SCALE)
    wide = [x.contiguous().unsqueeze(1) for x in (q, k, v)]
    copies = [torch.empty_like(state[:batch]) for state in states]
    fused = (model.GROUP_NORM_SIZE, model.RMS_NORM_EPS)
    return {
        "decode": median([lambda s=s: kernels.lightning_decode(q, k, v, s, *tail) for s in states]),
        "fused": median(
            [
                lambda s=s: kernels.lightning_decode_fused(
                    qkv, gate, *rope, *weights, norm_weight, *fused, s, *tail
                )
                for s in states
            ]
        ),
        "fla": median([lambda s=s: recurrent(wide, s[:batch]) for s in states]),
        "copy": median(
            [lambda s=s, c=c: c.copy_(s[:batch]) for s, c in zip(states, copies, strict=True)]
        ),
    }


def verify(batch: int) -> dict[str, float]:
    """One certain token and the drafts, with half of the last step's drafts pending."""
    states = pools(batch)
    num_tokens = NUM_DRAFTS + 1
    q, k, v = tokens(batch * num_tokens).unbind(1)
    rows = index(range(batch))
    is_old = torch.ones(batch, dtype=torch.bool, device="cuda")
    starts = index(range(0, batch * num_tokens + 1, num_tokens))
    shape = (batch + 1, NUM_DRAFTS, HEADS, 2 * HEAD_DIM)
    drafts = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in states]
    pending = index([request % (NUM_DRAFTS + 1) for request in range(batch)])
    wide = [x.contiguous().unflatten(0, (batch, num_tokens)) for x in (q, k, v)]
    copies = [torch.empty_like(state[:batch]) for state in states]
    return {
        "verify": median(
            [
                lambda s=s, d=d: kernels.lightning_verify(
                    q, k, v, s, rows, is_old, starts, d, rows, pending, LOG_DECAY, SCALE
                )
                for s, d in zip(states, drafts, strict=True)
            ]
        ),
        "fla": median([lambda s=s: recurrent(wide, s[:batch]) for s in states]),
        "copy": median(
            [lambda s=s, c=c: c.copy_(s[:batch]) for s, c in zip(states, copies, strict=True)]
        ),
    }


def prefill(lengths: list[int]) -> dict[str, float]:
    num_tokens, num_reqs = sum(lengths), len(lengths)
    q, k, v = tokens(num_tokens).unbind(1)
    state = pools(num_reqs)[0]
    rows = index(range(num_reqs))
    is_old, none = torch.zeros(num_reqs, dtype=torch.bool, device="cuda"), rows[:0]
    tail = (none, none, index([0, *accumulate(lengths)]), LOG_DECAY, SCALE, 64, max(lengths))
    wide = [x.contiguous().unflatten(0, (num_reqs, -1)) for x in (q, k, v)]
    halves = torch.empty(2, 2 * num_tokens, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)

    def chunked() -> None:
        chunk_simple_gla(*wide, g_gamma=LOG_DECAY, scale=SCALE, output_final_state=True)

    def ours(run: Callable[..., Tensor]) -> Callable[[], Tensor]:
        return lambda: run(q, k, v, state, rows, is_old, *tail)

    return {
        "seg_la": median([ours(kernels.lightning_prefill)]),
        "minimax": median([ours(kernels.lightning_prefill_blocks)]),
        "fla": median([chunked]),
        "copy": median([lambda: halves[0].copy_(halves[1])]),
    }


def recurrent(qkv: list[Tensor], state: Tensor) -> None:
    fused_recurrent_simple_gla(
        *qkv, g_gamma=LOG_DECAY, scale=SCALE, initial_state=state, output_final_state=True
    )


def tokens(count: int) -> Tensor:
    """[count, 3, HEADS, HEAD_DIM]: queries, keys, values, as the projection leaves them."""
    return torch.randn(count, 3, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)


def pools(slots: int) -> list[Tensor]:
    """One per layer, of `slots` slots and the spare one, STATE_BYTES in all and 3 at least."""
    shape = (slots + 1, HEADS, HEAD_DIM, HEAD_DIM)
    count = max(3, min(256, STATE_BYTES // (4 * slots * HEADS * HEAD_DIM**2)))
    return [torch.randn(shape, device="cuda") for _ in range(count)]


def index(values: range | list[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32, device="cuda")


if __name__ == "__main__":
    main()
