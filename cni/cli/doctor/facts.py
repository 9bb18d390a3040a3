"""All that the checks look at, each read when it is first asked for. Nothing here judges, and nothing is changed."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from functools import cached_property

from cni.attachment import STATE, Book
from cni.cli import topology
from cni.cli.cache import DIRECTORY
from cni.cli.doctor import congestion, gpus, modules, namespaces, pcie, pods, runtime, setup
from cni.cli.doctor.namespaces import Parameters
from cni.cli.installation.runtimes import DEFAULT, candidates
from cni.cli.places import NET_DIRECTORY
from cni.cli.rdma import inventory, sandboxes
from cni.cli.rdma.inventory import Port
from cni.cli.rdma.sandboxes import Interface, Sandbox
from cni.cli.topology import text
from cni.kernel import rdma
from cni.log import Log
from cni.spec.errors import CniError


@dataclass(frozen=True)
class Places:
    """Where a node keeps what is read. A recorded node has them below a directory of its own."""

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    state: str = STATE
    cache: str = DIRECTORY
    networks: str = NET_DIRECTORY
    plugins: tuple[str, ...] = ()  # default: where the node's runtimes search
    live: bool = True  # whether namespaces and netlink of this kernel belong to it


@dataclass
class Facts:
    """Facts about this node, as `places` show it; `pod` is the one pod that is asked for, NAMESPACE/POD or a namespace."""

    places: Places = field(default_factory=Places)
    pod: str = ""

    @cached_property
    def loaded(self) -> modules.Modules:
        return modules.read(self.places.sys)

    @cached_property
    def nodes(self) -> list[modules.Node]:
        return modules.nodes(self.places.sys, self.places.dev)

    @cached_property
    def _seen(self) -> tuple[list[Sandbox], list[str]]:
        unread: list[str] = []
        found = sandboxes.read(self.places.state, self.places.cache, unread) if self.places.live else []
        return found, unread

    @property
    def sandboxes(self) -> list[Sandbox]:
        return self._seen[0]

    @property
    def unread(self) -> list[str]:
        """What of the namespaces and their pods could not be read, and why."""
        return self._seen[1]

    @cached_property
    def chosen(self) -> Sandbox:
        """The namespace of `pod`; InvalidConfig when there is none."""
        try:
            return sandboxes.find(self.pod, self.sandboxes, self.places.state, self.places.cache)
        except CniError as fault:
            fault.details = "\n".join(filter(None, [fault.details, *self.unread]))
            raise

    @cached_property
    def devices(self) -> list[inventory.VerbsDevice]:
        return inventory.read(self.sandboxes, self.places.sys)

    @property
    def ports(self) -> list[Port]:
        return inventory.ports(self.devices)

    @property
    def nics(self) -> list[tuple[str, str]]:
        """Verbs devices of physical functions, with their PCI addresses."""
        return [(d.name, d.pci) for d in self.devices if d.pci and not d.is_virtual_function]

    @property
    def active_netdevs(self) -> list[str]:
        """The netdevs of RoCE ports that are ACTIVE, as far as this namespace has them."""
        found = dict.fromkeys(p.netdev for p in self.ports if p.is_active and p.is_roce and p.carrier is not None)
        return [name for name in found if name]

    @cached_property
    def topology(self) -> topology.Topology:
        return topology.read(self.nics, self.places.sys)

    @cached_property
    def netns_mode(self) -> str:
        return namespaces.mode() if self.places.live else ""

    @cached_property
    def management(self) -> frozenset[str]:
        return namespaces.default_route_links(f"{self.places.proc}/self" if self.places.live else self.places.proc)

    @cached_property
    def administrative_states(self) -> dict[str, bool]:
        return namespaces.administrative_states(self.places.sys)

    @cached_property
    def parameters(self) -> dict[str, Parameters]:
        own = self._own_interfaces
        networks = {name: own[name].networks if name in own else () for name in self.active_netdevs}
        return {name: namespaces.read(name, networks[name], self.places.proc) for name in networks}

    @property
    def _own_interfaces(self) -> dict[str, Interface]:
        return {i.name: i for i in self.sandboxes[0].interfaces} if self.sandboxes else {}

    @property
    def subnets(self) -> dict[str, list[str]]:
        """The IPv4 subnets of active RoCE netdevs, with those that are in each."""
        found: dict[str, list[str]] = {}
        own = self._own_interfaces
        for name in self.active_netdevs:
            for network in own[name].networks if name in own else ():
                subnet = str(ipaddress.ip_network(network, strict=False))
                found[subnet] = [*dict.fromkeys([*found.get(subnet, []), name])]
        return found

    @cached_property
    def uses(self) -> dict[str, str]:
        """Netdevs that are used: by networks of this node, by links of pods, by addresses of its own."""
        found: dict[str, str] = {}
        for file in self.network_files:
            found |= {master: f"network {', '.join(file.names)}" for master in file.masters}
        for sandbox in self.sandboxes:
            for interface in sandbox.interfaces:
                for port in rdma.ports_of_netdev(interface.lower, self.places.sys) if interface.lower else ():
                    netdev = rdma.netdev_of(*port, self.places.sys)
                    found[netdev] = f"{interface.name} of {sandbox.owner}" if sandbox.owner else interface.name
                if not sandbox.netns and interface.global_addresses:
                    found.setdefault(interface.name, interface.global_addresses[0])
        return found

    @cached_property
    def attached(self) -> list[pods.Attached]:
        """The links over RoCE ports, of all pods or of the chosen one."""
        wanted = [self.chosen] if self.pod else [s for s in self.sandboxes if s.netns]
        lowers = {i.lower for s in wanted for i in s.interfaces if i.lower}
        over = {name: rdma.ports_of_netdev(name, self.places.sys) for name in lowers}
        return pods.attached(wanted, self.ports, {d.name: d.pci for d in self.devices}, over, self._recorded)

    @property
    def _recorded(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        try:
            records = Book(self.places.state, Log("railcni")).all("ipam")
        except CniError:  # `unread` says so
            return {}
        for attachment, _, record in records:
            if not record.get("pending"):
                addresses = [str(a).partition("/")[0] for a in record.get("addresses") or ()]
                found[str(record.get("netns") or ""), attachment.ifname] = addresses
        return found

    @cached_property
    def pod_parameters(self) -> dict[str, Parameters]:
        return pods.read_parameters(self.chosen, [link.interface for link in self.attached])

    @cached_property
    def pod_processes(self) -> list[pods.Process]:
        return pods.processes(self.chosen, self.places.proc)

    @cached_property
    def congestion(self) -> dict[str, congestion.Congestion]:
        drivers = {p.netdev: d.driver for d in self.devices for p in d.ports}
        if not self.places.live:
            return {}
        return {name: congestion.read(name, drivers.get(name, ""), self.places.sys) for name in self.active_netdevs}

    @cached_property
    def functions(self) -> list[pcie.Function]:
        return pcie.read(self.nics, self.places.sys)

    @cached_property
    def bridges(self) -> pcie.Bridges:
        return pcie.read_bridges(self.topology, self.places.sys)

    @cached_property
    def peer_memory(self) -> gpus.PeerMemory:
        return gpus.read(self.places.sys, self.places.proc)

    @cached_property
    def runtimes(self) -> list[runtime.Process]:
        return runtime.read(self.places.proc)

    @cached_property
    def clock(self) -> runtime.Clock:
        return runtime.clock()

    @cached_property
    def folders(self) -> list[str]:
        """The plugin folders of the node's runtimes."""
        if self.places.plugins:
            return list(self.places.plugins)
        try:
            found = list(dict.fromkeys(candidates("/").values())) or [DEFAULT]
        except CniError:
            found = [DEFAULT]
        return [folder for folder in found if os.path.isdir(folder)]

    @cached_property
    def plugins(self) -> list[setup.Plugin]:
        return setup.plugins(self.folders)

    @cached_property
    def network_files(self) -> list[setup.NetworkFile]:
        return setup.network_files(self.places.networks)

    @cached_property
    def store(self) -> setup.Reached:
        return setup.reach()

    @property
    def moves_devices(self) -> bool:
        """Whether the CNI plugin that moves verbs devices is installed."""
        return any(os.path.isfile(os.path.join(folder, "rdma")) for folder in self.folders)

    @property
    def node_name(self) -> str:
        return text(f"{self.places.proc}/sys/kernel/hostname")
