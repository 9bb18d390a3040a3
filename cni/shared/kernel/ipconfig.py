"""Configure a link by the result of an ADD: set its addresses and routes, set it up, and announce its addresses.

The steps are those of pkg/ipam of containernetworking/plugins, in the sandbox and in this order: sysctls, addresses,
up, routes. With arp_notify the kernel announces the IPv4 addresses when the link comes up (inetdev_event,
net/ipv4/devinet.c). The kernel does not announce an IPv6 address that skips duplicate address detection. To trigger the
announcement, this module sets the link's MAC to its present value (NETDEV_CHANGEADDR in ndisc_netdev_event,
net/ipv6/ndisc.c), which saves a raw socket and 12 ms. Setting the MAC also announces the addresses of both families if
the link was up before it had addresses, or if hardware got its carrier late (NETDEV_CHANGEADDR in inetdev_event).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from socket import inet_ntop

from cni.shared.kernel import addresses, files, routes
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netlink import KernelError, address_of
from cni.shared.spec.errors import AddressInUse, InvalidConfig, KernelRefused
from cni.shared.spec.result import MOST_SCOPE, NUMBERS_OF_ROUTE, IPConfig, Result
from cni.shared.spec.result import Route as WantedRoute

DAD_SECONDS = 5.0  # as in containernetworking/plugins; duplicate address detection takes 1 to 2 s
CARRIER_SECONDS = 0.2  # as in sriov-cni


def configure(inside: Rtnl, link: Link, wanted: Result, dad: bool, set_up: Callable[[], None]) -> tuple[str, int]:
    """Give `link` the addresses and routes of `wanted`, and set it up. Returns the link's new MAC and MTU.

    The thread must be in the namespace of `inside`. `set_up` is called to set the link up, unless the link is up
    already because a foreign IPAM plugin needed it. If `dad` is true, wait for the duplicate address detection of the
    IPv6 addresses. Raises KernelRefused or InvalidConfig when a step fails.
    """
    has_ipv6 = any(a.family == 6 for a in wanted.ips)
    if wanted.ips:
        _announce(link.name, has_ipv6)
    for address in wanted.ips:
        try:
            addresses.add(inside, link.index, address.address, nodad=not dad)
        except ValueError:
            raise InvalidConfig(
                f'the IPAM plugin gave the address "{address.address[:60]}": want one with its prefix length'
            ) from None
        except KernelError as fault:
            raise KernelRefused(
                f"address {address.address} cannot be set on {link.name}: {fault.strerror}", str(fault)
            ) from None
    if not link.up:
        set_up()
    if has_ipv6 and dad:
        _await_detection(inside, link)
    if link.up or (has_ipv6 and not dad):
        _announce_again(inside, link)
    for route in wanted.routes:
        gw = next_hop(route, wanted.ips)
        _refuse_numbers(route, gw)
        add_route(inside, link, route, gw)
    after = inside.link(index=link.index) or link
    if wanted.ips and not after.kind and not after.carrier:  # hardware without carrier: nothing was announced
        _await_carrier(inside, link)
        _announce_again(inside, link)
    return after.mac, after.mtu


def _await_carrier(inside: Rtnl, link: Link) -> None:
    """Wait for the carrier of hardware that was just set up, but only CARRIER_SECONDS, since it may have no cable."""
    end = time.monotonic() + CARRIER_SECONDS
    while time.monotonic() < end:
        now = inside.link(index=link.index)
        if now is None or now.carrier:
            return
        time.sleep(0.01)


def _announce_again(inside: Rtnl, link: Link) -> None:
    """Make the kernel announce the addresses of the link, by setting its MAC to the present value."""
    try:
        inside.change_link(link.index, mac=link.mac)
    except KernelError:
        pass  # igb may refuse even the present MAC of a VF with an administrative MAC; then neighbours must ask


def _announce(name: str, has_ipv6: bool) -> None:
    _try(f"net/ipv4/conf/{name}/arp_notify")
    if not has_ipv6:
        return
    for link in ("lo", name):  # some runtimes give the sandbox with IPv6 switched off
        try:
            if files.read_sysctl(f"net/ipv6/conf/{link}/disable_ipv6") != "0":
                files.write_sysctl(f"net/ipv6/conf/{link}/disable_ipv6", "0")
        except OSError as fault:
            raise KernelRefused(
                f"IPv6 cannot be enabled on {link} in the sandbox: {fault.strerror}; use IPv4 alone, or a kernel with IPv6 and a writable /proc/sys"
            ) from None
    _try(f"net/ipv6/conf/{name}/keep_addr_on_down")
    _try(f"net/ipv6/conf/{name}/ndisc_notify")


def _try(name: str) -> None:
    """Switch on the sysctl `name`. A failure is ignored, since the attachment works without the sysctl."""
    try:
        files.write_sysctl(name, "1")
    except OSError:
        pass


def _await_detection(inside: Rtnl, link: Link) -> None:
    end = time.monotonic() + DAD_SECONDS
    while True:
        found = [a for a in addresses.list_of(inside, link.index) if ":" in a.text and a.scope != addresses.LINK_SCOPE]
        in_use = [a.text for a in found if a.duplicate]
        if in_use:
            refusal = AddressInUse(
                f"address {', '.join(in_use)} is in use by another host on the link (duplicate address detection): free it there, or exclude it from the range"
            )
            refusal.addresses = in_use
            raise refusal
        if not any(a.tentative for a in found):
            return
        if time.monotonic() > end:
            raise KernelRefused(
                f"duplicate address detection on {link.name} took more than {DAD_SECONDS:g} s: has the master a carrier?"
            )
        time.sleep(0.05)


def add_route(inside: Rtnl, link: Link, route: WantedRoute, gw: str, source: str = "") -> None:
    """Add `route` through the gateway `gw`, with the preferred source address `source`; do nothing if the route exists.
    Raises InvalidConfig for an invalid CIDR or address, KernelRefused when the kernel refuses the route."""
    own = (route.priority, route.table, route.scope, route.mtu, route.advmss)
    try:
        routes.add(inside, link.index, route.dst, gw, *own, source=source)
    except ValueError:
        raise InvalidConfig(
            f'route "{route.dst[:60]}" by "{gw[:60]}": want a CIDR and an address of the same family'
        ) from None
    except KernelError as fault:
        if fault.errno == errno.EEXIST:
            return  # the result has the route twice, or the kernel has set it: Go's plugins accept both
        by, table = f" by {gw}" if gw else "", f" in table {route.table}" if route.table else ""
        reason = str(fault.strerror)
        if fault.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            reason = "the gateway is in none of the link's subnets; correct `gw` or `gateway`"
        elif fault.errno == errno.EINVAL:
            own_addresses = [a.text.partition("/")[0] for a in addresses.list_of(inside, link.index)]
            reason = "the destination has host bits, or a value is out of range"
            if gw in own_addresses:
                reason = f"{gw} is the pod's own address; exclude the next hop from the range, or correct `gw`"
        raise KernelRefused(
            f"route {route.dst}{by} cannot be set on {link.name}{table}: {reason}", str(fault)
        ) from None


def _refuse_numbers(route: WantedRoute, gw: str) -> None:
    """Raise InvalidConfig for a number in `route` that no route can have, or a scope that no route by `gw` can have."""
    for key in NUMBERS_OF_ROUTE:
        value, most = getattr(route, key), MOST_SCOPE if key == "scope" else 0xFFFFFFFF
        if value is not None and not 0 <= value <= most:
            raise InvalidConfig(f"route {route.dst}: {key} {value} cannot be set, want 0 to {most}")
    if gw and route.family == 4 and (route.scope or 0) >= routes.LINK_SCOPE:
        raise InvalidConfig(
            f"route {route.dst}: scope {route.scope} is that of a destination on the link, and its gateway is {gw}: want scope"
            ' 0, or "gw": "0.0.0.0" for no gateway'
        )


def next_hop(route: WantedRoute, ips: list[IPConfig]) -> str:
    """The gateway of `route`, or else the first gateway of its family in `ips`; "" if there is none, or for 0.0.0.0."""
    gw = canonical(route.gw) or gateway(route.family, ips)
    return "" if gw == "0.0.0.0" else gw


def gateway(family: int, ips: list[IPConfig]) -> str:
    """The first gateway of the addresses of `family`; "" when none of them has a gateway."""
    return next((a.gateway for a in ips if a.gateway and a.family == family), "")


def canonical(text: str) -> str:
    """Return `text`, an address or "address/length", in the kernel's form. Other texts are returned unchanged."""
    address, slash, length = text.partition("/")
    try:
        return inet_ntop(*address_of(address)) + slash + length
    except ValueError:
        return text


def subnet(text: str) -> str:
    """Convert `text`, "address/length", to "network/length" in the kernel's form."""
    address, _, length = text.partition("/")
    family, octets = address_of(address)
    host = 8 * len(octets) - int(length)
    network = int.from_bytes(octets, "big") >> host << host
    return f"{inet_ntop(family, network.to_bytes(len(octets), 'big'))}/{length}"
