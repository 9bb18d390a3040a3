"""Find out whether the path of a network namespace is gone, and find the users that the namespace still has: mounts,
processes, threads and open descriptors.

A namespace and its links exist as long as the namespace has a user. For example, thick Multus keeps a descriptor of a
pod's namespace open after the runtime has removed the path. Sources: namespaces(7), proc(5).

Two kinds of users are not found, because no path leads to them: a socket that was made in the namespace, and a descriptor
in transit between two processes. (With pidfd_getfd(2) and SIOCGSKNS each socket of each process could be examined.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from cni.shared.kernel import netns
from cni.shared.kernel.files import names_in, target_of
from cni.shared.kernel.netns import Namespace

_DETACHED = "/"  # the target in /proc/PID/fd of a descriptor whose path is no longer mounted
_FIRST_PIDS = f"pid:[{0xEFFFFFFC}]"  # PROC_PID_INIT_INO (include/linux/proc_ns.h)
_FIRST_INODE = 0xF0000000  # the least inode of a namespace: PROC_DYNAMIC_FIRST (fs/proc/generic.c)
_searched: list[set[tuple[int, int]]] = []  # in a SearchedOnce: (device, inode) of each namespace that was found


def _paths_of(inode: int | None) -> Iterator[str]:
    """Yield paths that may lead to the network namespace `inode` (None: to any namespace). Slow searches come last."""
    wanted = "net:[" if inode is None else f"net:[{inode}]"
    yield from (path for name, path in _mounts("self") if name.startswith(wanted))
    processes = _processes()
    for process in processes:
        yield f"/proc/{process}/ns/net"
    for process in processes:
        for thread in names_in(f"/proc/{process}/task"):
            yield from _those(wanted, f"/proc/{process}/task/{thread}/ns/net")
        for descriptor in names_in(f"/proc/{process}/fd"):
            link = f"/proc/{process}/fd/{descriptor}"
            yield from _those(wanted, link)
            if target_of(link) == _DETACHED and _may_be(inode, f"/proc/{process}/fdinfo/{descriptor}"):
                yield link
    for process in _of_other_mounts(processes):
        yield from (f"/proc/{process}/root{path}" for name, path in _mounts(process) if name.startswith(wanted))


def found_again(device: int, inode: int) -> Namespace | None:
    """Open the network namespace with this `device` and `inode`. Returns None if this process finds no process, mount
    or descriptor that uses the namespace."""
    if _searched and (device, inode) not in _searched[0]:
        return None
    for namespace in _opened(inode, lambda identity: identity == (device, inode)):
        if (namespace.device, namespace.inode) == (device, inode):
            return namespace
        namespace.close()  # the process has moved meanwhile
    return None


class SearchedOnce:
    """A `with` block that first finds all namespaces in use. Inside the block, `found_again` returns None at once for
    any other namespace, since a namespace that has lost its last user never gets another user."""

    def __enter__(self) -> SearchedOnce:
        _searched.append({(namespace.device, namespace.inode) for namespace in all_kept()})
        return self

    def __exit__(self, *_: object) -> None:
        _searched.clear()


def all_kept() -> Iterator[Namespace]:
    """Yield each network namespace in use, except our own. Each is closed when the next one is requested."""
    with netns.own() as ours:
        seen = {(ours.device, ours.inode)}
    for namespace in _opened(None, lambda identity: identity not in seen):
        seen.add((namespace.device, namespace.inode))
        with namespace:
            yield namespace


def _opened(inode: int | None, is_wanted: Callable[[tuple[int, int]], bool]) -> Iterator[Namespace]:
    """Open and yield each namespace of `_paths_of(inode)` for which `is_wanted((device, inode))` is true."""
    for path in _paths_of(inode):
        try:
            status = os.stat(path)
            namespace = netns.at(path) if is_wanted((status.st_dev, status.st_ino)) else None
        except OSError:
            continue  # the path is gone, or belongs to a process that this process may not examine
        if namespace:
            yield namespace


def sees_node() -> bool:
    """Whether this process sees the processes of the node.

    This is so for processes of the host and of containers with hostPID, which are in the first PID namespace of the
    boot. It is also so for processes of a node that is a container, as in kind: they see processes in the PID
    namespaces of pods. In any other container all visible processes are in one PID namespace, and the result is False.
    """
    own = target_of("/proc/self/ns/pid")
    return in_first_pids() or any(target_of(f"/proc/{one}/ns/pid") not in ("", own) for one in _processes())


def names(path: str) -> set[str]:
    """`path` with and without "/var" in front: /var/run links to /run, but a container may have only one of the two."""
    return {path, path.removeprefix("/var")} - {""}


def has_lost_path(path: str, below: Callable[[str], str] = str) -> bool:
    """Whether `path` is missing in a directory that exists; False when the path cannot be examined. `below` maps a path
    of the host to the path in this container."""
    places = [below(name) for name in names(path)]
    return any(map(_is_lost, places)) and not any(map(os.path.lexists, places))


def _is_lost(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return os.path.isdir(os.path.dirname(path))
    except OSError:
        pass
    return False


def in_first_pids() -> bool:
    """Whether this process is in the first PID namespace of the boot, whose process 1 is the host's init."""
    return target_of("/proc/self/ns/pid") == _FIRST_PIDS


def mounted() -> dict[int, set[str]]:
    """Map the inode of each network namespace to the file names of its mount points in all mount namespaces."""
    found: dict[int, set[str]] = {}
    for process in ("self", *_of_other_mounts(_processes())):
        for name, path in _mounts(process):
            found.setdefault(int(name[5:-1]), set()).add(path.rpartition("/")[2])
    return found


def _processes() -> list[str]:
    return [name for name in names_in("/proc") if name.isdigit()]


def _of_other_mounts(processes: list[str]) -> Iterator[str]:
    """Yield one of `processes` for each mount namespace except our own."""
    seen = {target_of("/proc/self/ns/mnt")}
    for process in processes:
        mounts = target_of(f"/proc/{process}/ns/mnt")
        if mounts not in seen:
            seen.add(mounts)
            yield process


def _mounts(process: str) -> Iterator[tuple[str, str]]:
    """Yield "net:[INODE]" and the mount point of each network namespace mounted in the mount namespace of `process`."""
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as lines:
            for line in lines:
                fields = line.split()  # proc(5): ID, parent, device, root, mount point, ...
                if fields[3].startswith(b"net:["):
                    yield fields[3].decode(), fields[4].decode("unicode_escape")
    except OSError:
        return  # the process has ended


def _may_be(inode: int | None, info: str) -> bool:
    """Whether the descriptor with the fdinfo file `info` may refer to the namespace `inode` (None: to any namespace).
    Kernels before 5.14 show no inode in `info`, so the descriptor may refer to any namespace."""
    try:
        with open(info, "rb") as lines:
            found = next((int(line[4:]) for line in lines if line.startswith(b"ino:")), None)
    except (OSError, ValueError):
        return False  # the descriptor is closed meanwhile
    return found is None or (found >= _FIRST_INODE if inode is None else found == inode)


def _those(wanted: str, link: str) -> Iterator[str]:
    """Yield the path `link` if the target of this symbolic link begins with `wanted`. The target is not opened."""
    if target_of(link).startswith(wanted):
        yield link
