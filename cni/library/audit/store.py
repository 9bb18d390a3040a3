"""Which store a command speaks of: the node's own files, a cluster's objects, or what a flat file names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from cni.library.inventory.places import ExistingDirectory, is_missing
from cni.shared.config import Fault, refuse
from cni.shared.records import STATE
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import is_identifier
from ipam import config as configuration
from ipam import flatfile, stores
from ipam.config import IpamConfig
from ipam.keys import DATASTORES, IPAM_KEYS
from ipam.source import Source
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Forbidden, Undefined
from ipam.stores.apiserver.resources import OF_STORES
from ipam.stores.base import Store

_SECONDS = 30.0  # for one request
HOST_LOCAL = "host-local"  # which leases are copied from


def add_options(parser: argparse.ArgumentParser, files: bool = True, pods: bool = False) -> None:
    """--data-dir (of `files`), --config, --kubeconfig; without them the store of the installed flat file, else the one in
    STATE. `pods`: the command reads the pods, also those of a store outside of the cluster."""
    which = parser.add_mutually_exclusive_group()
    parser.set_defaults(data_dir="", pods=pods)
    if files:
        about = f"the file store in DIR; such as {STATE}"
        which.add_argument("--data-dir", action=ExistingDirectory, default="", metavar="DIR", help=about)
    which.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="the flat file that names the store, with the keys of the ipam block; default: the installed one",
    )
    parser.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="the cluster of this kubeconfig's current context; given alone: its AddressLeases and IPPools",
    )
    about = "the namespace of the leases; default: the context's, else kube-system"
    parser.add_argument("-n", "--namespace", type=_namespace, default="", help=about)


def _namespace(text: str) -> str:
    if text and not is_identifier(text):
        raise argparse.ArgumentTypeError(f'"{text}": want the name of a namespace, such as kube-system')
    return text


class Choice:
    """The store that options choose. `store_ref` is ipam.stores.ref_of's, `kubeconfig` the cluster's, "" for none.

    `cooldown`: the flat file's, in seconds.
    """

    def __init__(self, store_ref: dict[str, Any], kubeconfig: str = "", namespace: str = "", cooldown: int = 0) -> None:
        self.store_ref = {**store_ref, "namespace": namespace} if namespace else store_ref
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.cooldown = cooldown

    @property
    def kind(self) -> str:
        return str(self.store_ref["kind"])

    @property
    def is_shared(self) -> bool:
        return stores.is_shared(self.store_ref)

    def open(self, use: int) -> Store:
        return stores.open_store(self.store_ref, use)

    def identity(self) -> dict[str, Any]:
        """What tells this store from others, in a report, with no secret in it."""
        if self.kind not in stores.IN_CLUSTER:
            return {k: v for k, v in stores.recorded(self.store_ref).items() if v}
        access = Api(self.kubeconfig, _SECONDS, self.namespace).access
        return {"kind": self.kind, "server": str(access), "namespace": access.namespace}

    def __str__(self) -> str:
        """For messages."""
        if not self.is_shared:
            path = str(self.store_ref["path"])
            return f"{path}, which is not there: --kubeconfig FILE names a cluster" if is_missing(path) else path
        if self.kind == "etcd":
            return f"etcd at {', '.join(self.store_ref['endpoints'])}, prefix {self.store_ref['prefix']}"
        known = self.identity()
        where = f"namespace {known['namespace']} of {known['server']}"
        return f"{OF_STORES[self.kind][1]} in {where}"


def named(options: argparse.Namespace) -> list[Choice]:
    """The stores that the options name: both of a cluster's where they name it alone. InvalidConfig, UnsupportedField."""
    path = kubeconfig_of(options.kubeconfig)
    found = Choice({"kind": "file", "path": os.path.abspath(options.data_dir)}) if options.data_dir else None
    if not found and (not path or options.config):
        found = of_flat_file(options.config)
    if found and found.kind not in stores.IN_CLUSTER:
        options.only(
            options.pods and found.is_shared, "for a cluster, and for the pods of leases in etcd", "--kubeconfig"
        )
        options.only(False, "for leases in a cluster", "-n")
        return [Choice(found.store_ref, path or found.kubeconfig, "", found.cooldown)]
    if found and found.kubeconfig:
        path = path or found.kubeconfig
        return [Choice({**found.store_ref, "kubeconfig": path}, path, options.namespace, found.cooldown)]
    return [Choice({"kind": kind, "kubeconfig": path}, path, options.namespace) for kind in OF_STORES]


def choose(options: argparse.Namespace, warn: Callable[[str], object]) -> list[Choice]:
    """The stores that the options name. A kubeconfig alone names those of the two kinds in a cluster that the cluster defines;
    `warn` is called for a kind that the user may not read."""
    found = named(options)
    if len(found) == 1:
        return found
    api = Api(found[0].kubeconfig, _SECONDS, options.namespace)
    known: list[Choice] = []
    refused: list[Forbidden] = []
    for choice in found:
        try:
            next(api.pages(OF_STORES[choice.kind][0], brief=True, size=1))
            known.append(choice)
        except Undefined:
            pass
        except Forbidden as fault:
            refused.append(fault)
    if not known and refused:
        raise refused[0]
    if not known:
        raise InvalidConfig(
            f"{api} knows neither AddressLeases nor IPPools: `kubectl apply -k conf/kubernetes` makes both"
        )
    if refused:
        warn(f"only {told(known)} are read: {refused[0].msg}")
    return known


def told(choices: Sequence[Choice]) -> str:
    """For messages."""
    *others, last = choices
    return " and ".join([*(OF_STORES[choice.kind][1] for choice in others), str(last)])


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
    if missing := configuration.missing_key(named):
        refuse([Fault(source.where(missing), None, f"want it, for datastore {named.datastore}")])
    return Choice(stores.ref_of(named), named.kubeconfig, "", named.cooldown_seconds)


def parse(text: str) -> Choice:
    """A store that is written KIND:PLACE, as the type of --to. InvalidConfig: its file cannot be read."""
    kind, _, place = text.partition(":")
    if kind == "file" and place:
        return Choice({"kind": "file", "path": os.path.abspath(place)})
    if kind in (*stores.IN_CLUSTER, "config") and place:
        path = _readable(place, text)
        return of_flat_file(path) if kind == "config" else Choice({"kind": kind, "kubeconfig": path}, path)
    if kind in DATASTORES and place:
        named = IpamConfig()
        named.ranges = []
        Source({"datastore": kind, DATASTORES[kind]: place}, NoFiles, []).fill(named, IPAM_KEYS, [])
        try:
            return Choice(stores.ref_of(named))
        except InvalidConfig as fault:
            raise argparse.ArgumentTypeError(fault.msg) from None
    if kind == HOST_LOCAL and place:
        raise argparse.ArgumentTypeError(
            f'"{text}": leases are copied from host-local, never to it: name it with --from'
        )
    raise argparse.ArgumentTypeError(
        f'"{text}" names no store: want file:DIR, kubernetes:KUBECONFIG, addresslease:KUBECONFIG, etcd:HOST:PORT,…,'
        " host-local:DIR or config:FILE, where FILE has the keys of the ipam block"
    )


def kubeconfig_of(path: str) -> str:
    """The absolute path that the option --kubeconfig names; "" when it is not given. InvalidConfig names the option."""
    return _readable(path, f'--kubeconfig "{path}"') if path else ""


def _readable(path: str, named: str) -> str:
    """`path` made absolute; InvalidConfig for the argument `named` when the file cannot be read."""
    if not os.access(path, os.R_OK):
        why = "there is no such file" if is_missing(path) else "it cannot be read"
        raise InvalidConfig(f"{named}: {why}")
    return os.path.abspath(path)


class _Files:
    """Whoever runs the command may read what they may read: the policy is for networks."""

    load = staticmethod(flatfile.load)
    host_name = staticmethod(flatfile.host_name)

    @staticmethod
    def follow(path: str, roots: str = "", /) -> str:
        return path


class NoFiles(_Files):
    """Without any flat file, as for the NADs of other nodes."""

    @staticmethod
    def load(path: str, /) -> bytes | None:
        return None
