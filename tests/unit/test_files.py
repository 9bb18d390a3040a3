"""cni/shared/kernel/files.py: small files that survive a crash; where a path leads, and opening that without following a link."""

import builtins
import io
import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.shared.kernel.files import (
    is_below,
    make_private_directory,
    open_resolved,
    read_whole,
    remove,
    resolve,
    write_whole,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_holds_what_was_written_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    for data in (b"first", os.urandom(300_001), b"second"):
        write_whole(str(tmp_path), "record", data)
        assert read_whole(str(tmp_path / "record")) == data
    assert stat.S_IMODE((tmp_path / "record").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["record"]


def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"kept")
    (tmp_path / "record").symlink_to("target")
    write_whole(str(tmp_path), "record", b"new")
    assert not (tmp_path / "record").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"kept"


def test_a_failed_write_leaves_the_former_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()  # a directory there makes the last step, the renaming, fail
    with pytest.raises(IsADirectoryError):
        write_whole(str(tmp_path), "record", b"new")
    assert os.listdir(tmp_path) == ["record"]


def test_a_full_disk_leaves_the_former_file_and_nothing_else(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs root to mount a small file system: run the tests with sudo")
    try:
        write_whole(str(disk), "record", b"former")
        with pytest.raises(OSError, match="No space left"):
            write_whole(str(disk), "record", bytes(1 << 20))
        assert os.listdir(disk) == ["record"]
        assert read_whole(str(disk / "record")) == b"former"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_removing_says_whether_the_file_was_there(tmp_path: Path) -> None:
    write_whole(str(tmp_path), "record", b"x")
    assert remove(str(tmp_path), "record") is True
    assert remove(str(tmp_path), "record") is False
    assert remove(str(tmp_path / "missing"), "record") is False
    assert os.listdir(tmp_path) == []


def test_directories_are_made_private_and_those_that_exist_keep_their_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_directory(str(tmp_path / "a/b/c"))
    make_private_directory(str(tmp_path / "a/b/c/"))
    modes = [stat.S_IMODE((tmp_path / p).stat().st_mode) for p in ("", "a", "a/b", "a/b/c")]
    assert modes == [0o755, 0o700, 0o700, 0o700]
    (tmp_path / "state").write_bytes(b"")
    for path, fault in (("/proc/railcni/state", FileNotFoundError), (f"{tmp_path}/state", NotADirectoryError)):
        with pytest.raises(fault):
            make_private_directory(path)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directories, files, and links of every kind between them."""
    top = tmp_path_factory.mktemp("tree").resolve()
    (top / "a/b").mkdir(parents=True)
    (top / "a/file").write_text("")
    (top / "a/up").symlink_to("..")
    (top / "a/b/absolute").symlink_to(top / "a")
    (top / "a/b/deep").symlink_to("../up/a/./b")
    (top / "a/dangling").symlink_to("nowhere/at/all")
    (top / "a/round").symlink_to("round")
    return str(top)


parts = st.sampled_from([*"ab", "..", ".", "", "up", "file", "absolute", "deep", "dangling", "none"])


@given(st.lists(parts, max_size=8))
def test_a_path_leads_where_the_standard_library_says(tree: str, names: list[str]) -> None:
    path = "/".join([tree, *names])
    assert resolve(path) == os.path.realpath(path)


def test_links_in_a_circle_are_refused(tree: str) -> None:
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        resolve(f"{tree}/a/round")


def test_a_path_is_below_its_root_by_whole_names() -> None:
    assert is_below("/var/log", "/var/log")
    assert is_below("/var/log/a", "/var/log")
    assert is_below("/var/log/a", "/var/log/")
    assert is_below("/etc", "/")
    assert not is_below("/var/logs", "/var/log")
    assert not is_below("/var", "/var/log")


def test_what_was_resolved_opens(tree: str) -> None:
    fd = open_resolved(resolve(f"{tree}/a/b/deep/../file"), os.O_RDWR)
    assert os.path.samestat(os.fstat(fd), os.stat(f"{tree}/a/file"))
    os.close(fd)


@pytest.mark.parametrize("link", ["up/a/file", "b/absolute/file", "dangling"])
def test_a_link_that_was_put_in_the_way_is_not_followed(tree: str, link: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many levels|Not a directory"):
        open_resolved(f"{tree}/a/{link}", os.O_RDWR | os.O_CREAT, 0o600)
    assert not Path(tree, "a/nowhere").exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_has_nothing_to_read_yet_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(io.RawIOBase):
        def read(self, size: int = -1) -> None:
            """As a read that the kernel refuses with EAGAIN."""

    monkeypatch.setattr(builtins, "open", lambda *_: Busy())
    with pytest.raises(BlockingIOError, match="temporarily unavailable: '/proc/any'"):
        read_whole("/proc/any")
