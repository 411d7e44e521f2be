"""What a target is: a named set of output files and the templates that make them.

Knows nothing of Jinja, disks or formatting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
class DataFile:
    """A file that no template makes: taken as it is.

    path: below the module's folder.  facts: what the manifest says of it beside path and hash.
    """

    path: str
    data: bytes
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Files of one kind of package. Its folder is `ir.package` followed by `package_suffix`.

    files: paths below the folder `module_folder`. outer_files: paths below the package's folder.
    is_distribution: the folder is what pip installs, and the module is a folder of the same name
    inside it; else the folder is the module.
    has_tuned_tables: the module carries the tables that the IR has for this target.
    `manifest.json` and `trace.json` belong to every package and are not listed here.
    """

    name: str
    package_suffix: str
    files: tuple[OutputFile, ...]
    outer_files: tuple[OutputFile, ...] = ()
    is_distribution: bool = False
    has_tuned_tables: bool = False

    def package_name(self, ir: Any) -> str:
        return ir.package + self.package_suffix

    def module_folder(self, ir: Any) -> str:
        """Where the module lies inside the package: empty, or its name and a slash."""
        return f"{self.package_name(ir)}/" if self.is_distribution else ""

    def files_for(self, ir: Any) -> tuple[OutputFile, ...]:
        """The files that this model has, with their paths inside the package."""
        folder = self.module_folder(ir)
        inner = (replace(file, path=folder + file.path) for file in self.files)
        return tuple(file for file in (*self.outer_files, *inner) if file.is_made_for(ir))
