"""A prompt served from the prefix cache gives the logits of the whole prompt."""

from __future__ import annotations

import pytest
from engine import Request
from plugins import Plugin
from record import RECORD, TOLERANCE, assert_ours, distance

pytestmark = pytest.mark.sglang

TOKENS = RECORD["len150.input_ids"][0].tolist()
LOGITS = RECORD["len150.logits"][0]  # [16, V], of the last 16 positions
FIRST = len(TOKENS) - len(LOGITS)


@pytest.mark.parametrize(
    ("strategy", "overlap", "cached"),
    [
        ("no_buffer", False, 130),
        # States are kept at multiples of 64.
        pytest.param("extra_buffer", False, 128, marks=pytest.mark.long),
        ("extra_buffer", True, 128),
    ],
)
def test_a_cached_prefix_changes_nothing(
    strategy: str, overlap: bool, cached: int, serve, plugin: Plugin
) -> None:
    run = serve(
        [Request(TOKENS[:130], 1, 129)],
        [Request(TOKENS, 1, FIRST)],
        disable_radix_cache=False,
        mamba_radix_cache_strategy=strategy,
        disable_overlap_schedule=not overlap,
    )
    assert_ours(run, plugin.package)
    ((first,), (whole,)) = run.answers
    assert (first.cached, whole.cached) == (0, cached)
    assert distance(whole.log_probs, LOGITS) < TOLERANCE
