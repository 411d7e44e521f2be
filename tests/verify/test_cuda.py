"""On a GPU: a decode step of each kind of model never waits for the host."""

from __future__ import annotations

import pytest
import torch
from damage import GOLDEN
from lingen.verify.case import load_case
from lingen.verify.package import generated_package, load_model, lower_case
from lingen.verify.session import Session


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mtp", "v2-mtp", "linear-v2-gqa", "v1-normhead"])
def test_a_decode_step_has_no_host_sync(name):
    case = load_case(GOLDEN / name)
    ir = lower_case(case, "seg_la", case.decay_layer_offset.get("main"))
    with torch.inference_mode(), generated_package(ir) as package:
        model = load_model(package, case.folder, "cuda")
        rows = case.golden["main.input_ids"].tolist()
        session = Session(package, model, len(rows), len(rows[0]) + 1)
        session.run(dict(enumerate(rows)))
        batch = package.ForwardBatch.from_lists(
            [[1], [2]], session.num_computed, session.slots, session.pages, device="cuda"
        )
        torch.cuda.set_sync_debug_mode("error")
        try:
            step = session.backend.prepare(batch)
            hidden = model(step, session.backend)
            logits = model.compute_logits(hidden)
            if ir.mtp:
                model.draft(batch.input_ids, hidden, step, session.backend)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert logits.isfinite().all()
