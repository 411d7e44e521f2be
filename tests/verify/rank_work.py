"""What ranks are given to do in tests: in a module of its own, for their processes to import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from lingen.errors import LingenError
from lingen.verify.package import imported_package


def summed_ranks() -> float:
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return x.item()


def killed_in_the_middle(victim: int) -> float:
    """The victim ends by SIGKILL while the others wait for it."""
    if dist.get_rank() == victim:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    return summed_ranks()


def stopped_in_the_middle(victim: int) -> float:
    """The victim lives and does nothing any more."""
    if dist.get_rank() == victim:
        time.sleep(600)
    return summed_ranks()


def refused_by(victim: int) -> float:
    if dist.get_rank() == victim:
        raise LingenError("this input is wrong")
    return summed_ranks()


def broken_on(victim: int) -> float:
    if dist.get_rank() == victim:
        raise ZeroDivisionError("nobody expects this")
    return summed_ranks()


def served(package_folder: str, checkpoint: str) -> list[tuple[str, torch.Tensor]]:
    """A prefill, two decodes and a draft of the package's model; the same numbers at any size."""
    with torch.inference_mode(), imported_package(Path(package_folder)) as package:
        tp = package.TensorParallel.of() if dist.is_initialized() else package.TensorParallel()
        model = package.ForCausalLM(drafts=True, tp=tp).eval()
        package.load_weights(model, checkpoint)
        pools = package.Pools.of_size(2, 8, draft_tokens=1, tp=tp.size)
        for tensor in pools.tensors():
            tensor.fill_(torch.nan)
        backend = package.HybridBackend(pools)
        seen, computed = [], [0, 0]
        for number, feeds in enumerate([[list(range(3, 40)), [7, 151]], [[5], [9]], [[11], [0]]]):
            batch = package.ForwardBatch.from_lists(feeds, computed, [1, 0], [[4, 1, 6], [0, 3]])
            step = backend.prepare(batch)
            hidden = model(step, backend)
            seen.append((f"logits{number}", model.compute_logits(hidden)))
            drafted = model.draft(batch.input_ids, hidden, step, backend)
            seen.append((f"drafts{number}", model.compute_logits(drafted)))
            computed = [done + len(feed) for done, feed in zip(computed, feeds, strict=True)]
        return seen
