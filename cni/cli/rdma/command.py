"""railcni rdma: the node's verbs devices, by netdev, PCI function and GID."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from cni.cli.rdma import views
from cni.cli.terminal import output, subcommand
from cni.library.inventory import devices as inventory
from cni.library.inventory import sandboxes
from cni.shared.kernel import rdma_sysfs

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
        lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        output.show(options.output, variables, lambda: print(*lines, sep="\n"))
    else:
        output.show(options.output, views.document(devices), lambda: _print(devices))
    return 0


def _print(devices: Sequence[inventory.VerbsDevice]) -> None:
    if not devices:
        output.print_fault(
            f"railcni: no verbs device: /sys{rdma_sysfs.CLASS} is empty or not there; see `railcni doctor`"
        )
        return
    output.print_table(views.PORTS, views.port_rows(devices))
    sys.stdout.write("\n")
    sys.stdout.flush()
    output.print_table(views.GIDS, views.gid_rows(devices))
