"""Counters that kernels share live as long as a captured graph may go on using them."""

from __future__ import annotations

import weakref
from types import ModuleType

import torch

CPU = torch.device("cpu")


def test_counters_that_were_handed_out_outlive_longer_ones(tiny: ModuleType) -> None:
    counters = tiny.kernels.lightning.counters
    first = counters(3, CPU)
    kept = weakref.ref(first)
    address = first.data_ptr()
    del first
    longer = counters(300, CPU)
    assert kept() is not None and kept().data_ptr() == address
    assert longer.numel() >= 300 and not longer.any()
    assert counters(2, CPU).data_ptr() == longer.data_ptr(), "short ones share the longest"
