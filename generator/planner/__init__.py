"""The cache planner: bytes in; slots, verify rows, pages and requests out. Pure arithmetic.

Knows nothing of specs, the IR or torch: geometry and options come in as numbers.
"""

from lingen.planner.allocator import Allocation, Allocator, PoolsFull
from lingen.planner.geometry import Geometry, Stage, pipeline_stages
from lingen.planner.options import Options, slots_per_request
from lingen.planner.refusal import DoesNotFit, plan_cache
from lingen.planner.solve import Plan

__all__ = [
    "Allocation",
    "Allocator",
    "DoesNotFit",
    "Geometry",
    "Options",
    "Plan",
    "PoolsFull",
    "Stage",
    "pipeline_stages",
    "plan_cache",
    "slots_per_request",
]
