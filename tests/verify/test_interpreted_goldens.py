"""`lingen verify` with the kernels in Triton's interpreter, on the smallest recorded cases.

Triton decides at import whether it interprets: each case is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from damage import GOLDEN

BACKENDS = ("seg_la", "minimax")
# The others pass, too, and take a minute or more each.
SMALL = [("bias-tiny", backend) for backend in BACKENDS]
NO_LIGHTNING = [(case, "seg_la") for case in ("v2-mtp", "v1-gqa", "v1-normhead", "v2-gqa")]
HYBRIDS = ("engine-h128", "hybrid-heads6", "hybrid-mla-h4", "mtp", "qlora", "tail-layers")
SLOW = [
    *((case, name) for case in (*HYBRIDS, "linear-v2-gqa", "linear-v2-tail") for name in BACKENDS),
    *NO_LIGHTNING[1:],
]
KERNELS = {
    **dict.fromkeys(("bias-tiny", *HYBRIDS), "lightning, MLA, experts, norms"),
    **dict.fromkeys(("linear-v2-gqa", "linear-v2-tail"), "lightning, experts, norms"),
    **dict.fromkeys(("v2-mtp", "v1-gqa", "v1-normhead", "v2-gqa"), "experts, norms"),
}


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        *SMALL,
        *NO_LIGHTNING[:1],
        *(pytest.param(*one, marks=pytest.mark.long) for one in SLOW),
    ],
)
def test_interpreted_kernels_give_every_recorded_tensor(case: str, backend: str) -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lingen.cli", "verify", "--json"),
            *("--backend", backend, str(GOLDEN / case)),
        ],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [result] = json.loads(done.stdout)["cases"]
    assert result["passed"] and result["checks"]
    assert (result["case"], result["backend"]) == (case, backend)
    assert result["ran"] == f"interpreted kernels of {KERNELS[case]}"
