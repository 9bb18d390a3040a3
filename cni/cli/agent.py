"""railcni agent: maintains the files that a node's plugins need, and frees leases that the plugins could not free.
railcni dranet-ipam: assigns addresses to the devices of DRANET.

The programs are cni/cluster/agent and cni/cluster/dranet.py. No plugin calls the agent. If the agent does not run, the
plugins work until the token in their kubeconfig expires.
"""

from __future__ import annotations

import argparse
import os

from cni.cli.terminal import common, subcommand
from cni.documents import NET_DIRECTORY
from cni.node import runtime
from cni.node.inventory.places import read_pod
from ipam import stores
from ipam.stores.apiserver.kubeconfig import NAMESPACE, SERVICE_ACCOUNT

LISTEN = "127.0.0.1:9108"
GRACE = 60.0


def register(commands: subcommand.Commands) -> None:
    """Add the commands `agent` and `dranet-ipam`."""
    _register_dranet(commands)
    about = "on each node: write kubeconfig and flat file, retry releases, free dead leases, report health and metrics"
    more = ". The agent runs until SIGTERM, in the foreground. The plugins also work without it."
    parser = subcommand.add(commands, "agent", about, more, run=_run)
    common.installation(parser)
    common.listen(parser.add_argument_group("HTTP endpoints"), LISTEN)
    access = parser.add_argument_group("the API server and the node's files")
    common.add(access, "conf-dir", "the files are kept in its whereabouts.d", NET_DIRECTORY, made=True)
    about = "where the kubelet keeps token and ca.crt (not below --root); without a token there no file is written"
    subcommand.option(access, "--service-account", SERVICE_ACCOUNT, about)
    account = subcommand.typed(read_pod, "want NAMESPACE/NAME, such as kube-system/railcni")
    about = "request a token of this service account, valid for a day, and write it"
    about += "; default: the agent's own token, which ends with its pod"
    access.add_argument("--plugin-account", type=account, metavar="NAMESPACE/NAME", help=about)
    about = "the API server's URL in the kubeconfig; default: from KUBERNETES_SERVICE_HOST and _PORT"
    subcommand.option(access, "--api-server", "", about, "URL")
    about = "the store of the cluster's nodes, if it has no leases and no agent has chosen one yet"
    subcommand.option(access, "--datastore", "kubernetes", about, None, choices=stores.IN_CLUSTER)
    common.add(access, "namespace", "", NAMESPACE)
    about = "with it no files are written; without it and a token: that of the installed flat file"
    common.add(access, "kubeconfig", about, "")
    about = "this one; default: NODENAME, else the host name"
    common.add(access, "node", about, os.environ.get("NODENAME", ""), shown=False, type=str)
    collects = parser.add_argument_group("the collector")
    about = "free no leases, such as while Go's reconciler runs"
    collects.add_argument("--no-collect", action="store_true", help=about)
    common.add(collects, "grace", "two readings this far apart found the lease dead", GRACE)
    about = "the time between two readings; default: half of --grace"
    subcommand.option(collects, "--every", None, about, "SECONDS", type=subcommand.seconds)
    about = "the duration of the election of the agent that frees the leases of lost nodes"
    about += "; each agent renews its node's Lease after twice as long"
    subcommand.option(collects, "--lease-seconds", 30.0, about, "SECONDS", type=subcommand.seconds)
    about = "do all of this once, with both readings, and exit; exit code 1: a part failed"
    parser.add_argument("--once", action="store_true", help=about)


def _register_dranet(commands: subcommand.Commands) -> None:
    about = "on each node: give the devices of DRANET their addresses, as DRANET's webhook"
    more = ". It runs until SIGTERM, in the foreground."
    parser = subcommand.add(commands, "dranet-ipam", about, more, run=_run_dranet)
    subcommand.option(parser, "--socket", "/run/railcni/dranet.sock", "DRANET's --webhook-url=unix://FILE", "FILE")
    about = "its profiles: files *.conf and *.json with `name` and `ipam`, without `type`"
    common.add(parser, "conf-dir", about, NET_DIRECTORY)
    common.add(parser, "cni-path", "those of IPAM", ":".join(runtime.PLUGIN_DIRECTORIES))
    common.add(parser, "kubeconfig", "for reading ResourceClaims; default: that of the installed flat file", "")
    common.log_level(parser)
    common.add(parser, "grace", "here a claim before its leases", 300.0)


def _run_dranet(options: argparse.Namespace) -> None:
    from cni.cluster import dranet  # loads modules that only this program needs

    dranet.run(options)


def _run(options: argparse.Namespace) -> int:
    files = ("--service-account", "--plugin-account", "--api-server", "--datastore")
    options.only(not options.kubeconfig, "without --kubeconfig", *files)
    options.only(not options.once, "without --once", "--listen", "--every")
    from cni.cluster.agent import agent  # loads modules that only the agent needs

    return agent.run(options)
