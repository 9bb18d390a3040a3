"""railcni rails: renders the networks of a group of NICs (rails), checks a pod's rails, and shows a node's NICs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cni.cli.rails import attached, render
from cni.cli.terminal import common, output, subcommand
from cni.node.inventory import devices as inventory
from cni.node.inventory import sandboxes, topology
from cni.resources import rails as plan
from cni.shared.kernel import sysfs
from cni.shared.spec.errors import CniError, InvalidConfig

_FILE = """
keys of the file: count, subnet, addressing (same-index, plain), and one of master, pci and pairing (gpu, numa) are required; group,
namespace, type (macvlan, host-device, sriov), mtu, base, exclude, gateway, routing, tableBase, oneNetwork, resourcePrefix, shared,
numVfs and image are optional; docs/rails.md has an example
"""

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
    wanted = plan.read(options.file)
    rails = plan.rails_of(wanted, plan.nodes_nics(wanted.pairing) if wanted.pairing else [])
    if options.output == "table":
        output.print_table(render.COLUMNS, render.rows(wanted, rails))
        print(f"annotation k8s.v1.cni.cncf.io/networks: {render.annotation(wanted, rails)}")
        return 0
    if wanted.oneNetwork and options.devices != "railcni":
        raise InvalidConfig(
            "oneNetwork needs a device plugin that tells the NIC of each device, and gives a pod devices of all NICs:"
            " want --devices railcni"
        )
    objects = render.objects(wanted, rails, options.devices == "railcni")
    output.print_objects(objects, options.output)
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
    found = _nics([*attached.of_node()])
    empty = "no NIC here has a verbs device, and no rail is attached"
    output.show(options.output, found, lambda: output.print_table(NICS, _rows(found), empty=empty, least=LEAST))
    return 0


def _nics(rails: Sequence[attached.AttachedRail]) -> list[dict[str, Any]]:
    """The NICs that carry rails, in the order of the rails, then the other NICs with verbs devices, as JSON objects."""
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


def _rows(found: Sequence[dict[str, Any]]) -> list[Sequence[object]]:
    """The rows of the table: one for each rail of each NIC, and one for a NIC without rails."""
    lines: list[Sequence[object]] = []
    for nic in found:
        head = (nic["gpu"], nic["distance"], nic["netdev"], nic["verbsDevice"], nic["pci"], nic["numaNode"])
        for rail in nic["rails"]:
            what = f"{rail['group']}/{rail['rail']}"
            lines.append((*head, what, rail["interface"], " ".join(rail["addresses"]), rail["pod"]))
        if not nic["rails"]:
            lines.append((*head, None, None, None, None))
    return lines
