"""The facts that the checks judge, the checks in the order in which they are run, and the report of their findings."""

from __future__ import annotations

import ipaddress
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from cni.cli import rdma
from cni.cli.doctor import kernel, pcie, pods, ports, setup
from cni.cli.doctor.finding import FAULT, SKIPPED, UNKNOWN, Check, Observation, broken, unknown
from cni.cli.doctor.ports import Congestion, PortCounts
from cni.documents import NET_DIRECTORY
from cni.documents.tree import object_at
from cni.node.installation.options import DEFAULT, candidates
from cni.node.inventory import attachments as recorded
from cni.node.inventory import counters, functions, sandboxes, topology
from cni.node.inventory import devices as inventory
from cni.node.inventory.sandboxes import REMEDY, NamespaceView, SandboxInterface, is_denied
from cni.node.runtime.cache import DIRECTORY
from cni.resources.containers import own_folder
from cni.shared.kernel import rdma_sysfs, sysfs
from cni.shared.kernel.files import read_whole
from cni.shared.kernel.rdma_netlink import EXCLUSIVE
from cni.shared.records import GROUP, STATE
from cni.shared.spec.errors import CniError

# --- the facts, each read on its first use; nothing here judges or changes anything ---


@dataclass(frozen=True)
class NodePlaces:
    """The folders that doctor reads: this node's, or those in a copy of another node's files."""

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    state: str = STATE
    cache: str = DIRECTORY
    networks: str = NET_DIRECTORY
    kubelet: str = "/var/lib/kubelet"
    root: str = ""  # the root of the file system with the CDI specifications
    plugins: tuple[str, ...] = ()  # default: where the node's runtimes search
    live: bool = True  # whether this kernel's namespaces and netlink are the node's


@dataclass
class NodeFacts:
    """Facts about the node whose files are at `places`. If `pod` (NAMESPACE/POD, or the path of a network namespace) is
    given, the facts are about this pod alone, and `peer` is an address to ping from it. Port errors are counted for
    `watch` seconds, or since each port's start if `watch` is 0."""

    places: NodePlaces = field(default_factory=NodePlaces)
    pod: str = ""
    peer: str = ""
    watch: float = 0.0

    @cached_property
    def loaded(self) -> kernel.Modules:
        """The kernel modules, and the network functions; in a report about one pod, only functions below its links."""
        found = kernel.read_modules(self.places.sys)
        if not self.pod:
            return found
        masters = {interface.lower for interface in self.chosen.interfaces}
        return replace(found, functions=tuple(f for f in found.functions if masters.intersection(f.netdevs)))

    @cached_property
    def _seen(self) -> tuple[list[NamespaceView], list[str]]:
        unread: list[str] = []
        found = sandboxes.read(self.places.state, self.places.cache, unread) if self.places.live else []
        return found, unread

    @property
    def sandboxes(self) -> list[NamespaceView]:
        return self._seen[0]

    @property
    def unread(self) -> list[str]:
        """The namespaces and pods that could not be read, each with the reason."""
        return self._seen[1]

    @cached_property
    def chosen(self) -> NamespaceView:
        """The network namespace of `pod`. Raises InvalidConfig if it is not found."""
        try:
            return sandboxes.find(self.pod, self.sandboxes, self.places.state, self.places.cache)
        except CniError as fault:
            fault.details = "\n".join(filter(None, [fault.details, *self.unread]))
            raise

    @cached_property
    def devices(self) -> list[inventory.VerbsDevice]:
        return inventory.read(self.sandboxes, self.places.sys)

    @property
    def ports(self) -> list[inventory.Port]:
        """All ports; in a report about one pod, only those below the pod's links."""
        if self.pod:
            return [*dict.fromkeys(port for link in self.attached for port in link.ports)]
        return inventory.ports(self.devices)

    @property
    def nics(self) -> list[tuple[str, str]]:
        """(verbs device, PCI address) of each RDMA NIC's physical function; in a report about one pod, only those below
        the pod's links."""
        devices = {port.device for port in self.ports}
        physical = [d for d in self.devices if d.pci and not d.is_virtual_function]
        return [(d.name, d.pci) for d in physical if not self.pod or d.name in devices]

    @cached_property
    def topology(self) -> topology.Topology:
        return topology.read(self.nics, self.places.sys)

    @cached_property
    def netns_mode(self) -> str:
        return kernel.netns_mode() if self.places.live else ""

    @cached_property
    def management(self) -> Collection[str]:
        """The links that carry the node's own traffic, and the links below them, such as a bond's ports."""
        proc = self.places.proc
        return topology.uplinks(f"{proc}/self" if self.places.live else proc, self.places.sys)

    @property
    def own_interfaces(self) -> dict[str, SandboxInterface]:
        """The links of this namespace, by name."""
        return {i.name: i for i in self.sandboxes[0].interfaces} if self.sandboxes else {}

    @property
    def _networks(self) -> dict[str, Sequence[str]]:
        """The IPv4 addresses with prefix lengths of each netdev of an active RoCE port in this namespace."""
        active = (p.netdev for p in self.ports if p.is_active and p.is_roce and p.carrier is not None and p.netdev)
        own = self.own_interfaces
        return {name: own[name].networks if name in own else () for name in active}

    @property
    def parameters(self) -> dict[str, kernel.LinkParameters]:
        return {name: kernel.read_parameters(name, own, self.places.proc) for name, own in self._networks.items()}

    @property
    def subnets(self) -> dict[str, list[str]]:
        """Map each IPv4 subnet to the names of the active RoCE netdevs in it."""
        found: dict[str, list[str]] = {}
        for name, own in self._networks.items():
            for subnet in dict.fromkeys(str(ipaddress.ip_network(network, strict=False)) for network in own):
                found.setdefault(subnet, []).append(name)
        return found

    @cached_property
    def uses(self) -> dict[str, str]:
        """Map each netdev in use to its user: a network of this node, a pod's link, or an address of the node. In a
        report about one pod, only the netdevs below the pod's links."""
        found: dict[str, str] = {}
        if self.pod:
            return {port.netdev: str(link) for link in self.attached for port in link.ports}
        for file in self.network_files:
            found |= {master: f"network {', '.join(file.names)}" for master in file.masters}
        for sandbox, interface in [(s, i) for s in self.sandboxes for i in s.interfaces]:
            for port in rdma_sysfs.ports_of_netdev(interface.lower, self.places.sys) if interface.lower else ():
                netdev = rdma_sysfs.netdev_of(*port, self.places.sys)
                found[netdev] = f"{interface.name} of {sandbox.owner}" if sandbox.owner else interface.name
            if not sandbox.netns and interface.global_addresses:
                found.setdefault(interface.name, interface.global_addresses[0])
        return found

    @cached_property
    def attached(self) -> list[pods.AttachedLink]:
        """The links over RDMA ports, of all pods or of the chosen pod."""
        wanted = [self.chosen] if self.pod else [s for s in self.sandboxes if s.netns]
        found = []
        for sandbox, interface in [(s, i) for s in wanted for i in s.interfaces]:
            if ports := inventory.ports_of(interface, self.devices, self.places.sys):
                known = self._recorded.get((sandbox.netns, interface.name), [])
                found.append(pods.AttachedLink(sandbox, interface, tuple(ports), tuple(known)))
        return found

    @property
    def pod_records(self) -> list[str]:
        """The names of the links that this node's attachment records have for the pod."""
        return [ifname for netns, ifname in self._recorded if netns == self.chosen.netns]

    @cached_property
    def _recorded(self) -> dict[tuple[str, str], list[str]]:
        try:
            found = recorded.found(directory=self.places.state)
        except CniError:  # `unread` has this fault
            return {}
        return {
            (a["netns"], a["ifname"]): [str(address).partition("/")[0] for address in a["addresses"]]
            for a in found
            if not a["pending"] and not a["network"].startswith(GROUP)  # a group has no link of its own
        }

    @cached_property
    def pod_processes(self) -> list[pods.PodProcess]:
        return pods.processes(self.chosen, self.places.proc)

    @cached_property
    def pod_needs(self) -> list[pods.PodNeed]:
        return pods.needs(self.attached, functions.read(self.places.sys), self._registered)

    @property
    def node_claims(self) -> list[pods.PodClaim]:
        """The ResourceClaims of all pods. Raises OSError or ValueError if one of their files cannot be read."""
        return pods.read_claims(self.places.kubelet, self.places.root)

    @property
    def _registered(self) -> dict[str, list[str]]:
        """The device IDs of each resource, from the checkpoint of kubelet's device manager; {} if unreadable."""
        with suppress(OSError, ValueError):
            document = json.loads(read_whole(f"{self.places.kubelet}/device-plugins/kubelet_internal_checkpoint"))
            return object_at(document, "Data", "RegisteredDevices")
        return {}

    @cached_property
    def counts(self) -> tuple[PortCounts, PortCounts, float]:
        """Return (counters now, counters `watch` seconds before, `watch`); if `watch` is 0, (counters now, {}, 0)."""
        before = self._read_counts() if self.watch else {}
        time.sleep(self.watch)
        return self._read_counts(), before, self.watch

    def _read_counts(self) -> PortCounts:
        return {port: counters.read(port.device, port.number, self.places.sys) for port in self.ports}

    @cached_property
    def congestion(self) -> dict[str, Congestion]:
        """The congestion settings of RoCE netdevs in this namespace, by netdev. A bond is replaced by its ports. A
        virtual function or subfunction, whose netdev may be in a pod, is replaced by its physical function."""
        sys = self.places.sys
        devices = {device.name: device for device in self.devices}
        found: dict[str, Congestion] = {}
        for port in (p for p in self.ports if p.is_active and p.is_roce):
            card = self._card_of(devices[port.device])
            own = next((one for one in card.ports if one.number == port.number), port)
            seen = [own.netdev] if own.netdev and own.carrier is not None else []
            for name in [lower for netdev in seen for lower in topology.beside(netdev, "lower_", sys)] or seen:
                if name not in found:
                    found[name] = ports.read_congestion(replace(own, netdev=name), card.driver, sys, self.places.live)
        return found

    def _card_of(self, device: inventory.VerbsDevice) -> inventory.VerbsDevice:
        """The verbs device at the physical function of `device`, or `device` if this namespace has no such one."""
        own = sysfs.pci_above(rdma_sysfs.path_of(device.name, self.places.sys))
        physical = sysfs.physical_function_of(own, self.places.sys) or own
        if physical == device.pci:
            return device
        netdevs = sysfs.netdevs_of_pci(physical, self.places.sys)
        bonds = [bond for netdev in netdevs for bond in topology.beside(netdev, "upper_", self.places.sys)]
        names = {name for bond in bonds for name, _ in rdma_sysfs.ports_of_netdev(bond, self.places.sys)}
        # A bond has the PCI address of its first port.
        cards = [one for one in self.devices if one.pci == physical or one.name in names]
        return cards[0] if cards else device

    @cached_property
    def functions(self) -> list[pcie.PcieFunction]:
        return pcie.read(self.nics, self.places.sys)

    @cached_property
    def folders(self) -> list[str]:
        """The plugin folders of the node's runtimes."""
        if self.places.plugins:
            return list(self.places.plugins)
        found = [DEFAULT]
        with suppress(CniError):
            found = [*dict.fromkeys(candidates("/").values())] or found
        return [*filter(os.path.isdir, found)]

    @cached_property
    def network_files(self) -> list[setup.NetworkFile]:
        return setup.network_files(self.places.networks)

    @property
    def moves_devices(self) -> bool:
        """Whether the CNI plugin `rdma`, which moves verbs devices into pods, is installed."""
        return any(os.path.isfile(os.path.join(folder, "rdma")) for folder in self.folders)


# --- the checks ---


def _peer_memory(f: NodeFacts) -> Iterator[Observation]:
    """Check that NICs reach the memory of GPUs. In a report about one pod, skip this if the pod has no GPU."""
    if not f.pod or any(process.gpus for process in f.pod_processes):
        yield from pcie.check_memory(f.topology, f.places.sys, f.places.proc)


def _mode(f: NodeFacts) -> Iterator[Observation]:
    sharing = [str(link) for link in f.attached if link.interface.lower]
    return kernel.check_mode(f.netns_mode, f.moves_devices, sharing)


def _devices(f: NodeFacts) -> Iterator[Observation]:
    is_moved = f.moves_devices and f.netns_mode == EXCLUSIVE
    return kernel.check_devices([d.name for d in f.devices], f.loaded, is_moved)


def _pcie_settings(f: NodeFacts) -> Iterator[Observation]:
    return pcie.check_settings(f.functions, pcie.read_bridges(f.topology, f.places.sys))


def _nodes(f: NodeFacts) -> Iterator[Observation]:
    """Check the device nodes; in a report about one pod, only those that its links need."""
    needed = {"rdma_cm", *(need.node for need in f.pod_needs)} if f.pod else None
    return kernel.check_nodes(f.places.sys, f.places.dev, needed)


def _guids(f: NodeFacts) -> Iterator[Observation]:
    used = {port.device for port in f.ports}
    return ports.check_guids([device for device in f.devices if device.name in used], f.places.sys)


def _store(f: NodeFacts) -> Iterator[Observation]:
    yield from setup.check_store()
    yield from setup.check_admission(os.path.isdir(own_folder(f.places.kubelet)))
    yield from setup.check_pending(f.places.state)


def _claims(f: NodeFacts) -> Iterator[Observation]:
    """Check the ResourceClaims that kubelet has for the pod."""
    own = [a for a in recorded.found(directory=f.places.state) if a["netns"] == f.chosen.netns]
    uids = {str(part["pod"][2]) for a in own for part in a["records"].values() if part.get("pod")}
    found = [claim for claim in f.node_claims if uids & {*claim.pods}]
    known = functions.read(f.places.sys) if found else []
    return pods.check_claims(found, f.chosen, f.attached, known, inventory.ports(f.devices))


def _rest(f: NodeFacts) -> Iterator[Observation]:
    titles = [check.title for check in CHECKS if not check.of_pod]
    yield Observation(SKIPPED, "the node", f"not looked at for a pod: {', '.join(titles)}; run `railcni doctor`")


_of_devices = partial(Check, needs=("devices",))
_of_both = partial(Check, needs=("devices",), of_pod=True)
_of_pod = partial(Check, of_pod=True)
CHECKS: tuple[Check, ...] = (
    _of_pod("access", "namespaces of pods", lambda f: [broken("namespaces of pods", why) for why in f.unread]),
    _of_pod("modules", "kernel modules", lambda f: kernel.check_modules(f.loaded)),
    _of_pod("netns-mode", "RDMA netns mode", _mode),
    _of_pod("devices", "verbs devices", _devices),
    _of_both("nodes", "/dev/infiniband", _nodes),
    _of_both(
        "ports", "ports", lambda f: ports.check_state(f.ports, f.uses, topology.administrative_states(f.places.sys))
    ),
    _of_both("mtu", "MTU", lambda f: ports.check_mtu(f.ports, f.management)),
    _of_both("gids", "GID tables", lambda f: ports.check_gids(f.ports)),
    _of_both("counters", "errors of ports", lambda f: ports.check_counters(*f.counts)),
    _of_devices("siblings", "NICs of one kind", lambda f: ports.check_siblings(f.devices)),
    _of_both("node-guids", "node GUIDs", _guids),
    _of_both("pods", "GIDs of pods", lambda f: pods.check(f.attached)),
    _of_devices("parameters", "rp_filter and ARP", lambda f: kernel.check_parameters(f.parameters, f.subnets)),
    _of_both("congestion", "PFC, trust, ECN", lambda f: ports.check_congestion(f.congestion)),
    _of_both("pcie", "PCIe links", lambda f: pcie.check_links(f.functions)),
    _of_both("pcie-settings", "PCIe settings", _pcie_settings),
    _of_both("peer-memory", "GPU memory", _peer_memory),
    Check("memlock", "memlock", lambda f: setup.check_runtimes(f.places.proc)),
    Check("plugins", "CNI plugins", lambda f: setup.check_plugins(f.folders)),
    Check("claims", "ResourceClaims", lambda f: pods.check_node_claims(f.node_claims, f.places.kubelet)),
    Check("networks", "CNI networks", lambda f: setup.check_networks(f.network_files, f.folders, f.places.networks)),
    _of_pod("policy", "policy", lambda f: setup.check_policy({link.interface.lower for link in f.attached})),
    Check("store", "store of leases", _store),
)

POD_CHECKS: tuple[Check, ...] = (
    *(check for check in CHECKS if check.of_pod),
    Check(
        "links", "the pod's links", lambda f: pods.check_links(f.chosen, f.attached, f.pod_records, f.own_interfaces)
    ),
    _of_devices("pod", "the pod", lambda f: pods.check_pod(f.chosen, f.attached, f.pod_processes, f.pod_needs)),
    Check("claims", "the pod's claims", _claims),
    Check("peer", "a peer", lambda f: pods.check_peer(f.chosen, f.attached, f.peer)),
    Check("node", "the node", _rest),
)


@dataclass(frozen=True)
class DoctorReport:
    """The findings about a node, or about one of its pods."""

    facts: NodeFacts
    findings: Sequence[Observation]

    @property
    def faults(self) -> list[Observation]:
        return [f for f in self.findings if f.level == FAULT]

    @property
    def is_healthy(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def document(self) -> dict[str, Any]:
        """The report as JSON, with the node's verbs devices and the distances between GPUs and NICs."""
        columns, rows = topology.table(self.facts.topology)
        return {
            "node": topology.text(f"{self.facts.places.proc}/sys/kernel/hostname"),
            "pod": self.facts.pod or None,
            "healthy": self.is_healthy,
            "faults": len(self.faults),
            "findings": [f.document() for f in self.findings],
            "devices": rdma.document(self.facts.devices),
            "distances": {str(row[1]): dict(zip(columns[3:], row[3:], strict=True)) for row in rows},
        }


def examine(facts: NodeFacts) -> DoctorReport:
    """Run the checks of the node, or of the pod that `facts` names. Raises CniError if that pod is not found."""
    if facts.pod:
        _ = facts.chosen  # a missing pod is a wrong call, not a finding
    return DoctorReport(facts, run(POD_CHECKS if facts.pod else CHECKS, facts))


def run(checks: Iterable[Check], facts: NodeFacts) -> list[Observation]:
    """Run `checks` in order; return their findings. An error becomes a finding, and the other checks still run. A
    finding that is caused by a missing right of this user has the level UNKNOWN."""
    found: list[Observation] = []
    stopped: dict[str, str] = {}  # name of a faulty or skipped check -> title of the faulty check
    for check in checks:
        causes = dict.fromkeys(stopped[need] for need in check.needs if need in stopped)
        if causes:
            stopped[check.name] = ", ".join(causes)
            why = f"not looked at: first mend the fault of {stopped[check.name]}"
            found.append(Observation(SKIPPED, check.title, why, check=check.name))
            continue
        try:
            made = [_as_seen(replace(finding, check=check.name)) for finding in check.run(facts)]
        except (OSError, ValueError, CniError) as fault:
            made = [_as_seen(unknown(check.title, f"cannot be read: {fault}", check=check.name))]
        if any(finding.level == FAULT for finding in made):
            stopped[check.name] = check.title
        found += made
    return found


def _as_seen(finding: Observation) -> Observation:
    """The finding, with its level changed to UNKNOWN if the cause is a missing right of this user."""
    if finding.level in (FAULT, UNKNOWN) and is_denied(finding.found):
        return replace(finding, level=UNKNOWN, healthy="", remedy=REMEDY)
    return finding
