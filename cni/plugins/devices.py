"""A device of the host: found by a selector, described, known again in another namespace, and restored.

What is remembered of a device, as the record keeps it:

    name, index, kind, mac, permanentMac, bus, parent   its identity
    alias, altnames, mtu, up, addresses, routes         its state
"""

from __future__ import annotations

import errno

from cni.kernel import addresses, routes, sysfs
from cni.kernel.netlink import KernelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cni.kernel.addresses import Address
    from cni.kernel.links import Link, Rtnl
    from cni.kernel.routes import Route

_AUTOMATIC = (routes.KERNEL_PROTOCOL, routes.RA_PROTOCOL)  # they come back with their address or router


def find(links: Sequence[Link], name: str, mac: str, kernelpath: str, pci: str, device_id: str) -> Link | None:
    """The link that the first selector given names, in upstream's order of precedence; None when it names none."""
    if name:
        wanted = [name]
    elif mac:
        return next((link for link in links if mac in (link.mac, link.permanent_mac)), None)
    elif kernelpath:
        wanted = sysfs.netdevs_of_path(kernelpath)
    elif pci:
        wanted = sysfs.netdevs_of_pci(pci)
    else:
        wanted = sysfs.netdevs_of_auxiliary(device_id) if device_id else []
    return next((link for link in links if link.name in wanted or set(link.altnames) & set(wanted)), None)


def identity_of(link: Link) -> dict[str, Any]:
    """What `is_same` compares."""
    return {
        "name": link.name,
        "index": link.index,
        "kind": link.kind,
        "mac": link.mac,
        "permanentMac": link.permanent_mac,
        "bus": link.parent_bus,
        "parent": link.parent_device,
    }


def state_of(link: Link, host: Rtnl) -> dict[str, Any]:
    """The identity and state of a device of the host, complete enough to restore it."""
    return {
        **identity_of(link),
        "alias": link.alias,
        "altnames": link.altnames,
        "mtu": link.mtu,
        "up": link.up,
        "addresses": [_address(a) for a in addresses.list_of(host, link.index) if a.permanent],
        "routes": [_route(r) for r in routes.list_of(host, link.index) if r.protocol not in _AUTOMATIC],
    }


def _address(a: Address) -> dict[str, Any]:
    """An address in the form that `addresses.add` takes."""
    return {
        "text": a.text,
        "broadcast": bool(a.broadcast),
        "scope": a.scope,
        "label": a.label,
        "peer": a.peer,
        "nodad": False,
        "flags": a.flags & (addresses.NOPREFIXROUTE | addresses.NODAD),
        "metric": a.metric,
    }


def _route(r: Route) -> dict[str, Any]:
    """A route in the form that `routes.add` takes."""
    return {
        "dst": r.dst,
        "gw": r.gw,
        "priority": r.priority or None,
        "table": r.table,
        "scope": r.scope,
        "mtu": r.mtu or None,
        "advmss": r.advmss or None,
        "onlink": r.onlink,
        "source": r.source,
        "protocol": r.protocol,
    }


def is_same(remembered: dict[str, Any], link: Link, marked: bool = False) -> bool:
    """Whether `link` is the remembered device.

    Hardware is compared by its parent device, or else its permanent MAC. A virtual device has neither: it is the same
    when kind and MAC are, or when it bears our mark (`marked`: the alias that it has in a sandbox). Of several netdevs of
    one parent the permanent MAC tells, or the mark, or the index, which a move keeps where it is free: a VF's permanent
    MAC may follow the one that it was given (igbvf_reset, drivers/net/ethernet/intel/igbvf).
    """
    if link.kind != remembered["kind"]:
        return False
    bears_mark = marked and link.alias == remembered["name"]
    if remembered["parent"]:
        same_mac = not remembered["permanentMac"] or link.permanent_mac == remembered["permanentMac"]
        same_port = same_mac or bears_mark or link.index == remembered["index"]
        return (link.parent_bus, link.parent_device) == (remembered["bus"], remembered["parent"]) and same_port
    if remembered["permanentMac"]:
        return bool(link.permanent_mac == remembered["permanentMac"])
    return bool(link.mac == remembered["mac"] or bears_mark)


def known_again(
    remembered: dict[str, Any], links: Sequence[Link], names: Sequence[str], marked: bool = False
) -> Link | None:
    """The remembered device among `links`.

    A virtual one only under one of `names` or with our mark, since others may have its MAC.
    """
    hardware = remembered["parent"] or remembered["permanentMac"]
    for link in links:
        found_by = hardware or link.name in names or (marked and link.alias == remembered["name"])
        if found_by and is_same(remembered, link, marked):
            return link
    return None


def restore(former: dict[str, Any], link: Link, host: Rtnl) -> None:
    """Make the state of `link`, a device on the host, the former one; KernelError when the kernel refuses a part."""
    alias = former["alias"] if link.alias != former["alias"] else None
    mtu = former["mtu"] if link.mtu != former["mtu"] else 0
    mac = former["mac"] if link.mac != former["mac"] else ""
    if mac:
        _restore_mac(mac, link, host)
    if alias is not None or mtu:
        host.change_link(link.index, alias=alias, mtu=mtu)
    for name in former["altnames"]:
        if name not in link.altnames:
            _once(host.add_altname, link.index, name)
    for address in former["addresses"]:
        _once(addresses.add, host, link.index, **address)
    host.change_link(link.index, up=former["up"])
    if former["up"]:
        for route in former["routes"]:
            _once(routes.add, host, link.index, **route)


def _restore_mac(mac: str, link: Link, host: Rtnl) -> None:
    """Give the device its MAC, unless its driver lets it have but another: that of a VF is its PF's to say.

    igb and i40e impose an administrative MAC when the VF is next set up, and refuse any other from then on.
    """
    if link.up:
        host.change_link(link.index, up=False)  # many drivers take a MAC only when down
    try:
        host.change_link(link.index, mac=mac)
    except KernelError as fault:
        if link.kind or fault.errno not in (errno.EADDRNOTAVAIL, errno.EPERM):
            raise


def _once(call: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Call, and take the refusal of what is there already for done."""
    try:
        call(*arguments, **options)
    except KernelError as fault:
        if fault.errno != errno.EEXIST:
            raise
