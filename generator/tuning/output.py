"""What a run of `lingen tune` prints: a table for people, or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from lingen.spec.source import shown_path
from lingen.tuning.run import Outcome
from lingen.tuning.search import shown


def as_json(outcome: Outcome) -> str:
    """`{"table", "down_table", "measured", "key": {…}, "tokens": {count: {…}}, …}`."""
    files = outcome.files
    return json.dumps(
        {
            "table": files.up.as_posix(),
            "down_table": files.down.as_posix(),
            "measured": files.measured.as_posix(),
            "key": asdict(outcome.key),
            "tokens": {str(count): asdict(choice) for count, choice in outcome.choices.items()},
            "tried": outcome.tried,
            "skipped": outcome.skipped,
            "seconds": outcome.seconds,
        },
        indent=1,
    )


def as_text(outcome: Outcome, entry: str) -> str:
    lines = [f"{'tokens':>6}  {'table µs':>9}  {'default µs':>10}  rows of up and down"]
    for count, choice in outcome.choices.items():
        rows = "the default's" if choice.is_default else f"{shown(choice.up)}; {shown(choice.down)}"
        times = f"{choice.microseconds:9.1f}  {choice.default_microseconds:10.1f}"
        lines.append(f"{count:6}  {times}  {rows}")
    files = outcome.files
    lines += ["", *(f"written   {shown_path(path)}" for path in files.written)]
    if outcome.skipped:
        lines.append(f"{outcome.skipped} rows are not tried yet: run it again to go on")
    return "\n".join(
        [*lines, "", "A spec ships them with this entry in kernels.moe.tables:", entry]
    )
