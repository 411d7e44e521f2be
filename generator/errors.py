"""The errors lingen shows to people: where, what was found, what is expected, how to fix it.

Knows nothing of specs or files; printing is one function, used by every command.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A place in a file a person can click. `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input. Texts start with what is wrong and carry no markup.

    `key` is the dotted key path (`moe.n_group`), empty when the whole file is meant.
    """

    position: Position
    key: str
    message: str
    found: str | None = None
    expected: str | None = None
    fix: str | None = None

    def render(self) -> str:
        subject = f"{self.key}: " if self.key else ""
        lines = [f"{self.position}: {subject}{self.message}"]
        for label in ("found", "expected", "fix"):
            text = getattr(self, label)
            if text is not None:
                lines.append(f"  {label:<10}{text}")
        return "\n".join(lines)


class LingenError(Exception):
    """An error with a message for people. The command prints it and exits with `exit_code`."""

    exit_code = 2


class SpecError(LingenError):
    """Everything wrong with the specs of one command, sorted by file, line and column."""

    def __init__(self, problems: list[Problem]) -> None:
        if not problems:
            raise AssertionError("SpecError without a problem")
        self.problems = tuple(sorted(problems, key=lambda p: (p.position, p.key, p.message)))
        super().__init__(self.render())

    def render(self) -> str:
        lines = [problem.render() for problem in self.problems]
        total = len(self.problems)
        groups = Counter(p.key.partition(".")[0] for p in self.problems if p.key)
        if total == 1:
            lines.append("Nothing was written.")
        elif groups and groups.most_common(1)[0][1] > 1:
            group, count = groups.most_common(1)[0]
            lines.append(f"{count} of {total} errors are in `{group}`. Nothing was written.")
        else:
            lines.append(f"{total} errors. Nothing was written.")
        return "\n".join(lines)


class EnvironmentLacks(LingenError):
    """Something the command needs is not installed or not the pinned version."""

    exit_code = 3
