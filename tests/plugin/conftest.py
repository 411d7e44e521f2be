"""Generated plugins built and installed as users do, with models that need no engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE_ENGINE = Path(__file__).parent / "fake_engine"
MODELS = {
    "bailing_moe_v2_5": "BailingMoeV2_5ForCausalLM",
    "bailing_moe_nextn": "BailingMoeForCausalLMNextN",
}


@dataclass(frozen=True)
class Site:
    """A folder on PYTHONPATH with installed plugins, the fake engine behind it."""

    folder: Path

    def run(
        self, *command: object, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments. No variable of the engine is inherited."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
        path = os.pathsep.join([str(self.folder), str(FAKE_ENGINE)])
        defaults = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(self.folder.parent / "cache")}
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=cwd or self.folder.parent,
            env=inherited | defaults | variables,
            capture_output=True,
            text=True,
        )

    def copy(self, to: Path) -> Site:
        return Site(Path(shutil.copytree(self.folder, to / "site", symlinks=True)))

    def add_plugin(self, name: str, code: str, *classes: str) -> None:
        """Install another plugin by hand. `code`: its module, with a function `register`."""
        package = self.folder / name
        (package / "models").mkdir(parents=True)
        (package / "__init__.py").write_text(code)
        (package / "models" / "__init__.py").touch()
        for one in classes:
            text = f"class {one}:\n    pass\n\n\nEntryClass = {one}\n"
            (package / "models" / f"{one.lower()}.py").write_text(text)
        info = self.folder / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:register\n")


def build_wheel(distribution: Path, scratch: Path) -> Path:
    """The wheel of a generated distribution, built from a copy: checkouts stay clean."""
    source = shutil.copytree(distribution, scratch / distribution.name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run([*command, "--outdir", scratch, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = scratch.glob(f"{distribution.name}-*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of the shipped plugins by package name."""
    found = {}
    for distribution in sorted((ROOT / "generated").glob("*_sglang")):
        scratch = tmp_path_factory.mktemp("wheel")
        found[distribution.name] = build_wheel(distribution, scratch)
    return found


@pytest.fixture(scope="session")
def both(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Both shipped plugins side by side. Tests that change it take a copy."""
    site = Site(tmp_path_factory.mktemp("both") / "site")
    install(site, *wheels.values())
    return site


@pytest.fixture
def flash(wheels: dict[str, Path], tmp_path: Path) -> Site:
    """Ling-2.6-flash's plugin alone; a test may change it."""
    site = Site(tmp_path / "site")
    install(site, wheels["ling_2_6_flash_sglang"])
    return site


def install(site: Site, *wheels: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index", "--no-compile", "--target", site.folder]
    done = subprocess.run([*command, *alone, *wheels], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for models in site.folder.glob("*_sglang/models"):
        for module, name in MODELS.items():
            text = f"class {name}:\n    pass\n\n\nEntryClass = {name}\n"
            (models / f"{module}.py").write_text(text)
