"""The launcher's folder of tuned tables: the engine's and ours, and the engine's left as it was."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

FLASH = "ling_2_6_flash_sglang"
OURS = {"triton_3_5_1/both.json": "ours", "triton_3_6_0/ours.json": "{}"}
ENGINES = {
    "triton_3_5_1/both.json": "engine's",
    "triton_3_5_1/engine.json": "{}",
    "triton_3_8_0/both.json": "engine's newer",
}
WRITE = f"from {FLASH} import tables; print(tables.write_tables(tables.find_tables()))"


def fill(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def tree(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@pytest.fixture
def site(flash):
    """The plugin and an engine, each with tables."""
    import shutil

    own = flash.folder / FLASH / "tuned" / "configs"
    shutil.rmtree(own, ignore_errors=True)
    fill(own, OURS)
    engine = flash.folder / "sglang"
    fill(engine, {"__init__.py": "raise RuntimeError('imported')\n"})
    configs = engine / "srt/layers/moe/moe_runner/triton_utils/configs"
    fill(configs, {**ENGINES, "README.md": "", "other_sm_90.json": "{}"})
    return flash


def written(site, **variables: str) -> Path:
    done = site.run("-c", WRITE, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return Path(done.stdout.strip())


def test_ours_stand_before_the_engines_of_the_same_name_and_version(site):
    assert tree(written(site)) == {
        f"configs/{path}": text for path, text in (ENGINES | OURS).items()
    }


def test_the_engines_folder_is_left_as_it_was_and_is_not_imported(site):
    before = tree(site.folder / "sglang")
    written(site)
    assert tree(site.folder / "sglang") == before


def test_the_folder_is_below_the_users_cache_and_named_after_its_content(site):
    folder = written(site)
    assert folder.parent == site.folder.parent / "cache" / FLASH
    home = site.folder.parent / "home"
    elsewhere = written(site, HOME=str(home), XDG_CACHE_HOME="")
    assert elsewhere == home / ".cache" / FLASH / folder.name
    assert tree(elsewhere) == tree(folder)


def test_other_tables_make_another_folder(site):
    first = written(site)
    fill(site.folder / FLASH / "tuned/configs", {"triton_3_6_0/ours.json": '{"1": {}}'})
    second = written(site)
    assert second != first
    assert tree(first)["configs/triton_3_6_0/ours.json"] == "{}"
    assert sorted(os.listdir(first.parent)) == sorted([first.name, second.name])


def test_a_second_start_changes_nothing(site):
    folder = written(site)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert written(site) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_folder_that_was_changed_is_made_anew(site):
    folder = written(site)
    whole = tree(folder)
    changes = (
        lambda: (folder / "configs/triton_3_6_0/ours.json").write_text("cut"),
        lambda: (folder / "configs/triton_3_6_0/ours.json").unlink(),
        lambda: (folder / "configs/triton_3_6_0/more.json").write_text("{}"),
    )
    for change in changes:
        change()
        assert tree(folder) != whole
        assert written(site) == folder
        assert tree(folder) == whole
    assert os.listdir(folder.parent) == [folder.name]


def test_a_copy_that_fails_leaves_no_folder(site):
    broken = f"import shutil; shutil.copyfile = lambda *_: 1 / 0; {WRITE}"
    assert "ZeroDivisionError" in site.run("-c", broken).stderr
    assert os.listdir(site.folder.parent / "cache" / FLASH) == []


def test_the_faster_of_two_launchers_wins_and_both_go_on(site):
    # The other one finishes while this one copies.
    racing = f"""
import os, shutil
from {FLASH} import tables
rename = os.rename
def later(new, folder):
    shutil.copytree(new, folder)
    rename(new, folder)
os.rename = later
print(tables.write_tables(tables.find_tables()))
"""
    done = site.run("-c", racing)
    assert (done.returncode, done.stderr) == (0, "")
    folder = Path(done.stdout.strip())
    assert tree(folder) == {f"configs/{path}": text for path, text in (ENGINES | OURS).items()}
    assert os.listdir(folder.parent) == [folder.name]


def test_without_tables_the_folder_that_the_engine_lists_is_there(site):
    import shutil

    shutil.rmtree(site.folder / FLASH / "tuned")
    shutil.rmtree(site.folder / "sglang")
    folder = written(site, PYTHONPATH=str(site.folder))
    assert [path.name for path in folder.iterdir()] == ["configs"]
    assert folder.name == f"tables-{hashlib.sha256().hexdigest()[:16]}"


def test_a_cache_that_cannot_be_written_is_one_line(site):
    (site.folder / "sglang" / "__init__.py").write_text("__version__ = '0.5.23'\n")
    blocked = site.folder.parent / "file"
    blocked.touch()
    (site.folder / FLASH / "check.py").write_text("")
    done = site.run("-m", f"{FLASH}.launch", "M", XDG_CACHE_HOME=str(blocked))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{FLASH}: tuned tables: ")
    assert done.stderr.count("\n") == 1
