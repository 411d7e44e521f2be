"""Compiles kernels into Triton's cache and launches none: `python -m lingen.tuning.worker`.

Arguments: the package's folder, and its experts' shape as JSON. Each line of input is a list of
calls, `[[num_tokens, up row, down row], …]`; each is answered by a line, `done` or why not.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from lingen.tuning.experts import Experts
from lingen.tuning.rows import Shape


def main() -> None:
    folder, shape = Path(sys.argv[1]), json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer
    sys.path.insert(0, str(folder.parent))
    package = importlib.import_module(folder.name)
    launch_nothing(package)
    experts = Experts(package, Shape(**shape), "meta")
    for line in sys.stdin:
        print(compile_calls(experts, json.loads(line)), file=answers, flush=True)


def launch_nothing(package: ModuleType) -> None:
    """From now on calls of the package's kernels compile them, on tensors without memory, too."""
    for name, module in sys.modules.items():
        if name.startswith(f"{package.__name__}.") and hasattr(module, "uses_kernels"):
            module.uses_kernels = lambda tensor: True
    kernel_class = triton.runtime.jit.JITFunction
    run = kernel_class.run

    @wraps(run)
    def compile_only(self: Any, *args: object, warmup: bool, **kwargs: object) -> object:
        return run(self, *args, warmup=True, **kwargs)

    kernel_class.run = compile_only


def compile_calls(experts: Experts, calls: list) -> str:
    try:
        for num_tokens, *pair in calls:
            for call in experts.calls(num_tokens, pair, 1):
                call()
    except Exception as error:  # the search finds out itself
        return next(iter(str(error).splitlines()), "") or type(error).__name__
    return "done"


if __name__ == "__main__":
    main()
