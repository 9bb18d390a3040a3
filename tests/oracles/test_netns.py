"""cni/shared/kernel/netns.py: network namespaces by path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cni.shared.kernel import netns
from cni.shared.spec.errors import InvalidNamespace
from tests.view import View

Namespaces = Callable[[], View]


def _own() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_a_thread_is_in_the_namespace_it_entered_and_back_afterwards(namespaces: Namespaces) -> None:
    path = namespaces().path
    before = _own()
    namespace = netns.open_namespace(path)
    with namespace.entered() as inside:
        assert inside is namespace
        assert _own() == f"net:[{namespace.inode}]" != before
    assert _own() == before
    namespace.close()
    namespace.close()


def test_a_thread_comes_back_when_what_it_did_there_failed(namespaces: Namespaces) -> None:
    before = _own()
    namespace = netns.open_namespace(namespaces().path)
    with pytest.raises(KeyError), namespace.entered():
        raise KeyError
    assert _own() == before
    namespace.close()


def test_a_namespace_is_own_while_the_thread_is_in_it_whatever_its_path(namespaces: Namespaces) -> None:
    first, other = namespaces().path, namespaces().path
    a, b, c, own = netns.open_namespace(first), netns.open_namespace(first), netns.open_namespace(other), netns.own()
    assert [netns.is_own(each) for each in (a, b, c, own)] == [False, False, False, True]
    with a.entered():
        assert [netns.is_own(each) for each in (a, b, c, own)] == [True, True, False, False]
    for namespace in (a, b, c, own):
        namespace.close()


def test_nothing_stays_open(namespaces: Namespaces, tmp_path: Path) -> None:
    path = namespaces().path
    (tmp_path / "file").touch()
    before = os.listdir("/proc/self/fd")
    namespace = netns.open_namespace(path)
    with namespace.entered():
        pass
    namespace.close()
    assert netns.exists(path)
    for bad in (tmp_path / "file", "/proc/self/ns/mnt", "/dev/null", tmp_path / "missing"):
        assert not netns.exists(str(bad))
    assert os.listdir("/proc/self/fd") == before


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing", tmp_path / "a" / "b", tmp_path / "file" / "x"):
        with pytest.raises(InvalidNamespace, match=f'"{path}" does not exist') as refused:
            netns.open_namespace(str(path))
        assert refused.value.code == 8
        assert not netns.exists(str(path))


@pytest.mark.parametrize(("what", "said"), [
    ("file", "an ordinary file"),
    ("fifo", "a directory, device, FIFO or socket"),
    ("directory", "a directory, device, FIFO or socket"),
    ("huge", "an ordinary file"),
])  # fmt: skip
def test_a_path_that_names_something_else_is_refused_at_once(tmp_path: Path, what: str, said: str) -> None:
    path = tmp_path / what
    if what == "fifo":
        os.mkfifo(path)  # to open it for reading would wait for a writer
    elif what == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 1 << 40 if what == "huge" else 0)
    with pytest.raises(InvalidNamespace, match=f'"{path}" is no network namespace, but {said}.*/run/netns/NAME'):
        netns.open_namespace(str(path))
    assert not netns.exists(str(path))


@pytest.mark.parametrize(
    "path", ["/dev/null", "/dev/zero", "/proc/self/ns/mnt", "/proc/self/ns/pid", "/proc/kmsg", "a\0b"]
)
def test_devices_and_namespaces_of_other_kinds_are_refused(path: str) -> None:
    with pytest.raises(InvalidNamespace, match="no network namespace"):
        netns.open_namespace(path)
    assert not netns.exists(path)


def test_a_namespace_behind_a_symbolic_link_is_found(tmp_path: Path, namespaces: Namespaces) -> None:
    (tmp_path / "link").symlink_to(namespaces().path)
    namespace = netns.open_namespace(str(tmp_path / "link"))
    assert namespace.path == str(tmp_path / "link")
    namespace.close()


def test_a_descriptor_that_cannot_be_entered_is_an_error_and_the_thread_stays(namespaces: Namespaces) -> None:
    before = _own()
    namespace = netns.open_namespace(namespaces().path)
    namespace.close()
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Bad file descriptor"), namespace.entered():
        pass
    assert _own() == before
    assert os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize(
    ("name", "why"), [("loop", "Too many levels of symbolic links"), ("n" * 256, "File name too long")]
)
def test_a_path_that_leads_nowhere_has_no_namespace_and_cannot_be_opened(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert not netns.exists(str(tmp_path / name))
    with pytest.raises(InvalidNamespace, match=f"cannot be opened: {why}"):
        netns.open_namespace(str(tmp_path / name))
