"""What keeps a network namespace whose path is gone: mounts, processes, threads and open descriptors.

Thick Multus, for one, has a descriptor open of each namespace that it serves, in a process of the host's namespace: the
namespace and all links in it live on after the runtime has removed the path. Sources: namespaces(7), proc(5).

What keeps a namespace and is not found here: a socket that was made in it, and a descriptor on its way between two
processes. No path leads there (pidfd_getfd(2) and SIOCGSKNS could ask each socket of each process in turn).
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def of(inode: int) -> Iterator[str]:
    """Paths that may name the network namespace `inode`; what is costly to look at comes last."""
    yield from _mounts("self", inode)
    processes = [name for name in _listed("/proc") if name.isdigit()]
    for process in processes:
        yield f"/proc/{process}/ns/net"
    wanted = f"net:[{inode}]"
    seen = {_target("/proc/self/ns/mnt")}
    for process in processes:
        for thread in _listed(f"/proc/{process}/task"):
            yield from _those(wanted, f"/proc/{process}/task/{thread}/ns/net")
        for descriptor in _listed(f"/proc/{process}/fd"):
            yield from _those(wanted, f"/proc/{process}/fd/{descriptor}")
        mounts = _target(f"/proc/{process}/ns/mnt")
        if mounts not in seen:
            seen.add(mounts)
            for path in _mounts(process, inode):
                yield f"/proc/{process}/root{path}"


def _mounts(process: str, inode: int) -> Iterator[str]:
    """Where the namespace is mounted for `process`, as it sees the paths."""
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as lines:
            for line in lines:
                fields = line.split()  # proc(5): ID, parent, device, root, mount point, ...
                if fields[3] == b"net:[%d]" % inode:
                    yield fields[4].decode("unicode_escape")
    except OSError:
        return  # the process has ended


def _those(wanted: str, link: str) -> Iterator[str]:
    """The path `link`, if it names `wanted`. The link is read, and nothing is asked of the file that it leads to."""
    if _target(link) == wanted:
        yield link


def _target(link: str) -> str:
    try:
        return posix.readlink(link)
    except OSError:
        return ""


def _listed(directory: str) -> list[str]:
    try:
        return posix.listdir(directory)
    except OSError:
        return []  # the process has ended, or it is not for this one to look at
