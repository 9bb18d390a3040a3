"""The distances between NICs and GPUs in the PCI tree of a node, and the links that carry the node's own traffic.

The path of a device in sysfs shows its place in the tree, "pci0000:3a/0000:3a:00.0/0000:3b:00.0/...": the host bridge,
then every PCI bridge down to the device (Documentation/ABI/testing/sysfs-bus-pci). Distances have the names that
`nvidia-smi topo -m` and NCCL use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from socket import AF_INET6, inet_ntoa, inet_ntop

from cni.link.plugins import uplink
from cni.shared.kernel import node_routes, routes, sysfs
from cni.shared.kernel.files import names_in
from cni.shared.kernel.links import Rtnl

SELF, PIX, PXB, PHB, NODE, SYS = "X", "PIX", "PXB", "PHB", "NODE", "SYS"
NEAREST_FIRST = (SELF, PIX, PXB, PHB, NODE, SYS)

is_address = sysfs.is_pci_address
_NVIDIA, _AMD = 0x10DE, 0x1002
_VGA, _COMPUTE = 0x0300, (0x0302, 0x0380, 0x1200)  # include/linux/pci_ids.h; the console of a BMC is also VGA
_UNKNOWN_NODE = -1
_SHORT = {4: 1, 6: 4}  # routes with prefixes up to this length act as default routes, by IP version
_RTF_REJECT, _RTF_ADDRCONF = 0x200, 0x40000  # include/uapi/linux/route.h and ipv6_route.h


@dataclass(frozen=True)
class PciDevice:
    """A PCI function. `above` are the devices above it: the host bridge, then the PCI bridges down to the function."""

    address: str
    above: tuple[str, ...]
    numa_node: int = _UNKNOWN_NODE
    vendor: int = 0
    kind: int = 0  # class and subclass, such as 0x0302
    driver: str = ""
    is_virtual_function: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether the function is a physical GPU."""
        computes = self.kind in _COMPUTE or (self.kind == _VGA and self.vendor in (_NVIDIA, _AMD))
        return computes and not self.is_virtual_function


@dataclass(frozen=True)
class Topology:
    """The GPUs of a node, sorted by address as nvidia-smi numbers them, and its NICs as (verbs device, PCI function).

    `one_node` means that the machine has a single NUMA node: functions with an unknown NUMA node belong to it."""

    gpus: tuple[PciDevice, ...]
    nics: tuple[tuple[str, PciDevice], ...]
    one_node: bool = True

    def distance(self, one: PciDevice, other: PciDevice) -> str:
        """The distance between two PCI functions of this node, as nvidia-smi names it, such as "PIX"."""
        if one.address == other.address:
            return SELF
        common = len(os.path.commonprefix([one.above, other.above]))
        # The first common element is the host bridge. Functions below one switch share its upstream port only.
        if common >= 2:
            return PIX if max(len(one.above), len(other.above)) - common <= 1 else PXB
        if common == 1:
            return PHB
        is_one_node = self.one_node or (one.numa_node == other.numa_node and one.numa_node != _UNKNOWN_NODE)
        return NODE if is_one_node else SYS

    def nearest(self, gpu: PciDevice) -> list[str]:
        """The names of the NICs that are nearest to `gpu`."""
        ranked = [(NEAREST_FIRST.index(self.distance(gpu, nic)), name) for name, nic in self.nics]
        return [name for rank, name in ranked if rank == min(ranked)[0]]


def read(nics: Iterable[tuple[str, str]], root: str = "/sys") -> Topology:
    """The machine's GPUs and NICs. `nics` are (verbs device, PCI address); those that sysfs lacks are left out."""
    known = {name: device(name, root) for name in names_in(f"{root}/bus/pci/devices") if is_address(name)}
    gpus = [d for d in known.values() if d.is_gpu]
    gpus.sort(key=lambda d: [int(part, 16) for part in re.split("[:.]", d.address)])
    one_node = text(f"{root}/devices/system/node/online") in ("", "0")  # "0-1" for two nodes
    return Topology(tuple(gpus), tuple((name, known[address]) for name, address in nics if address in known), one_node)


def device(address: str, root: str = "/sys") -> PciDevice:
    """The PCI function at `address`; attributes that sysfs does not show have their defaults."""
    folder = f"{root}/bus/pci/devices/{address}"
    parts = os.path.realpath(folder).split("/")
    first = next((i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part), len(parts) - 1)
    numa = text(f"{folder}/numa_node")
    return PciDevice(
        address=address,
        above=tuple(parts[first:-1]),
        numa_node=int(numa) if numa.lstrip("-").isdigit() else _UNKNOWN_NODE,
        vendor=_hex(text(f"{folder}/vendor")),
        kind=_hex(text(f"{folder}/class")) >> 8,
        driver=sysfs.driver_of_pci(address, root),
        is_virtual_function=sysfs.physical_function_of(address, root) != "",
    )


def text(path: str) -> str:
    """The content of a file of sysfs, without white space at its ends; "" when the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def table(topology: Topology) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the column names and the rows of the table of distances: a row for each GPU, a column for each NIC."""
    columns = ("gpu", "pci", "numa", *(name for name, _ in topology.nics))
    rows: list[Sequence[str]] = []
    for number, gpu in enumerate(topology.gpus):
        numa = str(gpu.numa_node) if gpu.numa_node != _UNKNOWN_NODE else ""
        rows.append((f"GPU{number}", gpu.address, numa, *(topology.distance(gpu, nic) for _, nic in topology.nics)))
    return columns, rows


def _hex(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:  # missing or damaged, as in an incomplete copy of a node's /sys
        return 0


class _ProcRoute:
    """A route from files of /proc, with the attributes that the function `uplink.in_use` compares."""

    def __init__(self, link: str, dst: str, gw: str, priority: int, is_advertised: bool = False) -> None:
        self.index, self.dst, self.gw, self.priority = link, dst, gw, priority
        self.table = routes.MAIN_TABLE  # assumed for IPv6, as the file does not show the table
        self.protocol = routes.RA_PROTOCOL if is_advertised else routes.BOOT_PROTOCOL
        self.body = self
        self.network = ip_network(dst)


def _routes(proc: str) -> Iterator[_ProcRoute]:
    """Yield the routes in two files of the directory `proc`: net/route with the IPv4 routes of the main table
    (proc(5)), and net/ipv6_route (net/ipv6/route.c of the kernel)."""
    for line in text(f"{proc}/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and not int(fields[3], 16) & _RTF_REJECT:
            target, gateway, mask = (inet_ntoa(bytes.fromhex(fields[at])[::-1]) for at in (1, 2, 7))
            yield _ProcRoute(fields[0], str(ip_network(f"{target}/{mask}")), gateway, int(fields[6]))
    for line in text(f"{proc}/net/ipv6_route").splitlines():
        fields = line.split()
        if len(fields) == 10 and fields[9] != "lo":
            target, gateway = (inet_ntop(AF_INET6, bytes.fromhex(fields[at])) for at in (0, 4))
            is_advertised = bool(int(fields[8], 16) & _RTF_ADDRCONF)
            dst = f"{target}/{int(fields[1], 16)}"
            yield _ProcRoute(fields[9], dst, gateway, int(fields[5], 16), is_advertised)


def uplinks(proc: str = "/proc/self", sys: str = "/sys") -> dict[str, str]:
    """Map the name of each link that carries the node's own traffic, and of each of its lower links, to the reason.

    `proc` is the directory of a process in the node's network namespace. If the present process is in this namespace
    too, all routes are read by netlink; otherwise only default routes and routes to storage, from /proc and sysfs."""
    if _is_own_namespace(proc):
        with Rtnl() as host:
            links, ways = host.links(), uplink.ways(host, node_routes.all_bodies(host))
        return {link.name: reason for link in links if (reason := uplink.carried(link, links, ways))}
    found: dict[str, str] = {}
    for carrier, carries in _shown_ways(proc, sys):
        pending = [carrier]
        for name in pending:
            if name not in found:
                found[name] = uplink.said(name, carrier, carries)
                pending += beside(name, "lower_", sys)
    return found


def _is_own_namespace(proc: str) -> bool:
    try:
        return os.path.samefile(f"{proc}/ns/net", "/proc/thread-self/ns/net")
    except OSError:  # missing, or only readable for a process with the right to trace the other process
        return False


def _shown_ways(proc: str, sys: str) -> Iterator[tuple[str, str]]:
    """Yield (name, reason) of each link that carries the node's own traffic according to /proc and sysfs."""
    every = list(_routes(proc))
    defaults = [route for route in every if route.network.prefixlen <= _SHORT[route.network.version]]
    for route in uplink.in_use(defaults):  # type: ignore[arg-type]
        yield str(route.index), uplink.text_of(route)
    for server, kind in sorted(set(uplink.storage_servers(f"{proc}/net", f"{sys}/class"))):
        try:
            address = ip_address(server)
        except ValueError:
            continue  # a host name, or a Fibre Channel address
        ways = [route for route in every if address in route.network]
        if ways:
            best = min(ways, key=lambda route: (-route.network.prefixlen, route.priority))
            yield best.index, f"carries the route to the {kind} server {server}"


def beside(netdev: str, direction: str, sys: str) -> list[str]:
    """The names of the links directly below the netdev, such as a bond's ports, if `direction` is "lower_"; directly
    above the netdev, such as VLANs, if `direction` is "upper_"."""
    names = names_in(f"{sys}/class/net/{netdev}")
    return sorted(name.removeprefix(direction) for name in names if name.startswith(direction))


def administrative_states(root: str = "/sys") -> dict[str, bool]:
    """Map each netdev in sysfs to whether it is administratively up (IFF_UP in `flags`)."""
    folder = f"{root}/class/net"
    flags = {name: text(f"{folder}/{name}/flags") for name in names_in(folder)}
    return {name: bool(int(value, 16) & 1) for name, value in flags.items() if value.startswith("0x")}
