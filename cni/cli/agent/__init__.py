"""railcni agent: keeps what a node's plugins need, and clears what they could not.

On each node it writes kubeconfig and flat file, makes releases that a DEL could not make, frees leases whose pods are
gone, and answers probes and Prometheus. No plugin asks it: without it every plugin works the same, until the token in
the kubeconfig has expired.

nodefiles   kubeconfig, flat file, node name (pure, but their writing)
tokens      whose token is written
work        the agent put together, as tasks
loop        the one loop that does them
server      the API server: what is read and changed
election    which agent looks after what no node looks after
sightings   which leases are dead, and since when (pure)
own, free   freeing what a record of this node tells of, and what none does
collector   one pass over all of it
events, metrics, log, endpoint, health   what is told
"""

from __future__ import annotations

import argparse
import os

from cni.cli import subcommand
from cni.cli.install import add_options
from ipam import stores

LISTEN = "127.0.0.1:9108"
CONF_DIR = "/etc/cni/net.d"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NAMESPACE = "kube-system"
GRACE = 60.0


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `agent`."""
    about = "on each node: write kubeconfig and flat file, finish releases, free dead leases, report health and metrics"
    parser = subcommand.add(
        commands, "agent", about, ". It runs until SIGTERM, in the foreground. No plugin needs it to run."
    )
    add_options(parser)
    serves = parser.add_argument_group("what it serves")
    serves.add_argument(
        "--listen",
        type=_address,
        default=LISTEN,
        metavar="ADDRESS:PORT",
        help=f"/healthz, /readyz and /metrics; default: {LISTEN}, this node alone",
    )
    access = parser.add_argument_group("the API server and the node's files")
    access.add_argument(
        "--conf-dir",
        default=CONF_DIR,
        metavar="DIR",
        help=f"the runtime's folder of networks, in whose whereabouts.d the files are kept; default: {CONF_DIR}",
    )
    access.add_argument(
        "--service-account",
        default=SERVICE_ACCOUNT,
        metavar="DIR",
        help="where the kubelet keeps token and ca.crt (not below --root); without a token there no file is written;"
        f" default: {SERVICE_ACCOUNT}",
    )
    access.add_argument(
        "--plugin-account",
        type=_account,
        metavar="NAMESPACE/NAME",
        help="write a token that is requested for this service account, good for a day; default: the agent's own token,"
        " which ends with its pod",
    )
    access.add_argument(
        "--api-server",
        default="",
        metavar="URL",
        help="for the kubeconfig, as the node reaches it; default: from KUBERNETES_SERVICE_HOST and _PORT",
    )
    access.add_argument(
        "--datastore",
        choices=stores.IN_CLUSTER,
        default="kubernetes",
        help="for a node that has no flat file, in a cluster that has no IPPools; default: kubernetes",
    )
    access.add_argument(
        "--namespace",
        default=NAMESPACE,
        help=f"of whereabouts' objects and of the election's Lease; default: {NAMESPACE}",
    )
    access.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="use this one and write no files; without it and a token, the one that the installed flat file names",
    )
    access.add_argument(
        "--node", default=os.environ.get("NODENAME", ""), metavar="NAME", help="default: NODENAME, else the host name"
    )
    collects = parser.add_argument_group("the collector")
    collects.add_argument("--no-collect", action="store_true", help="free nothing, as while Go's reconciler still runs")
    collects.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE,
        metavar="SECONDS",
        help=f"between the two sightings of a dead lease after which it is freed; default: {GRACE:g}",
    )
    collects.add_argument(
        "--every", type=_seconds, metavar="SECONDS", help="between two looks; default: half of --grace"
    )
    collects.add_argument(
        "--lease-seconds",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="for which the agent is elected that looks after nodes without one; default: 30",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="do all of it once, with both sightings, and end; exit code 1: something could not be done",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from cni.cli.agent import work  # with lightkube, which costs 0.3 s and serves few commands

    return work.run(options)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}": want ADDRESS:PORT, such as {LISTEN} or [::1]:9108')
    return host, int(port)


def _account(text: str) -> str:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f'"{text}": want NAMESPACE/NAME, such as kube-system/railcni')
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f'"{text}": want seconds, such as 60')
    return seconds
