"""`manifest.json`: what a package was made from, and the hashes by which its files are owned.

A manifest read from disk is untrusted: it names files, and nothing it says leaves the package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import lingen
from lingen.emit.formatter import RUFF_VERSION
from lingen.emit.header import sentence
from lingen.emit.stamp import read_stamped, stamped

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the manifest's own layout; specs/manifest.schema.json describes it."""
_INDENT = 2


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """A finished file and the templates (`templates/…`) that took part in it."""

    path: str
    data: bytes
    templates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordedManifest:
    """What a manifest on disk claims: sha256 by path. `is_pristine`: nobody edited it."""

    hashes: dict[str, str]
    content: str
    found: str

    @property
    def is_pristine(self) -> bool:
        return self.content == self.found


def make_manifest(
    ir: Any, target: str, origins: Sequence[FileOrigin], tuned: Sequence[dict[str, Any]] = ()
) -> bytes:
    """The manifest of a package. It lists every file but itself.

    `tuned`: what is to be said of those files that are tuned tables; their hashes are added.
    """
    hashes = {origin.path: hashlib.sha256(origin.data).hexdigest() for origin in origins}
    facts = {
        "architecture": ir.summary(),
        "files": {
            origin.path: {
                "sha256": hashes[origin.path],
                "templates": list(origin.templates),
            }
            for origin in origins
        },
        "format": FORMAT,
        "formatter": {"name": "ruff", "version": RUFF_VERSION},
        "generated": sentence(ir.spec.header_name),
        "lingen": lingen.__version__,
        "spec": {
            "file": ir.spec.header_name,
            "name": ir.name,
            "resolved_sha256": ir.spec.resolved_hash,
        },
        "target": target,
        "tuned": [{**table, "sha256": hashes[table["file"]]} for table in tuned],
        "weight_map_sha256": ir.weight_map_digest,
    }
    return stamped(facts, _INDENT)


def read_manifest(data: bytes) -> RecordedManifest | None:
    """What manifest bytes from disk claim, or None if they are not lingen's.

    Paths that could leave the package (`..`, absolute, empty parts) are dropped.
    """
    found = read_stamped(data, _INDENT)
    try:
        files = found.facts["files"] if found else None
        hashes = {path: entry["sha256"] for path, entry in files.items() if is_inside(path)}
    except (TypeError, KeyError, AttributeError):
        return None
    return RecordedManifest(hashes, found.content, found.found)


def is_inside(path: str) -> bool:
    """Whether `path` names a file below the folder it is relative to, in its plainest spelling."""
    parts = PurePosixPath(path).parts
    is_plain = "/".join(parts) == path and "\\" not in path and "\0" not in path
    return is_plain and bool(parts) and ".." not in parts and not path.startswith("/")
