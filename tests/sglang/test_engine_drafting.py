"""Drafts are the recorded ones, and drafting changes no token."""

from __future__ import annotations

import pytest
import torch
from engine import Run
from plugins import Plugin
from record import RECORD, TOLERANCE, assert_greedy, assert_ours, prompts

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def drafting_run(serve_once) -> Run:
    """Drafts of the recorded texts, about half of them changed to wrong ones."""
    texts = torch.cat([RECORD["main.input_ids"], RECORD["decode.tokens"]], dim=1)
    return serve_once(
        prompts(24, 0, 1),
        draft_hints=texts.tolist(),
        speculative_algorithm="NEXTN",
        speculative_num_steps=1,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=2,
    )


def test_drafting_gives_the_tokens_of_no_drafting(
    greedy_run: Run, drafting_run: Run, plugin: Plugin
) -> None:
    assert_ours(drafting_run, plugin.package, drafting=True)
    for row, answer in enumerate(drafting_run.answers[0]):
        assert 0 < answer.accepted < answer.drafts
        assert answer.tokens == greedy_run.answers[0][row].tokens
        assert_greedy(answer, row)


def test_the_first_drafts_have_the_recorded_logits(drafting_run: Run) -> None:
    """After a prompt the draft model has seen its tokens but the first, and the first new one."""
    tokens, logits = RECORD["mtp.draft_next_ids"], RECORD["mtp.draft_logits"]  # [2, 20], [2, V]
    drafted = {}
    for each in drafting_run.draft_passes:
        # Prompts are of one length; the parts of later passes match none.
        parts = torch.tensor(each["input_ids"]).split(tokens.shape[1])
        drafted |= {
            tuple(part.tolist()): row for part, row in zip(parts, each["logits"], strict=False)
        }
    for prompt, expected in zip(tokens.tolist(), logits, strict=True):
        got = torch.tensor(drafted[tuple(prompt)])
        assert (got - expected).abs().max().item() < TOLERANCE
