"""Which known name a person may have meant, and which specs there are to name.

Knows nothing of what the names stand for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

MAX_LISTED_FILES = 1000
# A name beyond this length is no typing mistake, and comparing it is slow.
MAX_COMPARED_CHARACTERS = 100


def nearest_names(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Up to `count` of the known names that look like `name`, best first."""
    from difflib import get_close_matches

    wanted = name.lower().replace("-", "_").replace(" ", "_")
    if len(wanted) > MAX_COMPARED_CHARACTERS:
        return []
    normal = {candidate.lower().replace("-", "_"): candidate for candidate in sorted(known)}
    return [normal[match] for match in get_close_matches(wanted, normal, n=count, cutoff=0.6)]


def specs_in(folder: Path) -> list[str]:
    """Names of the specs in `folder` and of the families under it, as `extends` writes them."""
    return [
        *_yaml_stems(folder),
        *(f"families/{stem}" for stem in _yaml_stems(folder / "families")),
    ]


def _yaml_stems(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as listing:
            names = [entry.name for entry in islice(listing, MAX_LISTED_FILES)]
    except (OSError, ValueError):
        return []
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))
