"""railcni device-plugin: offers the node's RDMA NICs and virtual functions to pods, by kubelet's device plugin API.

The program is cni/device_plugin, which alone needs the packages grpcio and protobuf; its configuration is read by
cni/library/resources.

show   what a configuration offers on this machine
"""

from __future__ import annotations

import argparse
import os

from cni.cli.terminal import output, subcommand
from cni.shared.spec.errors import InvalidConfig

CONFIG = "/etc/railcni/device-plugin.json"
FOLDER = "/var/lib/kubelet/device-plugins"
PODS = "/var/lib/kubelet/pod-resources/kubelet.sock"
LISTEN = "127.0.0.1:9109"


def register(commands: subcommand.Commands) -> None:
    """Add `device-plugin`."""
    about = "on each node: offer RDMA NICs and virtual functions to pods as resources, by kubelet's device plugin API"
    parser = subcommand.add(commands, "device-plugin", about, ". It runs until SIGTERM, in the foreground.")
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="of the RDMA shared device plugin (configList), of the SR-IOV device plugin (resourceList), VFs to make at the"
        " start (virtualFunctions, or SriovNetworkNodePolicy objects), or one with several of these;"
        f" more than once: all of them; read anew when it changes; default: {CONFIG}",
    )
    parser.add_argument("--cdi", action="store_true", help="give devices by the Container Device Interface")
    parser.add_argument(
        "--listen",
        type=subcommand.address,
        default=LISTEN,
        metavar="ADDRESS:PORT",
        help=f"/healthz, /readyz and /metrics; default: {LISTEN}, this node alone",
    )
    subcommand.option(parser, "--kubelet-dir", FOLDER, "kubelet's folder of device plugins")
    about = "kubelet's, which tells whether another plugin serves a resource"
    subcommand.option(parser, "--pod-resources", PODS, about, "SOCKET")
    parser.add_argument(
        "--root", default="", metavar="DIR", help="the folder that has the node's sys, dev, proc and run"
    )
    parser.add_argument("--show", action="store_true", help="print what would be offered, and what is wrong, and end")
    output.add_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    options.config = options.config or [CONFIG]
    if options.show:
        from cni.cli.device_plugin import show

        return show.run(options)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each connection that ends is a line on stderr
    try:
        from cni.device_plugin import work  # with grpc, which costs 0.2 s
    except ModuleNotFoundError as fault:
        remedy = "pip install grpcio protobuf, or use the image that `make image ARGS=--device-plugin` makes"
        raise InvalidConfig(f"the package of the module {fault.name} is missing: {remedy}") from None
    return work.run(options)
