"""railcni rdma: the node's verbs devices, by netdev, PCI function and GID."""

from __future__ import annotations

import argparse
import shlex
import sys

from cni.cli import output, subcommand
from cni.cli.rdma import inventory, sandboxes, views
from cni.kernel import rdma

_ABOUT = "verbs devices with their netdevs, ports, PCI functions and GIDs, and which pod has each GID"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rdma`."""
    parser = subcommand.add(commands, "rdma", _ABOUT, ". It changes nothing.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--ibdev2netdev",
        action="store_true",
        help="the lines of Mellanox's tool of that name: mlx5_0 port 1 ==> ens2f0 (Up)",
    )
    form.add_argument(
        "--env",
        metavar="NAMESPACE/POD|NETNS",
        default="",
        help="NCCL_IB_HCA, NCCL_IB_GID_INDEX and NCCL_SOCKET_IFNAME for that pod, to be read by a shell",
    )
    output.add_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.ibdev2netdev:
        sys.stdout.writelines(f"{line}\n" for line in views.ibdev2netdev(inventory.read()))
        return 0
    found = sandboxes.read()
    devices = inventory.read(found)
    if options.env:
        variables = views.environment(sandboxes.find(options.env, found), devices)
        if options.output != "table":
            output.print_data(variables, options.output)
        else:
            sys.stdout.writelines(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    elif options.output != "table":
        output.print_data(views.document(devices), options.output)
    elif not devices:
        output.print_fault(f"railcni: no verbs device: /sys{rdma.CLASS} is empty or not there; see `railcni doctor`")
    else:
        output.print_table(views.PORTS, views.port_rows(devices))
        sys.stdout.write("\n")
        sys.stdout.flush()
        output.print_table(views.GIDS, views.gid_rows(devices))
    return 0
