"""Read the configuration and the devices of a node, and watch them for a program that offers the devices."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from time import monotonic

from cni.documents import reader
from cni.documents.diagnostic import ERROR, Diagnostic
from cni.node.inventory import devices as inventory
from cni.node.inventory import functions, topology
from cni.node.inventory.topology import Topology, beside, text, uplinks
from cni.node.service.log import AgentLog
from cni.resources import config
from cni.resources.choose import Resource, resources
from cni.resources.config import Config
from cni.resources.selection import Host
from cni.shared import policy
from cni.shared.kernel import rdma_sysfs
from cni.shared.kernel.files import mark, names_in
from cni.shared.spec.errors import InvalidConfig

_FOLDERS = ("infiniband", "vfio")  # folders of device nodes in /dev
_NODES = ("/dev/vhost-net", "/dev/net/tun")
_SETTLE_SECONDS = 3.0  # from a change to a second reading: a port's GIDs appear some time after its state


def read_config(paths: Sequence[str]) -> Config:
    """Return the configuration of all files. A file that cannot be read is a finding."""
    faults: list[Diagnostic] = []
    texts = [(path, reader.read_text(path, faults)) for path in paths]
    read = config.read((path, text) for path, text in texts if text is not None)
    read.findings += faults
    read.is_whole = read.is_whole and not faults
    return read


def config_state(paths: Sequence[str]) -> tuple[object, ...]:
    """A value that changes with each change of a file, or of the symbolic link to it in a mounted ConfigMap."""
    return tuple(mark(path, links=True) for path in paths)


def read_host(root: str = "", before: Host | None = None) -> Host:
    """Read the node whose sys, dev and proc are below `root`. The names of netdevs in pods are hidden, and are taken
    from `before`, an earlier result."""
    sys = f"{root}/sys"
    paths = {f"/dev/{folder}/{name}" for folder in _FOLDERS for name in names_in(f"{root}/dev/{folder}")}
    return Host(
        functions=functions.read(sys, before.functions if before else ()),
        devices={device.name: device for device in inventory.read(root=sys)},
        busy=_needed(root),
        is_exclusive=text(f"{sys}/module/ib_core/parameters/netns_mode") == "N",
        below={name: lower for name in names_in(f"{sys}/class/net") if (lower := beside(name, "lower_", sys))},
        paths=paths | {path for path in _NODES if os.path.exists(root + path)},
    )


def read_topology(host: Host, root: str = "") -> Topology:
    """The PCI topology of the node's GPUs and of the functions of `host`. Functions are named by PCI address."""
    return topology.read([(f.id, f.id) for f in host.functions if f.is_on_pci], f"{root}/sys")


def _needed(root: str) -> dict[str, str]:
    """Map the netdevs that the node itself needs to the reasons, except netdevs in `uplinks` of the node's policy."""
    found = uplinks(f"{root}/proc/1", f"{root}/sys")
    addresses = {name: os.path.basename(os.path.realpath(f"{root}/sys/class/net/{name}/device")) for name in found}
    try:
        allowed = policy.load(root)
    except InvalidConfig:  # the policy is faulty, so the plugins refuse each ADD
        return found
    return {name: why for name, why in found.items() if not allowed.allows("uplinks", (name, addresses[name]))}


def host_state(host: Host, root: str = "") -> tuple[object, ...]:
    """A value that changes when a device, a device node or the state of a port of `host` changes. Ports of VFs are left
    out, since their states do not matter, and each reading of such a state would query the NIC."""
    sys = f"{root}/sys"
    folders = (f"{sys}/class/infiniband", f"{sys}/bus/pci/devices", *(f"{root}/dev/{name}" for name in _FOLDERS))
    names = [name for function in host.functions if not function.is_virtual for name in function.verbs]
    states = [
        f"{sys}{rdma_sysfs.CLASS}/{name}/ports/{port}/state" for name in names for port in rdma_sysfs.ports(name, sys)
    ]
    return (*(tuple(sorted(names_in(folder))) for folder in folders), *map(text, states))


class Watch:
    """A watch of the configuration `paths` and the node below `root`. Raises InvalidConfig for an unreadable file."""

    def __init__(self, paths: Sequence[str], root: str, log: AgentLog) -> None:
        self._paths = paths
        self._root = root
        self._log = log
        self.host = Host()
        self.resources: list[Resource] = []
        self._host_state: tuple[object, ...] = ()
        self._config_state = config_state(paths)
        self.config = read_config(paths)
        self._due = 0.0  # the time of the next full reading
        if not self.config.is_whole:
            raise InvalidConfig(self.faults[0], "\n".join(self.faults[1:]))
        self._read(self.config)

    @property
    def faults(self) -> list[str]:
        """A sentence for each fault of the configuration, and for each resource without a matching device."""
        faults = [finding.sentence for finding in self.config.findings if finding.severity == ERROR]
        return faults + [f"{one.name}: {one.unchosen}" for one in self.resources if one.unchosen]

    @property
    def limits(self) -> list[str]:
        """A sentence for each resource with fewer devices than the configuration asks for."""
        return [f"{one.name}: {one.limit}" for one in self.resources if one.limit]

    def look(self) -> bool:
        """If the configuration, a device or a port has changed, or the period is over, read the devices again, choose
        the resources, and log their faults. Returns whether the devices were read."""
        state = config_state(self._paths)
        if state != self._config_state:
            self._config_state, self._due = state, 0.0
            self._read(read_config(self._paths))
        state = host_state(self.host, self._root)
        if state == self._host_state and monotonic() < self._due:
            return False
        self.host = read_host(self._root, self.host)
        period = self.config.period or math.inf
        self._due = monotonic() + (period if state == self._host_state else min(period, _SETTLE_SECONDS))
        self._host_state = state
        self.resources = resources(self.config.resources, self.host)
        for one in self.resources:
            withheld = "; ".join(f"{name} is {reason}" for name, reason in one.withheld.items())
            faults = "; ".join(offer.fault for offer in one.offers if offer.fault)
            said = {"withheld": withheld, "devices": faults or one.unchosen, "limit": one.limit}
            for about, why in said.items():
                self._log.state(f"{one.name} {about}", why, resource=one.name)
        return True

    def _read(self, config: Config) -> None:
        """Log the findings of `config`. If all files could be read, use `config` from now on."""
        for finding in config.findings:
            level = "error" if finding.severity == ERROR else "warning"
            self._log.say(level, finding.message, place=finding.place, key=finding.key, fix=finding.fix)
        if config.is_whole:
            if config.policies != self.config.policies:
                remedy = "restart the device plugin, or run `railcni vfs apply`, to make them"
                self._log.say("warning", f"the configuration asks for other virtual functions: {remedy}")
            self.config = config
            self._log.say("info", "the configuration was read", resources=len(config.resources))
        else:
            self.config.findings = config.findings
            self._log.say("error", "the configuration cannot be read: the former one stays in use")
