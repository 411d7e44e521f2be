"""What would help on a card where not one request fits, beside what the planner itself can say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from lingen.ir.types import ModelIR
from lingen.planner import DoesNotFit
from lingen.planner.solve import solve
from lingen.sizing.card import GPU_MIB
from lingen.sizing.request import Asked, read_request

_FRACTION_STEPS = 1000


def card_remedies(ir: ModelIR, asked: Asked, refusal: DoesNotFit) -> dict[str, object]:
    """Options of the card → the nearest value that alone serves a request, each planned again.

    A larger part of the card in thousandths, a larger declared tp or pp, fp8 weights, and the
    smallest larger card. Adds `draft_tokens` to the refusal where only the weights of the MTP layer
    are too much. Empty without a card.
    """
    if asked.device is None:
        return {}

    def serves(**changes: object) -> bool:
        request = read_request(ir, replace(asked, **changes))
        return solve(request.geometry, request.options).serves

    options = read_request(ir, asked).options
    if options.draft_tokens and "draft_tokens" not in refusal.would_work and serves(draft_tokens=0):
        refusal.would_work["draft_tokens"] = 0
    fraction = Fraction(asked.mem_fraction or "1")
    thousandths = range(int(fraction * _FRACTION_STEPS) + 1, _FRACTION_STEPS + 1)
    size = GPU_MIB[asked.device]
    larger = sorted((mib, name) for name, mib in GPU_MIB.items() if mib > size)
    candidates: dict[str, list[object]] = {
        "mem_fraction": [str(step / _FRACTION_STEPS) for step in thousandths],
        "tp": [tp for tp in ir.parallel.tp if tp > asked.tp],
        "pp": [pp for pp in ir.parallel.pp if pp > asked.pp],
        "weights": ["fp8"] if asked.weights == "bf16" and ir.weights.has_fp8 else [],
        "device": [name for _, name in larger],
    }
    found = {
        option: next((value for value in values if serves(**{option: value})), None)
        for option, values in candidates.items()
    }
    return {option: value for option, value in found.items() if value is not None}
