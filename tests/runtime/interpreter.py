"""Whether kernels run in Triton's interpreter, which a process must choose before it starts."""

from __future__ import annotations

import os

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
