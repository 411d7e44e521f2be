"""Rewrites tests/bad_specs/*/expected.txt from what the loader says now: read the diff after it."""

import os
from pathlib import Path

from lingen.errors import SpecError
from lingen.spec import load_spec

BAD_SPECS = Path(__file__).parent.parent / "bad_specs"


def render_case(folder: Path) -> str:
    """The whole message for a case, its files named relative to the folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        load_spec("spec.yaml")
    except SpecError as error:
        return error.render() + "\n"
    finally:
        os.chdir(before)
    raise AssertionError(f"{folder.name}/spec.yaml is a good spec")


if __name__ == "__main__":
    for case in sorted(BAD_SPECS.iterdir()):
        (case / "expected.txt").write_text(render_case(case), encoding="utf-8")
