"""A build that dies at any step: every file is whole, check sees it, the next build repairs."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lingen.emit.atomic import write_tree
from lingen.emit.check import check_package
from lingen.emit.disk import is_temporary
from miniature import TinyIR, tiny_files, tree
from test_atomic import stamped

DRIVER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fcntl
from lingen.emit.atomic import write_tree
import test_killed_build

steps = 0

def counted(real, die_at):
    def call(*args, **kwargs):
        global steps
        steps += 1
        if steps == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        for name in ("open", "fchmod", "fsync", "replace", "unlink", "mkdir", "rmdir"):
            setattr(os, name, counted(getattr(os, name), int(line)))
        write_tree(Path(sys.argv[2]), "tiny", test_killed_build.NEW)
        print(steps, flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("killed", flush=True)
"""


def package(size: int, **extra: bytes) -> dict[str, bytes]:
    """A package with modules and with a table that cannot hold a header."""
    files = tiny_files(TinyIR(hidden_size=size))
    manifest = json.loads(files.pop("manifest.json"))
    for name, data in extra.items():
        path = f"tuned/{name}.json"
        files[path] = data
        digest = hashlib.sha256(data).hexdigest()
        manifest["files"][path] = {"sha256": digest, "templates": ["x"]}
    return files | {"manifest.json": stamped(manifest)}


OLD = package(64, kept=b"[1]\n", gone=b"[2]\n")
NEW = package(128, kept=b"[3]\n", new=b"[4]\n")
NEXT = package(256, kept=b"[5]\n")


@pytest.fixture
def run_and_die(tmp_path):
    """A build into tmp_path / "out" that dies before its n-th step; what it said of its end."""
    arguments = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as driver:

        def run(step: int) -> str:
            assert driver.stdin and driver.stdout
            driver.stdin.write(f"{step}\n")
            driver.stdin.flush()
            return driver.stdout.readline().strip()

        yield run


def prepared(out: Path, has_old: bool) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    if has_old:
        write_tree(out, "tiny", OLD)
    return out


@pytest.mark.parametrize("has_old", [True, False], ids=["over an old tree", "into nothing"])
def test_killed_at_any_step_each_file_is_whole_and_the_next_build_repairs(
    tmp_path, run_and_die, has_old
):
    prepared(tmp_path / "out", has_old)
    num_steps = int(run_and_die(0))
    assert num_steps > 25
    num_mixtures = 0
    for step in range(1, num_steps + 1):
        out = prepared(tmp_path / "out", has_old)
        assert run_and_die(step) == "killed"
        found = tree(out / "tiny")
        whole = {path: data for path, data in found.items() if not is_temporary(path)}
        for path, data in whole.items():
            assert data in (OLD.get(path), NEW.get(path), b"an empty folder"), (step, path)
        assert bool(check_package(out, "tiny", NEW)) == (found != NEW)
        num_mixtures += whole not in (OLD, NEW, {})
        # The spec may have changed meanwhile: neither build needs --force.
        later = shutil.copytree(out, tmp_path / "later") if out.exists() else tmp_path / "later"
        write_tree(later, "tiny", NEXT)
        assert tree(later / "tiny") == NEXT, step
        shutil.rmtree(later)
        write_tree(out, "tiny", NEW)
        assert tree(out / "tiny") == NEW, step
    assert num_mixtures > 3
