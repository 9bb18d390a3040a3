"""Whether the address of a lease may be in use on this machine, by the rules of DEL and GC.

An address may be in use while its network namespace exists. The namespace exists while it is mounted at its path, or
while a process, another mount or an open descriptor keeps it. An address may also be in use while its link is visible
on the host. After a failed DEL, it may be in use until a later call has ended the attachment. A link that another
plugin or a DRA driver made has no record, so all existing namespaces are searched for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from cni.link import plugins
from cni.shared.kernel import addresses, netns, netns_users, node, sandbox
from cni.shared.kernel.links import Rtnl
from cni.shared.records import LINK, UNENDED, Records
from cni.shared.spec.request import Attachment
from ipam.group import rails
from ipam.leases import PART, Lease, recorded_leases

_RIGHTS = 1 << 19 | 1 << 21  # CAP_SYS_PTRACE and CAP_SYS_ADMIN (linux/capability.h)
ENDED, USED, UNKNOWN = "ended", "used", "unknown"  # the use of an address, as an agent reports it to `railcni cluster`


@contextmanager
def excluded(records: Records, owner: Attachment) -> Iterator[list[Attachment] | None]:
    """Hold the locks of the attachment `owner` and of the links that use its leases.

    Yields the attachments of these links: one or, for the lease of a group of rails (ipam.group.rails), several. Yields
    None if an ADD or DEL of one of these attachments holds a lock.
    """
    users = rails.users(owner, records.read(owner, PART))
    with ExitStack() as locks:
        for attachment, part in (*((user, LINK) for user in users), (owner, PART)):
            held = records.try_locked(attachment, part)
            if held is None:
                yield None
                return
            locks.enter_context(held)
        yield users if rails.users(owner, records.read(owner, PART)) == users else None


def recorded(lease: Lease, records: Records) -> Lease:
    """Return `lease` or, if it has no network name (as in an IPPool), the same lease from this machine's records."""
    if lease.network:
        return lease
    for attachment, record in records.of_container(lease.container_id, PART) or ():
        try:
            found = [one for one in recorded_leases(attachment, record) if one.identity == lease.identity]
        except ValueError:
            continue  # a verb that reads the record reports the fault
        if found:
            return found[0]
    return lease


def use(lease: Lease, records: Records, below: Callable[[str], str] = str) -> tuple[str, str]:
    """Return (ENDED, USED or UNKNOWN, reason) for the lease's address on this machine. `may_be` explains `below`."""
    lease = recorded(lease, records)
    if records.read(lease.attachment, PART) is None and not (lease.netns and lease.node):
        return UNKNOWN, "no record there tells of it"
    with excluded(records, lease.attachment) as users:
        if users is None:
            return USED, "an operation on its attachment is under way"
        try:
            return (USED, "it is in use, or may be") if may_be(lease, users, records, below) else (ENDED, "")
        except OSError as fault:
            return UNKNOWN, str(fault)


def may_be(lease: Lease, users: Sequence[Attachment], records: Records, below: Callable[[str], str] = str) -> bool:
    """Whether the address may be in use by the links of `users`. Raises OSError when this is unknown.

    `below` maps a path of the host to its path in this container. A process in a container sees no process or link of
    the host, and only propagated mounts. So the process may be unable to tell whether the address is in use.
    """
    names = netns_users.names(lease.netns)
    if any(netns.exists(below(path)) for path in names):
        return True
    if lease.boot_id and lease.boot_id != node.boot_id():
        return False  # the links of an earlier boot are gone
    sees_all = _sees_the_node(below)
    named = any(_tells(below(path), sees_all, below(path) != path) for path in names)
    if not named and not sees_all:
        raise OSError(
            f"its namespace ({lease.netns or 'without a path'}) cannot be looked at from this container, which sees no processes"
            " of the node: the lease stays. DEL and GC free it, and `railcni ipam reclaim` on the node, outside of containers,"
            " or `kubectl railcni ipam reclaim`, which asks the node's agent"
        )
    links = [link for user in users if (link := records.read(user, LINK)) and link.get("sandbox")]
    if not links:
        return _is_shown(lease, named)
    return any(_is_in_use(link) for link in links if link.get("bootID") == node.boot_id())


def _sees_the_node(below: Callable[[str], str]) -> bool:
    """Whether this process can see all processes of the node, and may inspect them and enter their namespaces."""
    with open("/proc/self/status", "rb") as lines:
        held = next(int(line.split()[1], 16) for line in lines if line.startswith(b"CapEff:"))
    return below("/proc") == "/proc" and held & _RIGHTS == _RIGHTS and netns_users.sees_node()


def _tells(path: str, sees_all: bool, is_chosen: bool) -> bool:
    """Whether the namespace of `path` is certainly gone, given that no namespace is at `path`.

    The folder of `path` must exist. In a container, the folder must also be a mount, or the user must have named it
    (`is_chosen`), since the image may have a folder of this name. A plain file at `path` is a mount point without a
    mount. It is proof only if this process sees the node's mounts: outside of containers (`sees_all`), or if mounts
    propagate into its container.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return False
    is_mount, is_passed_on = (True, True) if sees_all else _mount_of(folder)
    if not os.path.lexists(path):
        return is_mount or is_passed_on or is_chosen
    return os.path.isfile(path) and is_passed_on


def _mount_of(folder: str) -> tuple[bool, bool]:
    """Return (whether `folder` is a mount point, whether the node's mounts below it propagate to this process)."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{opened}", "rb") as lines:
            number = next(line.split()[1] for line in lines if line.startswith(b"mnt_id:"))
    finally:
        os.close(opened)
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            fields = line.split()  # proc(5): ID, parent, device, root, mount point, options, optional fields, "-"
            if fields[0] == number:
                is_passed_on = any(one.startswith((b"shared:", b"master:")) for one in fields[6 : fields.index(b"-")])
                return fields[4] == os.fsencode(os.path.realpath(folder)), is_passed_on
    return False, False


def _is_in_use(link: dict[str, Any]) -> bool:
    """Whether the recorded `link`, whose namespace has no path, may be in use. Raises OSError when this is unknown."""
    if UNENDED in link:
        return True
    there = sandbox.kept(link["sandbox"])
    if there:
        there.close()
        return True
    made = plugins.of_made(link["plugin"])
    with Rtnl() as host:
        return made.lingers(made.load(link["link"]), host)


def _is_shown(lease: Lease, named: bool) -> bool:
    """Whether a network namespace of this machine has a link with the lease's ifname and address.

    `named` is true if certainly no namespace is mounted at the lease's netns path. Then namespaces that are mounted at
    other file names are skipped, since they belong to other sandboxes.
    """
    wanted, mounted = lease.text, netns_users.mounted()
    for namespace in netns_users.all_kept():
        names = mounted.get(namespace.inode)
        if named and names and lease.netns.rpartition("/")[2] not in names:
            continue  # the namespace of another sandbox
        try:
            found = sandbox.Sandbox(namespace)
        except OSError:
            continue  # this process may not enter the namespace
        with found.rtnl as rtnl:
            link = rtnl.link(name=lease.ifname)
            if link and any(a.text.partition("/")[0] == wanted for a in addresses.list_of(rtnl, link.index)):
                return True
    return False
