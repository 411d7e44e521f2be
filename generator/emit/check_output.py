"""The outcome of a check, and its three printed forms: text, github, json.

Knows nothing of disks or rendering.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lingen.emit.check import Difference
from lingen.errors import LingenError, SpecError

_SHOWN_LINES = 20
_COLORS = {"+": "32", "-": "31", "@": "36"}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found. `build_command` repairs what a build can repair.

    failures: one error per spec that could not be rendered; its package was not compared.
    """

    differences: tuple[Difference, ...]
    failures: tuple[LingenError, ...]
    num_specs: int
    num_packages: int
    num_files: int
    build_command: str

    @property
    def is_up_to_date(self) -> bool:
        return not self.differences and not self.failures

    @property
    def exit_code(self) -> int:
        """0: up to date. A spec that cannot be rendered weighs more than a difference."""
        if self.failures:
            return max(failure.exit_code for failure in self.failures)
        return 1 if self.differences else 0

    def summary(self) -> str:
        """The last line: what to do, what differs, and how much was looked at."""
        compared = (
            f"{_count(self.num_specs, 'spec')} found, "
            f"{_count(self.num_packages, 'package')} rendered, "
            f"{_count(self.num_files, 'file')} compared"
        )
        if self.is_up_to_date:
            return f"Up to date: {compared}."
        parts = [self._what_to_do(), self._what_is_wrong()]
        return f"{' '.join(part for part in parts if part)}: {compared}."

    def _what_is_wrong(self) -> str:
        wrong = []
        if self.failures:
            wrong.append(f"{_count(len(self.failures), 'spec')} failed")
        if self.differences:
            verb = "differs" if len(self.differences) == 1 else "differ"
            wrong.append(f"{_count(len(self.differences), 'file')} {verb}")
        return ", ".join(wrong)

    def _what_to_do(self) -> str:
        """The one command that repairs, and what it leaves to do by hand."""
        steps = []
        if self.failures:
            steps.append("repair the specs that failed")
        repairs = {difference.repair for difference in self.differences}
        if repairs & {"build", "force"}:
            force = "; add --force to drop the hand edits" if "force" in repairs else ""
            steps.append(f"run `{self.build_command}`{force}")
        if "hand" in repairs:
            steps.append("move away what lingen did not write or no spec produces")
        text = "; ".join(steps)
        return f"{text[0].upper()}{text[1:]}."


def as_text(report: CheckReport, color: bool = False) -> str:
    """One line and a diff per difference, then the summary. Failures are printed elsewhere."""
    lines = []
    for difference in report.differences:
        lines.append(f"{_place(difference)}: {difference.message}")
        if _has_hunks(difference):
            lines += [_colored(line, color) for line in difference.diff.rstrip("\n").split("\n")]
    return "\n".join([*lines, report.summary()])


def as_github(report: CheckReport, color: bool = False) -> str:
    """Workflow commands that annotate the files, then the summary."""
    lines = [line for failure in report.failures for line in _github_failure(failure)]
    for difference in report.differences:
        lines.append(
            _github_error(difference.path, difference.line, None, _github_message(difference))
        )
    return "\n".join([*lines, report.summary()])


def as_json(report: CheckReport, color: bool = False) -> str:
    """`{"up_to_date", "differences": [{"path", "kind", "diff"}]}`."""
    differences = [{"path": d.path, "kind": d.kind, "diff": d.diff} for d in report.differences]
    return json.dumps({"up_to_date": report.is_up_to_date, "differences": differences}, indent=2)


def _has_hunks(difference: Difference) -> bool:
    return difference.kind in ("changed", "edited") and "\n" in difference.diff


def _place(difference: Difference) -> str:
    return f"{difference.path}:{difference.line}" if _has_hunks(difference) else difference.path


def _colored(line: str, color: bool) -> str:
    code = _COLORS.get(line[:1])
    return f"\x1b[{code}m{line}\x1b[0m" if color and code else line


def _github_message(difference: Difference) -> str:
    if not _has_hunks(difference):
        return difference.message
    lines = difference.diff.rstrip("\n").split("\n")
    rest = len(lines) - _SHOWN_LINES
    cut = [f"… {_count(rest, 'line')} more"] if rest > 0 else []
    return "\n".join([difference.message, *lines[:_SHOWN_LINES], *cut])


def _github_failure(failure: LingenError) -> Sequence[str]:
    if not isinstance(failure, SpecError):
        return [f"::error::{_escaped(str(failure))}"]
    return [
        _github_error(p.position.file, p.position.line, p.position.column, p.render())
        for p in failure.problems
    ]


def _github_error(file: str, line: int, column: int | None, message: str) -> str:
    name = _escaped(file).replace(":", "%3A").replace(",", "%2C")
    col = f",col={column}" if column is not None else ""
    return f"::error file={name},line={line}{col}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


FORMATS = {"text": as_text, "github": as_github, "json": as_json}
