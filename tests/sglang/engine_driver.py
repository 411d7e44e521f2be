"""Runs in the engine's environment: serve some requests with a real engine, write what came out.

    python engine_driver.py JOB.json RESULT.json

The job: `engine`, the arguments of `sglang.Engine`; `batches`, a list of lists of requests, each
`{"input_ids": […], "new_tokens": n, "from_position": p}`. A batch's requests are served together,
batches in turn. The result holds, for each batch and request, `tokens`, `cached` (prompt tokens
from the prefix cache), `drafts` and `accepted` (drafts proposed and accepted), and `log_probs`: a
row over the whole vocabulary for each prompt position from p on, and each new token but the last.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path


def end_with_parent():
    """No engine outlives its test: not even one whose test was killed."""
    ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def main(job_file, result_file):
    end_with_parent()
    job = json.loads(Path(job_file).read_text())
    import sglang

    engine = sglang.Engine(**job["engine"])
    try:
        batches = [serve(engine, batch, job["vocabulary"]) for batch in job["batches"]]
    finally:
        engine.shutdown()
    Path(result_file).write_text(json.dumps(batches))


def serve(engine, batch, vocabulary):
    answers = engine.generate(
        input_ids=[request["input_ids"] for request in batch],
        sampling_params=[
            {"temperature": 0, "ignore_eos": True, "max_new_tokens": request["new_tokens"]}
            for request in batch
        ],
        return_logprob=True,
        logprob_start_len=[request["from_position"] for request in batch],
        top_logprobs_num=[vocabulary] * len(batch),
    )
    return [outcome(answer, vocabulary) for answer in answers]


def outcome(answer, vocabulary):
    facts = answer["meta_info"]
    # The first prompt entry is None: nothing comes before the first position.
    rows = [row for row in facts["input_top_logprobs"] if row] + facts["output_top_logprobs"]
    return {
        "tokens": answer["output_ids"],
        "cached": facts["cached_tokens"],
        "drafts": facts.get("spec_num_proposed_drafts"),
        "accepted": facts.get("spec_num_correct_drafts"),
        "log_probs": [by_token(row, vocabulary) for row in rows],
    }


def by_token(row, vocabulary):
    """One number per token of the vocabulary, of (log-probability, token, text) in any order."""
    values = [None] * vocabulary
    for log_prob, token, _ in row:
        values[token] = log_prob
    return values


if __name__ == "__main__":
    main(*sys.argv[1:])
    # The engine's helper threads may still hold the interpreter; what matters is written.
    sys.stdout.flush()
    os._exit(0)
