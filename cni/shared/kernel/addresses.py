"""Read, add and remove IP addresses of links. Sources: rtnetlink(7), include/uapi/linux/if_addr.h.

Addresses are text with their prefix length, "192.0.2.1/24" or "2001:db8::1/64". The functions raise KernelError when
the kernel refuses a request, and ValueError for a text that is no address.
"""

from __future__ import annotations

from errno import EADDRNOTAVAIL
from socket import AF_INET, AF_INET6, inet_ntop
from struct import Struct

from cni.shared.kernel import netlink

_NEWADDR, _DELADDR, _GETADDR = 20, 21, 22
IFADDR = Struct("=BBBBI")  # struct ifaddrmsg: family, prefix length, flags, scope, index
CACHE = Struct("=IIII")  # struct ifa_cacheinfo: preferred and valid lifetime in seconds, made, changed
_ADDRESS, _LOCAL, _LABEL, _BROADCAST, CACHEINFO, FLAGS, _METRIC = 1, 2, 3, 4, 6, 8, 9

NODAD, DADFAILED, TENTATIVE, PERMANENT, NOPREFIXROUTE = 0x2, 0x8, 0x40, 0x80, 0x200
LINK_SCOPE = 253


class Address:
    """An address of the link `index`, as the kernel holds it.

    `text` is "address/length". `peer` is the other end of a point-to-point address, otherwise "". `broadcast` may be
    "", and only IPv4 addresses have a `label`. `scope` is a number of rtnetlink(7), 0 for global. `flags` has the
    IFA_F_* bits. `metric` is the metric of the prefix route, 0 for the kernel's default. `local` has the bytes of the
    address, `body` is the body of the netlink message.

    A `permanent` address never expires: an administrator or a plugin has set it, and not SLAAC. A `tentative` address
    cannot be used yet, since duplicate address detection still runs. A `duplicate` address is in use by another host.
    """

    def __init__(self, body: bytes) -> None:
        family, length, self.flags, self.scope, self.index = IFADDR.unpack_from(body)
        found = netlink.unpack_attributes(body, IFADDR.size)
        self.body = body
        self.local = local = found.get(_LOCAL) or found[_ADDRESS]
        peer = found.get(_ADDRESS, local)
        self.text = f"{inet_ntop(family, local)}/{length}"
        self.peer = inet_ntop(family, peer) if peer != local else ""
        self.broadcast = inet_ntop(family, found[_BROADCAST]) if _BROADCAST in found else ""
        self.label = netlink.text_of(found.get(_LABEL, b""))
        self.metric = netlink.number_of(found.get(_METRIC, b""))
        if FLAGS in found:  # all 32 bits; the header has room for 8
            self.flags = netlink.number_of(found[FLAGS])
        self.permanent = bool(self.flags & PERMANENT)
        self.tentative = bool(self.flags & TENTATIVE)
        self.duplicate = bool(self.flags & DADFAILED)


def list_of(rtnl: netlink.Socket, index: int) -> list[Address]:
    """The addresses of the link `index`, IPv4 first, in the kernel's order."""
    return [
        address for address in all_of(rtnl, index) if address.index == index
    ]  # a kernel before 4.20 lists the addresses of all links


def all_of(rtnl: netlink.Socket, index: int = 0) -> list[Address]:
    """The addresses of the link `index`. For index 0, and before Linux 4.20, the addresses of all links."""
    return [Address(body) for body in rtnl.dump(_GETADDR, IFADDR.pack(0, 0, 0, 0, index))]


def add(
    rtnl: netlink.Socket,
    index: int,
    text: str,
    broadcast: bool = True,
    nodad: bool = True,
    scope: int = 0,
    label: str = "",
    peer: str = "",
    flags: int = 0,
    metric: int = 0,
) -> None:
    """Give the link `index` the address `text`, permanently. Raises KernelError EEXIST when the link has it.

    `broadcast` sets the broadcast address of the prefix, for IPv4 with a prefix shorter than 31 bits. `nodad` makes an
    IPv6 address usable at once, without duplicate address detection. The other parameters have the meaning of the
    attributes of `Address`, and serve to restore an address.
    """
    family, local, length = _parse(text)
    body = IFADDR.pack(family, length, 0, scope, index) + netlink.attribute(_LOCAL, local)
    if peer:
        body += netlink.attribute(_ADDRESS, netlink.address_of(peer)[1])
    if broadcast and family == AF_INET and length < 31:
        highest = int.from_bytes(local, "big") | (0xFFFFFFFF >> length)
        body += netlink.attribute(_BROADCAST, highest.to_bytes(4, "big"))
    if label:
        body += netlink.string(_LABEL, label)
    if nodad and family == AF_INET6:
        flags |= NODAD
    body += netlink.numbers({_METRIC: metric or None, FLAGS: flags or None})
    rtnl.request(_NEWADDR, body, netlink.CREATE | netlink.EXCLUSIVE)


def remove(rtnl: netlink.Socket, index: int, text: str) -> None:
    """Remove the address `text` from the link `index`. Raises KernelError EADDRNOTAVAIL when the link lacks it."""
    family, local, length = _parse(text)
    rtnl.request(_DELADDR, IFADDR.pack(family, length, 0, 0, index) + netlink.attribute(_LOCAL, local))


def clear(rtnl: netlink.Socket, index: int) -> None:
    """Remove all addresses from the link `index` except link-local ones (link scope)."""
    for address in list_of(rtnl, index):
        if address.scope == LINK_SCOPE:
            continue
        try:
            remove(rtnl, index, address.text)
        except netlink.KernelError as fault:
            if fault.errno != EADDRNOTAVAIL:  # the kernel removes secondary addresses with the subnet's primary address
                raise


def _parse(text: str) -> tuple[int, bytes, int]:
    """Return (family, bytes, prefix length) of `text`, "address/length". Raises ValueError for any other text."""
    address, _, length = text.partition("/")
    try:
        return *netlink.address_of(address), int(length)
    except ValueError:
        raise ValueError(f'"{text}" is no address with a prefix length') from None
