"""Other network namespaces, as far as a namespace has ids for them (`ip netns list-id`): their links can be listed.

An id lives as long as the namespace that it stands for, and may then stand for another. Numbers are those of
include/uapi/linux/net_namespace.h and if_link.h.
"""

from __future__ import annotations

import posix

from cni.shared.kernel.links import GETLINK, Link, Rtnl, ifinfo
from cni.shared.kernel.netlink import KernelError, number, signed_of, unpack_attributes

_GETNSID, _NSID = 90, 1
_TARGET_NETNSID = 46


def of_others(rtnl: Rtnl, but: Rtnl | None = None) -> list[int]:
    """The ids that the namespace of `rtnl` has for others than itself and that of `but`.

    None where the kernel refuses to list them. A namespace may have an id for itself.
    """
    try:
        found = rtnl.dump(_GETNSID, b"\0\0\0\0")
        known = [_id(rtnl, each) for each in (rtnl, but) if each]
    except OSError:
        return []
    ids = [signed_of(dict(unpack_attributes(body, 4))[_NSID]) for body in found]
    return [nsid for nsid in ids if nsid not in known]


def _id(rtnl: Rtnl, other: Rtnl) -> int | None:
    fd = other.namespace()
    try:
        return rtnl.netns_id(fd)
    finally:
        posix.close(fd)


def links(rtnl: Rtnl, nsid: int) -> list[Link]:
    """All links of the namespace that `rtnl` knows as `nsid`; none when it has ended, or before Linux 4.15."""
    try:
        return [Link(body) for body in rtnl.dump(GETLINK, ifinfo(0) + number(_TARGET_NETNSID, nsid))]
    except KernelError:
        return []
