"""The present card, and the kernels that are measured on it: a package in a temporary folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import triton
from lingen.ir.types import ModelIR
from lingen.tuning.card import Card
from lingen.tuning.experts import Experts
from lingen.tuning.request import Request
from lingen.tuning.run import Bench
from lingen.tuning.workers import MOST_WORKERS, Workers
from lingen.verify.package import generated_package

_KERNELS = "kernels/moe*.py"


@contextmanager
def present_bench(ir: ModelIR, request: Request, num_workers: int | None) -> Iterator[Bench]:
    """`num_workers` None: as many as there are cores, up to what memory allows; 0: none."""
    shape = request.shape
    if num_workers is None:
        num_workers = min(os.cpu_count() or 1, MOST_WORKERS[shape.form])
    with generated_package(ir) as package:
        folder = Path(package.__file__).parent
        experts = Experts(package, shape, "cuda")
        properties = torch.cuda.get_device_properties("cuda")
        yield Bench(
            device=torch.cuda.get_device_name(),
            triton=version_number(triton.__version__),
            torch=torch.__version__,
            kernels=digest(folder),
            shared_memory=properties.shared_memory_per_block_optin,
            defaults=experts.default_rows,
            measurer=Card(experts),
            prepare=Workers(num_workers, folder, shape, experts.default_rows)
            if num_workers
            else iter,
        )


def digest(package: Path) -> str:
    """Of the sources of the kernels: times of other kernels say nothing."""
    found = hashlib.sha256()
    for path in sorted(package.glob(_KERNELS)):
        found.update(path.read_bytes())
    return found.hexdigest()


def version_number(version: str) -> str:
    """`3.6.0` of `3.6.0+git0a1b2c3`, as table folders are named."""
    return re.match(r"\d+(\.\d+)*", version)[0]
