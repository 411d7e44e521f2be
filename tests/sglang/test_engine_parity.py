"""The unmodified engine, with the generated plugin, gives what is recorded."""

from __future__ import annotations

import pytest
from engine import Run
from plugins import Plugin
from record import assert_greedy, assert_ours, prompts

pytestmark = pytest.mark.sglang


def test_one_rank_gives_the_recorded_tokens_and_distributions(
    greedy_run: Run, plugin: Plugin
) -> None:
    assert_ours(greedy_run, plugin.package)
    for row, answer in enumerate(greedy_run.answers[0]):
        assert len(answer.tokens) == 24
        assert_greedy(answer, row)


@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=pytest.mark.long)])
def test_several_ranks_give_the_recorded_tokens_and_distributions(
    tp: int, serve, plugin: Plugin
) -> None:
    # Two norm groups: two ranks hold one each, four ranks half of one.
    run = serve(prompts(24, 0, 1), tp_size=tp)
    assert_ours(run, plugin.package, tp=tp)
    for row, answer in enumerate(run.answers[0]):
        assert len(answer.tokens) == 24
        assert_greedy(answer, row)
