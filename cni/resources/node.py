"""Read the configuration files and the devices of a node, and detect changes of either."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cni.documents import reader
from cni.documents.diagnostic import Diagnostic
from cni.node.inventory import devices as inventory
from cni.node.inventory import functions, topology
from cni.node.inventory.topology import Topology, beside, text, uplinks
from cni.resources import config
from cni.resources.choose import Host
from cni.resources.config import Config
from cni.shared import policy
from cni.shared.kernel import rdma_sysfs
from cni.shared.kernel.files import mark, names_in
from cni.shared.spec.errors import InvalidConfig

_FOLDERS = ("infiniband", "vfio")  # folders of device nodes in /dev
_NODES = ("/dev/vhost-net", "/dev/net/tun")


def read_config(paths: Sequence[str]) -> Config:
    """Return the configuration of all files; a file that cannot be read is a finding."""
    contents: list[tuple[str, str]] = []
    faults: list[Diagnostic] = []
    for path in paths:
        if (text := reader.read_text(path, faults)) is not None:
            contents.append((path, text))
    read = config.read(contents)
    read.findings += faults
    read.is_whole = read.is_whole and not faults
    return read


def config_state(paths: Sequence[str]) -> tuple[object, ...]:
    """A value that changes with each change of a file, or of the symbolic link to it in a mounted ConfigMap."""
    return tuple(mark(path, links=True) for path in paths)


def read_host(root: str = "", before: Host | None = None) -> Host:
    """Read the node whose sys, dev and proc are below `root`. An earlier result `before` has
    the names of netdevs that are in pods now."""
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
    """The GPUs of the node, and the functions of `host` by their PCI addresses."""
    return topology.read([(f.id, f.id) for f in host.functions if f.is_on_pci], f"{root}/sys")


def _needed(root: str) -> dict[str, str]:
    """The netdevs that the node itself needs, with the reasons, except netdevs in `uplinks` of the node's policy."""
    found = uplinks(f"{root}/proc/1", f"{root}/sys")
    if not found:
        return found
    try:
        allowed = policy.load(root)
    except InvalidConfig:  # the policy is faulty, so the plugins refuse each ADD
        return found
    return {
        name: reason
        for name, reason in found.items()
        if not allowed.allows(
            "uplinks", (name, os.path.basename(os.path.realpath(f"{root}/sys/class/net/{name}/device")))
        )
    }


def host_state(host: Host, root: str = "") -> tuple[object, ...]:
    """A value that changes when a device, a device node or the state of a port of `host` changes. Ports of VFs are left
    out: their states do not matter, and each reading of one would query the NIC."""
    sys = f"{root}/sys"
    folders = (f"{sys}/class/infiniband", f"{sys}/bus/pci/devices", *(f"{root}/dev/{name}" for name in _FOLDERS))
    names = [name for function in host.functions if not function.is_virtual for name in function.verbs]
    states = [
        f"{sys}{rdma_sysfs.CLASS}/{name}/ports/{port}/state" for name in names for port in rdma_sysfs.ports(name, sys)
    ]
    return (*(tuple(sorted(names_in(folder))) for folder in folders), *map(text, states))
