"""Runs cases and collects their checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from lingen.errors import EnvironmentLacks, LingenError
from lingen.ir import ModelIR
from lingen.verify.case import Case, load_case
from lingen.verify.checks import Check, compare, compare_sets, compare_tokens
from lingen.verify.package import generated_package, load_model, lower_case
from lingen.verify.scenarios import Computed, Scenarios
from torch import Tensor

BACKENDS = ("seg_la", "minimax")
DEVICES = ("cpu", "cuda")
_INPUTS = ("input_ids", "next_ids", "draft_next_ids", "attention_mask")


@dataclass(frozen=True, slots=True)
class CaseResult:
    case: str
    backend: str
    what_ran: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def first_off(self) -> str | None:
        """The first tensor, in the order of execution, that is outside its tolerance."""
        return next((check.name for check in self.checks if not check.passed), None)

    def to_json(self) -> dict:
        return {
            "case": self.case,
            "backend": self.backend,
            "ran": self.what_ran,
            "passed": self.passed,
            "checks": [check.to_json() for check in self.checks],
        }


def verify_cases(
    folders: Sequence[str | Path], *, backend: str, device: str, dtype: str
) -> tuple[list[CaseResult], list[LingenError]]:
    """Verify each case, in order: results, and why the other cases could not be run.

    Options are checked before anything runs.
    """
    for option, value, known in (("--backend", backend, BACKENDS), ("--device", device, DEVICES)):
        if value not in known:
            raise LingenError(f"{option} {value}: unknown\n  expected  {' or '.join(known)}")
    if dtype != "float32":
        raise LingenError(
            f"--dtype {dtype}: cases are compared in float32 only\n"
            "  expected  float32: at these sizes a lower precision moves the logits of the "
            "reference itself by several units"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentLacks("--device cuda: torch sees no CUDA device on this machine")
    results, failures = [], []
    for folder in folders:
        try:
            results.append(verify_case(folder, backend=backend, device=device))
        except LingenError as error:
            failures.append(error)
    return results, failures


def verify_case(folder: str | Path, *, backend: str = "seg_la", device: str = "cpu") -> CaseResult:
    """Import, build, load and run one case in float32; compare every recorded tensor.

    Raises LingenError where the case cannot be run at all.
    """
    case = load_case(folder)
    what_ran, checks = _run(case, "main", backend, device)
    if case.has("alt_decay"):
        checks += _run(case, "alt", backend, device)[1]
    _refuse_unchecked(case, checks)
    return CaseResult(case.name, backend, what_ran, tuple(checks))


def _run(case: Case, convention: str, backend: str, device: str) -> tuple[str, list[Check]]:
    """What ran, and the checks of one decay convention: `main`, or `alt` for `alt_decay.*`."""
    offset = case.decay_layer_offset.get(convention)
    ir = lower_case(case, backend, offset)
    case.check_tokens(ir.model.vocab_size)
    if offset is None and ir.plan.has_lightning:
        raise LingenError(
            f"{case.folder / 'expected.json'}: decay_layer_offset.{convention} is missing: "
            "it says which decay convention the recorded tensors follow"
        )
    with torch.inference_mode(), generated_package(ir) as package:
        scenarios = Scenarios(case, package, load_model(package, case.folder, device))
        computed = scenarios.alt_decay() if convention == "alt" else scenarios.all()
        return _what_runs(ir, package, device), list(_compare_all(case, computed))


def _what_runs(ir: ModelIR, package: ModuleType, device: str) -> str:
    """References or kernels, as the package decides for tensors on this device; and of what."""
    dispatch = package.kernels.dispatch
    if not dispatch.uses_kernels(torch.empty(0, device=device)):
        return "torch reference"
    how = "interpreted kernels" if dispatch.IS_INTERPRETED else "kernels"
    return f"{how} of {', '.join(ir.kernels.in_triton)}"


def _compare_all(case: Case, computed: Computed) -> Iterator[Check]:
    for name, got in computed:
        want = case.golden.get(name.partition("@")[0])
        if want is not None:
            yield _compare(case, name, got, want)


def _compare(case: Case, name: str, got: Tensor, want: Tensor) -> Check:
    if name == "decode.tokens":
        return compare_tokens(name, got, want)
    if name.endswith(".router_indices"):
        return compare_sets(name, got, want)
    if name.endswith(".router_weights"):
        indices = case.golden[name.replace(".router_weights", ".router_indices")]
        want = want.gather(-1, indices.long().argsort(dim=-1))
    return compare(name, got, want, case.tolerances)


def _refuse_unchecked(case: Case, checks: list[Check]) -> None:
    """A recorded tensor that nothing was compared with would pass unseen."""
    checked = {check.name for check in checks}
    left = sorted(
        name
        for name in case.golden
        if name not in checked and name.rpartition(".")[2] not in _INPUTS
    )
    if left:
        raise LingenError(
            f"{case.folder / 'golden.safetensors'}: no scenario computes {', '.join(left[:5])}"
            + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        )
