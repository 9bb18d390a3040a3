"""railcni rdma: shows verbs devices with netdevs, PCI functions and GIDs, and the variables for NCCL."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from cni.cli import nccl
from cni.cli.terminal import output, subcommand
from cni.node.inventory import devices as inventory
from cni.node.inventory import sandboxes
from cni.node.inventory.devices import Port, VerbsDevice
from cni.shared.kernel import rdma_sysfs

_ABOUT = "show verbs devices with their netdevs, ports, PCI functions and GIDs, and the pod of each GID"

PORTS = ("device", "port", "netdev", "pci", "numa", "state", "rate", "link layer", "mtu", "roce mtu", "gids")
GIDS = ("device", "port", "index", "type", "address", "netdev", "pod")
LEAST_OF_GIDS = ("port", "type", "netdev")


def register(commands: subcommand.Commands) -> None:
    """Add the command `rdma`."""
    parser = subcommand.add(commands, "rdma", _ABOUT, ". It changes nothing.", run=_run, lists=True)
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
        variables, notes = nccl.advice(sandboxes.find(options.env, found), devices)
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
    """Yield the lines of Mellanox's ibdev2netdev. "Up" means carrier. Ports without a netdev have no line."""
    for port in inventory.ports(devices):
        if port.netdev:
            state = "NA" if port.carrier is None else "Up" if port.carrier else "Down"
            yield f"{port.device} port {port.number} ==> {port.netdev} ({state})"
