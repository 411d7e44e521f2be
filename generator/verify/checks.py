"""Compares one computed tensor with the recorded one of the same name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from lingen.verify.case import Tolerances
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Check:
    """`name` is that of the recorded tensor, with `@…` behind it where another way led to it.

    max_abs_error and tolerance belong to the worst element; for tokens and sets of experts they
    count positions that differ. A NaN, or a tensor of another shape, is an infinite error.
    """

    name: str
    max_abs_error: float
    tolerance: float
    passed: bool

    def to_json(self) -> dict:
        """`max_abs_error` is null where it is not finite: JSON has no infinity."""
        error = self.max_abs_error if math.isfinite(self.max_abs_error) else None
        return {
            "name": self.name,
            "max_abs_error": error,
            "tolerance": self.tolerance,
            "passed": self.passed,
        }


def atol_and_rtol(name: str, tolerances: Tolerances) -> tuple[float, float]:
    """Tolerance of a recorded tensor, by the last part of its name."""
    kind = name.partition("@")[0].rpartition(".")[2]
    if kind == "router_weights":
        return tolerances.router_weights_atol, 0.0
    if kind == "state":
        return tolerances.state_atol, tolerances.rtol
    if kind in ("logits", "draft_logits"):
        return tolerances.logits_atol, tolerances.rtol
    return tolerances.hidden_atol, tolerances.rtol


def compare(name: str, got: Tensor, want: Tensor, tolerances: Tolerances) -> Check:
    atol, rtol = atol_and_rtol(name, tolerances)
    if got.shape != want.shape:
        return Check(name, math.inf, atol, passed=False)
    if want.numel() == 0:
        return Check(name, 0.0, atol, passed=True)
    want = want.double()
    error = (got.double() - want).abs()
    error = torch.where(error.isnan(), math.inf, error)
    tolerance = atol + rtol * want.abs()
    excess = error - tolerance
    passed = bool((excess <= 0).all())
    worst = int((error if passed else excess).argmax())
    return Check(name, error.flatten()[worst].item(), tolerance.flatten()[worst].item(), passed)


def compare_sets(name: str, got: Tensor, want: Tensor) -> Check:
    """Rows hold the same numbers, in any order."""
    return compare_tokens(name, got.sort(dim=-1).values, want.sort(dim=-1).values, dims=(-1,))


def compare_tokens(name: str, got: Tensor, want: Tensor, dims: tuple[int, ...] = ()) -> Check:
    """Equal everywhere; positions that differ are counted, those along `dims` as one."""
    if got.shape != want.shape:
        return Check(name, math.inf, 0.0, passed=False)
    differs = got.long() != want.long()
    for dim in dims:
        differs = differs.any(dim=dim)
    count = int(differs.sum())
    return Check(name, float(count), 0.0, passed=count == 0)
