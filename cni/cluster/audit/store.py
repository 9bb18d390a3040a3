"""Choose a store: the node's own files, a cluster's objects, or the store that a flat file (whereabouts.conf) names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cni.node.inventory.places import is_missing
from cni.shared.config import Fault, refuse
from cni.shared.spec.errors import InvalidConfig
from ipam import config as configuration
from ipam import stores
from ipam.config import IpamConfig
from ipam.keys import IPAM_KEYS
from ipam.source import Files, Source
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.resources import OF_STORES
from ipam.stores.base import Store

SECONDS = 30.0  # the limit for one request


class Choice:
    """A chosen store. `store_ref` is its reference (ipam.stores.ref_of), `cooldown` the flat file's value in seconds.
    `kubeconfig` is the path of a cluster's kubeconfig, or "". `namespace` is the namespace of the leases; "" means that
    of the kubeconfig. `unnamed` is the path of the flat file if the file names no store, otherwise "". `notes` are log
    texts about misspelt keys of the flat file."""

    unnamed = ""
    notes: Sequence[str] = ()

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
        """The identity of the store for a report, without secrets."""
        if self.kind not in stores.IN_CLUSTER:
            return {k: v for k, v in stores.recorded(self.store_ref).items() if v}
        access = Api(self.kubeconfig, SECONDS, self.namespace).access
        return {"kind": self.kind, "server": str(access), "namespace": access.namespace}

    def __str__(self) -> str:
        if not self.is_shared:
            path = str(self.store_ref["path"])
            return f"{path}, which is not there: --kubeconfig FILE names a cluster" if is_missing(path) else path
        if self.kind == "etcd":
            return f"etcd at {', '.join(self.store_ref['endpoints'])}, prefix {self.store_ref['prefix']}"
        known = self.identity()
        where = f"namespace {known['namespace']} of {known['server']}"
        return f"{OF_STORES[self.kind][1]} in {where}"


def of_flat_file(config: str = "") -> Choice:
    """The store in the flat file `config`. "" means the installed flat file or, in a pod without one, IPPools."""
    faults: list[Fault] = []
    source = Source({"configuration_path": config}, _Files(), faults)
    if config and source.path != config:
        faults.append(Fault("--flat-file", config, "there is no such file"))
    named = IpamConfig()
    named.ranges = []  # the ranges are not needed: the store is chosen for all pools
    source.fill(named, IPAM_KEYS, faults)
    refuse(faults)
    if not source.path and "KUBERNETES_SERVICE_HOST" in os.environ:
        return Choice({"kind": "kubernetes", "kubeconfig": ""})
    is_named = named.datastore or named.kubeconfig or named.etcd_host
    named.datastore = configuration.datastore(named)
    if missing := configuration.missing_key(named):
        refuse([Fault(source.where(missing), None, f"want it, for datastore {named.datastore}")])
    choice = Choice(stores.ref_of(named), named.kubeconfig, "", named.cooldown_seconds)
    choice.unnamed, choice.notes = "" if is_named else source.path, source.notes
    return choice


def kubeconfig_of(path: str) -> str:
    """Make the path of a kubeconfig absolute; "" stays "". Raises InvalidConfig if the file cannot be read."""
    return readable(path, f'--kubeconfig "{path}"') if path else ""


def readable(path: str, named: str) -> str:
    """Make `path` absolute. Raises InvalidConfig, whose message begins with `named`, if the file cannot be read."""
    if not os.access(path, os.R_OK):
        why = "there is no such file" if is_missing(path) else "it cannot be read"
        raise InvalidConfig(f"{named}: {why}")
    return os.path.abspath(path)


class _Files(Files):
    """Access to all hosts, and to all files that the user may read. The node's policy limits only networks."""

    def follow(self, path: str, roots: str = "", /) -> str:
        return path

    def allow_host(self, host: str, /) -> None:
        pass


class NoFiles(_Files):
    """Access that finds no flat file. NADs are read with it, since the flat file of another node may differ."""

    def load(self, path: str, /) -> bytes | None:
        return None
