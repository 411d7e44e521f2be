"""Prints results of `lingen verify`: a table per case for people, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lingen.verify.checks import Check
from lingen.verify.verifier import CaseResult

_LAYER = "layer."


def as_json(results: Sequence[CaseResult]) -> str:
    """`{"passed", "cases": [{"case", "backend", "ran", "passed", "checks": [{"name", …}]}]}`."""
    passed = all(result.passed for result in results)
    report = {"passed": passed, "cases": [result.to_json() for result in results]}
    return json.dumps(report, indent=1)


def as_text(results: Sequence[CaseResult]) -> str:
    """One table per case: layers of a kind of tensor share a line, which shows their worst."""
    lines = []
    for result in results:
        lines += [_title(result), *_table(result.checks), ""]
    passed = sum(result.passed for result in results)
    num_checks = sum(len(result.checks) for result in results)
    lines.append(f"{passed} of {len(results)} cases passed, {num_checks} checks")
    return "\n".join(lines)


def _title(result: CaseResult) -> str:
    verdict = "passed" if result.passed else f"FAILED, first off: {result.first_off}"
    return f"{result.case} ({result.backend}, {result.what_ran}): {verdict}"


def _table(checks: Sequence[Check]) -> list[str]:
    rows = [("tensor", "checks", "max abs error", "tolerance", "")]
    for name, group in _by_kind(checks).items():
        worst = max(group, key=_severity)
        mark = "ok" if all(check.passed for check in group) else "OFF"
        rows.append((name, str(len(group)), *_numbers(worst), mark))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}"
        f"  {row[3]:>{widths[3]}}  {row[4]}".rstrip()
        for row in rows
    ]


def _by_kind(checks: Sequence[Check]) -> dict[str, list[Check]]:
    """Checks in order, those that differ only in the layer together."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        scenario, dot, rest = check.name.partition(f".{_LAYER}")
        kind = f"{scenario}.{_LAYER}*.{rest.partition('.')[2]}" if dot else check.name
        groups.setdefault(kind, []).append(check)
    return groups


def _severity(check: Check) -> tuple[bool, float]:
    share = check.max_abs_error / check.tolerance if check.tolerance else check.max_abs_error
    return (not check.passed, share)


def _numbers(check: Check) -> tuple[str, str]:
    if check.tolerance == 0:
        return (f"{check.max_abs_error:g} differ", "equal")
    return (f"{check.max_abs_error:.2e}", f"{check.tolerance:.2e}")
