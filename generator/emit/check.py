"""Compares packages on disk with what a build would write, in both directions. Writes nothing.

Knows nothing of how files are rendered or differences are printed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lingen.emit.difference import LINE_ENDINGS_ONLY, compare
from lingen.emit.disk import (
    IGNORED_FOLDER,
    DiskFile,
    DiskPackage,
    is_temporary,
    looks_generated,
    read_stamp,
)
from lingen.emit.manifest import MANIFEST, read_manifest
from lingen.emit.sidecar import TRACE

Kind = Literal["changed", "missing", "orphan", "edited"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that is not as a build would leave it.

    path: starts with --out. kind: `changed` as lingen wrote it once; `edited` since by hand;
    `missing`; `orphan`: there, and not produced. diff: unified, from disk to generated, or words
    where there is no diff to show; never empty. message: one line for people. line: the first on
    disk that differs, from 1. repair: what puts it right: `build`, `build --force` (`force`), or
    only a person (`hand`).
    """

    path: str
    kind: Kind
    diff: str
    message: str
    line: int = 1
    repair: Literal["build", "force", "hand"] = "build"


def check_package(out_dir: Path, package: str, files: Mapping[str, bytes]) -> list[Difference]:
    """Every difference of one package folder, sorted by path; empty if there is none."""
    folder = out_dir / package
    disk = DiskPackage(folder)
    if disk.obstacle:
        text = f"{disk.obstacle} stands in place of the package"
        return [Difference(folder.as_posix(), "edited", text, text, repair="hand")]
    found = [_compared(folder / path, disk.file(path), files[path]) for path in files]
    orphans = [_orphan(disk, path) for path in disk.paths() if path not in files]
    return sorted(filter(None, [*found, *orphans]), key=lambda difference: difference.path)


def check_strays(out_dir: Path, produced: Collection[str], complete: bool) -> list[Difference]:
    """What stands directly in `out_dir` and no spec produces, given the `produced` package names.

    Files are strays; folders are if lingen made them. `complete` False: some specs could not be
    read, so which folders nobody produces is not known, and only files are reported.
    """
    if not out_dir.is_dir():
        return []
    strays = []
    for name in sorted(os.listdir(out_dir)):
        path = out_dir / name
        if name in produced or name == IGNORED_FOLDER:
            continue
        if not path.is_dir() or path.is_symlink():
            text = "not produced by any spec"
        elif complete and looks_generated(path):
            text = "a package that no spec produces"
        else:
            continue
        strays.append(Difference(path.as_posix(), "orphan", text, text, repair="hand"))
    return strays


def _compared(path: Path, found: DiskFile, wanted: bytes) -> Difference | None:
    shown = path.as_posix()
    if found.data == wanted:
        return None
    if found.obstacle:
        text = f"{found.obstacle} in place of the file"
        return Difference(shown, "edited", text, text, repair="hand")
    difference = compare(shown, found.data or b"", wanted)
    if found.data is None:
        return Difference(shown, "missing", difference.text, "missing")
    if difference.text == LINE_ENDINGS_ONLY:
        message = f"differs in {LINE_ENDINGS_ONLY}"
        return Difference(shown, "changed", LINE_ENDINGS_ONLY, message)
    counts = f"(+{difference.added} -{difference.removed})"
    if found.is_pristine:
        message = f"differs from what `lingen build` would write {counts}"
        return Difference(shown, "changed", difference.text, message, difference.line)
    message = f"{_edit(path.name, found)} {counts}"
    repair = "force" if found.is_owned else "hand"
    return Difference(shown, "edited", difference.text, message, difference.line, repair)


def _edit(name: str, found: DiskFile) -> str:
    """How one can tell that a file was edited by hand."""
    if not found.is_owned:
        return "not written by lingen"
    data = found.data or b""
    stamp = read_manifest(data) if name == MANIFEST else read_stamp(name, data)
    if stamp is None:
        return "edited by hand"
    place = "recorded" if name in (MANIFEST, TRACE) else "in header"
    return f"edited by hand (content hash {stamp.content} {place}, {stamp.found} found)"


def _orphan(disk: DiskPackage, path: str) -> Difference:
    shown = (disk.folder / path).as_posix()
    if is_temporary(path):
        text = "left by a build that was interrupted"
        return Difference(shown, "orphan", text, text)
    found = disk.file(path)
    if path not in disk.recorded_paths or found.data is None:
        text = "not produced by lingen"
        return Difference(shown, "orphan", text, text, repair="hand")
    diff = compare(shown, found.data, b"").text if found.data else "no longer produced"
    if found.is_pristine:
        return Difference(shown, "orphan", diff, "no longer produced")
    message = "no longer produced, and edited by hand"
    return Difference(shown, "orphan", diff, message, repair="force")
