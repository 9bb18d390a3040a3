"""railcni rdma: shows verbs devices with netdevs, PCI functions and GIDs, and the environment variables for NCCL."""

from __future__ import annotations

import argparse
import ipaddress
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni.cli.terminal import output, subcommand
from cni.node.inventory import devices as inventory
from cni.node.inventory import sandboxes
from cni.node.inventory.devices import Gid, Port, VerbsDevice, ports_of
from cni.shared.kernel import rdma_sysfs
from cni.shared.spec.errors import CniError

PORTS = ("device", "port", "netdev", "pci", "numa", "state", "rate", "link layer", "mtu", "roce mtu", "gids")
GIDS = ("device", "port", "index", "type", "address", "netdev", "pod")
LEAST_OF_GIDS = ("port", "type", "netdev")

INDEX_VARIABLES = ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX")
_SINCE = "2.21"  # the first version of NCCL that chooses an index for each device

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Devices = Sequence[VerbsDevice]


def register(commands: subcommand.Commands) -> None:
    """Add the command `rdma`."""
    about = "show verbs devices with their netdevs, ports, PCI functions and GIDs, and the pod of each GID"
    parser = subcommand.add(commands, "rdma", about, ". It changes nothing.", run=_run, lists=True)
    form = parser.add_mutually_exclusive_group()
    about = "print lines like Mellanox's ibdev2netdev: mlx5_0 port 1 ==> ens2f0 (Up)"
    form.add_argument("--ibdev2netdev", action="store_true", help=about)
    about = "print NCCL_IB_HCA, NCCL_SOCKET_IFNAME and what else NCCL needs in that pod, for a shell; stderr says why"
    subcommand.option(form, "--env", "", about, "NAMESPACE/POD|NETNS")


def _run(options: argparse.Namespace) -> None:
    if options.ibdev2netdev:
        options.only(False, "without --ibdev2netdev, which has the lines of that tool alone", "-o", "-w", "-A")
        sys.stdout.writelines(f"{line}\n" for line in ibdev2netdev(inventory.read()))
        return
    options.only(not options.env, "without --env", "-w", "-A")
    found = sandboxes.read()
    devices = inventory.read(found)
    if options.env:
        variables, notes = nccl_advice(sandboxes.find(options.env, found), devices)
        lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        output.show(options.output, variables, lambda: print(*lines, sep="\n"))
        for note in notes:
            output.print_fault(f"railcni: {note}")
    else:
        output.show(options.output, document(devices), lambda: _print(devices))


def _print(devices: Sequence[VerbsDevice]) -> None:
    if not devices:
        why = f"/sys{rdma_sysfs.CLASS} is empty or not there; see `railcni doctor`"
        output.print_fault(f"railcni: no verbs device: {why}")
        return
    output.print_table(PORTS, port_rows(devices), least=("numa", "roce mtu", "pci", "link layer"))
    sys.stdout.write("" if GIDS in (output.Form.seen or ()) else "\n")
    sys.stdout.flush()
    output.print_table(GIDS, gid_rows(devices), least=LEAST_OF_GIDS)


# --- what is shown; pure ---


def port_rows(devices: Sequence[VerbsDevice]) -> Iterator[Sequence[object]]:
    """Yield the rows of the table of ports, with the columns PORTS."""
    for device, port in [(one, port) for one in devices for port in one.ports]:
        where = device.name, port.number, port.netdev, device.pci, device.numa_node if device.numa_node >= 0 else None
        state = port.state if port.is_active else f"{port.state} ({port.physical_state})"
        rate = port.rate if port.speed is None else f"{port.speed:g} Gb/s"
        yield *where, state, rate, port.link_layer, port.mtu, port.roce_mtu, f"{len(port.gids)}/{port.room}"


def gid_rows(devices: Sequence[VerbsDevice]) -> list[Sequence[object]]:
    """The rows of the table of GIDs, with the columns GIDS."""
    gids = [(port, gid) for port in inventory.ports(devices) for gid in port.gids]
    return [(p.device, p.number, g.index, g.kind, g.address, g.ndev, g.owner) for p, g in gids]


def document(devices: Sequence[VerbsDevice]) -> list[dict[str, Any]]:
    """The verbs devices as JSON objects; a value that is not known is null."""
    return [
        {
            "device": device.name,
            "pciAddress": device.pci or None,
            "numaNode": device.numa_node if device.numa_node >= 0 else None,
            "driver": device.driver or None,
            "firmware": device.firmware or None,
            "virtualFunction": device.is_virtual_function,
            "ports": [_port(port) for port in device.ports],
        }
        for device in devices
    ]


def _port(port: Port) -> dict[str, Any]:
    netdev = {"port": port.number, "netdev": port.netdev or None, "carrier": port.carrier}
    state = {"state": port.state, "physicalState": port.physical_state, "linkLayer": port.link_layer, "rate": port.rate}
    sizes = {"mtu": port.mtu, "roceMTU": port.roce_mtu, "gidTableSize": port.room}
    keys = {"index": "index", "gid": "value", "type": "kind", "address": "address", "ndev": "ndev", "owner": "owner"}
    gids = [{key: getattr(gid, name) for key, name in keys.items()} for gid in port.gids]
    return {**netdev, **state, **sizes, "gids": gids}


def ibdev2netdev(devices: Sequence[VerbsDevice]) -> Iterator[str]:
    """Yield the lines that Mellanox's ibdev2netdev prints. "Up" means carrier. Ports without a netdev have no line."""
    for port in inventory.ports(devices):
        if port.netdev:
            state = "NA" if port.carrier is None else "Up" if port.carrier else "Down"
            yield f"{port.device} port {port.number} ==> {port.netdev} ({state})"


# --- NCCL: its variables for a pod, and the GID that it chooses without the variables; pure ---
#
# NCCL before 2.21 uses one GID index for all devices, NCCL_IB_GID_INDEX, by default 0. Newer versions choose an entry
# for each device when the variable is not set: the first of RoCE v2 (NCCL_IB_ROCE_VERSION_NUM) whose address is of one
# family (NCCL_IB_ADDR_FAMILY, by default IPv4), in one range (NCCL_IB_ADDR_RANGE) and not link-local. The table also
# has the entries of other pods on the same NIC. NCCL needs a range or an index to choose only the pod's own entries.
# Sources: NCCL's user guide, "Environment Variables"; src/transport/net_ib/connect.cc of NCCL 2.31, ncclIbGetGidIndex.


@dataclass(frozen=True)
class _Way:
    """A link of the pod and its RDMA port. `gid` is the GID of the link's first IPv4 address or, without one, of its
    first IPv6 address; None for InfiniBand."""

    link: str
    port: Port
    gid: Gid | None


def nccl_advice(
    sandbox: sandboxes.NamespaceView, devices: Devices, root: str = "/sys"
) -> tuple[dict[str, str], list[str]]:
    """Return (environment variables with which NCCL uses the pod's ports, notes about them). Raises CniError if the pod
    has neither an InfiniBand port nor a RoCE port with a GID of the pod."""
    ways = list(_ways(sandbox, devices, root))
    if not ways:
        raise CniError(_missing(sandbox, devices, root), code=100)
    names = ",".join(f"{way.port.device}:{way.port.number}" for way in ways)  # with "=" NCCL compares whole names
    variables = {"NCCL_IB_HCA": f"={names}", "NCCL_SOCKET_IFNAME": "=" + ",".join(dict.fromkeys(w.link for w in ways))}
    chosen = {way: way.gid for way in ways if way.gid is not None}
    more, notes = _selection(chosen) if chosen else ({}, [])
    return {**variables, **more}, [*notes, *_unused(ways, sandbox, devices, root)]


def _unused(ways: Sequence[_Way], sandbox: sandboxes.NamespaceView, devices: Devices, root: str) -> Iterator[str]:
    """Yield a note for each port of the pod that NCCL does not use. `ways` are the links that NCCL can use."""
    for way in ways:
        if not way.port.is_active:
            yield f"NCCL leaves out {way.port} ({way.link}) until it is ACTIVE: it is {way.port.state}"
    used = {way.link for way in ways}
    for link in sandbox.interfaces:
        own = [str(port) for port in ports_of(link, devices, root) if port.is_roce]
        if own and link.name not in used:
            yield f"{link.name} is left out: {', '.join(own)} has no RoCE v2 GID of its addresses; see `railcni doctor`"


def _selection(chosen: Mapping[_Way, Gid]) -> tuple[dict[str, str], list[str]]:
    """Return (variables that make NCCL choose the GIDs `chosen`, notes about versions of NCCL)."""
    indexes = {gid.index for gid in chosen.values()}
    each = ", ".join(f"{gid.index} of {way.port.device}" for way, gid in chosen.items())
    note = f"NCCL before {_SINCE} needs NCCL_IB_GID_INDEX={min(indexes)} too"
    if len(indexes) > 1:
        remedy = "give its processes one device each, or the pods devices of their own (host-device, sriov)"
        note = f"NCCL before {_SINCE} takes one GID index for all devices, and here they differ: {each}; {remedy}"
    families = {":" in gid.address for gid in chosen.values()}
    is_v6 = families == {True}
    variables = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} if is_v6 else {}
    candidates = (None, _common([gid.address for gid in chosen.values()])) if len(families) == 1 else ()
    for network in candidates:
        if all(choice(way.port, is_v6, network) == gid.index for way, gid in chosen.items()):
            return variables | ({"NCCL_IB_ADDR_RANGE": str(network)} if network else {}), [note]
    why = "the tables have GIDs of other pods or links, which NCCL cannot tell from these by a range"
    if len(indexes) == 1:
        return {"NCCL_IB_GID_INDEX": str(min(indexes))}, [f"NCCL of every version needs the index: {why}"]
    return variables, [note, f"NCCL from {_SINCE} on may choose the GID of another pod or link: {why} ({each})"]


def choice(port: Port, is_v6: bool, network: Network | None) -> int:
    """The GID index that NCCL 2.21 or newer chooses for the port when NCCL_IB_GID_INDEX is not set. Only addresses of
    one family (IPv6 if `is_v6`, else IPv4) count, and only addresses in `network` if `network` is not None."""
    table = {gid.index: gid for gid in port.gids}
    current = table.get(0) or Gid(0, "", "", "::", "")
    for index in sorted(table.keys() - {0}):
        gid = table[index]
        if (":" in gid.address) != is_v6 or (network and ipaddress.ip_address(gid.address) not in network):
            continue
        is_first = (":" in current.address) != is_v6
        is_better = current.kind != rdma_sysfs.ROCE_V2 and gid.kind == rdma_sysfs.ROCE_V2
        if is_first or (is_better and not gid.address.startswith("fe80:")):
            current = gid
    return current.index


def wrong_index(value: str, ways: Sequence[tuple[str, Port]]) -> str:
    """Return why the GID index `value` of an environment variable is wrong for a link of the pod; "" if it suits all
    links. `ways` has (link name, port). A negative number or "auto" (UCX) suits all: the library chooses an index."""
    try:
        index = -1 if value == "auto" else int(value)
    except ValueError:
        return "it is no number"
    if index < 0:
        return ""
    others = []
    for link, port in ways:
        gid = next((gid for gid in port.gids if gid.index == index), None)
        if gid is None:
            others.append(f"{port.device} has no entry there")
        elif gid.ndev != link or gid.kind != rdma_sysfs.ROCE_V2:
            whose = f"of {gid.owner}" if gid.owner else f"of {gid.ndev or 'no link'}"
            others.append(f"of {port.device} it is {gid.address} {whose}, {gid.kind}")
    return "; ".join(others)


def _ways(sandbox: sandboxes.NamespaceView, devices: Devices, root: str) -> Iterator[_Way]:
    gids = [(port, gid) for port in inventory.ports(devices) for gid in port.gids if gid.kind == rdma_sysfs.ROCE_V2]
    for interface in sandbox.interfaces:
        wanted = [(interface.name, a) for a in sorted(interface.global_addresses, key=lambda a: ":" in a)]
        if own := [found for want in wanted for found in gids if (found[1].ndev, found[1].address) == want]:
            yield _Way(interface.name, *own[0])
            continue
        for port in ports_of(interface, devices, root):
            if port.link_layer == rdma_sysfs.INFINIBAND:
                yield _Way(interface.name, port, None)


def _common(addresses: Sequence[str]) -> Network:
    """The smallest network that contains all the addresses, which are of one family."""
    network: Network = ipaddress.ip_network(addresses[0])
    while not all(ipaddress.ip_address(address) in network for address in addresses):
        network = network.supernet()
    return network


def _missing(sandbox: sandboxes.NamespaceView, devices: Devices, root: str) -> str:
    has = [f"{i.name} {a}" for i in sandbox.interfaces for a in i.global_addresses if i.name != "lo"]
    who = sandbox.owner or "this namespace"
    if not devices:
        return f"{who} has no RDMA: this node shows no verbs device; see `railcni doctor`"
    own = [port for link in sandbox.interfaces for port in ports_of(link, devices, root)] or inventory.ports(devices)
    if not any(port.is_roce or port.link_layer == rdma_sysfs.INFINIBAND for port in own):
        names = ", ".join(dict.fromkeys(port.device for port in own))
        return f"{names} has neither RoCE nor InfiniBand, which NCCL's own transport needs; EFA needs aws-ofi-nccl"
    return (
        f"no verbs device has a RoCE v2 GID of {who}, which has {', '.join(has) or 'no address'}: an interface gets one"
        " when its master is the netdev of a RoCE port that is up; see `railcni rdma` and `railcni doctor`"
    )
