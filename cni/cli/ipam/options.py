"""The options of `railcni ipam` that choose the store."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit.store import SECONDS, Choice, NoFiles, kubeconfig_of, of_flat_file, readable
from cni.shared.records import STATE
from cni.shared.spec.errors import InvalidConfig
from ipam import stores
from ipam.config import IpamConfig
from ipam.keys import DATASTORES, IPAM_KEYS
from ipam.source import Source
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Forbidden, Undefined
from ipam.stores.apiserver.resources import OF_STORES

HOST_LOCAL = "host-local"  # only a source of `migrate`


def add_options(parser: argparse.ArgumentParser, files: bool = True, pods: bool = False) -> None:
    """Add --data-dir (if `files`), --flat-file, --kubeconfig and --namespace. Default: the store that the installed
    flat file names, or else the file store in STATE. `pods`: the command also reads pods if the store has leases of
    several nodes."""
    which = parser.add_mutually_exclusive_group()
    parser.set_defaults(data_dir="", pods=pods)
    if files:
        subcommand.option(which, "--data-dir", "", f"the file store in DIR; such as {STATE}")
    common.add(which, "flat-file", "it names the store; default: the installed one", "")
    common.add(parser, "kubeconfig", "without --flat-file: its AddressLeases and IPPools are read", "")
    common.add(parser, "namespace", "default: the context's, else kube-system")


def named(options: argparse.Namespace) -> list[Choice]:
    """The stores that the options name. Raises InvalidConfig or UnsupportedField if the flat file has a fault.

    A cluster has two stores, and an address may be in both. The result has both if the command reads pods (an audit),
    or if the options name only the cluster."""
    path, namespace = kubeconfig_of(options.kubeconfig), options.namespace or ""
    found = Choice({"kind": "file", "path": os.path.abspath(options.data_dir)}) if options.data_dir else None
    if not found and (not path or options.flat_file):
        found = of_flat_file(options.flat_file)
    if found and found.kind not in stores.IN_CLUSTER:
        use = "for a cluster, and for the pods of leases in etcd"
        options.only(options.pods and found.is_shared, use, "--kubeconfig")
        options.only(False, "for leases in a cluster", "-n")
        return [Choice(found.store_ref, path or found.kubeconfig, "", found.cooldown)]
    if found and found.kubeconfig:
        path = path or found.kubeconfig
        kinds = sorted(OF_STORES, key=lambda kind: kind != found.kind) if options.pods else [found.kind]
        refs: list[dict[str, Any]] = [{"kind": kind, "kubeconfig": path} for kind in kinds]
        return [Choice(one, path, namespace, found.cooldown) for one in refs]
    return [Choice({"kind": kind, "kubeconfig": path}, path, namespace) for kind in OF_STORES]


def choose(options: argparse.Namespace) -> list[Choice]:
    """The stores that the options name. Of a cluster's two stores, a store is left out if the cluster does not define
    it, or (with a message) if this user may not read it. Raises InvalidConfig or Forbidden if no store is left."""
    found = named(options)
    if len(found) == 1:
        return found
    api = Api(found[0].kubeconfig, SECONDS, found[0].namespace)
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
        remedy = "`kubectl apply -k conf/kubernetes` makes both"
        raise InvalidConfig(f"{api} knows neither AddressLeases nor IPPools: {remedy}")
    if refused:
        output.print_fault(f"only {told(known)} are read: {refused[0].msg}")
    return known


def told(choices: Sequence[Choice]) -> str:
    """The names of the stores, as text for a message."""
    *others, last = choices
    return " and ".join([*(OF_STORES[choice.kind][1] for choice in others), str(last)])


def parse(text: str) -> Choice:
    """Parse the store KIND:PLACE, as an argparse type. Raises InvalidConfig if PLACE names an unreadable file."""
    kind, _, place = text.partition(":")
    if kind in ("file", HOST_LOCAL) and place:
        return Choice({"kind": kind, "path": os.path.abspath(place)})
    if kind in (*stores.IN_CLUSTER, "config") and place:
        path = readable(place, text)
        return of_flat_file(path) if kind == "config" else Choice({"kind": kind, "kubeconfig": path}, path)
    if kind in DATASTORES and place:
        named = IpamConfig()
        named.ranges = []
        Source({"datastore": kind, DATASTORES[kind]: place}, NoFiles(), []).fill(named, IPAM_KEYS, [])
        try:
            return Choice(stores.ref_of(named))
        except InvalidConfig as fault:
            raise argparse.ArgumentTypeError(fault.msg) from None
    raise argparse.ArgumentTypeError(
        f'"{text}" names no store: want file:DIR, kubernetes:KUBECONFIG, addresslease:KUBECONFIG, etcd:HOST:PORT,…,'
        " host-local:DIR or config:FILE, where FILE has the keys of the ipam block"
    )
