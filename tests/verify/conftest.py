"""A copy of a recorded case, free to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damage import GOLDEN


@pytest.fixture
def case(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The case named by the test's parameter."""
    folder = tmp_path / request.param
    shutil.copytree(GOLDEN / request.param, folder)
    return folder
