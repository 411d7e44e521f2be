"""Which parts of a model have Triton kernels, and which run in plain torch on every device."""

from __future__ import annotations

from lingen.ir.parts import Gqa, Kernels, Lightning, Mla, Moe


def lower_kernels(
    lightning: Lightning | None, mla: Mla | None, gqa: Gqa | None, moe: Moe | None
) -> Kernels:
    """Parts by the names that reports show, those of the model alone."""
    has_kernels = {
        "lightning": (lightning, lightning is not None and lightning.has_kernels),
        "MLA": (mla, True),
        "GQA": (gqa, False),
        "experts": (moe, False),
        "norms": (True, True),
    }
    there = [(name, has) for name, (part, has) in has_kernels.items() if part]
    return Kernels(
        in_triton=tuple(name for name, has in there if has),
        in_torch=tuple(name for name, has in there if not has),
    )
