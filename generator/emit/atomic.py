"""Writes packages so that every file is whole at any moment, and refuses to lose a hand edit.

All packages are planned first, then every new file is staged beside its place, then renamed; the
manifest comes last. Knows nothing of how files are rendered.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lingen.emit.difference import compare
from lingen.emit.disk import DiskFile, DiskPackage, is_temporary, temporary_name
from lingen.emit.manifest import MANIFEST, is_inside
from lingen.errors import LingenError

PackageFiles = tuple[str, Mapping[str, bytes]]
"""A package's folder name and its files by path."""


class RefusedOverwrite(LingenError):
    """The output folder holds something that a build would lose, or must not write through."""

    exit_code = 1


class OutputError(LingenError):
    """The output folder cannot be read or written."""


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one file: `written`, `unchanged` or `removed`. `path` starts with --out."""

    path: str
    status: Literal["written", "unchanged", "removed"]


@dataclass(slots=True)
class _Plan:
    """What one package needs. Paths are inside the package."""

    name: str
    folder: Path
    files: Mapping[str, bytes]
    old: dict[str, bytes | None] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)
    to_write: list[str] = field(default_factory=list)
    to_remove: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def paths(self) -> list[str]:
        """Every path of the plan in the order of its writing: sorted, the manifest last."""
        paths = {*self.files, *self.to_remove}
        return sorted(paths, key=lambda path: (path == MANIFEST, path))


def write_tree(
    out_dir: Path, package: str, files: Mapping[str, bytes], force: bool = False
) -> list[FileResult]:
    """`write_packages` for one package."""
    return write_packages(out_dir, [(package, files)], force)


def write_packages(
    out_dir: Path, packages: Sequence[PackageFiles], force: bool = False
) -> list[FileResult]:
    """Bring the folders of `packages` below `out_dir` to exactly these files.

    Replaced and removed are only files that lingen wrote and nobody edited, with `force` edited
    ones too; other files in a package stay. Killed at any moment, each file is whole, old or new,
    and the next call repairs the rest. A second call on the same folder waits for the first.

    Raises:
        RefusedOverwrite: a hand edit, someone else's file, or a link is in the way; no package
            was touched.
            Also where a file changed while the build ran: what was replaced is put back.
        OutputError: the folder cannot be written; what was replaced is put back, and the message
            says so where that failed too.
    """
    for name, files in packages:
        bad = [path for path in (name, *files) if not is_inside(path) or is_temporary(path)]
        assert not bad, f"output paths outside their package: {bad}"
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with _exclusive(out_dir):
            plans = [_plan(out_dir, name, files, force) for name, files in packages]
            refusals = [text for plan in plans for text in plan.refusals]
            if refusals:
                raise RefusedOverwrite("\n".join([*refusals, "Nothing was written."]))
            _stage(plans)
            return _commit_all(out_dir, plans)
    except OSError as error:
        raise _output_error(error, out_dir) from error


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder itself: no lock file, and a killed process leaves none."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems have no locks; building there alone is still fine.
        with _tolerating(errno.ENOLCK, errno.ENOTSUP):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _tolerating(*codes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in codes:
            raise


def _plan(out_dir: Path, name: str, files: Mapping[str, bytes], force: bool) -> _Plan:
    disk = DiskPackage(out_dir / name)
    plan = _Plan(name, out_dir / name, files)
    if disk.obstacle:
        plan.refusals.append(f"{plan.folder.as_posix()}: {disk.obstacle}, not written through")
        return plan
    for path in sorted({*files, *disk.recorded_paths}):
        found = disk.file(path)
        plan.old[path] = found.data
        refusal = _why_not_replaced(plan.folder / path, found, files.get(path), force)
        if refusal:
            plan.refusals.append(refusal)
        elif path not in files:
            plan.to_remove += [] if found.is_absent else [path]
        elif found.data == files[path]:
            plan.unchanged.append(path)
        else:
            plan.to_write.append(path)
    return plan


def _why_not_replaced(path: Path, found: DiskFile, wanted: bytes | None, force: bool) -> str | None:
    """The reason why `found` must stay; `wanted` None: it would be removed."""
    shown = path.as_posix()
    if found.obstacle:
        return f"{shown}: {found.obstacle}, not written through"
    if found.is_absent or found.data == wanted or found.is_pristine:
        return None
    if not found.is_owned:
        return f"{shown}: not written by lingen\n  fix       move it away, or give another --out"
    if force:
        return None
    diff = compare(shown, found.data or b"", wanted or b"").text
    return f"{shown}: edited by hand; add --force to drop the edit\n{diff}".rstrip("\n")


def _stage(plans: Sequence[_Plan]) -> None:
    """Put every new file beside its place. On failure the folders are as they were."""
    made_folders: list[Path] = []
    staged: list[Path] = []
    try:
        for plan in plans:
            for path in plan.to_write:
                target = plan.folder / path
                _make_folders(target.parent, made_folders)
                staged.append(_temporary(target, plan.files[path]))
                _write_new(staged[-1], plan.files[path])
    except BaseException:
        with contextlib.suppress(OSError):
            for temporary in staged:
                temporary.unlink(missing_ok=True)
            for folder in reversed(made_folders):
                folder.rmdir()
        raise


Replaced = list[tuple[Path, bytes | None]]
"""Files that a build changed, in order, with what they held before; None: they were not there."""


def _commit_all(out_dir: Path, plans: Sequence[_Plan]) -> list[FileResult]:
    """Commit every package; when one cannot be, put back what was replaced."""
    replaced: Replaced = []
    try:
        return [result for plan in plans for result in _commit(out_dir, plan, replaced)]
    except (OSError, RefusedOverwrite) as error:
        try:
            _put_back(replaced)
            for plan in plans:
                _clean(plan.folder)
        except OSError:
            done = ", ".join(path.as_posix() for path, _ in replaced)
            raise OutputError(f"{error}\nalready new: {done}\nRun `lingen build` again.") from error
        raise


def _put_back(replaced: Replaced) -> None:
    for target, data in reversed(replaced):
        if data is None:
            target.unlink(missing_ok=True)
            continue
        temporary = _temporary(target, data)
        _write_new(temporary, data)
        os.replace(temporary, target)


def _refuse_changed(target: Path, planned: bytes | None) -> None:
    """Someone may have edited the file since the build looked at it."""
    if (target.read_bytes() if target.is_file() else None) != planned:
        place = target.as_posix()
        raise RefusedOverwrite(f"{place}: changed while the build ran\nNothing was written.")


def _commit(out_dir: Path, plan: _Plan, replaced: Replaced) -> list[FileResult]:
    """Rename and remove; the manifest last, so that it never owns less than is there."""
    results = []
    folders = {plan.folder, out_dir}
    for path in plan.paths():
        target = plan.folder / path
        status: Literal["written", "unchanged", "removed"] = "unchanged"
        if path not in plan.unchanged:
            _refuse_changed(target, plan.old[path])
            replaced.append((target, plan.old[path]))
        if path in plan.to_remove:
            target.unlink()
            status = "removed"
        elif path in plan.to_write:
            if path == MANIFEST:
                _sync_folders(folders)
            os.replace(_temporary(target, plan.files[path]), target)
            status = "written"
        folders.add(target.parent)
        results.append(FileResult(target.as_posix(), status))
    if plan.to_write or plan.to_remove:
        _sync_folders(folders)
    _clean(plan.folder)
    for folder in sorted({(plan.folder / path).parent for path in plan.to_remove}, reverse=True):
        _remove_if_empty(folder, plan.folder)
    return results


def _temporary(target: Path, data: bytes) -> Path:
    return target.with_name(temporary_name(target.name, data))


def _write_new(path: Path, data: bytes) -> None:
    """Create `path`, readable by all whatever the umask, and wait until it is on the disk.

    What a killed build left under this name is replaced.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _clean(folder: Path) -> None:
    """Remove what killed builds left; until now their manifests told whose the new files were."""
    for path in DiskPackage(folder).leftovers():
        (folder / path).unlink()


def _make_folders(folder: Path, made: list[Path]) -> None:
    if not folder.is_dir():
        _make_folders(folder.parent, made)
        folder.mkdir(exist_ok=True)
        made.append(folder)


def _remove_if_empty(folder: Path, package: Path) -> None:
    while folder != package and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _sync_folders(folders: set[Path]) -> None:
    for folder in sorted(folders):
        if folder.is_dir():
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _output_error(error: OSError, out_dir: Path) -> OutputError:
    place = Path(os.fsdecode(error.filename2 or error.filename or out_dir))
    place = place.parent if is_temporary(place.name) else place
    reason = error.strerror or error
    return OutputError(f"{place.as_posix()}: cannot write the output: {reason}")
