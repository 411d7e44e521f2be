"""Lowering: ModelSpec → ModelIR, every decision made once."""

from lingen.ir.lower import lower
from lingen.ir.types import ModelIR

__all__ = ["ModelIR", "lower"]
