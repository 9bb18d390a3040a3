"""Open network namespaces by path, compare them, enter and leave them.

A path from a configuration may lead to any file. No file is read, and no FIFO or device is opened. The kernel, not the
path, tells whether a file is a network namespace (NS_GET_NSTYPE, ioctl_ns(2)).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from fcntl import ioctl

from cni.shared.spec.errors import InvalidNamespace

_OWN = "/proc/thread-self/ns/net"
_NS_GET_NSTYPE = 0xB703  # include/uapi/linux/nsfs.h
_CLONE_NEWNET = 0x40000000
_known: list[Callable[[int, int], None]] = []  # the function setns, after the first call of _setns


class Namespace:
    """An open network namespace: its `path`, its descriptor `fd`, and `device` and `inode`, which identify it."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        status = os.fstat(fd)
        self.device = status.st_dev
        self.inode = status.st_ino

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def entered(self) -> Entered:
        """A `with` block in which the calling thread is in this namespace. Raises OSError when it cannot enter."""
        return Entered(self)


class Entered:
    """A `with` block in which the calling thread is in `namespace`."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def __enter__(self) -> Namespace:
        self._former = own()
        try:
            _setns(self._namespace.fd)
        except OSError:
            self._former.close()
            raise
        return self._namespace

    def __exit__(self, *_: object) -> None:
        try:
            _setns(self._former.fd)
        finally:
            self._former.close()


def open_namespace(path: str) -> Namespace:
    """Open the network namespace at `path`. Raises InvalidNamespace, with the reason, when there is none."""
    try:
        namespace = _open(path)
    except OSError as fault:
        if fault.errno in (ENOENT, ENOTDIR):
            raise InvalidNamespace(
                f'network namespace "{path}" does not exist: the sandbox is gone, or its directory is not mounted '
                "where the plugin runs"
            ) from None
        raise InvalidNamespace(f'network namespace "{path}" cannot be opened: {fault.strerror}') from None
    except ValueError as fault:  # also a path with a zero byte
        raise InvalidNamespace(
            f'"{path}" is no network namespace, but {fault}: CNI_NETNS must be a path like /run/netns/NAME or '
            "/proc/PID/ns/net"
        ) from None
    return namespace


def own() -> Namespace:
    """The network namespace of the calling thread."""
    return Namespace(_OWN, os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC))


def is_own(namespace: Namespace) -> bool:
    """Whether the calling thread is in `namespace`."""
    status = os.stat(_OWN)
    return (status.st_dev, status.st_ino) == (namespace.device, namespace.inode)


def at(path: str) -> Namespace | None:
    """Open the network namespace at `path`; None when there is none. Raises OSError when the path cannot be examined,
    for example without permission."""
    try:
        return _open(path)
    except ValueError:
        return None
    except OSError as fault:
        if fault.errno in (ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG):
            return None
        raise


def exists(path: str) -> bool:
    """Whether there is a network namespace at `path`. Raises OSError when the path cannot be examined."""
    found = at(path)
    if found:
        found.close()
    return found is not None


def may_be_at(path: str) -> bool:
    """Whether there is a network namespace at `path`, or the path cannot be examined."""
    try:
        return exists(path)
    except OSError:
        return True


def _open(path: str) -> Namespace:
    """Open the namespace at `path`. Raises OSError, or ValueError with the kind of the file at `path`."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)  # does not open the file itself, which may be a FIFO or a device
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("a directory, device, FIFO or socket")
        fd = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(handle)
    try:
        kind = ioctl(fd, _NS_GET_NSTYPE)
    except OSError:
        os.close(fd)
        raise ValueError("an ordinary file") from None
    if kind != _CLONE_NEWNET:
        os.close(fd)
        raise ValueError("a namespace of another kind")
    return Namespace(path, fd)


def _setns(fd: int) -> None:
    """Move the calling thread into the network namespace `fd` by setns(2). Raises OSError when setns(2) fails."""
    if not _known:
        _known.append(getattr(os, "setns", None) or _c_setns())  # os.setns exists from Python 3.12 on
    _known[0](fd, _CLONE_NEWNET)


def _c_setns() -> Callable[[int, int], None]:
    import ctypes  # only Python 3.11 needs this

    library = ctypes.CDLL(None, use_errno=True)

    def setns(fd: int, kind: int) -> None:
        if library.setns(fd, kind) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return setns
