"""railcni rails: renders the networks of a group of NICs, checks those of a pod, shows those of a node."""

from __future__ import annotations

import argparse
import sys

import yaml

from cni.cli.rails import attached, check, nics
from cni.cli.terminal import output, subcommand
from cni.library.inventory import sandboxes
from cni.shared.spec.errors import CniError, InvalidConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.cli.rails.check import RailReport
    from cni.library.inventory.sandboxes import NamespaceView

_FILE = """
keys of the file: count, subnet; group, namespace, type (macvlan, host-device, sriov), one of master, pci and pairing (gpu, numa),
mtu, base, exclude, gateway, routing, tableBase, addressing, resourcePrefix, shared, image; docs/rails.md has an example
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rails` and its verbs."""
    about = "several NICs of a node as one group: their networks, whether a pod's are right, which GPU is near"
    parser = subcommand.add(commands, "rails", about)
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")

    about = "the NADs, the device plugin's resources and a test pod for the group of rails in FILE"
    render = subcommand.add(verbs, "render", about, ", to be applied by kubectl.", epilog=_FILE)
    render.add_argument("file", metavar="FILE", help="YAML; - for stdin")
    render.add_argument(
        "-o", "--output", choices=("yaml", "json", "table"), default="yaml", help="table: an overview, to read"
    )
    render.add_argument(
        "--devices",
        choices=("others", "railcni"),
        default="others",
        help="whose ConfigMap the NICs go into: that of the RDMA shared or SR-IOV device plugin, or of `railcni device-plugin`",
    )
    render.set_defaults(run=_render)

    about = "whether a pod's rails have one index, their routes, rules, ARP settings, MTU and GIDs, and reach a peer"
    check = subcommand.add(verbs, "check", about, ". Exit code 0: all is well; 1: something is not.")
    check.add_argument("pod", metavar="NAMESPACE/POD|NETNS", help="a pod of this node, or the path of its namespace")
    check.add_argument(
        "--peer",
        metavar="PEER",
        default="",
        help="ping it on every rail from the rail's own address: a pod of this node, the index of a pod anywhere, or one of its addresses",
    )
    output.add_option(check)
    check.set_defaults(run=_check)

    about = "the node's NICs with the GPU that is nearest, the rails they carry, and their pods' addresses"
    show = subcommand.add(verbs, "show", about)
    output.add_option(show)
    show.set_defaults(run=_show)


def _render(options: argparse.Namespace) -> int:
    from cni.cli.rails import plan, render
    from cni.library.documents import reader

    wanted = plan.read(reader.shown_path(options.file), reader.require_text(options.file))
    rails = plan.rails_of(wanted, plan.nodes_nics(wanted.pairing) if wanted.pairing else [])
    if options.output == "table":
        output.print_table(render.COLUMNS, render.rows(wanted, rails))
        print(f"annotation k8s.v1.cni.cncf.io/networks: {render.annotation(wanted, rails)}")
        return 0
    objects = render.objects(wanted, rails, options.devices == "railcni")
    if options.output == "json":
        output.print_json({"apiVersion": "v1", "kind": "List", "items": objects})
    else:
        yaml.dump_all(objects, sys.stdout, _Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return 0


class _Dumper(yaml.SafeDumper):
    """Texts of several lines are written as such."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _check(options: argparse.Namespace) -> int:
    found = sandboxes.read()
    sandbox = sandboxes.find(options.pod, found)
    rails = attached.of_sandbox(sandbox) if sandbox.netns else []
    if not rails:
        raise CniError(
            f"{options.pod} has no rail: no record of this node tells of an attachment with the key `rail` in its namespace",
            code=100,
        )
    reports = check.check(rails)
    if options.peer:
        check.ping(reports, _peer(options.peer, reports, found))
    documents = [report.document() for report in reports]
    output.show(options.output, documents, lambda: output.print_table(check.COLUMNS, map(check.row, reports)))
    sys.stdout.flush()
    return int(any(report.faults for report in reports))


def _peer(text: str, reports: list[RailReport], found: list[NamespaceView]) -> dict[tuple[str, int], list[str]]:
    """The peer's addresses by rail."""
    if text.isdigit():
        return check.of_index(reports, int(text))
    try:
        index = check.index_of(reports, text)
    except ValueError:  # no address
        sandbox = sandboxes.find(text, found)
        return check.of_pod(attached.of_sandbox(sandbox)) if sandbox.netns else {}
    if index is None:
        raise InvalidConfig(f"--peer {text}: is in no rail's subnet")
    return check.of_index(reports, index)


def _show(options: argparse.Namespace) -> int:
    found = nics.read(attached.of_node())
    if options.output != "table":
        output.print_data(found, options.output)
    elif not found:
        output.print_fault("railcni: no NIC here has a verbs device, and no rail is attached")
    else:
        output.print_table(nics.COLUMNS, nics.rows(found))
    return 0
