"""Times the cache planner: one plan, one refusal with its suggestions, and the cold command.

    python bench/plan.py

Prints medians and writes bench/results/plan-DATE.json. Budgets are for 2 cores.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lingen.ir import lower
from lingen.planner import DoesNotFit, Options, plan_cache
from lingen.sizing.geometry import geometry_of
from lingen.spec import load_spec

ROOT = Path(__file__).parents[1]
LINGEN = str(Path(sys.executable).with_name("lingen"))
COMMAND = [LINGEN, "plan", "specs/ling-2.6-flash.yaml", "--cache-gib", "8", "--json"]
BUDGET_SECONDS = {"plan": 0.001, "refusal": 0.1, "command": 0.6}
RUNS = {"plan": 200, "refusal": 20, "command": 10}


def main() -> None:
    geometry = geometry_of(lower(load_spec(ROOT / "specs/ling-2.6-flash.yaml")))

    def plan(budget_bytes: int) -> Callable[[], object]:
        options = Options(budget_bytes, 64, draft_tokens=4, verify_states="snapshot")
        return lambda: plan_cache(geometry, options)

    def refuse() -> None:
        try:
            plan(1 << 28)()
        except DoesNotFit:
            return
        raise AssertionError("256 MiB hold no request")

    def command() -> None:
        subprocess.run(COMMAND, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    calls = {"plan": plan(8 << 30), "refusal": refuse, "command": command}
    medians = {name: median(call, RUNS[name]) for name, call in calls.items()}
    result = {
        "median_seconds": {name: round(value, 6) for name, value in medians.items()},
        "budget_seconds": BUDGET_SECONDS,
        "runs": RUNS,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(result, indent=1))
    file = ROOT / "bench/results" / f"plan-{datetime.date.today().isoformat()}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    late = [name for name, value in medians.items() if value > BUDGET_SECONDS[name]]
    sys.exit(f"over budget: {', '.join(late)}" if late else 0)


def median(call: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
