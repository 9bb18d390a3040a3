"""Configure a link by the result of an ADD: set its addresses and routes, set it up, and announce its addresses.

The steps are those of pkg/ipam of containernetworking/plugins, in the sandbox and in this order: sysctls, addresses,
up, routes. With arp_notify the kernel announces the IPv4 addresses when the link comes up (inetdev_event,
net/ipv4/devinet.c). The kernel does not announce an IPv6 address that skips duplicate address detection. To trigger the
announcement, this module sets the link's MAC to its present value (NETDEV_CHANGEADDR in ndisc_netdev_event,
net/ipv6/ndisc.c), which saves a raw socket and 12 ms. The MAC is also set if the link was up before it had addresses,
or if hardware got its carrier late. This announces the addresses of both families (inetdev_event).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cni.shared.kernel import addresses, files
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.spec.errors import AddressInUse, InvalidConfig, KernelRefused
from cni.shared.spec.result import Result

DAD_SECONDS = 5.0  # as in containernetworking/plugins; duplicate address detection takes 1 to 2 s
CARRIER_SECONDS = 0.2  # as in sriov-cni


def configure(inside: Rtnl, link: Link, wanted: Result, dad: bool, set_up: Callable[[], None]) -> tuple[str, int]:
    """Give `link` the addresses and routes of `wanted`, and set it up. Returns the link's new MAC and MTU.

    The thread must be in the namespace of `inside`. `set_up` sets the link up. It is not called if the link is up
    already, for a foreign IPAM plugin. If `dad` is true, wait for the duplicate address detection of the IPv6
    addresses. Raises KernelRefused or InvalidConfig when a step fails.
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
    if wanted.routes:
        from cni.shared.kernel import routes  # most networks have no routes

        routes.add_all(inside, link, wanted)
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
