"""cni/shared/kernel/files.py: where a path leads, and opening that without following a link."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.shared.kernel.files import is_below, open_resolved, resolve


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
