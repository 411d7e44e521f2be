"""The CPU environment that runs the real SGLang engine: built once, cached, never changed after.

    python tests/sglang/environment.py      prints the path of its Python

The environment lies in `$LINGEN_CACHE` (default `~/.cache/lingen`), in a folder named after a hash
of everything that goes into it. It is built under a lock and counts only once its last file, a
marker, is written: a build that was cut short is removed and done again. Progress goes to stderr.
Exits 3 with one clear message if something that it needs is missing.

What a test adds (the plugin under test, the CPU platform) goes into a folder of its own on
PYTHONPATH: see `overlay.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
OPERATORS = HERE / "torchvision_operators.py"
PYTHON_VERSION = (3, 11)  # of the recorded pins
NEEDED_BYTES = 4 * 1024**3  # 2.6 GB installed, and what pip unpacks on the way
READY = "ready"  # the marker's name

CHECK = """
import torch
if torch.version.cuda is not None:
    raise SystemExit(f"torch {torch.__version__} is a CUDA build; this needs a CPU build")
import torchvision, triton, transformers, sglang
print(f"sglang {sglang.__version__}, torch {torch.__version__}, triton {triton.__version__}")
"""


class Missing(Exception):
    """The environment cannot be built; the message says what is missing and what to do."""


def cache_folder() -> Path:
    """Where environments and the engine's lock lie: `$LINGEN_CACHE`, else `~/.cache/lingen`."""
    return Path(os.environ.get("LINGEN_CACHE") or "~/.cache/lingen").expanduser().absolute()


def pins() -> list[str]:
    """The requirements, sorted, without comments."""
    lines = (line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines())
    return sorted(line for line in lines if line)


def folder() -> Path:
    """The environment's folder: its name is a hash of pins, Python version, machine and stub."""
    content = hashlib.sha256()
    for part in (*pins(), str(PYTHON_VERSION), platform.machine(), OPERATORS.read_text()):
        content.update(part.encode() + b"\0")
    return cache_folder() / f"sglang-{content.hexdigest()[:12]}"


def python() -> Path:
    """The environment's Python; builds the environment if it is not there (about 2 minutes).

    Raises `Missing` if it cannot be built.
    """
    environment = folder()
    with locked(environment.with_suffix(".lock"), "another build of the SGLang environment"):
        if not (environment / READY).is_file():
            shutil.rmtree(environment, ignore_errors=True)
            build(environment)
    return environment / "bin" / "python"


def build(environment: Path) -> None:
    started = time.monotonic()
    base = base_python()
    environment.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(environment.parent).free
    if free < NEEDED_BYTES:
        raise Missing(
            f"{environment.parent} has {free / 1e9:.1f} GB free, the SGLang environment needs "
            f"{NEEDED_BYTES / 1e9:.1f} GB: free some, or set LINGEN_CACHE to another folder"
        )
    say(f"building {environment} (about 2.6 GB, once)")
    run([base, "-m", "venv", environment], "make a virtual environment")
    inside = environment / "bin" / "python"
    say(f"installing {len(pins())} packages of {REQUIREMENTS.name}")
    run(
        [*pip_install(inside), "--progress-bar", "off", "-r", REQUIREMENTS],
        "install the packages. torch must come from an index with CPU builds, for example\n"
        "  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test-sglang",
    )
    (site_packages,) = environment.glob("lib/python*/site-packages")
    shutil.copy(OPERATORS, site_packages)
    (site_packages / f"{OPERATORS.stem}.pth").write_text(f"import {OPERATORS.stem}\n")
    say("checking that it imports")
    versions = run([inside, "-c", CHECK], "import the engine")
    (environment / READY).write_text(versions)
    say(f"built in {time.monotonic() - started:.0f} s: {versions.strip()}")


def pip_install(interpreter: Path) -> list[object]:
    """The start of a command that installs exactly what it names."""
    return [interpreter, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]


def base_python() -> str:
    """A Python of the pinned version: the one that runs this, else `python3.x` of the PATH."""
    if sys.version_info[:2] == PYTHON_VERSION:
        return sys.executable
    name = "python" + ".".join(map(str, PYTHON_VERSION))
    found = shutil.which(name)
    if found is None:
        raise Missing(
            f"the SGLang environment needs {name} (its packages are pinned for that version), "
            f"and there is none on PATH; this is Python {platform.python_version()}"
        )
    return found


def run(command: list[object], purpose: str) -> str:
    """The command's output; `Missing` with the output's end if it fails."""
    result = subprocess.run(
        [str(part) for part in command],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise Missing(f"{tail}\n\nThe SGLang environment could not {purpose}")
    return result.stdout


def clean_environment() -> dict[str, str]:
    """The environment variables without those that lead Python to packages from elsewhere."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return kept | {"PYTHONNOUSERSITE": "1"}


@contextlib.contextmanager
def locked(path: Path, holder: str) -> Iterator[None]:
    """Holds a lock that is free again when its holder ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for {holder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    print(f"sglang environment: {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        print(python())
    except Missing as error:
        say(f"{error}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
