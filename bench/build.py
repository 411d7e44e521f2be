"""Times `lingen build` and `lingen check` as cold processes, each into an empty folder.

    python bench/build.py

Prints medians and writes bench/results/build-DATE.json. Budgets are for 2 cores.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINGEN = str(Path(sys.executable).with_name("lingen"))
RUNS = 10
BUDGET_SECONDS = {"build": 0.7, "build_all": 2.5, "check_all": 3.0}


def seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([LINGEN, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in BUDGET_SECONDS}
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as out:
            times["build"].append(seconds("build", "specs/ling-2.6-1t.yaml", "--out", out))
        with tempfile.TemporaryDirectory() as out:
            times["build_all"].append(seconds("build", "--all", "--out", out))
        times["check_all"].append(seconds("check", "--all"))
    result = {
        "commands": {
            "build": "lingen build specs/ling-2.6-1t.yaml --out DIR",
            "build_all": "lingen build --all --out DIR",
            "check_all": "lingen check --all",
        },
        "median_seconds": {name: round(statistics.median(t), 3) for name, t in times.items()},
        "max_seconds": {name: round(max(t), 3) for name, t in times.items()},
        "budget_seconds": BUDGET_SECONDS,
        "runs": RUNS,
        "num_specs": len(list((ROOT / "specs").glob("*.yaml"))),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(result, indent=1))
    today = datetime.date.today().isoformat()
    file = ROOT / "bench" / "results" / f"build-{today}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    late = [n for n, t in result["median_seconds"].items() if t > BUDGET_SECONDS[n]]
    if late:
        sys.exit(f"over budget: {', '.join(late)}")


if __name__ == "__main__":
    main()
