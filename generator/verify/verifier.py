"""Runs cases and collects their checks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from lingen.errors import EnvironmentLacks, LingenError
from lingen.ir import ModelIR
from lingen.verify.case import Case, load_case
from lingen.verify.checks import Check, compare, compare_sets, compare_tokens
from lingen.verify.package import (
    generated_package,
    imported_package,
    load_model,
    lower_case,
    written_package,
)
from lingen.verify.ranks import Ranks
from lingen.verify.scenarios import Computed, Scenarios
from torch import Tensor, nn

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
    folders: Sequence[str | Path], *, backend: str, device: str, dtype: str, tp: int = 1
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
    if tp < 1:
        raise LingenError(f"--tp {tp}: not a number of ranks\n  expected  a whole number from 1")
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentLacks("--device cuda: torch sees no CUDA device on this machine")
    if device == "cuda" and torch.cuda.device_count() < tp:
        raise EnvironmentLacks(
            f"--tp {tp} --device cuda: each rank needs a CUDA device of its own\n"
            f"  found     {torch.cuda.device_count()}"
        )
    results, failures = [], []
    with World(tp, device) as world:
        for folder in folders:
            try:
                results.append(verify_case(folder, backend=backend, device=device, world=world))
            except LingenError as error:
                failures.append(error)
    return results, failures


class World:
    """The ranks that cases run on, started when the first one needs them. tp 1: this process."""

    def __init__(self, tp: int, device: str) -> None:
        self.tp = tp
        self.device = device
        self._ranks: Ranks | None = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ranks is not None:
            self._ranks.end()

    def run(self, *arguments: object) -> list[RankResult]:
        """`_run_rank` with these arguments on every rank. A failure ends them; the next call
        starts others."""
        self._ranks = self._ranks or Ranks(self.tp, self.device)
        try:
            return self._ranks.run(_run_rank, *arguments)
        except Exception:
            self._ranks = None
            raise


def verify_case(
    folder: str | Path,
    *,
    backend: str = "seg_la",
    device: str = "cpu",
    world: World | None = None,
) -> CaseResult:
    """Import, build, load and run one case in float32; compare every recorded tensor.

    Raises LingenError where the case cannot be run at all.
    """
    case = load_case(folder)
    world = world or World(1, device)
    what_ran, checks = _run(case, "main", backend, world)
    if case.has("alt_decay"):
        checks += _run(case, "alt", backend, world)[1]
    _refuse_unchecked(case, checks)
    return CaseResult(case.name, backend, what_ran, tuple(checks))


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank made of a case. digests: of each computed tensor, equal on all ranks."""

    what_ran: str
    checks: list[Check]
    digests: list[tuple[str, str]]


def _run(case: Case, convention: str, backend: str, world: World) -> tuple[str, list[Check]]:
    """What ran, and the checks of one decay convention: `main`, or `alt` for `alt_decay.*`."""
    offset = case.decay_layer_offset.get(convention)
    ir = lower_case(case, backend, offset, world.tp)
    case.check_tokens(ir.model.vocab_size)
    if offset is None and ir.plan.has_lightning:
        raise LingenError(
            f"{case.folder / 'expected.json'}: decay_layer_offset.{convention} is missing: "
            "it says which decay convention the recorded tensors follow"
        )
    if world.tp == 1:
        with torch.inference_mode(), generated_package(ir) as package:
            model = load_model(package, case.folder, world.device)
            computed = _computed(case, convention, package, model)
            return _what_runs(ir, package, world.device), list(_compare_all(case, computed))
    with written_package(ir) as folder:
        results = world.run(str(case.folder.absolute()), convention, ir, str(folder), world.device)
    _refuse_divergence(case, results)
    return f"{results[0].what_ran}, tp {world.tp}", results[0].checks


def _run_rank(
    case_folder: str, convention: str, ir: ModelIR, package_folder: str, device: str
) -> RankResult:
    """One convention of a case, in the process of a rank."""
    case = load_case(case_folder)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        package = stack.enter_context(imported_package(Path(package_folder)))
        tp = package.TensorParallel.of()
        model = load_model(package, case.folder, device, tp=tp)
        computed = list(_computed(case, convention, package, model))
        checks = list(_compare_all(case, iter(computed))) if tp.rank == 0 else []
        return RankResult(
            _what_runs(ir, package, device),
            checks,
            [(name, _digest(got)) for name, got in computed],
        )


def _computed(case: Case, convention: str, package: ModuleType, model: nn.Module) -> Computed:
    scenarios = Scenarios(case, package, model)
    return scenarios.alt_decay() if convention == "alt" else scenarios.all()


def _digest(tensor: Tensor) -> str:
    """Of the tensor's bits."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def _refuse_divergence(case: Case, results: Sequence[RankResult]) -> None:
    """Ranks that hold different hidden states would part ways sooner or later."""
    for rank, result in enumerate(results):
        for (name, want), (_, got) in zip(results[0].digests, result.digests, strict=True):
            if got != want:
                raise LingenError(
                    f"{case.folder}: {name} differs between rank 0 and rank {rank}: "
                    "every rank must compute the same"
                )


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
