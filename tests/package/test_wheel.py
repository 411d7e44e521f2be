"""The wheel, in an empty environment without torch, away from this tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN_SPEC = """\
extends: families/bailing-moe-v2.5

model:
  name: my-model
  hidden_size: 512
  num_hidden_layers: 10
  num_attention_heads: 8
  eos_token_id: 1
attention:
  lightning:
    group_norm_size: 4
mlp:
  intermediate_size: 1024
  first_k_dense_replace: 1
moe:
  moe_intermediate_size: 128
  moe_shared_expert_intermediate_size: 128
"""


def run(*command: object, cwd: Path) -> str:
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that this tree gets no build folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("generator", "templates", "specs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=source
    )  # fmt: skip
    [built] = folder.glob("*.whl")
    return built


def test_every_module_template_and_spec_is_in_the_wheel(wheel):
    expected = set()
    for folder, package in (
        ("generator", "lingen"),
        ("templates", "lingen/templates"),
        ("specs", "lingen/specs"),
    ):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".j2", ".yaml", ".json"):
                expected.add(f"{package}/{file.relative_to(ROOT / folder).as_posix()}")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert shipped == expected


def test_it_builds_a_users_own_spec_without_torch(wheel, tmp_path):
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path,
    )  # fmt: skip
    assert "torch" not in run(python, "-m", "pip", "list", cwd=tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.yaml").write_text(OWN_SPEC)
    lingen = environment / "bin" / "lingen"
    built = run(lingen, "build", "mine.yaml", cwd=work)
    assert "written   generated/my_model/model.py" in built.splitlines()
    assert "Up to date" in run(lingen, "check", "mine.yaml", cwd=work)
    shipped = run(lingen, "build", "ling-2.6-1t", "--out", "shipped", cwd=work)
    assert "written   shipped/ling_2_6_1t/model.py" in shipped.splitlines()
    here = (ROOT / "generated" / "ling_2_6_1t" / "model.py").read_bytes()
    assert (work / "shipped" / "ling_2_6_1t" / "model.py").read_bytes() == here
    refused = subprocess.run(
        [lingen, "verify", ROOT / "tests" / "golden" / "bias-tiny"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 3
    assert "torch and safetensors" in refused.stderr
    assert "Traceback" not in refused.stderr
