"""The wheel of a generated plugin: everything is in it, and the engine finds its entry point."""

from __future__ import annotations

import configparser
import zipfile
from pathlib import Path

import pytest
from lingen import __version__

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.name for path in (ROOT / "generated").glob("*_sglang"))


@pytest.fixture(params=PLUGINS)
def plugin(request) -> str:
    return request.param


def test_the_shipped_plugins_are_those_of_flash_and_1t():
    assert PLUGINS == ["ling_2_6_1t_sglang", "ling_2_6_flash_sglang"]


def test_every_file_of_the_module_is_in_the_wheel(plugin, wheels):
    module = ROOT / "generated" / plugin / plugin
    files = [path for path in module.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    expected = {f"{plugin}/{path.relative_to(module).as_posix()}" for path in files}
    with zipfile.ZipFile(wheels[plugin]) as wheel:
        shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert all(wheel.read(name) == (module.parent / name).read_bytes() for name in shipped)
    assert shipped == expected


def test_the_wheel_names_the_plugin_its_commands_and_the_pinned_engine(plugin, wheels):
    stem = plugin.replace("_", "-")
    info = f"{plugin}-{__version__}.dist-info"
    with zipfile.ZipFile(wheels[plugin]) as wheel:
        points = configparser.ConfigParser()
        points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
        metadata = wheel.read(f"{info}/METADATA").decode()
    assert {section: dict(points[section]) for section in points.sections()} == {
        "console_scripts": {
            f"{stem}-check": f"{plugin}.check:main",
            f"{stem}-launch": f"{plugin}.launch:main",
        },
        "sglang.srt.plugins": {plugin: f"{plugin}.plugin:register"},
    }
    assert "\nRequires-Dist: sglang==0.5.23\n" in metadata
    assert f"\nName: {stem}\n" in metadata or f"\nName: {plugin}\n" in metadata


def test_nothing_heavy_is_imported_with_the_plugins_own_modules(both):
    modules = ", ".join(f"ling_2_6_flash_sglang.{name}" for name in ("check", "launch", "plugin"))
    code = f"import sys, {modules}; print(sys.modules.keys() & {{'sglang', 'torch', 'triton'}})"
    assert both.run("-c", code).stdout == "set()\n"
