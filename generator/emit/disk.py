"""What stands in a package folder, and what of it is lingen's. Reads only, follows no link.

Knows nothing of how packages are rendered.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lingen.emit.header import Header, can_hold_header, lf, read_header
from lingen.emit.manifest import MANIFEST, RecordedManifest, read_manifest
from lingen.emit.sidecar import TRACE, TRACE_INDENT
from lingen.emit.stamp import Stamped, read_stamped

TEMPORARY_SUFFIX = ".lingen-tmp"
IGNORED_FOLDER = "__pycache__"
DISTRIBUTION = "pyproject.toml"


@dataclass(frozen=True, slots=True)
class DiskFile:
    """A path as found. `data` is None if nothing is there or `obstacle` says what is in the way.

    is_owned: lingen wrote it, edited since or not. is_pristine: and nobody edited it.
    """

    data: bytes | None = None
    obstacle: str | None = None
    is_owned: bool = False
    is_pristine: bool = False

    @property
    def is_absent(self) -> bool:
        return self.data is None and self.obstacle is None


class DiskPackage:
    """A package folder on disk. The folder may be absent. Read once, when first asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def obstacle(self) -> str | None:
        """What stands in place of the package folder, if it is not a folder or nothing."""
        return _obstacle_to_folder(self.folder)

    def file(self, path: str) -> DiskFile:
        """The file at `path` below the folder; a link or a folder there is an obstacle."""
        parent = self.folder
        for part in path.split("/")[:-1]:
            parent = parent / part
            obstacle = _obstacle_to_folder(parent)
            if obstacle:
                return DiskFile(obstacle=f"{parent.name} is {obstacle}")
        found = self.folder / path
        mode = _mode(found)
        if mode is None:
            return DiskFile()
        if not stat.S_ISREG(mode):
            return DiskFile(obstacle=_kind(mode))
        data = found.read_bytes()
        if path == MANIFEST:
            return self._manifest_file(data)
        recorded = hashlib.sha256(lf(data)).hexdigest() in self._pristine_hashes(path)
        stamp = read_stamp(path, data)
        return DiskFile(
            data,
            is_owned=recorded or path in self.recorded_paths or stamp is not None,
            is_pristine=recorded or (stamp is not None and stamp.is_true),
        )

    @cached_property
    def recorded_paths(self) -> frozenset[str]:
        """Files that the manifest lists, or one that an interrupted build was about to write."""
        return frozenset(path for manifest in self._manifests for path in manifest.hashes)

    def paths(self) -> Iterator[str]:
        """Every file and every empty folder below the package, sorted.

        Skipped is what Python's tools leave: `__pycache__`, and in a distribution `build` and
        `*.egg-info`.
        """
        if self.obstacle is None and _mode(self.folder) is not None:
            is_distribution = _mode(self.folder / DISTRIBUTION) is not None
            for path in _paths_below(self.folder, ""):
                if not (is_distribution and _is_left_by_pip(path)):
                    yield path

    def leftovers(self) -> list[str]:
        """Temporary files of a build that was killed."""
        return [path for path in self.paths() if is_temporary(path)]

    def _pristine_hashes(self, path: str) -> set[str]:
        manifests = (manifest for manifest in self._manifests if manifest.is_pristine)
        return {m.hashes[path] for m in manifests if path in m.hashes}

    def _manifest_file(self, data: bytes) -> DiskFile:
        manifest = read_manifest(data)
        if manifest is not None:
            return DiskFile(data, is_owned=True, is_pristine=manifest.is_pristine)
        # Unreadable, as a merge conflict leaves it: the modules beside it say whose it is.
        return DiskFile(data, is_owned=self.has_generated_module)

    @cached_property
    def has_generated_module(self) -> bool:
        """Whether a file directly in the folder bears lingen's header."""
        names = [name for name in sorted(os.listdir(self.folder)) if can_hold_header(name)]
        return any(self.file(name).is_owned for name in names)

    @cached_property
    def _manifests(self) -> tuple[RecordedManifest, ...]:
        if self.obstacle or _mode(self.folder) is None:
            return ()
        names = [MANIFEST]
        names += [name for name in sorted(os.listdir(self.folder)) if _is_pending_manifest(name)]
        files = [self.folder / name for name in names]
        found = [read_manifest(f.read_bytes()) for f in files if stat.S_ISREG(_mode(f) or 0)]
        return tuple(manifest for manifest in found if manifest is not None)


def read_stamp(path: str, data: bytes) -> Header | Stamped | None:
    """What a module or the trace says about itself, which shows that lingen wrote it."""
    return read_stamped(data, TRACE_INDENT) if path == TRACE else read_header(data)


def temporary_name(name: str, data: bytes) -> str:
    """Name under which `data` waits beside `name` until it takes its place."""
    return f".{name}.{hashlib.sha256(data).hexdigest()[:8]}{TEMPORARY_SUFFIX}"


def is_temporary(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def looks_generated(folder: Path) -> bool:
    """Whether lingen made this folder: it holds a manifest or a module that says so."""
    package = DiskPackage(folder)
    if package.obstacle or _mode(folder) is None:
        return False
    return package.file(MANIFEST).is_owned or package.has_generated_module


def _is_left_by_pip(path: str) -> bool:
    top, _, inside = path.partition("/")
    return top == "build" or (bool(inside) and top.endswith(".egg-info"))


def _is_pending_manifest(name: str) -> bool:
    return is_temporary(name) and name.startswith(f".{MANIFEST}.")


def _paths_below(folder: Path, prefix: str) -> Iterator[str]:
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    if not entries and prefix:
        yield prefix.rstrip("/")
    for entry in entries:
        if entry.name == IGNORED_FOLDER:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _paths_below(folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name


def _obstacle_to_folder(path: Path) -> str | None:
    mode = _mode(path)
    return None if mode is None or stat.S_ISDIR(mode) else _kind(mode)


def _mode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "not a regular file")
