"""Checks of RDMA's network namespace mode, and of the kernel parameters by which RDMA netdevs lose IP packets.

Sources: drivers/infiniband/core/nldev.c (mode); Documentation/networking/ip-sysctl.rst (rp_filter, arp_*). Of the
values for `all` and for the link, the larger one counts for rp_filter, arp_ignore and arp_announce.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from cni.cli.doctor.finding import Observation, advice, broken, note, ok, unknown
from cni.node.inventory.topology import text
from cni.shared.kernel import node_routes, rdma_netlink, routes
from cni.shared.kernel.links import Rtnl

STRICT = 1
ELSEWHERE = "0.0.0.0/0"  # stands for peers outside a link's subnets
_MOST_NEIGHBOURS = 32  # addresses of a subnet to try; a single address in another namespace is enough
_STRANGERS = ("192.0.2.1", "198.51.100.1", "203.0.113.1")  # addresses that no host has: RFC 5737


@dataclass(frozen=True)
class LinkParameters:
    """The kernel parameters in effect for a link; None if not read.

    `answers` maps each IPv4 subnet of the link, and ELSEWHERE, to the name of the link by which replies to peers there
    leave ("" for no route). It is empty unless rp_filter is strict."""

    rp_filter: int | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None
    answers: Mapping[str, str] = field(default_factory=dict)


def mode() -> str:
    """The mode of RDMA's network namespaces: "shared" or "exclusive"; "" if the kernel does not tell it."""
    try:
        with closing(rdma_netlink.Rdma()) as socket:
            return socket.netns_mode()
    except OSError:
        return ""


def check_mode(mode: str, moves_devices: bool, sharing: Sequence[str]) -> Iterator[Observation]:
    """Find exclusive mode. It is a fault if the plugin `rdma` is missing (`moves_devices` is false), or if links of
    pods share a NIC, as macvlans do (`sharing`)."""
    subject = "RDMA netns mode"
    if not mode:
        yield unknown(subject, "the kernel does not say: RDMA netlink is not there, or refused")
    elif mode == rdma_netlink.SHARED:
        yield ok(subject, mode)
    elif moves_devices and not sharing:
        yield note(subject, f"{mode}: the plugin rdma moves each verbs device into its pod")
    else:
        who = f"; {', '.join(sharing)} among them" if sharing else ""
        ways = (
            "in /etc/modprobe.d and a reboot, or `rdma system set netns shared` while no other network namespace exists"
        )
        remedy = f"`options ib_core netns_mode=1` {ways}; or host-device with the plugin rdma"
        yield broken(subject, f"{mode}: pods that share a NIC see no verbs device{who}", "shared", remedy)


def read(netdev: str, networks: Sequence[str] = (), proc: str = "/proc") -> LinkParameters:
    """The parameters of a link of this thread's namespace; `networks` are its IPv4 addresses with prefix lengths."""
    values = {}
    for name in ("rp_filter", "arp_ignore", "arp_announce"):
        each = [text(f"{proc}/sys/net/ipv4/conf/{where}/{name}") for where in ("all", netdev)]
        values[name] = max(int(v) for v in each) if all(v.isdigit() for v in each) else None
    return LinkParameters(**values, answers=_answers(networks) if values["rp_filter"] == STRICT else {})


def _answers(networks: Sequence[str]) -> dict[str, str]:
    """The link by which replies leave this thread's namespace, for each subnet of `networks` and ELSEWHERE."""
    found: dict[str, str] = {}
    with Rtnl() as rtnl:
        names = {link.index: link.name for link in rtnl.links()}
        for own in map(ipaddress.IPv4Interface, networks):
            strangers = [s for s in map(ipaddress.IPv4Address, _STRANGERS) if s not in own.network]
            for subnet, peers in ((str(own.network), _neighbours(own)), (ELSEWHERE, strangers)):
                links = (node_routes.way_to(rtnl, str(peer), str(own.ip))[0] for peer in peers)
                by = next((index for index in links if index != routes.LOOPBACK), None)
                if by is not None:
                    found.setdefault(subnet, names.get(by, ""))
    return found


def _neighbours(own: ipaddress.IPv4Interface) -> list[ipaddress.IPv4Address]:
    """The first few other addresses of the subnet, without the network's and the broadcast address."""
    reserved = int(own.network.prefixlen < 31)
    first, count = own.network.network_address + reserved, own.network.num_addresses - 2 * reserved
    return [first + n for n in range(min(count, _MOST_NEIGHBOURS)) if first + n != own.ip]


def check_parameters(read: Mapping[str, LinkParameters], subnets: Mapping[str, Sequence[str]]) -> Iterator[Observation]:
    """Find strict reverse path filters that drop packets, and links of one subnet that answer ARP for each other."""
    for netdev, parameters in read.items():
        yield _check_filter(netdev, parameters)
    for subnet, netdevs in subnets.items():
        wrong = [n for n in netdevs if n in read and (read[n].arp_ignore == 0 or read[n].arp_announce == 0)]
        if len(netdevs) < 2 or not wrong:
            continue
        why = "any link answers ARP for the others' addresses, so that traffic reaches the wrong NIC"
        found = f"all in {subnet}, and {', '.join(wrong)} with arp_ignore or arp_announce 0: {why}"
        values = (f"net.ipv4.conf.{n}.arp_ignore=1 net.ipv4.conf.{n}.arp_announce=2" for n in wrong)
        healthy = "arp_ignore 1 or 2, arp_announce 2; or a subnet for each rail"
        yield broken(", ".join(netdevs), found, healthy, f"sysctl -w {' '.join(values)}")


def _check_filter(netdev: str, parameters: LinkParameters) -> Observation:
    """Judge strict rp_filter: a fault if it drops packets from the link's subnets, advice if only from elsewhere."""
    value = parameters.rp_filter
    if value is None:
        return unknown(netdev, "rp_filter cannot be read")
    if value != STRICT:
        return ok(netdev, f"rp_filter {value}")
    subnets = [subnet for subnet in parameters.answers if subnet != ELSEWHERE]
    away = {subnet: link for subnet, link in parameters.answers.items() if link != netdev}
    healthy = "0 or 2 (loose), or answers that leave by the link itself (the key `rail` sees to both)"
    larger = "of `all` and the link's the larger counts"
    remedy = f"sysctl -w net.ipv4.conf.{netdev}.rp_filter=2, and in /etc/sysctl.d: {larger}"
    if not away:
        why = "answers leave by the link itself" if subnets else "the link has no IPv4 address"
        return ok(netdev, f"rp_filter 1, strict: {why}")
    subnet = next((subnet for subnet in subnets if subnet in away), ELSEWHERE)
    leave = f"leave by {away[subnet] or 'no link'}: what comes in here"
    if subnet != ELSEWHERE:
        return broken(netdev, f"rp_filter is 1, strict, and answers to {subnet} {leave} is dropped", healthy, remedy)
    within = f" but from {', '.join(subnets)}" if subnets else ""
    return advice(netdev, f"rp_filter is 1, strict, and other answers {leave}{within} is dropped", healthy, remedy)
