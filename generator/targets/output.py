"""What a target is: a named set of output files and the templates that make them.

Knows nothing of Jinja, disks or formatting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of a package: `path` inside it and the `template` below `templates/`.

    `condition` asks the IR whether this model has the file; None: every model has it.
    """

    path: str
    template: str
    condition: Callable[[Any], bool] | None = None

    def is_made_for(self, ir: Any) -> bool:
        return self.condition is None or self.condition(ir)


@dataclass(frozen=True, slots=True)
class Target:
    """Files of one kind of package. Its folder is `ir.package` followed by `package_suffix`.

    `manifest.json` belongs to every package and is not listed here.
    """

    name: str
    package_suffix: str
    files: tuple[OutputFile, ...]

    def package_name(self, ir: Any) -> str:
        return ir.package + self.package_suffix

    def files_for(self, ir: Any) -> tuple[OutputFile, ...]:
        return tuple(file for file in self.files if file.is_made_for(ir))
