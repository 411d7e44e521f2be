"""Which templates make which files, per target."""

from __future__ import annotations

from lingen.errors import LingenError
from lingen.targets import sglang, torch
from lingen.targets.output import OutputFile, Target

__all__ = ["TARGETS", "OutputFile", "Target", "target_named"]

TARGETS: dict[str, Target] = {target.name: target for target in (torch.TARGET, sglang.TARGET)}


def target_named(name: str) -> Target:
    """The target of that name, or a LingenError that lists those there are."""
    if name not in TARGETS:
        raise LingenError(f"{name}: unknown target\n  expected  {', '.join(TARGETS)}")
    return TARGETS[name]
