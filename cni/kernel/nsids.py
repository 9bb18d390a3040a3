"""Other network namespaces, as far as a namespace has ids for them (`ip netns list-id`): their links can be listed.

An id lives as long as the namespace that it stands for, and may then stand for another. Numbers are those of
include/uapi/linux/net_namespace.h and if_link.h.
"""

from __future__ import annotations

from cni.kernel.links import GETLINK, Link, Rtnl, ifinfo
from cni.kernel.netlink import KernelError, number, signed_of, unpack_attributes

_GETNSID, _NSID = 90, 1
_TARGET_NETNSID = 46


def all_of(rtnl: Rtnl) -> list[int]:
    """The ids that the namespace of `rtnl` has; none where the kernel refuses to list them."""
    try:
        found = rtnl.dump(_GETNSID, b"\0\0\0\0")
    except KernelError:
        return []
    return [signed_of(dict(unpack_attributes(body, 4))[_NSID]) for body in found]


def links(rtnl: Rtnl, nsid: int) -> list[Link]:
    """All links of the namespace that `rtnl` knows as `nsid`; none when it has ended, or before Linux 4.15."""
    try:
        return [Link(body) for body in rtnl.dump(GETLINK, ifinfo(0) + number(_TARGET_NETNSID, nsid))]
    except KernelError:
        return []
