"""Read verbs devices, their ports and GIDs from sysfs.

`root` is the mount point of sysfs. In RDMA's shared netns mode a mount of sysfs shows all verbs devices. In exclusive
mode it shows the devices of the namespace in which it was mounted. For a missing device the functions return "" or [].

A GID of RoCE is an IP address, with IPv4 mapped into IPv6 as ::ffff:a.b.c.d. The kernel makes GIDs for the addresses of
a port's netdev and of the links above it, in any namespace (drivers/infiniband/core/roce_gid_mgmt.c). A port has one
table for all namespaces. An entry names its netdev, but not the namespace of the netdev. Sources:
Documentation/ABI/stable/sysfs-class-infiniband of the kernel; include/rdma/ib_addr.h (iboe_get_mtu).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from cni.shared.kernel import sysfs
from cni.shared.kernel.files import names_in, target_of

CLASS = "/class/infiniband"
ROCE_V2 = "RoCE v2"
ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"  # link layers
ACTIVE = "ACTIVE"
WHOLE_ROCE_MTU = 4096
HEADERS = 96  # of RoCE, in bytes: GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4
MTU_FOR_WHOLE_ROCE = WHOLE_ROCE_MTU + HEADERS  # the least MTU of a netdev with the largest RoCE MTU

_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
_PAGE = 4096
_DEPTH = 8  # the most links on top of one another (MAX_NEST_DEV, include/linux/netdevice.h)


class PortState:
    """A port of a verbs device. For example, `state` is "ACTIVE" or "DOWN", `physical_state` "LinkUp" or "Disabled",
    and `rate` "100 Gb/sec (4X EDR)". An unreadable attribute is ""."""

    def __init__(self, device: str, number: int, root: str = "/sys") -> None:
        here = _port(device, number, root)
        self.device = device
        self.number = number
        self.link_layer = _value(f"{here}/link_layer")
        self.state = _value(f"{here}/state").partition(": ")[2]  # "4: ACTIVE"
        self.physical_state = _value(f"{here}/phys_state").partition(": ")[2]
        self.rate = _value(f"{here}/rate")


class GidEntry:
    """An entry of a port's GID table. `value` is eight groups of four digits. `kind` is "RoCE v2" or "IB/RoCE v1".
    `ndev` is the name that the entry's netdev has in its own network namespace, "" for none."""

    def __init__(self, index: int, value: str, kind: str, ndev: str) -> None:
        self.index = index
        self.value = value
        self.kind = kind
        self.ndev = ndev

    @property
    def address(self) -> str:
        """The GID as an IP address in its usual form."""
        return address_of(self.value)


def devices(root: str = "/sys") -> list[str]:
    """The sorted names of the verbs devices in this mount of sysfs, except type SMI, which carries no data."""
    return _carrying_data(names_in(root + CLASS), root)


def devices_of(device: str, root: str = "/sys") -> list[str]:
    """The sorted names of the verbs devices that a PCI or auxiliary device has in the sysfs mount `root`."""
    paths = [sysfs.path_of(bus, device, root).removeprefix("/sys") for bus in ("pci", "auxiliary")]
    return _carrying_data([name for path in paths if path for name in names_in(f"{root}{path}/infiniband")], root)


def _carrying_data(names: Iterable[str], root: str) -> list[str]:
    """Sort `names`, and leave out verbs devices of type SMI, such as "smi1" of a ConnectX-8. They have no uverbs device
    (ib_uverbs_add_one). Without the module ib_uverbs no device has one, and all names are returned."""
    places = {name: f"{root}{CLASS}/{name}/device/infiniband_verbs" for name in sorted(set(names))}
    usable = {name: [_value(f"{place}/{node}/ibdev") for node in names_in(place)] for name, place in places.items()}
    return [name for name, owners in usable.items() if not owners or name in owners]


def ports(device: str, root: str = "/sys") -> list[int]:
    """The sorted numbers of the device's ports, which begin at 1."""
    return sorted(int(n) for n in names_in(f"{root}{CLASS}/{device}/ports") if n.isdigit())


def path_of(device: str, root: str = "/sys") -> str:
    """The directory of the verbs device in sysfs, such as "../../devices/pci…/infiniband/mlx5_0"; "" if missing."""
    return target_of(f"{root}{CLASS}/{device}")


def pci_of(device: str, root: str = "/sys") -> str:
    """The address of the PCI function that the verbs device belongs to; "" for a software device (rxe, siw)."""
    name = target_of(f"{root}{CLASS}/{device}/device").rpartition("/")[2]
    return name if name.count(":") == 2 else ""


def is_roce(device: str, port: int, root: str = "/sys") -> bool:
    """Whether the port is a RoCE port. InfiniBand has another link layer, and iWARP uses no GIDs."""
    ethernet = _value(f"{_port(device, port, root)}/link_layer") == ETHERNET
    return ethernet and not is_iwarp(device, root)


def is_iwarp(device: str, root: str = "/sys") -> bool:
    return _value(f"{root}{CLASS}/{device}/node_type").endswith("RNIC")  # "4: RNIC"


def netdev_of(device: str, port: int, root: str = "/sys") -> str:
    """The name of the netdev of a port; "" when the port has none or sysfs does not show it.

    An rxe device names its netdev in an attribute. The first GID of any other RoCE port names the port's own netdev, or
    the bond if ports form a LAG. Without GIDs, the result is the PCI function's netdev that has the port's number.
    """
    parent = _value(f"{root}{CLASS}/{device}/parent")
    if parent:
        return parent
    first = _value(f"{_port(device, port, root)}/gid_attrs/ndevs/0")
    if first:
        return first
    place = f"{root}{CLASS}/{device}/device/net"
    found = [n for n in sorted(names_in(place)) if _port_of_netdev(f"{place}/{n}") == port]
    return found[0] if found else ""


def netdevs_of_device(device: str, root: str = "/sys") -> list[str]:
    """The netdevs of the allocated `device`: a PCI function, subfunction or soft-RoCE device. For a shared NIC, a
    device plugin appends a number to the name of the device, as in "0000:3b:00.0-7". This number is ignored."""
    function = _function(device)
    found = sysfs.netdevs_of_pci(function, root) or sysfs.netdevs_of("auxiliary", function, root)
    if not found and function in devices(root):
        found = [name for name in [netdev_of(function, 1, root)] if name]
    return found


def names_of_nic(device: str, root: str = "/sys") -> set[str]:
    """The PCI address and the netdevs of the allocated `device`. If it is a virtual function or subfunction, the result
    also has the address and the netdevs of its physical function."""
    function = _function(device)
    above = sysfs.pci_above(sysfs.path_of("auxiliary", function, root))
    physical = above or sysfs.physical_function_of(function, root)
    return {function, physical, *netdevs_of_device(device, root), *sysfs.netdevs_of_pci(physical, root)} - {""}


def _function(device: str) -> str:
    name, _, number = device.rpartition("-")
    return name if number.isdigit() and name else device


def ports_of_netdev(name: str, root: str = "/sys") -> list[tuple[str, int]]:
    """Return (verbs device, port number), sorted, of each port that the netdev's traffic can use: the netdev's own, and
    for a VLAN, bond or macvlan those of the links below. Only netdevs in this mount of sysfs count."""
    names = [name]
    level = [name]
    for _ in range(_DEPTH):
        level = [n for upper in level for n in _lower(upper, root) if n not in names]
        names += level
    wanted = set(names)
    near = _carrying_data([d for n in names for d in names_in(f"{root}/class/net/{n}/device/infiniband")], root)
    return _with_netdevs(near, wanted, root) or _with_netdevs(
        [d for d in devices(root) if not pci_of(d, root)], wanted, root
    )


def _with_netdevs(devices: list[str], netdevs: set[str], root: str) -> list[tuple[str, int]]:
    return [(d, p) for d in devices for p in ports(d, root) if netdev_of(d, p, root) in netdevs]


def gids(device: str, port: int, root: str = "/sys") -> list[GidEntry]:
    """The entries in use of the port's GID table, in order of their index."""
    return [gid_at(device, port, index, value, root) for index, value in gid_values(device, port, root)]


def gid_values(device: str, port: int, root: str = "/sys") -> Iterator[tuple[int, str]]:
    """Yield (index, value) of each GID in use, by index. Reads entries one by one, since a table may have 1024."""
    here = f"{_port(device, port, root)}/gids"
    for index in sorted(int(n) for n in names_in(here)):
        value = _value(f"{here}/{index}")
        if value and value != _EMPTY:
            yield index, value


def gid_at(device: str, port: int, index: int, value: str, root: str = "/sys") -> GidEntry:
    """The entry at `index` of the port's GID table. `value` is the GID that the caller has read there."""
    here = f"{_port(device, port, root)}/gid_attrs"
    return GidEntry(index, value, _value(f"{here}/types/{index}"), _value(f"{here}/ndevs/{index}"))


def gid_table_size(device: str, port: int, root: str = "/sys") -> int:
    """The number of entries, used or free, of the port's GID table."""
    return len(names_in(f"{_port(device, port, root)}/gids"))


def gid_of(address: str) -> str:
    """The GID of an IP address, in the form of `GidEntry.value`. Raises ValueError for any other text."""
    try:
        if ":" in address:
            octets = inet_pton(AF_INET6, address)
        else:
            octets = bytes(10) + b"\xff\xff" + inet_pton(AF_INET, address)
    except OSError:
        raise ValueError(f"{address[:60]!r} is no IP address") from None
    return octets.hex(":", 2)


def address_of(gid: str) -> str:
    """The IP address in `gid`. A text that is no GID is returned unchanged."""
    try:
        octets = bytes.fromhex(gid.replace(":", ""))
        if octets.startswith(bytes(10) + b"\xff\xff"):
            return inet_ntop(AF_INET, octets[12:])
        return inet_ntop(AF_INET6, octets)
    except ValueError:
        return gid


def roce_mtu(mtu: int) -> int:
    """The largest RoCE MTU, from 256 to 4096 bytes, that fits with the headers into `mtu` bytes; 0 if none fits."""
    return next((size for size in (4096, 2048, 1024, 512, 256) if mtu >= size + HEADERS), 0)


def _port(device: str, number: int, root: str) -> str:
    return f"{root}{CLASS}/{device}/ports/{number}"


def _port_of_netdev(place: str) -> int:
    """The port number, from 1, of the netdev with the sysfs directory `place`. The file dev_port counts from 0."""
    number = _value(f"{place}/dev_port")
    return int(number) + 1 if number.isdigit() else 1


def _lower(name: str, root: str) -> list[str]:
    return [n[6:] for n in sorted(names_in(f"{root}/class/net/{name}")) if n.startswith("lower_")]


def _value(path: str) -> str:
    """The whole value of an attribute, by one read; "" on a failure, such as EINVAL for an unused GID entry."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _PAGE).decode("utf-8", "surrogateescape").strip()
        finally:
            os.close(fd)
    except OSError:
        return ""
