"""Reports what the draft model computes, and can make some of its drafts right."""

import json
from pathlib import Path


def watch_drafts(model, report: Path, hints: Path) -> None:
    """Report each pass of the draft model as one line: its tokens, and its logits.

    Random weights never guess right. With hints, a list of whole texts, what the engine drafts from
    is set after the report: right after even positions, wrong after odd ones.
    """
    forward = model.forward
    texts = json.loads(hints.read_text())

    def watched(input_ids, positions, forward_batch):
        output = forward(input_ids, positions, forward_batch)
        logits = output.next_token_logits
        with report.open("a") as lines:
            line = {"input_ids": input_ids.tolist(), "logits": logits.tolist()}
            lines.write(json.dumps(line) + "\n")
        rows = range(len(input_ids))
        if len(logits) != len(input_ids):  # a prompt's pass: the last position of each request
            rows = (forward_batch.extend_seq_lens.cumsum(0) - 1).tolist()
        for logit_row, row in zip(logits, rows, strict=True):
            set_draft(logit_row, int(input_ids[row]), int(positions[row]), texts)
        return output

    model.forward = watched


def set_draft(logits, token: int, position: int, texts: list[list[int]]) -> None:
    """At a position the draft model is given the token after it, and drafts the one after that."""
    for text in texts:
        if position + 2 < len(text) and text[position + 1] == token:
            draft = text[position + 2] + position % 2
            logits.zero_()
            logits[draft % len(logits)] = 100.0
