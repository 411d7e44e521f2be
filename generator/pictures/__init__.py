"""Pictures of a model as SVG: layers, experts, and bytes per request.

Reads the IR and draws; the same IR gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from lingen.ir import lower
from lingen.pictures.model import picture
from lingen.spec import ModelSpec

__all__ = ["draw", "picture", "write_picture"]


def draw(spec: ModelSpec, output: str) -> None:
    """Write the picture of a model to a file, whole or not at all; `-` prints it.

    An existing file is replaced. LingenError: the file cannot be written.
    """
    write_picture(picture(lower(spec)), output)


def write_picture(svg: str, output: str) -> None:
    """To a file, whole or not at all; `-` prints it. LingenError: it cannot be written."""
    if output == "-":
        print(svg, end="")
        return
    from lingen.hf.output import write_spec

    place = Path(output)
    write_spec(place, svg, force=True)
    print(f"written   {place.as_posix()}")
