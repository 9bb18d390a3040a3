"""Checks of the kernel: modules and the NICs that need them, device nodes in /dev/infiniband, the mode of RDMA's
network namespaces, and the sysctls that can make RDMA netdevs drop IP packets.

A built-in module may have no directory in /sys/module. Then another entry in sysfs shows the module: the class
infiniband (ib_core), the class infiniband_verbs (ib_uverbs), or the misc device rdma_cm (rdma_ucm).

Sources: drivers/infiniband/core/nldev.c (mode); Documentation/networking/ip-sysctl.rst (rp_filter, arp_*). For
rp_filter, arp_ignore and arp_announce, the larger of the values for `all` and for the link is in effect.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from cni.cli.doctor.finding import ADVICE, FAULT, Observation, advice, broken, note, ok, unknown
from cni.node.inventory import functions
from cni.node.inventory.functions import Function
from cni.node.inventory.topology import beside, text
from cni.resources.models import VFIO
from cni.shared.kernel import node_routes, rdma_netlink, rdma_sysfs, routes
from cni.shared.kernel.files import names_in
from cni.shared.kernel.links import Rtnl

_NEEDED = (
    ("ib_core", "class/infiniband", "nothing of RDMA works without it"),
    ("ib_uverbs", "class/infiniband_verbs", "programs reach no verbs device without it"),
    ("rdma_ucm", "class/misc/rdma_cm", "RDMA CM needs it: rping, ib_write_bw -R, and storage"),
)
# a NIC's network driver -> the module that makes a verbs device of the same function
_COMPANIONS = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "qede": "qedr",
    "ionic": "ionic_rdma",
    "hns3": "hns_roce_hw_v2",
    "mana": "mana_ib",
    "cxgb4": "iw_cxgb4",
}
_KNOWN = (*(name for name, _, _ in _NEEDED), *_COMPANIONS.values())
_MELLANOX = "15b3"
STRICT = 1
ELSEWHERE = "0.0.0.0/0"  # stands for peers outside a link's subnets
_MOST_NEIGHBOURS = 32  # the most addresses of a subnet to try until one is not the node's own
_STRANGERS = ("192.0.2.1", "198.51.100.1", "203.0.113.1")  # addresses that no host has: RFC 5737


@dataclass(frozen=True)
class Modules:
    """The loaded RDMA modules, and the physical network functions.

    `bonded` maps the `id` of a function that has no verbs device of its own to the verbs device of its bond (LAG)."""

    loaded: frozenset[str]
    functions: tuple[Function, ...]
    bonded: Mapping[str, str] = field(default_factory=dict)


def read_modules(root: str = "/sys") -> Modules:
    """Read the loaded kernel modules and the physical network functions."""
    signs = [*((name, sign) for name, sign, _ in _NEEDED), *((name, f"module/{name}") for name in _KNOWN)]
    loaded = {name for name, sign in signs if os.path.isdir(f"{root}/{sign}")}
    physical = [f for f in functions.read(root) if f.vendor and not f.is_virtual]
    with_verbs = [f for f in physical if f.verbs]
    loaded.update(_COMPANIONS[f.driver] for f in with_verbs if f.driver in _COMPANIONS)  # also a built-in module
    bonded = {
        one.id: other.verbs[0]
        for one in physical
        for other in with_verbs
        if not one.verbs and one.driver == other.driver and _uppers(one, root) & _uppers(other, root)
    }
    return Modules(frozenset(loaded), tuple(physical), bonded)


def _uppers(function: Function, root: str) -> set[str]:
    return {upper for netdev in function.netdevs for upper in beside(netdev, "upper_", root)}


def check_modules(modules: Modules) -> Iterator[Observation]:
    """Check that the needed kernel modules are loaded, and that each RDMA NIC has its PCI driver (such as mlx5_core)
    and its verbs driver (such as mlx5_ib)."""
    for name, _, why in _NEEDED if "ib_core" in modules.loaded else ():  # else `check_devices` reports this
        if name in modules.loaded:
            yield ok(name, "loaded")
        else:
            yield broken(name, f"not loaded: {why}", "loaded", f"modprobe {name}, and add it to /etc/modules-load.d")
    for function in modules.functions:
        companion = _COMPANIONS.get(function.driver, "")
        if function.verbs:
            yield ok(function.id, f"{function.driver}, with a verbs device")
        elif function.id in modules.bonded:
            yield ok(function.id, f"{function.driver}, in a bond with the verbs device {modules.bonded[function.id]}")
        elif function.vendor == _MELLANOX and not function.driver:
            yield broken(function.id, "an NVIDIA NIC without a driver", "mlx5_core", "modprobe mlx5_core; see dmesg")
        elif companion and companion not in modules.loaded:
            level = FAULT if function.vendor == _MELLANOX else ADVICE
            found = f"{function.driver} without {companion}: a NIC without a verbs device"
            yield Observation(level, function.id, found, f"{companion} loaded", f"modprobe {companion}")
        elif companion:
            yield note(function.id, f"{function.driver} and {companion}, and no verbs device is seen here")


def check_nodes(root: str, dev: str, chosen: Collection[str] | None = None) -> Iterator[Observation]:
    """Check the device nodes in `dev`/infiniband: rdma_cm, and the node of each verbs device in the sysfs at `root`. If
    `chosen` is given, check only the device nodes that it names."""
    folder = f"{root}/class/infiniband_verbs"
    places = {name: f"{folder}/{name}" for name in sorted(names_in(folder)) if name.startswith("uverbs")}
    for name, place in {**places, "rdma_cm": f"{root}/class/misc/rdma_cm"}.items():
        if os.path.isdir(place) and (chosen is None or name in chosen):
            yield _node(f"{dev}/infiniband/{name}", text(f"{place}/dev"))


def _node(path: str, wanted: str) -> Observation:
    """Check that the device node at `path` is the character device `wanted`, MAJOR:MINOR."""
    healthy = f"character device {wanted}"
    try:
        status = os.stat(path)
    except OSError:
        remedy = "udevadm trigger; in a container: mount /dev/infiniband, as a device plugin does"
        return broken(path, "not there", healthy, remedy)
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    found = number if stat.S_ISCHR(status.st_mode) else "no character device"
    if wanted in ("", found):
        return ok(path, f"{found}, mode {stat.S_IMODE(status.st_mode):o}")
    return broken(path, found, healthy, "udevadm trigger; see udev's log")


def check_devices(names: Sequence[str], modules: Modules, moved: bool) -> Iterator[Observation]:
    """Check that there is a verbs device. `moved`: the plugin `rdma` may have moved all verbs devices into pods."""
    if names:
        yield ok("verbs devices", ", ".join(names))
        return
    if moved:
        yield note("verbs devices", "none in this namespace: the plugin rdma may have moved them into pods")
        return
    for_dpdk = [f.id for f in modules.functions if f.driver == VFIO]
    nics = [f.id for f in modules.functions if f.driver in _COMPANIONS or (f.vendor == _MELLANOX and f.driver != VFIO)]
    remedy = "load the verbs driver of the node's RDMA NIC; without such a NIC, soft-RoCE: rdma link add rxe0 type rxe netdev NETDEV"
    if nics:
        remedy = f"load the verbs driver of {', '.join(nics)}"
    elif for_dpdk:
        remedy = f"for RDMA, bind {', '.join(for_dpdk)} to the vendor's driver: {VFIO} is for DPDK"
    found = f"none in /sys{rdma_sysfs.CLASS}"
    if "ib_core" not in modules.loaded:
        missing = [name for name, _, _ in _NEEDED if name not in modules.loaded]
        found += f": {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not loaded"
        remedy = f"modprobe -a {' '.join(missing)}, and add them to /etc/modules-load.d; then {remedy}"
    yield broken("verbs devices", found, "one for each RDMA NIC", remedy)


# --- network namespaces, and parameters ---


@dataclass(frozen=True)
class LinkParameters:
    """The kernel parameters in effect for a link; a parameter is None if it could not be read.

    `answers` is empty unless rp_filter is strict. It maps each IPv4 subnet of the link to the link that sends the
    replies to peers in this subnet ("": no route). The key ELSEWHERE stands for all other addresses."""

    rp_filter: int | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None
    answers: Mapping[str, str] = field(default_factory=dict)


def netns_mode() -> str:
    """The mode of RDMA's network namespaces: "shared" or "exclusive"; "" if the kernel does not tell it."""
    try:
        with closing(rdma_netlink.Rdma()) as socket:
            return socket.netns_mode()
    except OSError:
        return ""


def check_mode(mode: str, moves_devices: bool, sharing: Sequence[str]) -> Iterator[Observation]:
    """Report the mode of RDMA's network namespaces. Exclusive mode is a fault if the plugin `rdma` is not installed
    (`moves_devices` is false), or if pods share a NIC by macvlan or similar links (`sharing`)."""
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


def read_parameters(netdev: str, networks: Sequence[str] = (), proc: str = "/proc") -> LinkParameters:
    """Read the parameters of the link `netdev` in this thread's namespace. `networks` has the link's IPv4 CIDRs."""
    values = {}
    for name in ("rp_filter", "arp_ignore", "arp_announce"):
        each = [text(f"{proc}/sys/net/ipv4/conf/{where}/{name}") for where in ("all", netdev)]
        values[name] = max(int(v) for v in each) if all(v.isdigit() for v in each) else None
    return LinkParameters(**values, answers=_answers(networks) if values["rp_filter"] == STRICT else {})


def _answers(networks: Sequence[str]) -> dict[str, str]:
    """Map each subnet of `networks` to the link by which this thread's namespace sends replies to peers in this subnet;
    "" means no route. The key ELSEWHERE stands for all other addresses."""
    found: dict[str, str] = {}
    with Rtnl() as rtnl:
        names = {link.index: link.name for link in rtnl.links()}
        for own in map(ipaddress.IPv4Interface, networks):
            # the first few other addresses of the subnet, without the network's and the broadcast address
            reserved = int(own.network.prefixlen < 31)
            first, count = own.network.network_address + reserved, own.network.num_addresses - 2 * reserved
            near = [first + n for n in range(min(count, _MOST_NEIGHBOURS)) if first + n != own.ip]
            strangers = [s for s in map(ipaddress.IPv4Address, _STRANGERS) if s not in own.network]
            for subnet, peers in ((str(own.network), near), (ELSEWHERE, strangers)):
                links = (node_routes.way_to(rtnl, str(peer), str(own.ip))[0] for peer in peers)
                by = next((index for index in links if index != routes.LOOPBACK), None)
                if by is not None:
                    found.setdefault(subnet, names.get(by, ""))
    return found


def check_parameters(read: Mapping[str, LinkParameters], subnets: Mapping[str, Sequence[str]]) -> Iterator[Observation]:
    """Find strict reverse path filters that drop packets, and links that answer ARP for another link's addresses."""
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
    """Judge the rp_filter of a link. Strict mode is a fault if it drops packets from the link's own subnets. The
    finding is only advice if it drops only packets from other addresses."""
    value = parameters.rp_filter
    if value is None:
        return unknown(netdev, "rp_filter cannot be read")
    if value != STRICT:
        return ok(netdev, f"rp_filter {value}")
    subnets = [subnet for subnet in parameters.answers if subnet != ELSEWHERE]
    away = {subnet: link for subnet, link in parameters.answers.items() if link != netdev}
    healthy = "0 or 2 (loose), or answers that leave by the link itself (the key `rail` sets up both)"
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
