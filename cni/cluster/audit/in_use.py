"""Whether the address of a lease may be in use on this machine: what the agent and reclaim ask, as DEL and GC do.

It may while its namespace is there: at its path, or kept by a process, a mount or an open descriptor; while its link is
seen in a namespace that is not found; and after a DEL that could not end it, until a later call does. Where no record of
ours tells of the link (Go's plugin made it, or a DRA driver), every namespace that something keeps is looked into for it.
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
from ipam import records as ipam_records
from ipam.group import rails
from ipam.leases import Lease
from ipam.records import PART

_RIGHTS = 1 << 19 | 1 << 21  # CAP_SYS_PTRACE and CAP_SYS_ADMIN (linux/capability.h)
ENDED, USED, UNKNOWN = "ended", "used", "unknown"  # the use of an address, as a node's agent answers `railcni cluster`


@contextmanager
def excluded(records: Records, owner: Attachment) -> Iterator[list[Attachment] | None]:
    """Hold the locks of `owner`, which has the leases, and of the links that use them; None when an ADD or DEL of one runs.

    Yields the attachments of these links: several for a group of rails (ipam.group.rails).
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
    """`lease` as a record of this machine tells of it, where the store tells container and interface alone."""
    if lease.network:
        return lease
    for attachment, record in records.of_container(lease.container_id, PART) or ():
        try:
            found = [one for one in ipam_records.leases(attachment, record) if one.identity == lease.identity]
        except ValueError:
            continue  # a verb that meets the record says so
        if found:
            return found[0]
    return lease


def use(lease: Lease, records: Records, below: Callable[[str], str] = str) -> tuple[str, str]:
    """(ENDED, USED or UNKNOWN, the reason): the use of the address on this machine, as far as it can be told here."""
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
    """Whether the address may be in use by the links of `users`. OSError when this is unknown.

    `below` finds a path of the host where it is mounted here. In a container, processes and links of the host are not
    seen, and of mounts those alone that are passed on to it.
    """
    names = netns.names(lease.netns)
    if any(netns.exists(below(path)) for path in names):
        return True
    if lease.boot_id and lease.boot_id != node.boot_id():
        return False  # the kernel has lost the links of that boot
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
    """Whether this process sees the processes of the node's sandboxes, if there are any, and may look at them."""
    return below("/proc") == "/proc" and _may_look() and netns_users.sees_node()


def _may_look() -> bool:
    """Whether this process may look at any other, and enter its network namespace (capabilities(7))."""
    with open("/proc/self/status", "rb") as lines:
        held = next(int(line.split()[1], 16) for line in lines if line.startswith(b"CapEff:"))
    return held & _RIGHTS == _RIGHTS


def _tells(path: str, sees_all: bool, is_chosen: bool) -> bool:
    """Whether a missing namespace at `path` proves its end. The folder of `path` must exist, and be a directory.

    In a container the folder must be a mount, since the image may have one of that name, or be named by the user
    (`is_chosen`). A plain file at `path` proves the end only where the node's mounts are visible: by the processes of
    the node (`sees_all`), or by mount propagation.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return False
    is_mount, is_passed_on = (True, True) if sees_all else _mount_of(folder)
    if not os.path.lexists(path):
        return is_mount or is_passed_on or is_chosen
    return os.path.isfile(path) and is_passed_on


def _mount_of(folder: str) -> tuple[bool, bool]:
    """Whether `folder` is a mount, and whether the node's mounts in it propagate here. Raises OSError."""
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
    """Whether the recorded `link` may be in use although the path of its namespace is gone. Raises OSError."""
    if UNENDED in link:
        return True
    there = sandbox.kept(link["sandbox"])
    if there:
        there.close()
        return True
    plugin = plugins.named(link["plugin"])
    with Rtnl() as host:
        return plugin.lingers(plugin.load(link["link"]), host)


def _is_shown(lease: Lease, named: bool) -> bool:
    """Whether a namespace that something keeps has a link of the lease's name with its address; `named`: by its path."""
    wanted, mounted = lease.text, netns_users.mounted()
    for namespace in netns.all_kept():
        names = mounted.get(namespace.inode)
        if named and names and lease.netns.rpartition("/")[2] not in names:
            continue  # it is another sandbox
        try:
            found = sandbox.Sandbox(namespace)
        except OSError:
            continue  # it is not for this process to enter
        try:
            link = found.rtnl.link(name=lease.ifname)
            if link and any(a.text.partition("/")[0] == wanted for a in addresses.list_of(found.rtnl, link.index)):
                return True
        finally:
            found.rtnl.close()
    return False
