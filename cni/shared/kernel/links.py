"""Read, make, change, move and remove the links of one network namespace.

An `Rtnl` stays bound to the namespace in which the thread makes it. For a pod's namespace, make an `Rtnl` inside
`Namespace.entered()`, and use it anywhere. Numbers are those of include/uapi/linux/if_link.h and rtnetlink.h.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import ENODEV, EOPNOTSUPP
from struct import Struct

from cni.shared.kernel import netlink

NEWLINK, GETLINK = 16, 18
_DELLINK, _GETNSID, _NEWLINKPROP, _DELLINKPROP = 17, 90, 108, 109

GETNEIGH, _AF_BRIDGE, _NEIGH_DST, _NEIGH_ADDRESS, _NEIGH_SELF = 30, 7, 1, 2, 0x2
NDMSG = Struct("=BxxxiHBB")  # struct ndmsg: family, index, state, flags, type
IFINFO = Struct("=BxHiII")  # struct ifinfomsg: family, ARPHRD type, index, flags, mask of flags to change
_IFF_UP, _IFF_LOWER_UP = 0x1, 0x10000

_ADDRESS, _IFNAME, _MTU, _LOWER, _MASTER, _LINKINFO, _ALIAS = 1, 3, 4, 5, 10, 18, 20
_NET_NS_FD, _EXT_MASK, _LOWER_NETNSID, _NEW_INDEX, _MIN_MTU, _MAX_MTU = 28, 29, 37, 49, 50, 51
_PROP_LIST, _ALT_IFNAME, _PERM_ADDRESS, _PARENT_DEVICE, _PARENT_BUS = 52, 53, 54, 56, 57
_INFO_KIND, _INFO_DATA = 1, 2  # in _LINKINFO
_MACVLAN_MODE, _MACVLAN_BC_QUEUE_LEN = 1, 7  # in _INFO_DATA
# kinds that name the links below them only in _INFO_DATA: IFLA_VXLAN_LINK, IFLA_HSR_SLAVE1 and 2, IFLA_AMT_LINK
_LOWERS = {"vxlan": (3,), "hsr": (1, 2), "amt": (4,)}
_NSID, _NSID_FD, _TARGET_NETNSID = 1, 3, 46  # the first two in RTM_GETNSID, IFLA_TARGET_NETNSID in RTM_GETLINK

_SKIP_STATISTICS = netlink.attribute(_EXT_MASK, b"\x08\0\0\0")  # RTEXT_FILTER_SKIP_STATS
_IFNAME_BYTES, _ALT_IFNAME_BYTES = 15, 127
LEAST_MTU = 68  # bytes: ETH_MIN_MTU (RFC 791, section 3.2), for a link without a min_mtu

MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8, "source": 16}
_MODE_NAMES = {mode: name for name, mode in MACVLAN_MODES.items()}
ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32


def _hardware_address(payload: bytes) -> str:
    return payload.hex(":")


def _altnames(payload: bytes) -> list[str]:
    return [netlink.text_of(name) for kind, name in netlink.unpack_list(payload) if kind == _ALT_IFNAME]


_MEMBERS = {
    _ADDRESS: ("mac", _hardware_address), _IFNAME: ("name", netlink.text_of), _MTU: ("mtu", netlink.number_of),
    _LOWER: ("lower_index", netlink.number_of), _LOWER_NETNSID: ("lower_netnsid", netlink.signed_of),
    _MASTER: ("master_index", netlink.number_of), _MIN_MTU: ("min_mtu", netlink.number_of),
    _MAX_MTU: ("max_mtu", netlink.number_of), _PERM_ADDRESS: ("permanent_mac", _hardware_address),
    _ALIAS: ("alias", netlink.text_of), _PROP_LIST: ("altnames", _altnames),
    _PARENT_DEVICE: ("parent_device", netlink.text_of), _PARENT_BUS: ("parent_bus", netlink.text_of),
}  # fmt: skip
"""Maps the netlink attributes of a link to (attribute of Link, function that decodes the payload)."""


class Link:
    """A network device as the kernel describes it.

    `kind` is the driver of a software link ("macvlan", "veth", "bridge"), "" for hardware. MACs are
    "aa:bb:cc:dd:ee:ff", or "" for none. `mtu`, `min_mtu` and `max_mtu` are bytes (0: no bound). `up` is the state that
    an administrator has set, `carrier` the state of the wire (False while the link is not up). `master_index` is the
    index of the link's bridge or bond. `lower_index` is the index of the link below this one, or of a veth's peer. The
    index is that in the namespace with the id `lower_netnsid` (None: the same namespace). An index of 0 means none.
    `lowers` are the indexes of all links below this link; the kernel deletes this link with any of them. A veth has no
    `lowers`. `macvlan_mode` and `bcqueuelen` apply to a macvlan. `parent_bus` and `parent_device` name the hardware as
    in /sys/bus ("pci", "0000:3b:00.0"; "virtio", "virtio0"). `body` is the body of the netlink message.
    """

    name = mac = permanent_mac = kind = alias = parent_bus = parent_device = macvlan_mode = ""
    mtu = min_mtu = max_mtu = master_index = lower_index = bcqueuelen = 0
    lower_netnsid: int | None = None
    lowers: tuple[int, ...] = ()

    def __init__(self, body: bytes) -> None:
        self.body = body
        _family, self.arphrd, self.index, flags, _mask = IFINFO.unpack_from(body)
        self.up = bool(flags & _IFF_UP)
        self.carrier = bool(flags & _IFF_LOWER_UP)
        self.altnames: list[str] = []
        found = netlink.unpack_attributes(body, IFINFO.size)
        for kind, payload in found.items():
            if kind in _MEMBERS:
                name, read = _MEMBERS[kind]
                self.__dict__[name] = read(payload)
        if self.lower_index:
            self.lowers = (self.lower_index,)
        if _LINKINFO in found:
            self._read_info(netlink.unpack_attributes(found[_LINKINFO]))

    def _read_info(self, info: dict[int, bytes]) -> None:
        """Read the kind of a software link, and the attributes of that kind."""
        self.kind = kind = netlink.text_of(info.get(_INFO_KIND, b""))
        if kind == "veth":
            self.lowers = ()
        elif kind == "macvlan":
            data = netlink.unpack_attributes(info.get(_INFO_DATA, b""))
            self.macvlan_mode = _MODE_NAMES.get(netlink.number_of(data.get(_MACVLAN_MODE, b"")), "")
            self.bcqueuelen = netlink.number_of(data.get(_MACVLAN_BC_QUEUE_LEN, b""))
        elif kind in _LOWERS:
            data = netlink.unpack_attributes(info.get(_INFO_DATA, b""))
            self.lowers = tuple(filter(None, (netlink.number_of(data.get(lower, b"")) for lower in _LOWERS[kind])))


class Rtnl(netlink.Socket):
    """A socket that reads and changes the links of its namespace. Raises KernelError when the kernel refuses."""

    def link(self, name: str = "", index: int = 0) -> Link | None:
        """The link with this `index` or, if `index` is 0, with this (alternative) name; None if there is none."""
        query = _SKIP_STATISTICS
        if not index:
            length = len(name.encode("utf-8", "surrogateescape"))
            if not 0 < length <= _ALT_IFNAME_BYTES:
                return None
            query += netlink.string(_IFNAME if length <= _IFNAME_BYTES else _ALT_IFNAME, name)
        try:
            return Link(self.get(GETLINK, ifinfo(index) + query))
        except netlink.KernelError as fault:
            if fault.errno == ENODEV:
                return None
            raise

    def links(self) -> list[Link]:
        return [Link(body) for body in self.dump(GETLINK, ifinfo(0) + _SKIP_STATISTICS)]

    def add_macvlan(
        self,
        name: str,
        lower_index: int,
        mode: str,
        mtu: int = 0,
        mac: str = "",
        bcqueuelen: int = 0,
        netns_fd: int = -1,
    ) -> None:
        """Make a macvlan over the link `lower_index` of this namespace, directly in the namespace `netns_fd`.

        `mode` is a key of MACVLAN_MODES. For an argument that is 0, "" or -1 the kernel chooses the value. Errors
        (drivers/net/macvlan.c): EBUSY when the lower link has another master; EINVAL for passthru beside another
        macvlan, and when the lower link is not Ethernet; EEXIST when a link in `netns_fd`, or before kernel 6.14 in
        this namespace, has the name. If the MAC is in use, only setting the link up fails (EADDRINUSE).
        """
        data = netlink.numbers({_MACVLAN_MODE: MACVLAN_MODES[mode], _MACVLAN_BC_QUEUE_LEN: bcqueuelen or None})
        info = netlink.string(_INFO_KIND, "macvlan") + netlink.attribute(_INFO_DATA | netlink.NESTED, data)
        body = ifinfo(0) + netlink.string(_IFNAME, name) + netlink.attribute(_LINKINFO | netlink.NESTED, info)
        body += netlink.numbers(
            {_LOWER: lower_index, _MTU: mtu or None, _NET_NS_FD: netns_fd if netns_fd >= 0 else None}
        )
        if mac:
            body += netlink.attribute(_ADDRESS, _octets(mac))
        self.request(NEWLINK, body, netlink.CREATE | netlink.EXCLUSIVE)

    def change_link(
        self,
        index: int,
        name: str = "",
        mtu: int = 0,
        mac: str = "",
        alias: str | None = None,
        up: bool | None = None,
        netns_fd: int = -1,
        new_index: int = 0,
    ) -> None:
        """Change the given attributes of the link `index` in one message; `alias` "" removes the alias.

        The kernel makes the changes in this order (do_setlink, net/core/rtnetlink.c): move to `netns_fd`, MAC, MTU,
        name, alias, up. It stops at the first failure and keeps the earlier changes. So if `name` is taken in the other
        namespace, the link has moved and kept its old name. A move sets the link down and drops its addresses and
        routes. `new_index` is the index after the move (EBUSY when it is taken). If `new_index` is 0, or the kernel is
        older than 5.13, the kernel chooses an index. Kernels before 6.2 rename only a link that is down (EBUSY).
        """
        flags = mask = 0
        if up is not None:
            flags, mask = (_IFF_UP if up else 0), _IFF_UP
        namespace = netns_fd if netns_fd >= 0 else None
        body = ifinfo(index, flags, mask)
        body += netlink.numbers({_NET_NS_FD: namespace, _NEW_INDEX: new_index or None, _MTU: mtu or None})
        if name:
            body += netlink.string(_IFNAME, name)
        if mac:
            body += netlink.attribute(_ADDRESS, _octets(mac))
        if alias is not None:
            body += netlink.attribute(_ALIAS, alias.encode("utf-8", "surrogateescape"))
        self.request(NEWLINK, body)

    def delete_link(self, index: int) -> bool:
        """Remove the link `index`, and wait until it is gone. Returns False when there was no such link.

        A link is gone when it is down, without addresses, off its master and out of the namespace. The kernel then
        sends RTM_DELLINK, about 1 ms after the request (unregister_netdevice_many_notify, net/core/dev.c). Before it
        frees the link's memory, the kernel waits 10 to 20 ms for all processors (rcu_barrier in netdev_run_todo). This
        method returns before this wait. Kernels before 6.2 send RTM_DELLINK only after the wait.
        """
        try:
            self.request_and_leave(_DELLINK, ifinfo(index))
        except netlink.KernelError as fault:
            if fault.errno == ENODEV:
                return False
            raise
        return True

    def received(self, index: int) -> list[bytes]:
        """The MACs, except the link's own, for which the link `index` receives frames; [] if the kernel shows none.

        A link on top of this one, such as a macvlan in any namespace, adds its own MAC while it is up (macvlan_open,
        drivers/net/macvlan.c). The kernel shows these MACs as forwarding entries (ndo_dflt_fdb_dump,
        net/core/rtnetlink.c).
        """
        found = []
        for body in self.dump_if_known(GETNEIGH, NDMSG.pack(_AF_BRIDGE, index, 0, 0, 0), EOPNOTSUPP):
            _, at, _, flags, _ = NDMSG.unpack_from(body)
            entry = netlink.unpack_attributes(body, NDMSG.size)
            if (
                at == index
                and flags & _NEIGH_SELF
                and len(entry.get(_NEIGH_ADDRESS, b"")) == 6
                and _NEIGH_DST not in entry
            ):
                found.append(entry[_NEIGH_ADDRESS])
        return found

    def add_altname(self, index: int, name: str) -> None:
        """Add the alternative name `name` (1 to 127 bytes) to the link `index`. Raises EEXIST when any link has it."""
        self.request(_NEWLINKPROP, ifinfo(index) + _altname(name), netlink.CREATE | netlink.EXCLUSIVE | netlink.APPEND)

    def remove_altname(self, index: int, name: str) -> None:
        """Remove the alternative name `name` of the link `index`. Raises ENOENT when the link has no such name."""
        self.request(_DELLINKPROP, ifinfo(index) + _altname(name))

    def ids_of_others(self, but: Rtnl | None = None) -> list[int]:
        """The ids (nsid) that other namespaces, except that of `but`, have in this namespace (`ip netns list-id`); []
        on a refusal. When a namespace ends, another may get its id. An id of this namespace for itself is left out."""
        try:
            bodies = self.dump(_GETNSID, b"\0\0\0\0")
            known = [self.id_of(each) for each in (self, but) if each]
        except OSError:
            return []
        ids = [netlink.signed_of(netlink.unpack_attributes(body, 4)[_NSID]) for body in bodies]
        return [nsid for nsid in ids if nsid not in known]

    def id_of(self, other: Rtnl) -> int | None:
        """The id (nsid) that the namespace of `other` has in this namespace; None when it has no id."""
        fd = other.namespace()
        try:
            return self.netns_id(fd)
        finally:
            os.close(fd)

    def links_of(self, nsid: int) -> list[Link]:
        """All links of the namespace with the id `nsid` in this one; [] if that one is gone, or before Linux 4.15."""
        try:
            return [Link(body) for body in self.dump(GETLINK, ifinfo(0) + netlink.number(_TARGET_NETNSID, nsid))]
        except netlink.KernelError:
            return []

    def netns_id(self, netns_fd: int) -> int | None:
        """The id that the namespace `netns_fd` has in this one (`link-netnsid` of ip-link); None when it has no id."""
        reply = self.get(_GETNSID, b"\0\0\0\0" + netlink.number(_NSID_FD, netns_fd))
        found = netlink.signed_of(netlink.unpack_attributes(reply, 4)[_NSID])
        return None if found < 0 else found


def ifinfo(index: int, flags: int = 0, mask: int = 0) -> bytes:
    """The header of a message about the link `index` (0: none). The kernel changes only the `flags` in `mask`."""
    return IFINFO.pack(0, 0, index, flags, mask)


def with_those_below(index: int, links: Sequence[Link]) -> set[int]:
    """The indexes of the link `index` and all links below it in `links`: lower links, ports of bridges and bonds."""
    known = {link.index: link for link in links}
    found: set[int] = set()
    pending = [index]
    while pending:
        link = known.get(pending.pop())
        if link is None or link.index in found:
            continue
        found.add(link.index)
        if link.lower_netnsid is None:
            pending += link.lowers
        pending += [port.index for port in links if port.master_index == link.index]
    return found


def _altname(name: str) -> bytes:
    return netlink.attribute(_PROP_LIST | netlink.NESTED, netlink.string(_ALT_IFNAME, name))


def _octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
