"""`lingen tune`: measures settings of the expert kernels on the present card, and writes tables.

search: what is tried and kept.  state: what is known so far, on disk.  tables: what is written.
bench, workers: the parts that need torch, triton and a card. Nothing that builds imports them.
"""

from __future__ import annotations

from importlib.util import find_spec

from lingen.errors import EnvironmentLacks

FORMS = ("bf16", "fp8_channel", "fp8_block")
"""How experts' weights are stored: 16 bits, fp8 with a scale per output channel, fp8 in blocks."""


def require_card() -> None:
    """Raise EnvironmentLacks where nothing can be measured."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise EnvironmentLacks(
            f"tune runs the experts of a package, and {' and '.join(missing)} cannot be imported\n"
            "  fix       pip install 'lingen[runtime]'"
        )
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentLacks(
            "tune measures on a CUDA card, and torch finds none here\n"
            "  fix       run it on a machine with the card that the tables are for"
        )
