"""`python -m PLUGIN.check`: exit 1 and one line that says why other classes would be served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

PLUGIN = "ling_2_6_flash_sglang"
OTHER = "ling_2_6_1t_sglang"
MODEL = "BailingMoeV2_5ForCausalLM"
CHECK = ("-m", f"{PLUGIN}.check")
REGISTER = """
def register():
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.register(__name__ + ".models", overwrite=True, strict=True)
"""


def refusal(done) -> str:
    """The one line of a check that failed, without the plugin's name in front."""
    assert (done.returncode, done.stdout) == (1, ""), done
    name, _, text = done.stderr.partition(": ")
    assert name == PLUGIN
    assert text.endswith("\n") and text.count("\n") == 1
    return text[:-1]


def test_an_installed_plugin_on_the_pinned_engine_passes(flash):
    done = flash.run(*CHECK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"{PLUGIN}: SGLang 0.5.23 serves {MODEL} and BailingMoeForCausalLMNextN from this package\n"
    )


@pytest.mark.parametrize("module", ["plugin.py", "models/bailing_moe_v2_5.py", "__init__.py"])
def test_a_plugin_whose_import_raises_is_named_with_the_reason(flash, module):
    # The check itself is in the package: what breaks must break in the engine's way in.
    broken = flash.folder / PLUGIN / module
    guard = "import sys\nif 'sglang' in sys.modules:\n    raise ValueError('no\\nluck')\n"
    broken.write_text(guard if module != "__init__.py" else "")
    if module == "__init__.py":
        (flash.folder / PLUGIN / "plugin.py").unlink()
    found = refusal(flash.run(*CHECK))
    reason = "ValueError: no luck" if module != "__init__.py" else "ModuleNotFoundError: No module"
    assert found.startswith(f"Failed to load plugin {PLUGIN}: {reason}")


def test_another_plugin_that_fails_is_named(flash):
    flash.add_plugin("unlucky", "raise RuntimeError('gone')\n")
    assert refusal(flash.run(*CHECK)) == "Failed to load plugin unlucky: RuntimeError: gone"
    assert flash.run(*CHECK, SGLANG_PLUGINS=PLUGIN).returncode == 0


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23.post1", "0.5.24rc1", "0.6.0"])
def test_another_engine_version_is_named_with_its_place(flash, version):
    engine = flash.folder / "sglang"
    engine.mkdir()
    (engine / "__init__.py").write_text(f"__version__ = {version!r}\n")
    assert refusal(flash.run(*CHECK)) == (f"written for SGLang 0.5.23, found {version} in {engine}")


def test_a_build_of_the_pinned_version_passes(flash):
    path = f"{flash.folder.parent / 'engine'}:{flash.folder}"
    fake = Path(__file__).parent / "fake_engine" / "sglang"
    engine = Path(shutil.copytree(fake, flash.folder.parent / "engine" / "sglang"))
    (engine / "__init__.py").write_text("__version__ = '0.5.23+cu130'\n")
    assert flash.run(*CHECK, PYTHONPATH=path).returncode == 0


def test_an_engine_that_is_not_there_or_does_not_import_is_told_apart(flash):
    found = refusal(flash.run(*CHECK, PYTHONPATH=str(flash.folder)))
    assert found == "SGLang cannot be imported: ModuleNotFoundError: No module named 'sglang'"
    (flash.folder / "sglang.py").write_text("raise OSError('no CUDA')\n")
    assert refusal(flash.run(*CHECK)) == "SGLang cannot be imported: OSError: no CUDA"


@pytest.mark.parametrize("name", ["a_second", "z_second"])
def test_a_second_plugin_that_registers_the_same_class_is_named(flash, name):
    flash.add_plugin(name, REGISTER, MODEL)
    assert refusal(flash.run(*CHECK)) == (
        f"{name} registers the same class; SGLANG_PLUGINS={PLUGIN} selects this plugin alone"
    )
    assert flash.run(*CHECK, SGLANG_PLUGINS=PLUGIN).returncode == 0


@pytest.mark.parametrize("name", ["a_second", "z_second"])
def test_a_second_plugin_that_goes_around_register_is_named(flash, name):
    code = """
def register():
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.models["BailingMoeForCausalLMNextN"] = type("Draft", (), {"__module__": __name__})
"""
    flash.add_plugin(name, code)
    done = flash.run(*CHECK)
    # Loaded before ours it changes nothing in the end, but the order is nobody's promise.
    found = refusal(done)
    assert name in found


def test_two_generated_plugins_side_by_side_are_told_apart_by_selection(both):
    assert OTHER in refusal(both.run(*CHECK))
    for plugin in (PLUGIN, OTHER):
        assert both.run("-m", f"{plugin}.check", SGLANG_PLUGINS=plugin).returncode == 0


def test_a_selection_without_this_plugin_or_with_unknown_ones_is_refused(both):
    assert refusal(both.run(*CHECK, SGLANG_PLUGINS=OTHER)) == (
        f"left out by SGLANG_PLUGINS={OTHER}; SGLANG_PLUGINS={PLUGIN} selects it"
    )
    assert refusal(both.run(*CHECK, SGLANG_PLUGINS=f"{PLUGIN}, gone")) == (
        "SGLANG_PLUGINS names gone, which is not installed"
    )


def test_classes_that_nobody_registers_are_named_with_who_serves_them(flash):
    (flash.folder / PLUGIN / "plugin.py").write_text("def register():\n    pass\n")
    assert refusal(flash.run(*CHECK)) == f"{MODEL} would be served by sglang.srt.models.bailing_moe"


def test_a_draft_class_that_nobody_registers_is_noticed(flash):
    (flash.folder / PLUGIN / "models" / "bailing_moe_nextn.py").unlink()
    found = refusal(flash.run(*CHECK))
    assert found.startswith("BailingMoeForCausalLMNextN would be served by sglang.")


@pytest.mark.parametrize("content", ["empty", "module", "copy"])
def test_a_folder_of_the_packages_name_in_the_working_directory_is_named(flash, tmp_path, content):
    here = tmp_path / "here"
    if content == "copy":
        shutil.copytree(flash.folder / PLUGIN, here / PLUGIN)
    else:
        (here / PLUGIN).mkdir(parents=True)
    if content == "module":
        (here / PLUGIN / "__init__.py").touch()
    done = flash.run(*CHECK, cwd=here)
    if content == "module":
        # Then Python does not get as far as the check.
        assert done.returncode == 1
        assert f"No module named {PLUGIN}.check" in done.stderr
    else:
        assert refusal(done).startswith(f"{here / PLUGIN} stands before the installed ")


@pytest.mark.parametrize("content", ["empty", "module"])
def test_such_a_folder_does_not_shadow_the_console_script(flash, tmp_path, content):
    here = tmp_path / "here"
    (here / PLUGIN).mkdir(parents=True)
    if content == "module":
        (here / PLUGIN / "__init__.py").write_text("raise ValueError\n")
    script = flash.folder / "bin" / "ling-2-6-flash-sglang-check"
    done = flash.run(script, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_package_that_is_not_installed_says_so(flash):
    for info in flash.folder.glob("*.dist-info"):
        shutil.rmtree(info)
    assert refusal(flash.run(*CHECK)).startswith("not installed: no plugin of this name")


def test_another_distribution_with_a_plugin_of_this_name_is_named(flash):
    flash.add_plugin("impostor", REGISTER)
    points = flash.folder / "impostor-1.dist-info" / "entry_points.txt"
    points.write_text(f"[sglang.srt.plugins]\n{PLUGIN} = impostor:register\n")
    found = refusal(flash.run(*CHECK))
    assert "impostor" in found
    assert found.endswith("each install a plugin of this name")


def test_a_platform_may_be_selected_beside_the_plugin(flash):
    flash.add_plugin("platform", "")
    points = flash.folder / "platform-1.dist-info" / "entry_points.txt"
    points.write_text("[sglang.srt.platforms]\nplatform = platform:activate\n")
    assert flash.run(*CHECK, SGLANG_PLUGINS=f"{PLUGIN},platform").returncode == 0


def make_editable(flash, direct_url: bool) -> Path:
    """The package in a source folder that a .pth file leads to, as pip's editable installs do."""
    source = flash.folder.parent / "source"
    source.mkdir()
    shutil.move(flash.folder / PLUGIN, source / PLUGIN)
    [info] = flash.folder.glob("*.dist-info")
    if direct_url:
        url = {"url": source.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(url))
    else:
        (info / "direct_url.json").unlink(missing_ok=True)
    return source


def test_an_editable_install_is_checked_where_its_source_is(flash, tmp_path):
    source = make_editable(flash, direct_url=True)
    fake = Path(__file__).parent / "fake_engine"
    path = f"{flash.folder}:{source}:{fake}"
    assert flash.run(*CHECK, PYTHONPATH=path).returncode == 0
    shutil.copytree(source / PLUGIN, tmp_path / "here" / PLUGIN)
    found = refusal(flash.run(*CHECK, PYTHONPATH=path, cwd=tmp_path / "here"))
    assert found.startswith(f"{tmp_path / 'here' / PLUGIN} stands before the installed ")


def test_an_installation_whose_place_cannot_be_told_is_refused(flash):
    source = make_editable(flash, direct_url=False)
    found = refusal(flash.run(*CHECK, PYTHONPATH=f"{flash.folder}:{source}"))
    assert found.startswith("where it is installed cannot be told, found running from ")


def test_help_prints_the_usage(flash):
    done = flash.run(*CHECK, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ling-2-6-flash-sglang-check")


def test_what_the_engine_prints_is_left_out(flash):
    (flash.folder / PLUGIN / "plugin.py").write_text(
        "import sys\n\ndef register():\n    print('noise')\n    print('noise', file=sys.stderr)\n"
    )
    assert "noise" not in refusal(flash.run(*CHECK))
