"""The cache planner: bytes in; slots, verify rows, pages and requests out. Pure arithmetic.

Knows nothing of specs, the IR or torch: geometry and options come in as numbers.
"""

from lingen.planner.refusal import DoesNotFit, plan_cache
from lingen.planner.solve import Geometry, Options, Plan, Stage, slots_per_request

__all__ = [
    "DoesNotFit",
    "Geometry",
    "Options",
    "Plan",
    "Stage",
    "plan_cache",
    "slots_per_request",
]
