"""The state of a device on the host, before it is moved into a sandbox.

The table in docs/devices.md says which parts of the state are restored, which forbid the move, and which are lost.
`look` reads the state, and `cni.link.plugins.host_device.restore` restores it. A move to another network namespace
(__dev_change_net_namespace, net/core/dev.c) closes the device, drops its qdiscs, addresses and routes, and resets its
parameters to those of the other namespace.

In the record the state has these members:

    alias, altnames, mtu, up    as JSON values
    kernel                      everything else, in the kernel's own bytes (cni.shared.kernel.raw_state)
    addresses, routes           as JSON values too, for an older version of railcni after a downgrade
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from socket import AF_INET, AF_INET6
from typing import Any

from cni.link.plugins.host_device import devices
from cni.shared.kernel import addresses, files, node_routes, raw_state, rdma_sysfs, routes
from cni.shared.kernel.addresses import Address
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netlink import APPEND, CREATE, KernelError, number_of
from cni.shared.kernel.routes import KernelRoute
from cni.shared.log import Log
from cni.shared.records import Records
from cni.shared.spec.errors import TryAgainLater

_AUTOMATIC = (routes.KERNEL_PROTOCOL, routes.RA_PROTOCOL)
_OF_THE_KERNEL = ("01:00:5e:00:00:01", "33:33:00:00:00:01", "33:33:00:00:00:02", "33:33:00:00:00:6a", "33:33:ff:")
_SHOWN = 4
_FAMILIES: dict[int, str] = {AF_INET: "ipv4", AF_INET6: "ipv6"}
_STABLE = "net/ipv6/conf/{}/stable_secret"
UNLISTED = {  # parameters that rtnetlink does not show, with the default of the kernel
    "net/ipv6/conf/{}/regen_min_advance": "2",
    "net/ipv6/conf/{}/ra_honor_pio_life": "0",
    "net/ipv6/conf/{}/ra_honor_pio_pflag": "0",
    "net/mpls/conf/{}/input": "0",
    _STABLE: "",
}
_ADDR_GEN_MODE = slice(47 * 4, 48 * 4)  # DEVCONF_ADDR_GEN_MODE
_BY_SECRET = (2, 3)  # IN6_ADDR_GEN_MODE_STABLE_PRIVACY and IN6_ADDR_GEN_MODE_RANDOM


def look(
    device: Link, links: Sequence[Link], every: Sequence[bytes], host: Rtnl, log: Log
) -> tuple[dict[str, Any], str]:
    """Return (state of the device, "") or, if another link needs the device, ({}, reason).

    The log names the parts of the state that will be lost. Raises TryAgainLater if the device leaves the host. `links`
    are all links of the host, and `every` are all routes of the host, as RTM_NEWROUTE bodies.
    """
    try:
        others = _others(device, host)
        tied = _tied(device, links, others)
        if tied:
            return {}, tied
        bodies = raw_state.of_link(every, device.index)
        state, lost = _state(device, bodies, every, host), _lost(device, others, host)
    except KernelError as fault:
        if fault.errno != errno.ENODEV:
            raise
        raise TryAgainLater(
            f'device "{device.name}" is gone from the host: another attachment may have taken it; retry', str(fault)
        ) from None
    if lost:
        log.warning(
            f'device "{device.name}" will lose state that cannot be saved: {"; ".join(lost)}; remove this before the ADD,'
            " or set it again after the DEL"
        )
    return state, ""


def _others(device: Link, host: Rtnl) -> list[bytes]:
    """Further MACs for which the device receives frames; [] for kinds whose forwarding entries mean other things."""
    return host.received(device.index) if device.kind not in ("vxlan", "bridge") else []


def tied(device: Link, links: Sequence[Link], host: Rtnl) -> str:
    """The reason why a move of `device` would break another link, as in `look`; "" if the device can be moved."""
    return _tied(device, links, _others(device, host))


def _tied(device: Link, links: Sequence[Link], others: list[bytes]) -> str:
    """The reason why a move of `device` would break another link, with the remedy; "" if the device can be moved.
    `others` are further MACs for which the device receives frames."""
    if device.master_index:
        master = next((link for link in links if link.index == device.master_index), None)
        name = f'"{master.name}" ({master.kind})' if master else f"with index {device.master_index}"
        return (
            f"it belongs to master {name}, which would lose it: take it out (ip link set {device.name} nomaster), or"
            " select another device"
        )
    uppers = [
        f'"{link.name}" ({link.kind})' for link in links if device.index in link.lowers and link.lower_netnsid is None
    ]
    if uppers:
        return (
            f"{', '.join(uppers[:_SHOWN])} on top of it would go down with it: remove {'it' if len(uppers) == 1 else 'these'}"
            " first, or select another device"
        )
    unicast = [octets.hex(":") for octets in others if not octets[0] & 1]
    if unicast:
        return (
            f"it also receives frames for {', '.join(unicast[:_SHOWN])}, the MAC of a pod's macvlan or of an entry of `bridge fdb`: delete"
            f" these pods or entries (bridge fdb show dev {device.name}), or select another device"
        )
    return ""


def _state(device: Link, bodies: list[bytes], every: Sequence[bytes], host: Rtnl) -> dict[str, Any]:
    """The identity of the device, and the state to restore. `bodies` has the device's routes, `every` all routes of the
    host, both as RTM_NEWROUTE bodies."""
    raw = raw_state.Raw(device.body)
    held = raw_state.addresses(host, device.index)
    found = raw.attributes
    kept = raw_state.routes(host, device.index, bodies, [address.local for address in held], every)
    # The order of the routes that the kernel makes by itself for IPv6 addresses is not recorded.
    if not all(route.family == AF_INET6 and route.protocol == routes.KERNEL_PROTOCOL for route in kept):
        # Read all records (100 in 9 ms) after the routes: if a device left in between, its record was written before.
        away = (record["link"]["device"].get("kernel") for _, record in devices.recorded(None, Records()))
        raw_state.with_those_away(kept, [route for saved in away if saved for route in saved["routes"]])
    return {
        **devices.identity_of(device),
        "alias": device.alias,
        "altnames": device.altnames,
        "mtu": device.mtu,
        "up": device.up,
        "addresses": [_address(a) for a in held if a.permanent],
        "routes": [_route(r) for r in node_routes.of_bodies(bodies, device.index) if r.protocol not in _AUTOMATIC],
        "kernel": {
            "read": int(time.monotonic()),
            "flags": raw.flags & raw_state.SETTABLE_FLAGS,
            "link": {str(kind): found[kind].hex() for kind in (*raw_state.SETTINGS, *raw_state.SIZES) if kind in found},
            "inet": raw.inet.hex(),
            "inet6": raw.inet6.hex(),
            "token": raw.token.hex(),
            "parameters": _unlisted(device.name, raw.inet6),
            "neighbours": raw_state.neighbours(host, device.index),
            "addresses": [address.body.hex() for address in held],
            "routes": [route.document for route in kept],
        },
    }


def _unlisted(link: str, inet6: bytes) -> dict[str, str]:
    """The parameters in UNLISTED that differ from the kernel's default. The thread must be in the link's namespace."""
    found = {}
    has_secret = number_of(inet6[_ADDR_GEN_MODE]) in _BY_SECRET
    for path, default in UNLISTED.items():
        if path != _STABLE or has_secret:
            try:
                value = files.read_sysctl(path.format(link))
            except OSError:
                continue  # this kernel has no such parameter
            if value != default:
                found[path] = value
    return found


def _lost(device: Link, others: list[bytes], host: Rtnl) -> list[str]:
    """The parts of the state that DEL cannot restore. `others` are further MACs that the device receives frames for."""
    found = []
    if raw_state.has_qdisc(host, device.index):
        found.append("its qdiscs and filters (tc)")
    nexthops = [str(number) for number in node_routes.nexthops_of(host, device.index)]
    if nexthops:
        found.append(f"its nexthop objects {_listed(nexthops)} and the routes by them")
    families = raw_state.families_with_neighbour_parameters(host, device.index)
    if families:
        found.append("its parameters " + " and ".join(f"net.{_FAMILIES[family]}.neigh" for family in families))
    found += _software_verbs(device.name)
    groups = [text for text in (o.hex(":") for o in others) if not text.startswith(_OF_THE_KERNEL)]
    if groups:
        found.append(f"its multicast addresses {_listed(groups)}")
    return found


def _listed(texts: list[str]) -> str:
    return ", ".join(texts[:_SHOWN]) + (" ..." if len(texts) > _SHOWN else "")


def _software_verbs(name: str) -> list[str]:
    """A text for each soft-RoCE or soft-iWARP device on the netdev `name`. A move of the netdev deletes these devices
    (rxe_notify and siw_netdev_event at NETDEV_UNREGISTER, drivers/infiniband/sw)."""
    return [
        f"its verbs device {verbs}, which is software"
        for verbs in rdma_sysfs.devices()
        if not rdma_sysfs.pci_of(verbs)
        and any(rdma_sysfs.netdev_of(verbs, port) == name for port in rdma_sysfs.ports(verbs))
    ]


def _address(a: Address) -> dict[str, Any]:
    """The address in the form that an older version of railcni reads."""
    flags = a.flags & (addresses.NOPREFIXROUTE | addresses.NODAD)
    own = {key: getattr(a, key) for key in ("text", "scope", "label", "peer", "metric")}
    return {**own, "broadcast": bool(a.broadcast), "nodad": False, "flags": flags}


def _route(r: KernelRoute) -> dict[str, Any]:
    """The route in the form that an older version of railcni reads."""
    always = {key: getattr(r, key) for key in ("dst", "gw", "table", "scope", "onlink", "source", "protocol")}
    return {**always, **{key: getattr(r, key) or None for key in ("priority", "mtu", "advmss")}}


def keep_others(saved: dict[str, Any], index: int, host: Rtnl) -> None:
    """Restore the IPv4 multipath routes in `saved` that the kernel dropped when the device `index` left. The restored
    routes have no next hops through this device."""
    links = {link.index for link in host.links()} - {index}
    for route in map(raw_state.SavedRoute, saved["routes"]):
        legs = [leg for leg in route.legs if leg[2] in links]
        if route.family == AF_INET and len(legs) not in (0, len(route.legs)):
            body = raw_state.route_again(route, legs, 0)
            try:
                if body:
                    host.request(raw_state.NEWROUTE, body, CREATE if route.is_ahead else CREATE | APPEND)
            except KernelError:
                pass  # the other devices of the route are down or gone as well
