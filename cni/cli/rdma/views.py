"""The inventory as people and programs read it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cni.library.inventory.devices import Port, VerbsDevice
from cni.library.inventory.sandboxes import NamespaceView
from cni.shared.kernel import rdma_sysfs
from cni.shared.spec.errors import CniError

PORTS = ("device", "port", "netdev", "pci", "numa", "state", "rate", "link layer", "mtu", "roce mtu", "gids")
GIDS = ("device", "port", "index", "type", "address", "netdev", "pod")


def port_rows(devices: Sequence[VerbsDevice]) -> list[Sequence[object]]:
    """The rows below PORTS."""
    rows: list[Sequence[object]] = []
    for device in devices:
        numa = device.numa_node if device.numa_node >= 0 else None
        for port in device.ports:
            state = port.state if port.is_active else f"{port.state} ({port.physical_state})"
            where = device.name, port.number, port.netdev, device.pci, numa
            use = f"{len(port.gids)}/{port.room}"
            rows.append((*where, state, short_rate(port), port.link_layer, port.mtu, port.roce_mtu, use))
    return rows


def short_rate(port: Port) -> str:
    """ "100 Gb/s" of "100 Gb/sec (4X EDR)"."""
    number, unit, _ = port.rate.partition(" Gb/sec")
    return f"{number} Gb/s" if unit else port.rate


def gid_rows(devices: Sequence[VerbsDevice]) -> list[Sequence[object]]:
    """The rows below GIDS."""
    return [
        (port.device, port.number, gid.index, gid.kind, gid.address, gid.ndev, gid.owner)
        for device in devices
        for port in device.ports
        for gid in port.gids
    ]


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
    for device in devices:
        for port in device.ports:
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
            entry = _entry(interface.name, address, devices)
            if entry:
                chosen.setdefault(interface.name, entry)
    if not chosen:
        raise CniError(_missing(sandbox, devices), code=100)
    variables = {
        "NCCL_IB_HCA": "=" + ",".join(f"{port.device}:{port.number}" for port, _ in chosen.values()),
        "NCCL_SOCKET_IFNAME": "=" + ",".join(chosen),
    }
    indexes = {index for _, index in chosen.values()}
    if len(indexes) > 1:
        each = ", ".join(f"{index} of {port.device} for {name}" for name, (port, index) in chosen.items())
        raise CniError(
            f"NCCL takes one GID index for all devices, and here they differ: {each}; give each process one device with"
            " its own index, or the pods host devices of their own (host-device), whose tables hold nobody else's GIDs",
            code=100,
        )
    variables["NCCL_IB_GID_INDEX"] = str(indexes.pop())
    return {name: variables[name] for name in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME")}


def _entry(ifname: str, address: str, devices: Sequence[VerbsDevice]) -> tuple[Port, int] | None:
    for device in devices:
        for port in device.ports:
            for gid in port.gids:
                if (gid.kind, gid.ndev, gid.address) == (rdma_sysfs.ROCE_V2, ifname, address):
                    return port, gid.index
    return None


def _missing(sandbox: NamespaceView, devices: Sequence[VerbsDevice]) -> str:
    has = [f"{i.name} {a}" for i in sandbox.interfaces for a in i.global_addresses if i.name != "lo"]
    who = sandbox.owner or "this namespace"
    if not devices:
        return f"{who} has no RDMA: this node shows no verbs device; see `railcni doctor`"
    return (
        f"no verbs device has a RoCE v2 GID of {who}, which has {', '.join(has) or 'no address'}: an interface gets one"
        " when its master is the netdev of a RoCE port that is up; see `railcni rdma` and `railcni doctor`"
    )
