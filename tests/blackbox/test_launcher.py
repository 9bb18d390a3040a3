"""The launcher of a bundle (cni/warm/launcher.c): what it starts, from wherever it is called, and what it says when the
bundle around it is not whole.

The dynamic loader of these bundles is a script that tells how it was called.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cni.dist import bundle

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler: apt-get install gcc libc6-dev")

LOADER = "ld-tells.so"
TELLS = '#!/bin/sh\nprintf "%s\\n" "$@"; echo "cwd $(pwd)"; env | sort\n'


@pytest.fixture(scope="module")
def launcher() -> bytes:
    return bundle.compile_launcher(LOADER)[0]


@pytest.fixture
def top(launcher: bytes, tmp_path: Path) -> Path:
    """A bundle in the plugin folder tmp_path/bin, in use."""
    top = tmp_path / "bin/railcni-bundle/1"
    for folder in ("bin", "lib"):
        (top / folder).mkdir(parents=True)
    for name, data in (("bin/macvlan", launcher), ("bin/python3", launcher), (f"lib/{LOADER}", TELLS.encode())):
        (top / name).write_bytes(data)
        (top / name).chmod(0o755)
    (top.parent / "current").symlink_to("1")
    return top


def told(argv: list[str | Path], cwd: str | Path = "/", env: dict[str, str] | None = None) -> list[str]:
    done = subprocess.run(argv, cwd=cwd, env=env or {}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def wanted(top: Path) -> list[str]:
    loader = ["--inhibit-cache", "--library-path", f"{top}/lib", "--argv0", f"{top}/bin/python3"]
    return [*loader, f"{top}/libexec/python3", "-IS", f"{top}/libexec/macvlan.pyc"]


def test_a_plugin_takes_no_arguments_and_the_command_all(top: Path) -> None:
    """An argument of a plugin's script means that workers may be made (cni/compiled/packed.py)."""
    shutil.copy(top / "bin/macvlan", top / "bin/railcni")
    assert told([top / "bin/macvlan", "a b", ""])[:9] == [*wanted(top), "cwd /"]
    assert told([top / "bin/railcni", "a b", ""])[7:10] == [f"{top}/libexec/railcni.pyc", "a b", ""]


def test_python3_gets_its_arguments_alone(top: Path) -> None:
    assert told([top / "bin/python3", "-c", "pass"])[:8] == [*wanted(top)[:6], "-c", "pass"]


def test_relative_and_absolute_links_lead_to_it_and_the_name_at_their_end_counts(top: Path, tmp_path: Path) -> None:
    plugins = tmp_path / "bin"
    (plugins / "railcni-macvlan").symlink_to("railcni-bundle/current/bin/macvlan")
    (tmp_path / "other").symlink_to(plugins / "railcni-macvlan")
    (tmp_path / "third").symlink_to("other")
    for link in (plugins / "railcni-macvlan", tmp_path / "other", tmp_path / "third"):
        assert told([link])[:8] == wanted(top)
    assert told(["./third"], cwd=tmp_path)[:8] == wanted(top)


def test_the_version_that_was_current_at_the_start_is_used_to_the_end(top: Path) -> None:
    """Paths through `current` would lead to another version once an upgrade has turned it."""
    assert "current" not in " ".join(told([top.parent / "current/bin/macvlan"])[:8])


def test_a_plugin_folder_that_is_mounted_elsewhere_is_a_bundle_there(top: Path, tmp_path: Path) -> None:
    moved = tmp_path / "host/opt/cni/bin"
    moved.parent.mkdir(parents=True)
    (tmp_path / "bin").rename(moved)
    assert told([moved / "railcni-bundle/current/bin/macvlan"])[:8] == wanted(moved / "railcni-bundle/1")


def test_environment_and_directory_are_passed_on_but_no_variable_of_the_loader(top: Path, tmp_path: Path) -> None:
    """cni/compiled/packed.py gives the variable its name again."""
    environ = {"CNI_COMMAND": "ADD", "LD_LIBRARY_PATH": "/nowhere", "EMPTY": ""}
    heard = told([top / "bin/macvlan"], cwd=tmp_path, env=environ)
    assert f"cwd {tmp_path}" in heard
    after = heard[heard.index(f"cwd {tmp_path}") + 1 :]
    own = ("PWD=", "_=", "SHLVL=", "OLDPWD=")
    assert [line for line in after if not line.startswith(own)] == ["CNI_COMMAND=ADD", "EMPTY="]


def test_it_can_stand_in_the_first_line_of_a_script(top: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{top}/bin/python3 -I\n")
    script.chmod(0o755)
    assert told([script, "x"])[:9] == [*wanted(top)[:6], "-I", str(script), "x"]


def test_a_runtime_gets_an_error_of_the_protocol_when_the_bundle_is_not_whole(top: Path) -> None:
    (top / "lib" / LOADER).unlink()
    done = subprocess.run([top / "bin/macvlan"], env={"CNI_COMMAND": "ADD"}, capture_output=True, text=True)
    error = json.loads(done.stdout)
    assert (done.returncode, done.stderr, error["code"]) == (1, "", 5)
    assert f"{top}/lib/{LOADER} cannot be used (errno 2)" in error["msg"]
    assert "install railcni again" in error["msg"]


def test_a_person_gets_it_in_words(top: Path, tmp_path: Path) -> None:
    alone = tmp_path / 'a "quoted\\" folder' / "bin"
    alone.mkdir(parents=True)
    shutil.copy(top / "bin/macvlan", alone)
    done = subprocess.run([alone / "macvlan"], env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "link to bin/ of a bundle, or install railcni again" in done.stderr
    hostile = subprocess.run([alone / "macvlan"], env={"CNI_COMMAND": "ADD"}, capture_output=True, text=True)
    assert json.loads(hostile.stdout)["code"] == 5


def test_a_very_long_path_is_refused_and_nothing_is_overwritten(top: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)
    os.chdir(tmp_path)
    try:
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
            folder += "/" + "d" * 250
        shutil.copy(top / "bin/macvlan", "macvlan")
        done = subprocess.run(["./macvlan"], env={"CNI_COMMAND": "ADD"}, capture_output=True, text=True)
    finally:
        os.chdir("/")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 5)


def test_the_c_library_in_it_is_named_for_the_bill_of_materials() -> None:
    assert "libc.a" in {path.name for path in bundle.compile_launcher(LOADER)[1]}
