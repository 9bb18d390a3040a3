"""What pods have of RDMA: each address of theirs over a RoCE port wants a GID, in the name of their link.

A link is over a port when it is a macvlan or the like on the port's netdev, through VLANs and bonds too, or the
port's own netdev, moved into the pod. Pure, but for `read_parameters` and `processes`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cni.cli.doctor import namespaces, runtime
from cni.cli.doctor.finding import ADVICE, FAULT, NOTE, OK, UNKNOWN, Finding
from cni.cli.doctor.namespaces import Parameters
from cni.cli.rdma.inventory import Port
from cni.cli.rdma.sandboxes import Interface, Sandbox
from cni.kernel import netns, rdma
from cni.spec.errors import CniError


@dataclass(frozen=True)
class Attached:
    """A link of a pod over a RoCE port. `recorded` are addresses that railcni's record says it has."""

    sandbox: Sandbox
    interface: Interface
    ports: tuple[Port, ...]
    recorded: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.interface.name} of {self.sandbox.owner}"


@dataclass(frozen=True)
class Process:
    """A process in a pod: its device nodes of RDMA, and what it may lock; None: this user may not see it."""

    pid: int
    nodes: tuple[str, ...] | None
    memlock: int | None


def attached(
    sandboxes: Sequence[Sandbox],
    ports: Sequence[Port],
    pci_of: Mapping[str, str],
    over: Mapping[str, Sequence[tuple[str, int]]],
    recorded: Mapping[tuple[str, str], Sequence[str]],
) -> list[Attached]:
    """The links of `sandboxes` that are over RoCE ports. `pci_of` is by verbs device; `over` tells of a netdev of this
    namespace which ports carry it; `recorded` the addresses by (path of the namespace, link)."""
    found = []
    for sandbox in sandboxes:
        for interface in sandbox.interfaces:
            below = set(over.get(interface.lower, ())) if interface.lower else set()
            own = [p for p in ports if interface.bus == "pci" and pci_of.get(p.device) == interface.device]
            mine = tuple(p for p in ports if (p.device, p.number) in below or p in own)
            if any(p.is_roce for p in mine):
                known = tuple(recorded.get((sandbox.netns, interface.name), ()))
                found.append(Attached(sandbox, interface, mine, known))
    return found


def check_unread(unread: Sequence[str]) -> Iterator[Finding]:
    """What is not known of pods, so that the checks of them see less than there is."""
    for text in unread:
        yield Finding(FAULT, "namespaces of pods", text)


def check(links: Sequence[Attached]) -> Iterator[Finding]:
    """Addresses without a GID, addresses that are lost, and links whose MTU is less than RDMA CM needs."""
    for link in links:
        interface = link.interface
        entries = [(g, p) for p in link.ports for g in p.gids if g.ndev == interface.name and g.kind == rdma.ROCE_V2]
        with_gid = {g.address: f"{p.device} port {p.number} index {g.index}" for g, p in entries}
        lost = [a for a in link.recorded if a not in interface.addresses]
        bare = [a for a in interface.global_addresses if a not in with_gid]
        devices = ", ".join(str(p) for p in link.ports)
        if lost:
            found = f"{', '.join(lost)} is recorded for it, and is not on it any more; so there is no GID either"
            remedy = "detach and attach it anew (delete the pod); see who removes addresses in its namespace"
            yield Finding(FAULT, str(link), found, "the addresses of its record", remedy)
        if bare:
            state = "" if interface.up else f"; {interface.name} is down"
            remedy = (
                f"see that {devices} is ACTIVE and its GID table has room; then attach the pod anew"
                if interface.up
                else f"ip link set {interface.name} up, in the pod"
            )
            found = f"no RoCE v2 GID of {', '.join(bare)} on {devices}{state}"
            yield Finding(FAULT, str(link), found, "a GID for each address: without one RDMA fails", remedy)
        if not interface.global_addresses and not lost:
            yield Finding(NOTE, str(link), f"no address, so no GID on {devices} but that of its link-local address")
        if not bare and not lost and interface.global_addresses:
            each = ", ".join(f"{a}: {with_gid[a]}" for a in interface.global_addresses)
            yield Finding(OK, str(link), each)
        if interface.mtu < rdma.LEAST_MTU and any((p.mtu or 0) >= rdma.LEAST_MTU for p in link.ports):
            found = f"MTU {interface.mtu}, so connections of RDMA CM use {rdma.roce_mtu(interface.mtu)} bytes"
            remedy = "raise `mtu` in the NAD to its master's"
            yield Finding(ADVICE, str(link), found, f"{rdma.LEAST_MTU} or more", remedy)


def check_pod(
    sandbox: Sandbox, links: Sequence[Attached], parameters: Mapping[str, Parameters], processes: Sequence[Process]
) -> Iterator[Finding]:
    """What is asked of one pod besides: that it has RDMA at all, its parameters, nodes and limits."""
    who = sandbox.owner or "this namespace"
    if not links:
        names = ", ".join(i.name for i in sandbox.interfaces if i.name != "lo") or "none"
        remedy = "attach it to a network whose master is the netdev of a RoCE port (`railcni rdma` names them)"
        yield Finding(FAULT, who, f"none of its links is over a RoCE port: {names}", "net1 over one", remedy)
    yield from namespaces.check_parameters(parameters, {})
    for process in processes:
        subject = f"process {process.pid} of {who}"
        if process.nodes is None:
            yield Finding(UNKNOWN, subject, "this user may not see its files")
        elif not process.nodes:
            healthy = "/dev/infiniband/uverbsN and rdma_cm"
            remedy = "ask for the device plugin's resource in the pod, such as rdma/hca_shared_devices_a: 1"
            yield Finding(FAULT, subject, "it has no /dev/infiniband", healthy, remedy)
        else:
            yield Finding(OK, subject, f"/dev/infiniband: {', '.join(process.nodes)}")
    limits = [runtime.Process(f"process {p.pid} of {who}", p.pid, p.memlock) for p in processes]
    if limits:
        yield from runtime.check_memlock(limits)


def read_parameters(sandbox: Sandbox, links: Sequence[Interface]) -> dict[str, Parameters]:
    """The parameters of `links` inside the namespace."""
    try:
        with netns.open_namespace(sandbox.netns or "/proc/self/ns/net") as there, there.entered():
            return {link.name: namespaces.read(link.name, link.networks) for link in links}
    except (CniError, OSError):
        return {}


def processes(sandbox: Sandbox, proc: str = "/proc", most: int = 8) -> list[Process]:
    """Processes in the namespace, but not those that see the host's files: a runtime's helpers, or a shell of ours."""
    if not sandbox.netns:
        return []
    found = []
    try:
        inode = os.stat(sandbox.netns).st_ino
        ours = os.stat("/")
    except OSError:
        return []
    for pid in sorted(int(n) for n in os.listdir(proc) if n.isdigit()):
        try:
            if os.stat(f"{proc}/{pid}/ns/net").st_ino != inode:
                continue
            root = os.stat(f"{proc}/{pid}/root/")
        except OSError:
            continue
        if (root.st_dev, root.st_ino) != (ours.st_dev, ours.st_ino):
            memlock = runtime.memlock_of(f"{proc}/{pid}")
            found.append(Process(pid, _nodes(f"{proc}/{pid}/root/dev/infiniband"), memlock))
    return found[:most]


def _nodes(folder: str) -> tuple[str, ...] | None:
    try:
        return tuple(sorted(os.listdir(folder)))
    except FileNotFoundError:
        return ()
    except OSError:
        return None
