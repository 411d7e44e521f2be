"""The recorded case `engine-h128`, and what an engine's run must have in common with it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import torch
from engine import Answer, Request, Run
from plugins import CASE
from safetensors.torch import load_file

TOLERANCE = 1e-4  # of log-probabilities, in float32
MAIN_CLASS = "models.bailing_moe_v2_5.BailingMoeV2_5ForCausalLM"
DRAFT_CLASS = "models.bailing_moe_nextn.BailingMoeForCausalLMNextN"

RECORD = load_file(CASE / "golden.safetensors")


def prompts(new_tokens: int, *rows: int) -> list[Request]:
    """The recorded prompts of 20 tokens, each with so many greedy tokens after it."""
    return [Request(RECORD["main.input_ids"][row].tolist(), new_tokens) for row in rows]


def assert_greedy(answer: Answer, row: int) -> None:
    """The tokens are the recorded ones, and every distribution is: prompt and new tokens."""
    count = len(answer.tokens)
    assert answer.tokens == RECORD["decode.tokens"][row, :count].tolist()
    logits = torch.cat([RECORD["main.logits"][row], RECORD["decode.logits"][row, : count - 1]])
    assert distance(answer.log_probs, logits) < TOLERANCE


def distance(log_probs: list[list[float]], logits: torch.Tensor) -> float:
    """The largest |Δ log-probability|, infinite if any is no number; [rows, V] each."""
    got = torch.tensor(log_probs)
    assert got.shape == logits.shape
    largest = (got - logits.log_softmax(-1)).abs().max().item()
    return math.inf if math.isnan(largest) else largest


def assert_ours(run: Run, package: str, *, tp: int = 1, drafting: bool = False) -> None:
    """Each rank built the package's classes, out of none of the engine's Bailing classes."""
    names = [MAIN_CLASS] + [DRAFT_CLASS] * drafting
    expected = sorted((rank, f"{package}.{name}") for rank in range(tp) for name in names)
    assert sorted((model["tp_rank"], model["class"]) for model in run.models) == expected
    for model in run.models:
        engine_own = [
            code for code in model["code"] if code.startswith("sglang.srt.models.bailing")
        ]
        assert engine_own == []


def checkpoint_copy(scratch: Path) -> Path:
    """The case as a checkpoint folder that a test may change."""
    return Path(shutil.copytree(CASE, scratch / "checkpoint"))
