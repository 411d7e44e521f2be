"""Times latent attention of the flash package on one GPU, beside torch.

    python bench/mla.py

Medians of CUDA graph replays in one process, in microseconds per layer. Decode rotates through
caches of CACHE_BYTES, so that rows come from memory as they do in a model of many layers.
`attention` takes queries that are in the latent space already, as the peers do; `whole` adds both
products around it; `bmm` is torch's two batched products and a softmax over contiguous rows;
`copy` moves as many bytes as the rows hold, read and written. Prefill's peer is
`scaled_dot_product_attention` over keys and values that are expanded already. Prints a table and
writes bench/results/mla-DATE.json.
"""

from __future__ import annotations

import datetime
import importlib
import json
import sys
from pathlib import Path

import torch
import triton
from replays import REPLAYS, median
from torch import Tensor
from torch.nn import functional as F

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "generated"))
PACKAGE = "ling_2_6_flash"
model = importlib.import_module(f"{PACKAGE}.model")
mla = importlib.import_module(f"{PACKAGE}.kernels.mla")
norm = importlib.import_module(f"{PACKAGE}.kernels.norm")

HEADS, RANK, ROPE = model.NUM_ATTENTION_HEADS, model.KV_LORA_RANK, model.QK_ROPE_HEAD_DIM
NOPE, VALUE, SCALE = model.QK_NOPE_HEAD_DIM, model.V_HEAD_DIM, model.MLA_SCALE
CACHE_BYTES = 300 << 20
CACHED = 4096
BATCHES = (1, 8, 32, 128)
NUM_DRAFTS = 4
# Requests, new tokens of each, tokens of each after the step.
PREFILLS = {
    "1x1k": (1, 1024, 1024),
    "1x8k": (1, 8192, 8192),
    "8x4k": (8, 4096, 4096),
    "1x8k after 24k": (1, 8192, 32768),
}


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, dict[str, dict[str, float]]] = {
        "decode": {f"batch {batch}": decode(batch) for batch in BATCHES},
        "verify": {f"batch {batch}, {NUM_DRAFTS} drafts": verify(batch) for batch in (8, 32)},
        "prefill": {name: prefill(*sizes) for name, sizes in PREFILLS.items()},
        "around": {f"{count} tokens": around(count) for count in (1, 32, 8192)},
    }
    for subject, rows in results.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        print(f"{subject + ', µs':22}" + "".join(f"{column:>14}" for column in columns))
        for name, row in rows.items():
            cells = (f"{row[c]:14.1f}" if c in row else " " * 14 for c in columns)
            print(f"{name:22}" + "".join(cells))
    found = {
        "median_microseconds": results,
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cached_tokens": CACHED,
        "cache_bytes": CACHE_BYTES,
        "replays": REPLAYS,
    }
    file = ROOT / "bench/results" / f"mla-{datetime.date.today().isoformat()}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")


def decode(batch: int) -> dict[str, float]:
    calls = [requests(batch, 1, CACHED) for _ in range(num_caches(batch))]
    q_latent = normal(batch, HEADS, RANK)
    query = normal(batch, HEADS, RANK + ROPE)
    rows = [call["kv"][:-1].view(batch, CACHED, RANK + ROPE) for call in calls]
    others = [torch.empty_like(x) for x in rows]
    return {
        "attention": median([lambda c=c: attention(q_latent, c, 1) for c in calls]),
        "bmm": median([lambda r=r: bmm(query, r) for r in rows]),
        "whole": median([lambda c=c: mla.mla_decode(**c, max_query_len=1) for c in calls]),
        "copy": median([lambda r=r, o=o: o.copy_(r) for r, o in zip(rows, others, strict=True)]),
    }


def verify(batch: int) -> dict[str, float]:
    """One certain token and the drafts."""
    count = 1 + NUM_DRAFTS
    calls = [requests(batch, count, CACHED) for _ in range(num_caches(batch))]
    q_latent = normal(batch * count, HEADS, RANK)
    query = normal(batch, count * HEADS, RANK + ROPE)
    rows = [call["kv"][:-1].view(batch, CACHED, RANK + ROPE) for call in calls]
    return {
        "attention": median([lambda c=c: attention(q_latent, c, count) for c in calls]),
        "bmm": median([lambda r=r: bmm(query, r) for r in rows]),
        "whole": median([lambda c=c: mla.mla_decode(**c, max_query_len=count) for c in calls]),
    }


def prefill(num_reqs: int, new: int, length: int) -> dict[str, float]:
    call = requests(num_reqs, new, length)
    found = {"prefill": median([lambda: mla.mla_prefill(**call, max_query_len=new)])}
    if new == length:
        q, k = normal(2, num_reqs, HEADS, new, NOPE + ROPE)
        v = normal(num_reqs, HEADS, new, VALUE)
        found["sdpa"] = median([lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)])
    return found


def around(count: int) -> dict[str, float]:
    """The write to the cache with norm and rope, and the norms of a layer."""
    compressed, q = normal(count, RANK + ROPE), normal(count, HEADS, NOPE + ROPE)
    kv = normal(count // mla.PAGE_SIZE + 2, mla.PAGE_SIZE, RANK + ROPE)
    rows = torch.randperm(count, device="cuda")
    angles = model.rope_table(rows, ROPE)
    hidden, residual = normal(2, count, model.HIDDEN_SIZE)
    weight = normal(model.HIDDEN_SIZE)
    eps = model.RMS_NORM_EPS
    write = (compressed, weight[:RANK], eps, q[..., NOPE:], *angles, kv, rows)
    return {
        "write": median([lambda: mla.mla_write(*write)] * 20),
        "norm": median([lambda: norm.rms_norm(hidden, weight, eps)] * 20),
        "add and norm": median([lambda: norm.add_rms_norm(hidden, residual, weight, eps)] * 20),
    }


def attention(q_latent: Tensor, call: dict, max_query_len: int) -> Tensor:
    paged = ("q_rope", "kv", "page_table", "query_start_loc", "seq_lens", "scale")
    arguments = [call[name] for name in paged]
    return mla.mla_latent_attention(q_latent, *arguments, max_query_len)


def bmm(query: Tensor, rows: Tensor) -> Tensor:
    scores = SCALE * torch.bmm(query, rows.transpose(1, 2))
    return torch.bmm(scores.softmax(-1, dtype=torch.float32).to(rows.dtype), rows[..., :RANK])


def requests(num_reqs: int, new: int, length: int) -> dict:
    """Arguments of `mla_decode` but for max_query_len; pages lie scattered over the pool."""
    num_pages = length // mla.PAGE_SIZE
    q = normal(num_reqs * new, HEADS, NOPE + ROPE)
    weight = normal(HEADS, NOPE + VALUE, RANK) / RANK**0.5
    pages = torch.randperm(num_reqs * num_pages, device="cuda").int()
    return {
        "q_nope": q[..., :NOPE],
        "q_rope": q[..., NOPE:],
        "kv": normal(num_reqs * num_pages + 1, mla.PAGE_SIZE, RANK + ROPE),
        "page_table": pages.view(num_reqs, num_pages),
        "query_start_loc": torch.arange(0, num_reqs * new + 1, new, device="cuda").int(),
        "token_to_req": torch.arange(num_reqs * new, device="cuda") // new,
        "seq_lens": torch.full((num_reqs,), length, device="cuda").int(),
        "w_uk": weight[:, :NOPE],
        "w_uv": weight[:, NOPE:],
        "scale": SCALE,
    }


def num_caches(batch: int) -> int:
    return max(2, CACHE_BYTES // (batch * CACHED * (RANK + ROPE) * 2))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


if __name__ == "__main__":
    main()
