"""railcni rails: renders the networks of a group of NICs (rails), checks a pod's rails, and shows a node's NICs."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from cni.cli.rails import attached
from cni.cli.terminal import common, output, subcommand
from cni.documents.networks import NETWORKS, RESOURCE_NAME
from cni.node.inventory import devices as inventory
from cni.node.inventory import sandboxes, topology
from cni.resources import rails as planned
from cni.resources.rails import PlannedRail, Rails
from cni.shared.kernel import sysfs
from cni.shared.rail import TABLE_BASE
from cni.shared.spec.errors import CniError, InvalidConfig

_FILE = """
keys of the file: count, subnet, addressing (same-index, plain), and one of master, pci and pairing (gpu, numa) are required; group,
namespace, type (macvlan, host-device, sriov), mtu, base, exclude, gateway, routing, tableBase, oneNetwork, resourcePrefix, shared,
numVfs and image are optional; docs/rails.md has an example
"""

_NAD = "k8s.cni.cncf.io/v1"
_OTHERS = "kube-system"  # the namespace of device plugins that are not railcni's
_OURS = ("railcni-device-plugin", "railcni")  # name and namespace, as conf/kubernetes/device-plugin has them
RENDERED = ("rail", "network", "NIC", "subnet", "table", "resource")
LEAST = ("numa", "pci", "distance", "verbs device", "interface")
NICS = ("GPU", "distance", "NIC", "verbs device", "pci", "numa", "rail", "interface", "addresses", "pod")


def register(commands: subcommand.Commands) -> None:
    """Add the command `rails` and its subcommands."""
    about = "manage the NICs of a node as one group: make networks, check a pod's rails, show the nearest GPUs"
    verbs = subcommand.add_group(commands, "rails", about)
    about = "print the NADs, the device plugin's resources and a test pod for the group of rails in FILE"
    more, forms = ", for `kubectl apply`.", ("yaml", "json", "table")
    render = subcommand.add(verbs, "render", about, more, run=_render, forms=forms, epilog=_FILE)
    render.add_argument("file", metavar="FILE", help="the group as YAML; - for stdin")
    about = "the device plugin whose ConfigMap is printed: the RDMA shared or SR-IOV one, or `railcni device-plugin`"
    render.add_argument("--devices", choices=("others", "railcni"), default="others", help=about)

    about = "check index, routes, rules, ARP settings, MTU and GIDs of a pod's rails, and ping a peer"
    more = ". Exit code 0: no fault; 1: a fault."
    check = subcommand.add(verbs, "check", about, more, run=_check, shows=True)
    check.add_argument("pod", metavar="NAMESPACE/POD|NETNS", help="a pod of this node, or the path of its namespace")
    about = "ping it on every rail from the rail's own address: a pod of this node, the index of a pod anywhere, or one of its addresses"
    common.add(check, "peer", about, "")

    about = "show the node's NICs with their nearest GPU, their rails, and the addresses of pods"
    subcommand.add(verbs, "show", about, run=_show, lists=True)


def _render(options: argparse.Namespace) -> int:
    options.only(options.output != "table", "without -o table", "--devices")
    wanted = planned.read(options.file)
    rails = planned.rails_of(wanted, planned.nodes_nics(wanted.pairing) if wanted.pairing else [])
    if options.output == "table":
        output.print_table(RENDERED, rendered_rows(wanted, rails))
        print(f"annotation k8s.v1.cni.cncf.io/networks: {annotation(wanted, rails)}")
        return 0
    if wanted.oneNetwork and options.devices != "railcni":
        raise InvalidConfig(
            "oneNetwork needs a device plugin that tells the NIC of each device, and gives a pod devices of all NICs:"
            " want --devices railcni"
        )
    output.print_objects(objects(wanted, rails, options.devices == "railcni"), options.output)
    return 0


def _check(options: argparse.Namespace) -> int:
    found = sandboxes.read()
    rails = attached.of_sandbox(sandboxes.find(options.pod, found))
    if not rails:
        why = "no record of this node tells of an attachment with the key `rail` in its namespace"
        raise CniError(f"{options.pod} has no rail: {why}", code=100)
    attached.check(rails)
    if options.peer:
        attached.ping(rails, attached.peer_of(options.peer, rails, found))
    documents = [rail.document() for rail in rails]
    rows = map(attached.row, rails)
    output.show(options.output, documents, lambda: output.print_table(attached.COLUMNS, rows, least=attached.LEAST))
    sys.stdout.flush()
    return int(any(rail.faults for rail in rails))


def _show(options: argparse.Namespace) -> int:
    found = _node_nics([*attached.of_node()])
    empty = "no NIC here has a verbs device, and no rail is attached"
    lines: list[Sequence[object]] = []  # one for each rail of each NIC, and one for each NIC without rails
    for nic in found:
        head = (nic["gpu"], nic["distance"], nic["netdev"], nic["verbsDevice"], nic["pci"], nic["numaNode"])
        for rail in nic["rails"]:
            what = f"{rail['group']}/{rail['rail']}"
            lines.append((*head, what, rail["interface"], " ".join(rail["addresses"]), rail["pod"]))
        if not nic["rails"]:
            lines.append(head)
    output.show_table(options.output, found, NICS, lines, empty=empty, least=LEAST)
    return 0


def _node_nics(rails: Sequence[attached.AttachedRail]) -> list[dict[str, Any]]:
    """The NICs as JSON objects: first the NICs that carry rails, in the order of the rails, then other RDMA NICs."""
    devices = [d for d in inventory.read() if not d.is_virtual_function]
    known = {p.netdev: d for d in devices for p in d.ports if p.netdev}
    carriers = [a.carrier for a in sorted(rails, key=lambda a: a.key) if a.carrier]
    places = {
        name: known[name].pci if name in known else sysfs.pci_above(sysfs.pci_path_of_netdev(name))
        for name in dict.fromkeys([*carriers, *known])
    }
    seen = topology.read((name, pci) for name, pci in places.items() if pci)
    nics = []
    for name, pci in places.items():
        place = dict(seen.nics).get(name)
        distances = [seen.distance(gpu, place) for gpu in seen.gpus] if place else []
        nearest = min(distances, key=topology.NEAREST_FIRST.index, default="")
        nic = {
            "netdev": name,
            "verbsDevice": known[name].name if name in known else "",
            "pci": pci,
            "numaNode": place.numa_node if place and place.numa_node >= 0 else None,
            "gpu": f"GPU{distances.index(nearest)}" if distances else "",
            "distance": nearest,
            "rails": [_rail(a) for a in rails if a.carrier == name],
        }
        nics.append(nic)
    return nics


def _rail(rail: attached.AttachedRail) -> dict[str, Any]:
    try:
        addresses = [str(a.ip) for a in attached.look(rail).addresses]
    except CniError:  # the sandbox is gone
        addresses = []
    group, index = rail.key
    return {"group": group, "rail": index, "pod": rail.pod, "interface": rail.ifname, "addresses": addresses}


# --- the objects of a group; pure ---


def objects(plan: Rails, rails: Sequence[PlannedRail], ours: bool = False) -> list[dict[str, Any]]:
    """The group's Kubernetes objects, in the order for `kubectl apply`. `ours`: the device plugin is railcni's."""
    nads = [nad(plan, rails, rail) for rail in (rails[:1] if plan.oneNetwork else rails)]
    return [resources(plan, rails, ours), *nads, pod(plan, rails)]


def nad(plan: Rails, rails: Sequence[PlannedRail], rail: PlannedRail) -> dict[str, Any]:
    """The NetworkAttachmentDefinition of `rail`. If the plan has `oneNetwork`, this one serves all rails."""
    metadata: dict[str, Any] = {"name": rail.name, "namespace": plan.namespace}
    if plan.type != "macvlan" or plan.oneNetwork:  # a macvlan names its master, and needs no device
        metadata["annotations"] = {RESOURCE_NAME: f"{plan.resourcePrefix}/{rail.resource}"}
    spec = {"config": json.dumps(network(plan, rails, rail), indent=2) + "\n"}
    return {"apiVersion": _NAD, "kind": "NetworkAttachmentDefinition", "metadata": metadata, "spec": spec}


def network(plan: Rails, rails: Sequence[PlannedRail], rail: PlannedRail) -> dict[str, Any]:
    found: dict[str, Any] = {"cniVersion": "1.0.0", "name": rail.name, "type": f"railcni-{plan.type}"}
    if plan.type == "macvlan" and not plan.oneNetwork:
        found["master"] = rail.nic.netdev
    if plan.mtu:
        found["mtu"] = plan.mtu
    key: dict[str, Any] = {"group": plan.group}
    key |= {"nics": _nics(rails)} if plan.oneNetwork else {"index": rail.index}
    if not plan.routing:
        key["routing"] = False
    elif plan.tableBase != TABLE_BASE:
        key["tableBase"] = plan.tableBase
    if plan.addressing == "same-index":
        short = [[part["range"] if set(part) == {"range"} else part for part in other.ranges] for other in rails]
        key |= {"addressing": plan.addressing, "ranges": [ranges if ranges[1:] else ranges[0] for ranges in short]}
    if plan.oneNetwork:
        return {**found, "rail": key, "ipam": {"type": "railcni-whereabouts"}}
    first, *others = rail.ranges
    ipam: dict[str, Any] = {"type": "railcni-whereabouts", **first}
    if others:
        ipam["ipRanges"] = others
    if plan.gateway:
        ipam["gateway"] = str(rail.subnets[0][plan.gateway])
    return {**found, "rail": key, "ipam": ipam}


def resources(plan: Rails, rails: Sequence[PlannedRail], ours: bool = False) -> dict[str, Any]:
    """The ConfigMap for a device plugin that offers the NICs as shared devices or as SR-IOV functions. If `ours`, the
    device plugin is `railcni device-plugin`, and the ConfigMap may also describe VFs to be made."""
    listed = []
    for nics in [rails] if plan.oneNetwork else [[rail] for rail in rails]:
        names = {"resourcePrefix": plan.resourcePrefix, "resourceName": nics[0].resource}
        shared = {"rdmaHcaMax": plan.shared * len(nics)} if plan.type == "macvlan" else {}
        listed.append({**names, **shared, "selectors": _selectors(plan, nics)})
    content: dict[str, Any] = {"resourceList": listed}
    name = "sriovdp-config"
    if plan.type == "macvlan":
        content, name = {"periodicUpdateInterval": 300, "configList": listed}, "rdma-devices"
    if plan.type == "sriov" and ours:
        content["virtualFunctions"] = [_policy(plan, rails)]
    if ours:
        content["rails"] = [{"group": plan.group, "nics": _nics(rails)}]
    name, namespace = _OURS if ours else (name, _OTHERS)
    data = {"config.json": json.dumps(content, indent=2) + "\n"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def _nics(rails: Sequence[PlannedRail]) -> list[str]:
    """The NIC of each rail: the name of its netdev, or its PCI address if the netdev is not known."""
    return [rail.nic.netdev or rail.nic.pci for rail in rails]


def _selectors(plan: Rails, rails: Sequence[PlannedRail]) -> dict[str, Any]:
    """The `selectors` of a resource of the device plugin that has the NICs of `rails`: netdevs for macvlan, otherwise
    PFs. For sriov, "#0-7" after a PF selects its eight VFs, and not the PF itself."""
    netdevs = [rail.nic.netdev for rail in rails]
    if plan.type == "macvlan":
        return {"ifNames": netdevs}
    vfs = f"#0-{plan.numVfs - 1}" if plan.type == "sriov" else ""
    if all(netdevs):
        return {"pfNames": [name + vfs for name in netdevs], "isRdma": True}
    return {"rootDevices" if vfs else "pciAddresses": [rail.nic.pci + vfs for rail in rails], "isRdma": True}


def _policy(plan: Rails, rails: Sequence[PlannedRail]) -> dict[str, Any]:
    """The entry of `virtualFunctions` in the device plugin's configuration that makes the VFs of all NICs."""
    netdevs = [rail.nic.netdev for rail in rails]
    chosen = {"pfNames": netdevs} if all(netdevs) else {"rootDevices": [rail.nic.pci for rail in rails]}
    mtu = {"mtu": plan.mtu} if plan.mtu else {}
    return {"nicSelector": chosen, "numVfs": plan.numVfs, "isRdma": True, **mtu}


def annotation(plan: Rails, rails: Sequence[PlannedRail]) -> str:
    """The value of k8s.v1.cni.cncf.io/networks, an annotation that gives a pod all rails as rail0, rail1, ..."""
    return ", ".join(f"{plan.namespace}/{rail.name}@rail{rail.index}" for rail in rails)


def pod(plan: Rails, rails: Sequence[PlannedRail]) -> dict[str, Any]:
    """A test pod that has all rails."""
    amounts = Counter(f"{plan.resourcePrefix}/{rail.resource}" for rail in rails)
    name = f"{plan.group}-test".lower().replace("_", "-")
    metadata = {"name": name, "namespace": plan.namespace, "annotations": {NETWORKS: annotation(plan, rails)}}
    container: dict[str, Any] = {"name": "test", "image": plan.image, "command": ["sleep", "infinity"]}
    container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    container["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def rendered_rows(plan: Rails, rails: Sequence[PlannedRail]) -> Iterator[Sequence[object]]:
    """Yield a row of the table for each rail, with the columns RENDERED."""
    for rail in rails:
        nic, subnets = rail.nic.netdev or rail.nic.pci, " ".join(map(str, rail.subnets))
        table = plan.tableBase + rail.index if plan.routing else None
        yield rail.index, f"{plan.namespace}/{rail.name}", nic, subnets, table, f"{plan.resourcePrefix}/{rail.resource}"
