"""Facts for the checks, about a node or one of its pods. Each fact is read on its first use. This module neither judges
nor changes anything."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from cni.cli.doctor import kernel, pcie, pods, ports, setup
from cni.cli.doctor.ports import Congestion, PortCounts
from cni.documents import NET_DIRECTORY
from cni.documents.tree import object_at
from cni.node.installation.options import DEFAULT, candidates
from cni.node.inventory import attachments as recorded
from cni.node.inventory import counters, functions, sandboxes, topology
from cni.node.inventory import devices as inventory
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.node.runtime.cache import DIRECTORY
from cni.shared.kernel import rdma_sysfs, sysfs
from cni.shared.kernel.files import read_whole
from cni.shared.records import GROUP, STATE
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError


@dataclass(frozen=True)
class NodePlaces:
    """The folders that doctor reads, on this node or in a copy of another node's files."""

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    state: str = STATE
    cache: str = DIRECTORY
    networks: str = NET_DIRECTORY
    kubelet: str = "/var/lib/kubelet"
    root: str = ""  # the root of the file system with the CDI specifications
    plugins: tuple[str, ...] = ()  # default: the folders that the node's runtimes search
    live: bool = True  # whether the node is this machine: its namespaces and netlink can be read


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
        """The kernel modules and network functions; in a report about one pod, only functions below the pod's links."""
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
        """The network namespace of `pod`. Raises InvalidConfig if the namespace is not found."""
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
        """All ports; in a report about one pod, only the ports below the pod's links."""
        if self.pod:
            return [*dict.fromkeys(port for link in self.attached for port in link.ports)]
        return inventory.ports(self.devices)

    @property
    def nics(self) -> list[tuple[str, str]]:
        """(verbs device, PCI address) of the physical function of each RDMA NIC; in a report about one pod, only of
        NICs below the pod's links."""
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
        """The links in the network namespace of doctor, by name."""
        return {i.name: i for i in self.sandboxes[0].interfaces} if self.sandboxes else {}

    @property
    def _networks(self) -> dict[str, Sequence[str]]:
        """Map each netdev of an active RoCE port in this namespace to its IPv4 addresses with prefix lengths."""
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
        """The names of the pod's links in this node's attachment records."""
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
            if not a["pending"] and not a["network"].startswith(GROUP)  # the record of a group of rails has no link
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
            document = codec.loads(read_whole(f"{self.places.kubelet}/device-plugins/kubelet_internal_checkpoint"))
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
        """The verbs device of the physical function of `device`; if this namespace lacks it, `device` itself."""
        own = sysfs.pci_above(rdma_sysfs.path_of(device.name, self.places.sys))
        physical = sysfs.physical_function_of(own, self.places.sys) or own
        if physical == device.pci:
            return device
        netdevs = sysfs.netdevs_of_pci(physical, self.places.sys)
        bonds = [bond for netdev in netdevs for bond in topology.beside(netdev, "upper_", self.places.sys)]
        names = {name for bond in bonds for name, _ in rdma_sysfs.ports_of_netdev(bond, self.places.sys)}
        cards = [one for one in self.devices if one.pci == physical or one.name in names]  # a bond has one device
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
