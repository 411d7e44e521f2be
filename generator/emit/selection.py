"""Which spec files a command means.

Knows nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lingen.errors import LingenError

SPECS_FOLDER = Path("specs")


class NoSuchSpec(LingenError):
    """A command named a spec that is not there, or none at all."""


def find_specs(names: Sequence[str], all_specs: bool) -> list[Path]:
    """The spec files of a command, each once, in the order given; with `all_specs` sorted.

    A name is a path, or the bare name of a spec in `specs/` here or of a shipped one. `all_specs`
    means `specs/*.yaml` here, or the shipped specs where there is no folder `specs`. Raises
    NoSuchSpec, with every bad name at once.
    """
    if all_specs and names:
        raise NoSuchSpec(f"--all already means every spec; found beside it: {' '.join(names)}")
    if all_specs:
        return _specs_in(SPECS_FOLDER if SPECS_FOLDER.is_dir() else shipped_folder())
    if not names:
        raise NoSuchSpec("no spec given\n  expected  SPEC… or --all")
    found = [_spec_or_reason(name) for name in names]
    reasons = [reason for reason in found if isinstance(reason, str)]
    if reasons:
        raise NoSuchSpec("\n".join([*reasons, "Nothing was written."]))
    paths = [path for path in found if isinstance(path, Path)]
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


def shipped_folder() -> Path:
    """The folder of the specs that come with lingen."""
    from importlib import resources

    return Path(str(resources.files("lingen.specs")))


def _specs_in(folder: Path) -> list[Path]:
    misnamed = sorted(folder.glob("*.yml"))
    if misnamed:
        raise NoSuchSpec(f"{misnamed[0].as_posix()}: a spec's name ends in .yaml")
    specs = sorted(path for path in folder.glob("*.yaml") if path.is_file())
    if not specs:
        raise NoSuchSpec(f"{folder.as_posix()}: no spec (*.yaml) in this folder")
    return specs


def _spec_or_reason(name: str) -> Path | str:
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        return f"{name}: a folder\n  expected  a spec file, or --all"
    if path.exists():
        return path  # reading it says what it is
    here = SPECS_FOLDER / f"{name}.yaml"
    if "/" not in name and here.is_file():
        return here
    shipped = shipped_folder() / f"{name}.yaml"
    if "/" not in name and shipped.is_file():
        return shipped
    return f"{name}: no such spec{_nearest(path)}"


def _nearest(path: Path) -> str:
    import difflib

    beside = {other.stem: other.as_posix() for other in sorted(path.parent.glob("*.yaml"))}
    shipped = {other.stem: other.stem for other in sorted(shipped_folder().glob("*.yaml"))}
    spellings = shipped | beside
    stem = path.name.removesuffix(".yaml")
    close = difflib.get_close_matches(stem, spellings, n=1, cutoff=0.7)
    return f"\n  fix       {spellings[close[0]]}" if close else ""
