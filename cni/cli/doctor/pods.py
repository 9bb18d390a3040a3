"""Checks of RDMA in pods: each address of a link over a RoCE port needs a GID whose netdev is that link.

A pod's link is over an RDMA port in two cases: it is the port's netdev, moved into the pod; or it is a macvlan or
similar link on that netdev, or on a VLAN or bond above that netdev. The functions that check all pods do no I/O;
functions that check one pod do.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni.cli import rdma
from cni.cli.doctor import kernel, setup
from cni.cli.doctor.finding import ADVICE, FAULT, NOTE, OK, SKIPPED, Observation, advice, broken, note, ok, unknown
from cni.node.inventory.devices import Port
from cni.node.inventory.functions import ETHER, Function
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface, inode_of
from cni.node.inventory.topology import text
from cni.node.runtime import icmp
from cni.resources.containers import CDI_FOLDER, DRIVER, Record, cdi_ids, records, records_folder, specification
from cni.shared.kernel import netns, rdma_sysfs
from cni.shared.kernel.files import read_whole
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError

_SECONDS = 2.0  # to wait for the answer of a peer
_PEER = "answers to packets of every size up to the link's MTU"
_SEE = "see that the peer runs and its link is up, and subnet, VLAN and switch ports between both"
_MOST_PROCESSES = 8


@dataclass(frozen=True)
class AttachedLink:
    """A link of a pod over an RDMA port. `recorded` are the addresses of the link in railcni's record."""

    sandbox: NamespaceView
    interface: SandboxInterface
    ports: tuple[Port, ...]
    recorded: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.interface.name} of {self.sandbox.owner}"


@dataclass(frozen=True)
class PodNeed:
    """What a pod needs for one of its links: the verbs device below the link, the device's node in /dev/infiniband, and
    the extended resources of kubelet that offer the device."""

    link: str
    device: str
    node: str
    resources: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """The remedy for a container without the device node: a request for one of `resources`."""
        names = " or ".join(self.resources) or "a resource of the device plugin that offers this NIC"
        return f"ask for {names} in the container: limits and requests of 1"


@dataclass(frozen=True)
class PodProcess:
    """A process in a pod: its RDMA device nodes, and its limit of locked memory in bytes (`memlock`).

    A value is None if this user may not see it. `gpus`: the process has device nodes of NVIDIA's GPUs. `indexes` has
    (name, value) of the environment variables that set a GID index. `may_lock`: a capability lifts the limit.
    """

    pid: int
    nodes: tuple[str, ...] | None
    memlock: int | None
    gpus: bool = False
    indexes: tuple[tuple[str, str], ...] = ()
    may_lock: bool = False
    user: int | None = None


def needs(
    links: Iterable[AttachedLink], functions: Sequence[Function], registered: Mapping[str, Collection[str]]
) -> list[PodNeed]:
    """What the pods need for `links`. `registered` maps each resource of kubelet to its device IDs; railcni's device
    plugin and the SR-IOV device plugin derive these IDs from the NIC or function."""
    found = []
    for link in links:
        devices = {port.device for port in link.ports}
        for function in functions:
            uverbs = [name for name in function.nodes if name.startswith("uverbs")]
            if uverbs and devices & {*function.verbs}:
                own = (function.id, f"{function.id}-")
                names = [n for n, ids in registered.items() if any(i == own[0] or i.startswith(own[1]) for i in ids)]
                found.append(PodNeed(link.interface.name, ", ".join(function.verbs), uverbs[0], tuple(sorted(names))))
    return found


def check(links: Sequence[AttachedLink]) -> Iterator[Observation]:
    """Find recorded addresses that a link has lost, addresses without a GID, and links whose MTU is too small for RoCE
    MTU 4096 although the port's MTU is large enough."""
    for link in links:
        interface = link.interface
        wanted = (interface.name, rdma_sysfs.ROCE_V2)
        entries = [(g, p) for p in link.ports for g in p.gids if (g.ndev, g.kind) == wanted]
        with_gid = {g.address: f"{p} index {g.index}" for g, p in entries}
        lost = [a for a in link.recorded if a not in interface.addresses]
        bare = [a for a in interface.global_addresses if a not in with_gid]
        devices = ", ".join(str(p) for p in link.ports)
        if not any(port.is_roce for port in link.ports):
            yield ok(str(link), f"on {devices}, which needs no GID of an address")
            continue
        if lost:
            found = f"{', '.join(lost)} is recorded for it, and is not on it any more; so there is no GID either"
            remedy = "detach and attach it again (delete the pod); see who removes addresses in its namespace"
            yield broken(str(link), found, "the addresses of its record", remedy)
        if bare:
            state, remedy = f"; {interface.name} is down", f"ip link set {interface.name} up, in the pod"
            if interface.up:
                remedy = f"see that {devices} is ACTIVE and its GID table has room; then attach the pod again"
                state = ""
            found = f"no RoCE v2 GID of {', '.join(bare)} on {devices}{state}"
            yield broken(str(link), found, "a GID for each address: without one RDMA fails", remedy)
        if not interface.global_addresses and not lost:
            yield note(str(link), f"no address, so no GID on {devices} but that of its link-local address")
        elif not bare and not lost:
            yield ok(str(link), ", ".join(f"{a}: {with_gid[a]}" for a in interface.global_addresses))
        least = rdma_sysfs.MTU_FOR_WHOLE_ROCE
        if interface.mtu < least <= max(port.mtu or 0 for port in link.ports):
            found = f"MTU {interface.mtu}, so connections of RDMA CM use {rdma_sysfs.roce_mtu(interface.mtu)} bytes"
            yield advice(str(link), found, f"{least} or more", "raise `mtu` in the NAD to its master's")


def check_links(
    sandbox: NamespaceView, links: Sequence[AttachedLink], recorded: Sequence[str], here: Mapping[str, SandboxInterface]
) -> Iterator[Observation]:
    """Find links of the pod that are gone or down, and links whose master is down. `recorded` names the pod's links in
    the attachment records; `here` has the links of doctor's own namespace by name."""
    over_ports = {link.interface.name for link in links}
    names = [interface.name for interface in sandbox.interfaces]
    for name in recorded:
        if name not in names:
            remedy = "delete the pod, so that it is attached again; see who removes or renames links in its namespace"
            yield broken(name, "recorded as attached, and no link of this name is there", "the link", remedy)
    for interface in sandbox.interfaces:
        if interface.name == "lo":
            continue
        below = f" on {interface.lower}" if interface.lower else ""
        found = f"{interface.kind or 'device'}{below}, MTU {interface.mtu}"
        if not interface.up:
            level = FAULT if interface.name in over_ports else NOTE
            remedy = f"ip link set {interface.name} up, in the pod"
            yield Observation(level, interface.name, f"{found}, down", "up", remedy)
        elif interface.lower in here and not here[interface.lower].up:
            remedy = f"ip link set {interface.lower} up, and let the node's network configuration do so at each boot"
            yield broken(interface.name, f"{found}, which is down", f"{interface.lower} up", remedy)
        elif not interface.carrier:
            remedy = f"see the port of {interface.lower or interface.name}: cable, transceiver and switch port"
            yield broken(interface.name, f"{found}, up without carrier", "a carrier", remedy)
        else:
            yield ok(interface.name, f"{found}, up")


def check_pod(
    sandbox: NamespaceView,
    links: Sequence[AttachedLink],
    processes: Sequence[PodProcess],
    needed: Sequence[PodNeed] = (),
) -> Iterator[Observation]:
    """Check that a pod has a link over an RDMA port, and check its kernel parameters, device nodes and limits."""
    who = sandbox.owner or "this namespace"
    if not links:
        names = ", ".join(i.name for i in sandbox.interfaces if i.name != "lo") or "none"
        remedy = "attach it to a network whose master is the netdev of an RDMA port (`railcni rdma` names them)"
        yield broken(who, f"none of its links is over an RDMA port: {names}", "net1 over one", remedy)
    yield from kernel.check_parameters(_parameters(sandbox, [link.interface for link in links]), {})
    for need in needed:
        offered = ", ".join(need.resources) or "no resource of kubelet's device manager on this node"
        found = f"{need.device} is offered by {offered}"
        yield Observation(OK if need.resources else NOTE, f"resource of {need.link}", found)
    if sandbox.netns and not processes:
        found = "none is seen with files of its own: its device nodes and what it may lock were not looked at"
        yield unknown(f"processes of {who}", found)
    for process in processes:
        subject, has = f"process {process.pid} of {who}", f"/dev/infiniband: {', '.join(process.nodes or ())}"
        if process.nodes is None:
            yield unknown(subject, "this user may not see its files")
        elif not process.nodes:
            healthy = "/dev/infiniband/uverbsN and rdma_cm"
            remedy = "ask for the device plugin's resource in the pod, such as rdma/hca_shared_devices_a: 1"
            remedies = "; ".join(dict.fromkeys(need.remedy for need in needed if need.resources)) or remedy
            yield broken(subject, "it has no /dev/infiniband", healthy, remedies)
        elif lacking := [need for need in needed if need.node not in process.nodes]:
            for need in lacking:
                found = f"{need.link} is over {need.device}, and /dev/infiniband has {', '.join(process.nodes)} alone"
                yield broken(subject, found, f"/dev/infiniband/{need.node}", need.remedy)
        elif "rdma_cm" not in process.nodes:
            why = "without rdma_cm RDMA CM fails (rping, ib_write_bw -R)"
            remedy = "see that the device plugin gives /dev/infiniband/rdma_cm too"
            yield advice(subject, f"{has}; {why}", "/dev/infiniband/rdma_cm", remedy)
        else:
            yield ok(subject, has)
    for process in processes:
        subject = f"process {process.pid} of {who}"
        yield from _check_indexes(subject, process, links)
        yield setup.check_process(subject, process.memlock, process.may_lock, process.user)


def _check_indexes(subject: str, process: PodProcess, links: Sequence[AttachedLink]) -> Iterator[Observation]:
    """Find GID indexes in a process's environment that are wrong for a link of the pod."""
    ways = [(link.interface.name, port) for link in links for port in link.ports if port.is_roce]
    for name, value in process.indexes:
        if why := rdma.wrong_index(value, ways):
            remedy = f"leave {name} out: the library then chooses an index for each device (NCCL from 2.21 on)"
            remedy += "; `railcni rdma --env` has what NCCL needs"
            yield broken(subject, f"{name}={value}: {why}", "an index of the link's own address on each device", remedy)


def check_peer(sandbox: NamespaceView, links: Sequence[AttachedLink], peer: str) -> list[Observation]:
    """Ping `peer` from the pod's namespace, with a small packet, and with a packet as large as the link's MTU."""
    if not peer:
        return [Observation(SKIPPED, "a peer", "not looked at: name the address of another pod with --peer")]
    wanted = ipaddress.ip_address(peer)
    interfaces = [link.interface for link in links]
    near = [i for i in interfaces if any(wanted in ipaddress.ip_interface(n).network for n in i.networks)]
    family = [(a, i.mtu) for i in (near or interfaces)[:1] for a in i.global_addresses if (":" in a) == (":" in peer)]
    if not family:
        return [broken(peer, f"0 bytes: no link over an RDMA port has an address of IPv{wanted.version}", _PEER, _SEE)]
    with netns.open_namespace(sandbox.netns or "/proc/self/ns/net") as there, there.entered():
        return ping(peer, *family[0])


def ping(peer: str, own: str, mtu: int) -> list[Observation]:
    """Ping `peer` from the address `own` of this namespace: with a small packet, and with a packet of `mtu` bytes."""
    headers = 28 if ":" not in peer else 48  # IP and ICMP
    found, remedy, small = [], _SEE, ""
    for number, size in enumerate((56 + headers, mtu)):
        try:
            taken = icmp.ping(peer, size - headers, number + 1, _SECONDS, own)
            found.append(ok(f"{peer} from {own}", f"{size} bytes came back in {taken * 1000:.2f} ms"))
            small = "; small packets come back"
            remedy = "raise the MTU of the switch ports, of the peer's master and of its NAD to that of this link"
        except OSError as fault:
            found.append(broken(f"{peer} from {own}", f"{size} bytes: {fault.strerror or fault}{small}", _PEER, remedy))
    return found


def _parameters(sandbox: NamespaceView, links: Sequence[SandboxInterface]) -> dict[str, kernel.LinkParameters]:
    """The kernel parameters of `links` in the pod's namespace, by link; {} if they cannot be read."""
    try:
        with netns.open_namespace(sandbox.netns or "/proc/self/ns/net") as there, there.entered():
            return {link.name: kernel.read_parameters(link.name, link.networks) for link in links}
    except (CniError, OSError):
        return {}


def processes(sandbox: NamespaceView, proc: str = "/proc") -> list[PodProcess]:
    """At most _MOST_PROCESSES processes of the pod, lowest PIDs first. Processes with the host's root directory, such
    as a runtime's helpers, are left out."""
    found: list[PodProcess] = []
    inode = inode_of(sandbox.netns) if sandbox.netns else 0
    for pid in sorted(int(n) for n in os.listdir(proc) if n.isdigit()) if inode else ():
        here = f"{proc}/{pid}"
        try:
            is_inside = inode_of(f"{here}/ns/net") == inode and not os.path.samefile(f"{here}/root/", "/")
        except OSError:
            continue
        if is_inside and len(found) < _MOST_PROCESSES:
            gpus = any(name.startswith("nvidia") for name in _nodes(f"{here}/root/dev") or ())
            nodes, memlock = _nodes(f"{here}/root/dev/infiniband"), setup.memlock_of(here)
            indexes = _indexes(f"{here}/environ")
            found.append(PodProcess(pid, nodes, memlock, gpus, indexes, setup.may_lock(here), setup.user_of(here)))
    return found


def _indexes(environ: str) -> tuple[tuple[str, str], ...]:
    pairs = [entry.partition("=") for entry in text(environ).split("\0")]
    return tuple((name, value) for name, _, value in pairs if name in rdma.INDEX_VARIABLES)


def _nodes(folder: str) -> tuple[str, ...] | None:
    try:
        return tuple(sorted(os.listdir(folder)))
    except FileNotFoundError:
        return ()
    except OSError:
        return None


# --- ResourceClaims, by the records of kubelet and `railcni dra`: preparation, devices, and links ---
#
# Source: pkg/kubelet/cm/dra/state in Kubernetes, for the file dra_manager_state.


@dataclass(frozen=True)
class PodClaim:
    """A ResourceClaim that kubelet or the driver (`railcni dra`) has recorded. `pods` has the UIDs of the claim's pods.
    `record` is the driver's record; None if the driver has not prepared the claim. `is_specified`: the CDI
    specification exists, or is not needed."""

    name: str
    pods: tuple[str, ...]
    record: Record | None
    is_specified: bool = True


def read_claims(kubelet: str, root: str = "") -> list[PodClaim]:
    """Read the claims for devices of `railcni dra`: first the claims in kubelet's file below the folder `kubelet`, then
    claims that only the driver has recorded. Raises OSError or ValueError if the file or a record cannot be read."""
    entries, found = _claims_of_kubelet(f"{kubelet}/dra_manager_state"), []
    # Read after kubelet's file, so that a claim that is prepared meanwhile is not in kubelet's file alone.
    prepared = {one["uid"]: one for one in records(records_folder(kubelet))}
    for entry in entries:
        record = prepared.pop(entry["ClaimUID"], None)
        if record is not None or DRIVER in (entry.get("DriverState") or {}):
            name = f"{entry['Namespace']}/{entry['ClaimName']}"
            has_nodes = record is not None and any(cdi_ids(record, n) for n in range(len(record["devices"])))
            is_specified = not has_nodes or os.path.exists(specification(entry["ClaimUID"], root))
            found.append(PodClaim(name, tuple(entry.get("PodUIDs") or ()), record, is_specified))
    return found + [PodClaim(f"{one['namespace']}/{one['name']}", (), one) for one in prepared.values()]


def _claims_of_kubelet(path: str) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = (
            codec.loads(codec.loads(read_whole(path))["Data"].encode())["ClaimInfoStateList"] or []
        )
        return [entry for entry in entries if entry["ClaimUID"] and entry["Namespace"] and entry["ClaimName"]]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError, AttributeError):
        raise ValueError("dra_manager_state is not as kubelet from 1.34 on writes it") from None


def check_node_claims(claims: Sequence[PodClaim], kubelet: str) -> Iterator[Observation]:
    """Report the number of prepared claims, and the claims whose pods are all gone (kubelet has no folder for them)."""
    prepared = [claim for claim in claims if claim.record is not None]
    lost = [c for c in prepared if not any(os.path.isdir(f"{kubelet}/pods/{uid}") for uid in c.pods)]
    if prepared:
        yield note("ResourceClaims", f"{len(prepared)} prepared, {len(lost)} of them without a pod")
    for claim in lost:
        remedy = "delete the ResourceClaim if no pod will use it, and restart `railcni dra run`, which then forgets it"
        yield advice(f"ResourceClaim {claim.name}", "prepared, and its pods are gone", "a pod", remedy)


def check_claims(
    claims: Sequence[PodClaim],
    sandbox: NamespaceView,
    links: Sequence[AttachedLink],
    functions: Sequence[Function],
    ports: Sequence[Port],
) -> Iterator[Observation]:
    """Find claims that are not prepared, devices that are gone or down, and devices that no link of the pod uses."""
    known = {function.id: function for function in functions}
    for claim in claims:
        subject = f"ResourceClaim {claim.name}"
        if claim.record is None:
            found = f"kubelet has it for this pod, and {DRIVER} has not prepared it here"
            yield broken(subject, found, "prepared", "see the log of `railcni dra run` on this node, and its /readyz")
            continue
        if not claim.is_specified:
            remedy = "restart `railcni dra run`, which makes it again, and then the pod's containers"
            yield broken(subject, f"its specification in {CDI_FOLDER} is gone", "device nodes for containers", remedy)
        for device in claim.record["devices"]:
            place = f"{device['device']} of {subject}"
            function = known.get(device["function"])
            if function is None and ":" in device["function"]:  # a device for all NICs of a resource has no function
                found = f"{device['function']} is gone, or its driver holds it"
                yield broken(place, found, "on this node", "see the kernel's log, and delete the pod when it is back")
            elif down := [p for p in ports if function and p.device in function.verbs and not p.is_active]:
                found = f"{down[0]} is {down[0].state}"
                yield broken(place, found, "ACTIVE", "see the cable, the switch port and `ip link`")
            elif function and not device["admin"] and not _is_used(function, sandbox, links):
                names = ", ".join(f"{i.name} on {i.lower or i.device}" for i in sandbox.interfaces if i.name != "lo")
                found = f"no link of the pod is on {device['function']}: it has {names or 'none'}"
                wanted = f"the annotation k8s.v1.cni.cncf.io/resourceName: {device['resource']} and without `master`"
                remedy = f"name a network with {wanted} in the pod's annotation"
                level = FAULT if function.link_type == ETHER else ADVICE  # InfiniBand needs no link
                yield Observation(level, place, found, "a link on the device that was allocated", remedy)
            else:
                yield ok(place, f"prepared, {device['resource']}, {device['function']}")


def _is_used(function: Function, sandbox: NamespaceView, links: Sequence[AttachedLink]) -> bool:
    """Whether a link of the pod is a netdev of the function, or a macvlan or similar link on such a netdev."""
    return any(i.lower in function.netdevs or i.device == function.id for i in sandbox.interfaces) or any(
        port.device in function.verbs for link in links for port in link.ports
    )
