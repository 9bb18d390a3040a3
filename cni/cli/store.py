"""Which store a command speaks of: the node's own files, a cluster's objects, or what a flat file names."""

from __future__ import annotations

import argparse
import os
from typing import Any

from cni.attachment import STATE
from cni.config import Fault, refuse
from cni.spec.errors import InvalidConfig
from ipam import config as configuration
from ipam import flatfile, stores
from ipam.config import IpamConfig
from ipam.keys import IPAM_KEYS
from ipam.source import Source
from ipam.stores import kubeconfig
from ipam.stores.base import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """--data-dir, --config, --kubeconfig; without them the store of the installed flat file, else the one in STATE."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--data-dir", default="", metavar="DIR", help=f"the file store in DIR; such as {STATE}")
    which.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="the store that this flat file names, with the keys of the ipam block; default: the installed one",
    )
    parser.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="the cluster of this kubeconfig's current context; alone: the store in its IPPools",
    )
    parser.add_argument(
        "-n", "--namespace", default="", help="where the IPPools are; default: the context's, else kube-system"
    )


class Choice:
    """The store that options choose. `described` is ipam.stores.describe's, `kubeconfig` the cluster's, "" for none.

    `cooldown`: the flat file's, in seconds.
    """

    def __init__(self, described: dict[str, Any], kubeconfig: str = "", namespace: str = "", cooldown: int = 0) -> None:
        self.described = described
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.cooldown = cooldown

    @property
    def kind(self) -> str:
        return str(self.described["kind"])

    @property
    def has_cluster(self) -> bool:
        """Whether there is a cluster to compare leases with."""
        return self.kind in stores.IN_CLUSTER or bool(self.kubeconfig)

    def open(self, use: int) -> Store:
        return stores.open_store(self.described, use)

    def identity(self) -> dict[str, Any]:
        """What tells this store from others, in a report, with no secret in it."""
        if self.kind not in stores.IN_CLUSTER:
            return {k: v for k, v in stores.recorded(self.described).items() if v}
        access = self.access()
        return {"kind": self.kind, "server": str(access), "namespace": self.namespace or access.namespace}

    def access(self) -> kubeconfig.Access:
        """The cluster, as its kubeconfig or this pod's service account says."""
        return kubeconfig.load(self.kubeconfig) if self.kubeconfig else kubeconfig.in_cluster(dict(os.environb))

    def __str__(self) -> str:
        """For messages."""
        if self.kind == "file":
            return str(self.described["path"])
        if self.kind == "etcd":
            return f"etcd at {', '.join(self.described['endpoints'])}, prefix {self.described['prefix']}"
        known = self.identity()
        where = f"namespace {known['namespace']} of {known['server']}"
        return f"AddressLeases in {where}" if self.kind == "addresslease" else where


def choose(options: argparse.Namespace) -> Choice:
    """The chosen store; InvalidConfig or UnsupportedField when it cannot be told."""
    if options.data_dir:
        if is_missing(options.data_dir):
            raise InvalidConfig(f'--data-dir "{options.data_dir}": there is no such directory')
        return Choice({"kind": "file", "path": os.path.abspath(options.data_dir)}, options.kubeconfig)
    path = os.path.abspath(options.kubeconfig) if options.kubeconfig else ""
    if path and not options.config:
        return Choice({"kind": "kubernetes", "kubeconfig": path}, path, options.namespace)
    found = of_flat_file(options.config)
    return Choice(found.described, path or found.kubeconfig, options.namespace, found.cooldown)


def of_flat_file(config: str = "") -> Choice:
    """The store of a flat file, "" for the installed one. A pod without one has its cluster's."""
    faults: list[Fault] = []
    source = Source({"configuration_path": config}, _Files, faults)
    if config and source.path != config:
        faults.append(Fault("--config", config, "there is no such file"))
    named = IpamConfig()
    named.ranges = []  # all pools are meant
    source.fill(named, IPAM_KEYS, faults)
    refuse(faults)
    if not source.path and "KUBERNETES_SERVICE_HOST" in os.environ:
        return Choice({"kind": "kubernetes", "kubeconfig": ""})
    named.datastore = configuration.datastore(named)
    if named.datastore == "etcd" and not named.etcd_host:
        refuse([Fault(source.where("etcd_host"), None, "want the endpoints of etcd")])
    if named.datastore in stores.IN_CLUSTER:
        if not named.kubeconfig:
            refuse([Fault(source.where("kubernetes.kubeconfig"), None, "want the path of a kubeconfig")])
        described = {"kind": named.datastore, "kubeconfig": named.kubeconfig}
    else:
        described = stores.describe(named)
    return Choice(described, named.kubeconfig, "", named.cooldown_seconds)


def parse(text: str) -> Choice:
    """A store that is written KIND:PLACE, for --from and --to; InvalidConfig."""
    kind, _, place = text.partition(":")
    if kind == "file" and place:
        return Choice({"kind": "file", "path": os.path.abspath(place)})
    if kind in stores.IN_CLUSTER and place:
        path = os.path.abspath(place)
        return Choice({"kind": kind, "kubeconfig": path}, path)
    if kind == "config" and place:
        if is_missing(place):
            raise InvalidConfig(f"{text}: there is no such file")
        return of_flat_file(os.path.abspath(place))
    if kind == "etcd" and place:
        named = IpamConfig()
        named.ranges = []
        Source({"datastore": "etcd", "etcd_host": place}, _NoFiles, []).fill(named, IPAM_KEYS, [])
        return Choice(stores.describe(named))
    raise InvalidConfig(
        f'"{text}" names no store: want file:DIR, kubernetes:KUBECONFIG, addresslease:KUBECONFIG, etcd:HOST:PORT,…, host-local:DIR or config:FILE,'
        " where FILE has the keys of the ipam block"
    )


def is_missing(path: str) -> bool:
    """Whether nothing is there: one who may not look there is told so when it is opened."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


class _Files:
    """Whoever runs the command may read what they may read: the policy is for networks."""

    load = staticmethod(flatfile.load)
    host_name = staticmethod(flatfile.host_name)

    @staticmethod
    def follow(path: str, roots: str = "", /) -> str:
        return path


class _NoFiles(_Files):
    """No flat file counts."""

    @staticmethod
    def load(path: str, /) -> bytes | None:
        return None
