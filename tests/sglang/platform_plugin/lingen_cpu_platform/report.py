"""Tells the test which model classes each process built: engines swallow a plugin's failure."""

import json
import os
from pathlib import Path

from lingen_cpu_platform.draft_passes import watch_drafts

DRAFT_CLASS = "BailingMoeForCausalLMNextN"


def report_model(model) -> None:
    """One file per loaded model in `$LINGEN_REPORT_FOLDER`: its rank, class and ancestors."""
    from sglang.srt.runtime_context import get_parallel

    cls = type(model)
    report = {
        "tp_rank": get_parallel().tp_rank,
        "class": f"{cls.__module__}.{cls.__qualname__}",
        # Where the code of every module of the model comes from, base classes included.
        "code": sorted({base.__module__ for part in model.modules() for base in type(part).mro()}),
    }
    name = f"{os.getpid()}-{cls.__qualname__}.json"
    file = Path(os.environ["LINGEN_REPORT_FOLDER"], name)
    file.write_text(json.dumps(report))
    if cls.__name__ == DRAFT_CLASS:
        watch_drafts(model, file.with_suffix(".drafts"), Path(os.environ["LINGEN_DRAFT_HINTS"]))
