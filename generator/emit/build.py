"""`lingen build` and `lingen check`: specs in, files written or compared.

The order of things and nothing else: each step is in a module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lingen.emit.atomic import FileResult, OutputError, write_packages
from lingen.emit.check import Difference, check_package, check_strays
from lingen.emit.check_output import CheckReport
from lingen.emit.render import Files, render_all
from lingen.emit.selection import find_specs
from lingen.errors import LingenError, SpecError
from lingen.spec.rules import refuse_target
from lingen.targets import Target, target_named


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for.

    target: the only one. A spec given by name need not list it, but must be one that it can be made
    of; of all specs, those are meant that list it. None: the targets that each spec lists.
    """

    specs: tuple[str, ...]
    all_specs: bool
    out_dir: Path
    target: str | None = None

    def build_command(self) -> str:
        """The `lingen build` that does what this request compares."""
        words = ["lingen build", "--all" if self.all_specs else " ".join(self.specs)]
        words += [f"--out {self.out_dir.as_posix()}"] if self.out_dir != Path("generated") else []
        words += [f"--target {self.target}"] if self.target else []
        return " ".join(words)


@dataclass(slots=True)
class _Rendered:
    """Packages by folder name, `produced`: also the names of those left out by `target`."""

    num_specs: int
    packages: dict[str, Files] = field(default_factory=dict)
    produced: set[str] = field(default_factory=set)
    failures: list[LingenError] = field(default_factory=list)
    unread: int = 0


def build(request: Request, force: bool = False) -> list[FileResult]:
    """Render every package, then write them all, or raise and write nothing."""
    rendered = _render(request)
    if rendered.failures:
        raise _combined(rendered.failures)
    return write_packages(request.out_dir, list(rendered.packages.items()), force)


def check(request: Request) -> CheckReport:
    """Compare every package that can be rendered with what is on disk."""
    rendered = _render(request)
    differences: list[Difference] = []
    try:
        for name, files in rendered.packages.items():
            differences += check_package(request.out_dir, name, files)
        if request.all_specs:
            differences += check_strays(request.out_dir, rendered.produced, not rendered.unread)
    except OSError as error:
        place = error.filename or request.out_dir
        raise OutputError(f"{place}: cannot be read: {error.strerror}") from error
    return CheckReport(
        differences=tuple(sorted(differences, key=lambda difference: difference.path)),
        failures=tuple(rendered.failures),
        num_specs=rendered.num_specs,
        num_packages=len(rendered.packages),
        num_files=sum(len(files) for files in rendered.packages.values()),
        build_command=request.build_command(),
    )


def _render(request: Request) -> _Rendered:
    paths = find_specs(request.specs, request.all_specs)
    only = target_named(request.target) if request.target else None
    rendered = _Rendered(num_specs=len(paths))
    jobs: list[tuple[Path, Any, Target]] = []
    owners: dict[str, str] = {}
    for path in paths:
        try:
            ir = _lowered(path)
            targets = [target_named(name) for name in ir.targets]
        except LingenError as error:
            rendered.failures.append(_named(error, path))
            rendered.unread += 1
            continue
        for target in targets:
            name = target.package_name(ir)
            _refuse_duplicate(owners, name, path)
            rendered.produced.add(name)
        if only and only not in targets and request.all_specs:
            continue
        for target in [only] if only else targets:
            try:
                refuse_target(ir.spec, target.name, target in targets)
            except SpecError as error:
                rendered.failures.append(error)
            else:
                jobs.append((path, ir, target))
    if only and not jobs and not rendered.failures:
        raise LingenError(f"{only.name}: no spec lists this target\nNothing was written.")
    results = render_all([(ir, target) for _, ir, target in jobs])
    for (path, ir, target), result in zip(jobs, results, strict=True):
        if isinstance(result, LingenError):
            rendered.failures.append(_named(result, path))
        else:
            rendered.packages[target.package_name(ir)] = result
    return rendered


def _lowered(path: Path) -> Any:
    from lingen.ir import lower
    from lingen.ir.tables import refuse_useless_tables
    from lingen.spec import load_spec

    spec = load_spec(path)
    refuse_useless_tables(spec)
    return lower(spec)


def _named(error: LingenError, path: Path) -> LingenError:
    """The error with the spec it is about; a SpecError names its file already."""
    if isinstance(error, SpecError):
        return error
    named = LingenError(f"{error}\n  spec      {path.as_posix()}")
    named.exit_code = error.exit_code
    return named


def _refuse_duplicate(owners: dict[str, str], name: str, path: Path) -> None:
    """Two specs for one folder; names that differ in case alone are one folder on some systems."""
    first = owners.setdefault(name.casefold(), path.as_posix())
    if first != path.as_posix():
        raise LingenError(
            f"{path.as_posix()}: makes the package {name}, and so does {first}\n"
            "  fix       give one of them another model.name\nNothing was written."
        )


def _combined(failures: Sequence[LingenError]) -> LingenError:
    """All failures as one error. Specs that share a family report its problems once."""
    specs = [failure for failure in failures if isinstance(failure, SpecError)]
    others = list(dict.fromkeys(str(f) for f in failures if not isinstance(f, SpecError)))
    problems = list(dict.fromkeys(problem for spec in specs for problem in spec.problems))
    if not others:
        return SpecError(problems)
    texts = [problem.render() for problem in SpecError(problems).problems] if problems else []
    combined = LingenError("\n".join([*texts, *others, "Nothing was written."]))
    combined.exit_code = max(failure.exit_code for failure in failures)
    return combined
