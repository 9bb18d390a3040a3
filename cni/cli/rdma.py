"""railcni rdma: the node's verbs devices, by netdev, PCI function and GID; and how people and programs read them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from cni.cli.terminal import output, subcommand
from cni.library.inventory import devices as inventory
from cni.library.inventory import sandboxes
from cni.library.inventory.devices import Gid, Port, VerbsDevice
from cni.library.inventory.sandboxes import NamespaceView
from cni.shared.kernel import rdma_sysfs
from cni.shared.spec.errors import CniError

_ABOUT = "show verbs devices with their netdevs, ports, PCI functions and GIDs, and the pod of each GID"

PORTS = ("device", "port", "netdev", "pci", "numa", "state", "rate", "link layer", "mtu", "roce mtu", "gids")
GIDS = ("device", "port", "index", "type", "address", "netdev", "pod")


def register(commands: subcommand.Commands) -> None:
    """Add `rdma`."""
    parser = subcommand.add(commands, "rdma", _ABOUT, ". It changes nothing.", run=_run, shows=True)
    form = parser.add_mutually_exclusive_group()
    about = "print lines like Mellanox's ibdev2netdev: mlx5_0 port 1 ==> ens2f0 (Up)"
    form.add_argument("--ibdev2netdev", action="store_true", help=about)
    about = "print NCCL_IB_HCA, NCCL_IB_GID_INDEX and NCCL_SOCKET_IFNAME of that pod for a shell"
    subcommand.option(form, "--env", "", about, "NAMESPACE/POD|NETNS")


def _run(options: argparse.Namespace) -> int:
    if options.ibdev2netdev:
        options.only(False, "without --ibdev2netdev, which has the lines of that tool alone", "-o")
        sys.stdout.writelines(f"{line}\n" for line in ibdev2netdev(inventory.read()))
        return 0
    found = sandboxes.read()
    devices = inventory.read(found)
    if options.env:
        variables = environment(sandboxes.find(options.env, found), devices)
        lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        output.show(options.output, variables, lambda: print(*lines, sep="\n"))
    else:
        output.show(options.output, document(devices), lambda: _print(devices))
    return 0


def _print(devices: Sequence[VerbsDevice]) -> None:
    if not devices:
        why = f"/sys{rdma_sysfs.CLASS} is empty or not there; see `railcni doctor`"
        output.print_fault(f"railcni: no verbs device: {why}")
        return
    output.print_table(PORTS, port_rows(devices))
    sys.stdout.write("\n")
    sys.stdout.flush()
    output.print_table(GIDS, gid_rows(devices))


# --- what is shown; pure ---


def port_rows(devices: Sequence[VerbsDevice]) -> list[Sequence[object]]:
    """The rows below PORTS."""
    rows: list[Sequence[object]] = []
    for device in devices:
        numa = device.numa_node if device.numa_node >= 0 else None
        for port in device.ports:
            state = port.state if port.is_active else f"{port.state} ({port.physical_state})"
            where = device.name, port.number, port.netdev, device.pci, numa
            rate, unit, _ = port.rate.partition(" Gb/sec")  # of "100 Gb/sec (4X EDR)"
            use = f"{len(port.gids)}/{port.room}"
            rows.append(
                (*where, state, f"{rate} Gb/s" if unit else rate, port.link_layer, port.mtu, port.roce_mtu, use)
            )
    return rows


def gid_rows(devices: Sequence[VerbsDevice]) -> list[Sequence[object]]:
    """The rows below GIDS."""
    return [(p.device, p.number, g.index, g.kind, g.address, g.ndev, g.owner) for p, g in _gids(devices)]


def _gids(devices: Sequence[VerbsDevice]) -> Iterator[tuple[Port, Gid]]:
    for port in inventory.ports(devices):
        for gid in port.gids:
            yield port, gid


def document(devices: Sequence[VerbsDevice]) -> list[dict[str, Any]]:
    """The same as JSON; what is not known is null."""
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
    return {
        "port": port.number,
        "netdev": port.netdev or None,
        "carrier": port.carrier,
        "state": port.state,
        "physicalState": port.physical_state,
        "linkLayer": port.link_layer,
        "rate": port.rate,
        "mtu": port.mtu,
        "roceMTU": port.roce_mtu,
        "gidTableSize": port.room,
        "gids": [
            {"index": g.index, "gid": g.value, "type": g.kind, "address": g.address, "ndev": g.ndev, "owner": g.owner}
            for g in port.gids
        ],
    }


def ibdev2netdev(devices: Sequence[VerbsDevice]) -> Iterator[str]:
    """The lines of Mellanox's ibdev2netdev: Up is a netdev with carrier. Ports without a netdev have no line."""
    for port in inventory.ports(devices):
        if port.netdev:
            state = "NA" if port.carrier is None else "Up" if port.carrier else "Down"
            yield f"{port.device} port {port.number} ==> {port.netdev} ({state})"


def environment(sandbox: NamespaceView, devices: Sequence[VerbsDevice]) -> dict[str, str]:
    """What NCCL is to be told in this namespace; CniError says which GID is missing, or what cannot be said to it.

    Of each link one GID counts, that of its first IPv4 address, else of its first IPv6 address. NCCL takes one GID
    index for all devices (NCCL_IB_GID_INDEX of its user guide); "=" makes it compare whole names.
    """
    chosen: dict[str, tuple[Port, int]] = {}
    for interface in sandbox.interfaces:
        for address in sorted(interface.global_addresses, key=lambda a: ":" in a):
            wanted = (rdma_sysfs.ROCE_V2, interface.name, address)
            entries = [(port, g.index) for port, g in _gids(devices) if (g.kind, g.ndev, g.address) == wanted]
            if entries:
                chosen.setdefault(interface.name, entries[0])
    if not chosen:
        raise CniError(_missing(sandbox, devices), code=100)
    indexes = {index for _, index in chosen.values()}
    if len(indexes) > 1:
        each = ", ".join(f"{index} of {port.device} for {name}" for name, (port, index) in chosen.items())
        raise CniError(
            f"NCCL takes one GID index for all devices, and here they differ: {each}; give each process one device with"
            " its own index, or the pods host devices of their own (host-device), whose tables hold nobody else's GIDs",
            code=100,
        )
    return {
        "NCCL_IB_HCA": "=" + ",".join(f"{port.device}:{port.number}" for port, _ in chosen.values()),
        "NCCL_IB_GID_INDEX": str(indexes.pop()),
        "NCCL_SOCKET_IFNAME": "=" + ",".join(chosen),
    }


def _missing(sandbox: NamespaceView, devices: Sequence[VerbsDevice]) -> str:
    has = [f"{i.name} {a}" for i in sandbox.interfaces for a in i.global_addresses if i.name != "lo"]
    who = sandbox.owner or "this namespace"
    if not devices:
        return f"{who} has no RDMA: this node shows no verbs device; see `railcni doctor`"
    return (
        f"no verbs device has a RoCE v2 GID of {who}, which has {', '.join(has) or 'no address'}: an interface gets one"
        " when its master is the netdev of a RoCE port that is up; see `railcni rdma` and `railcni doctor`"
    )
