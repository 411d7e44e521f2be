from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lingen.emit import atomic
from lingen.emit.atomic import OutputError, RefusedOverwrite, write_packages, write_tree
from lingen.emit.check import check_package
from miniature import TinyIR, tiny_files, tree

OLD = tiny_files()
NEW = tiny_files(TinyIR(hidden_size=128))
SMALLER = tiny_files(TinyIR(has_cache=False))


def statuses(results) -> dict[str, str]:
    return {Path(result.path).name: result.status for result in results}


def headerless(text: bytes) -> dict[str, bytes]:
    """A package with a file that cannot hold a header, owned by the manifest alone."""
    manifest = json.loads(OLD["manifest.json"])
    manifest["files"] = {
        "tuned/a.json": {"sha256": hashlib.sha256(text).hexdigest(), "templates": ["x"]}
    }
    return {"tuned/a.json": text, "manifest.json": stamped(manifest)}


def stamped(manifest: dict) -> bytes:
    from lingen.emit.stamp import stamped as with_stamp

    manifest.pop("content", None)
    return with_stamp(manifest, indent=2)


def test_a_first_build_writes_everything_the_manifest_last(tmp_path):
    out = tmp_path / "deep" / "generated"
    results = write_tree(out, "tiny", OLD)
    assert [(r.path, r.status) for r in results] == [
        (f"{out.as_posix()}/tiny/cache.py", "written"),
        (f"{out.as_posix()}/tiny/model.py", "written"),
        (f"{out.as_posix()}/tiny/trace.json", "written"),
        (f"{out.as_posix()}/tiny/manifest.json", "written"),
    ]
    assert tree(out / "tiny") == OLD


def test_a_second_build_touches_nothing(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    results = write_tree(tmp_path, "tiny", OLD)
    assert set(statuses(results).values()) == {"unchanged"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_only_changed_files_are_written(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    assert statuses(write_tree(tmp_path, "tiny", NEW)) == {
        "cache.py": "unchanged",
        "model.py": "written",
        "trace.json": "written",
        "manifest.json": "written",
    }
    assert tree(tmp_path / "tiny") == NEW


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_are_readable_by_all_whatever_the_umask(tmp_path, umask):
    previous = os.umask(umask)
    try:
        write_tree(tmp_path, "tiny", OLD)
    finally:
        os.umask(previous)
    assert {(tmp_path / "tiny" / path).stat().st_mode & 0o777 for path in OLD} == {0o644}


def test_a_hand_edit_is_refused_with_its_diff_and_nothing_is_written(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    model = tmp_path / "tiny" / "model.py"
    model.write_bytes(OLD["model.py"].replace(b"= 64\n", b"= 65\n"))
    before = tree(tmp_path)
    with pytest.raises(RefusedOverwrite) as refusal:
        write_tree(tmp_path, "tiny", NEW)
    assert refusal.value.exit_code == 1
    shown = model.as_posix()
    first, *diff = str(refusal.value).split("\n")
    assert first == f"{shown}: edited by hand; add --force to drop the edit"
    assert diff[:2] == [f"--- {shown}", f"+++ {shown} (lingen build)"]
    assert "-HIDDEN_SIZE = 65" in diff
    assert "+HIDDEN_SIZE = 128" in diff
    assert diff[-1] == "Nothing was written."
    assert tree(tmp_path) == before


def test_force_drops_the_hand_edit(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    (tmp_path / "tiny" / "model.py").write_bytes(OLD["model.py"] + b"x = 1\n")
    assert statuses(write_tree(tmp_path, "tiny", OLD, force=True))["model.py"] == "written"
    assert tree(tmp_path / "tiny") == OLD


def test_an_edit_that_removes_the_header_is_still_a_hand_edit(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    (tmp_path / "tiny" / "model.py").write_bytes(b"mine = 1\n")
    with pytest.raises(RefusedOverwrite, match=r"model\.py: edited by hand; add --force"):
        write_tree(tmp_path, "tiny", OLD)
    write_tree(tmp_path, "tiny", OLD, force=True)
    assert tree(tmp_path / "tiny") == OLD


def test_an_edited_manifest_is_a_hand_edit(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    manifest = tmp_path / "tiny" / "manifest.json"
    manifest.write_bytes(OLD["manifest.json"].replace(b'"tuned": []', b'"tuned": [1]'))
    with pytest.raises(RefusedOverwrite, match=r"manifest\.json: edited by hand"):
        write_tree(tmp_path, "tiny", OLD)


@pytest.mark.parametrize("data", [b"", b"<<<<<<< ours\n{}\n", b"\xff"])
def test_an_unreadable_manifest_of_a_generated_package_yields_to_force(tmp_path, data):
    write_tree(tmp_path, "tiny", OLD)
    (tmp_path / "tiny" / "manifest.json").write_bytes(data)
    with pytest.raises(RefusedOverwrite, match=r"manifest\.json: edited by hand"):
        write_tree(tmp_path, "tiny", OLD)
    write_tree(tmp_path, "tiny", OLD, force=True)
    assert tree(tmp_path / "tiny") == OLD


def test_a_lost_manifest_is_written_again(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    (tmp_path / "tiny" / "manifest.json").unlink()
    write_tree(tmp_path, "tiny", NEW)
    assert tree(tmp_path / "tiny") == NEW


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["model.py", "manifest.json"])
def test_a_file_that_lingen_never_wrote_is_refused_even_with_force(tmp_path, name, force):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / name).write_text("{}\n")
    before = tree(tmp_path)
    with pytest.raises(RefusedOverwrite, match=rf"{name}: not written by lingen"):
        write_tree(tmp_path, "tiny", OLD, force=force)
    assert tree(tmp_path) == before


def test_files_that_are_not_in_the_way_stay(tmp_path):
    (tmp_path / "tiny" / "__pycache__").mkdir(parents=True)
    (tmp_path / "tiny" / "notes.txt").write_text("mine\n")
    write_tree(tmp_path, "tiny", OLD)
    assert (tmp_path / "tiny" / "notes.txt").read_text() == "mine\n"
    assert (tmp_path / "tiny" / "__pycache__").is_dir()


def test_a_checkout_with_crlf_is_no_hand_edit(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    for path in OLD:
        (tmp_path / "tiny" / path).write_bytes(OLD[path].replace(b"\n", b"\r\n"))
    assert set(statuses(write_tree(tmp_path, "tiny", NEW)).values()) == {"written"}
    assert tree(tmp_path / "tiny") == NEW


def test_a_file_no_longer_produced_is_removed(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    assert statuses(write_tree(tmp_path, "tiny", SMALLER)) == {
        "cache.py": "removed",
        "model.py": "unchanged",
        "trace.json": "written",
        "manifest.json": "written",
    }
    assert tree(tmp_path / "tiny") == SMALLER


def test_an_edited_file_no_longer_produced_is_removed_by_force_alone(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    (tmp_path / "tiny" / "cache.py").write_bytes(OLD["cache.py"] + b"x = 1\n")
    with pytest.raises(RefusedOverwrite, match=r"(?s)cache\.py: edited by hand.*-x = 1"):
        write_tree(tmp_path, "tiny", SMALLER)
    write_tree(tmp_path, "tiny", SMALLER, force=True)
    assert tree(tmp_path / "tiny") == SMALLER


def test_a_file_without_header_is_owned_by_the_manifest(tmp_path):
    write_tree(tmp_path, "tiny", headerless(b"{}\n"))
    write_tree(tmp_path, "tiny", headerless(b"[]\n"))
    (tmp_path / "tiny" / "tuned" / "a.json").write_bytes(b"mine\n")
    with pytest.raises(RefusedOverwrite, match=r"tuned/a\.json: edited by hand"):
        write_tree(tmp_path, "tiny", headerless(b"{}\n"))


def test_a_manifest_edited_to_match_an_edited_file_vouches_for_nothing(tmp_path):
    write_tree(tmp_path, "tiny", headerless(b"{}\n"))
    edited = headerless(b"mine\n")
    (tmp_path / "tiny" / "tuned" / "a.json").write_bytes(edited["tuned/a.json"])
    manifest = edited["manifest.json"].replace(b'"tuned": []', b'"tuned": [1]')
    (tmp_path / "tiny" / "manifest.json").write_bytes(manifest)
    with pytest.raises(RefusedOverwrite, match=r"tuned/a\.json: edited by hand"):
        write_tree(tmp_path, "tiny", headerless(b"{}\n"))


def test_a_folder_that_loses_its_last_file_goes(tmp_path):
    write_tree(tmp_path, "tiny", headerless(b"{}\n"))
    write_tree(tmp_path, "tiny", OLD)
    assert tree(tmp_path / "tiny") == OLD


def test_all_packages_are_planned_before_one_is_written(tmp_path):
    write_tree(tmp_path, "second", OLD)
    (tmp_path / "second" / "model.py").write_bytes(OLD["model.py"] + b"x = 1\n")
    before = tree(tmp_path)
    with pytest.raises(RefusedOverwrite, match=r"second/model\.py: edited by hand"):
        write_packages(tmp_path, [("first", NEW), ("second", NEW)])
    assert tree(tmp_path) == before


def test_every_refusal_is_told_at_once(tmp_path):
    write_tree(tmp_path, "tiny", OLD)
    for name in ("model.py", "cache.py"):
        (tmp_path / "tiny" / name).write_bytes(OLD[name] + b"x = 1\n")
    with pytest.raises(RefusedOverwrite) as refusal:
        write_tree(tmp_path, "tiny", OLD)
    assert str(refusal.value).count("edited by hand") == 2


def test_the_output_folder_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    write_tree(tmp_path / "out", "tiny", OLD)
    assert tree(tmp_path / "real" / "tiny") == OLD


@pytest.mark.parametrize("force", [False, True])
def test_a_package_folder_that_is_a_link_is_refused(tmp_path, force):
    outside = tmp_path / "outside"
    write_tree(outside, "tiny", OLD)
    out = tmp_path / "out"
    out.mkdir()
    (out / "tiny").symlink_to(outside / "tiny")
    with pytest.raises(RefusedOverwrite, match="out/tiny: a symbolic link, not written through"):
        write_tree(out, "tiny", NEW, force=force)
    assert tree(outside / "tiny") == OLD


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["model.py", "manifest.json"])
def test_a_file_that_is_a_link_is_refused(tmp_path, name, force):
    outside = tmp_path / "outside"
    outside.write_bytes(OLD[name])
    out = tmp_path / "out"
    write_tree(out, "tiny", OLD)
    (out / "tiny" / name).unlink()
    (out / "tiny" / name).symlink_to(outside)
    with pytest.raises(RefusedOverwrite, match=rf"{name}: a symbolic link, not written through"):
        write_tree(out, "tiny", NEW, force=force)
    assert outside.read_bytes() == OLD[name]
    assert (out / "tiny" / name).is_symlink()


@pytest.mark.parametrize("obstacle", ["link", "file"])
def test_a_subfolder_that_is_none_is_refused(tmp_path, obstacle):
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "out" / "tiny"
    folder.mkdir(parents=True)
    if obstacle == "link":
        (folder / "tuned").symlink_to(outside)
    else:
        (folder / "tuned").write_text("mine")
    with pytest.raises(RefusedOverwrite, match=r"tuned is a (symbolic link|file)"):
        write_tree(tmp_path / "out", "tiny", headerless(b"{}\n"), force=True)
    assert tree(outside) == {}


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "tiny" / "model.py").mkdir(parents=True)
    with pytest.raises(RefusedOverwrite, match=r"model\.py: a folder, not written through"):
        write_tree(tmp_path, "tiny", OLD, force=True)


def test_a_malicious_manifest_removes_nothing_outside_its_package(tmp_path):
    out = tmp_path / "out"
    write_tree(out, "tiny", OLD)
    victim = tmp_path / "victim.py"
    victim.write_bytes(OLD["cache.py"])
    (out / "tiny" / "link").symlink_to(tmp_path)
    digest = hashlib.sha256(victim.read_bytes()).hexdigest()
    manifest = json.loads(OLD["manifest.json"])
    for path in ["../../victim.py", str(victim), "a/../../../victim.py"]:
        manifest["files"][path] = {"sha256": digest, "templates": ["x"]}
    (out / "tiny" / "manifest.json").write_bytes(stamped(manifest))
    write_tree(out, "tiny", OLD)
    assert victim.read_bytes() == OLD["cache.py"]

    manifest["files"]["link/victim.py"] = {"sha256": digest, "templates": ["x"]}
    (out / "tiny" / "manifest.json").write_bytes(stamped(manifest))
    with pytest.raises(RefusedOverwrite, match=r"link/victim\.py: link is a symbolic link"):
        write_tree(out, "tiny", OLD, force=True)
    assert victim.read_bytes() == OLD["cache.py"]


def test_leftovers_of_a_killed_build_are_removed_and_not_followed(tmp_path):
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("mine")
    write_tree(out, "tiny", OLD)
    (out / "tiny" / ".model.py.01234567.lingen-tmp").write_text("half")
    (out / "tiny" / ".cache.py.01234567.lingen-tmp").symlink_to(victim)
    name = atomic.temporary_name("model.py", NEW["model.py"])
    (out / "tiny" / name).symlink_to(victim)
    write_tree(out, "tiny", NEW)
    assert tree(out / "tiny") == NEW
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("path", ["../x.py", "/x.py", "a//b.py", ".x.lingen-tmp"])
def test_a_target_cannot_name_a_path_outside_its_package(tmp_path, path):
    with pytest.raises(AssertionError, match="outside their package"):
        write_tree(tmp_path, "tiny", {path: b""})


def test_an_output_folder_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError) as error:
        write_tree(tmp_path / "out", "tiny", OLD)
    assert str(error.value) == f"{tmp_path}/out: cannot write the output: File exists"
    assert error.value.exit_code == 2


def test_a_full_disk_while_staging_changes_nothing(tmp_path, monkeypatch):
    write_tree(tmp_path, "tiny", OLD)
    before = tree(tmp_path)
    real, calls = os.fsync, []

    def fsync(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutputError, match="No space left on device"):
        write_packages(tmp_path, [("tiny", NEW), ("other", NEW)])
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_failure_between_two_renames_puts_the_old_files_back(tmp_path, monkeypatch):
    write_tree(tmp_path, "tiny", OLD)
    before = tree(tmp_path)
    real, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OutputError, match="Input/output error"):
        write_packages(tmp_path, [("tiny", NEW), ("other", NEW)])
    assert len(calls) > 2
    assert tree(tmp_path / "tiny") == {n.removeprefix("tiny/"): d for n, d in before.items()}
    assert not [path for path in tmp_path.rglob("*") if "lingen-tmp" in path.name]


def test_files_that_could_not_be_put_back_are_named(tmp_path, monkeypatch):
    write_tree(tmp_path, "tiny", OLD)
    real, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OutputError, match=r"already new: .*tiny/.*\nRun `lingen build` again"):
        write_tree(tmp_path, "tiny", NEW)


def test_an_edit_made_while_the_build_runs_is_not_lost(tmp_path, monkeypatch):
    write_tree(tmp_path, "tiny", OLD)
    real = atomic._stage

    def stage_then_edit(plans):
        real(plans)
        (tmp_path / "tiny" / "model.py").write_text("my edit\n")

    monkeypatch.setattr(atomic, "_stage", stage_then_edit)
    with pytest.raises(RefusedOverwrite, match=r"model\.py: changed while the build ran"):
        write_tree(tmp_path, "tiny", NEW)
    assert (tmp_path / "tiny" / "model.py").read_text() == "my edit\n"
    assert (tmp_path / "tiny" / "cache.py").read_bytes() == OLD["cache.py"]


READ_ONLY = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fcntl
from lingen.emit.atomic import OutputError, write_tree
from miniature import TinyIR, tiny_files
files = tiny_files(TinyIR(hidden_size=128))
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    write_tree(Path(sys.argv[2]), "tiny", files)
except OutputError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_read_only_folder_is_one_line_and_nothing_changes():
    import shutil
    import tempfile

    out = Path(tempfile.mkdtemp())
    try:
        write_tree(out, "tiny", OLD)
        (out / "tiny").chmod(0o555)
        out.chmod(0o755)
        before = tree(out)
        done = subprocess.run(
            [sys.executable, "-B", "-c", READ_ONLY, str(Path(__file__).parent), str(out)],
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"{out}/tiny: cannot write the output: Permission denied\n"
        assert (done.returncode, done.stderr) == (2, "")
        assert tree(out) == before
    finally:
        (out / "tiny").chmod(0o755)
        shutil.rmtree(out)


BUILD_OFTEN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from lingen.emit.atomic import write_tree
from miniature import TinyIR, tiny_files
files = tiny_files(TinyIR(hidden_size=int(sys.argv[3]), has_cache=sys.argv[3] == "1"))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(60):
    write_tree(Path(sys.argv[2]), "tiny", files)
"""


def test_two_builds_at_once_give_one_consistent_tree(tmp_path):
    folder = str(Path(__file__).parent)
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD_OFTEN, folder, str(tmp_path), size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for size in "12"
    ]
    for build in builds:
        assert build.stdout and build.stdout.readline() == "ready\n"
    for build in builds:
        assert build.stdin
        build.stdin.write("go\n")
        build.stdin.flush()
    assert [build.communicate()[1] for build in builds] == ["", ""]
    first = tiny_files(TinyIR(hidden_size=1))
    second = tiny_files(TinyIR(hidden_size=2, has_cache=False))
    assert tree(tmp_path / "tiny") in (first, second)
    assert not check_package(tmp_path, "tiny", first) or not check_package(tmp_path, "tiny", second)
