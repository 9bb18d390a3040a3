"""The objects of the Kubernetes API as plain values. Pure: documents in, values out."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from cni.library.audit.model import Address, Network, Node, Pod, PodInterface
from cni.library.audit.store import NoFiles
from cni.shared.config import Fault
from cni.shared.spec.request import member
from ipam.config import IpamConfig
from ipam.entries import RangeEntry, read_ranges
from ipam.keys import IPAM_KEYS, RANGE_KEYS
from ipam.ranges import parse_address
from ipam.source import Source
from ipam.stores.kubernetes.objects import IPPool, Reservation

STATUS_ANNOTATIONS = ("k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status")
STATIC_ANNOTATION = "kubernetes.io/config.mirror"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_PLUGINS = ("whereabouts", "railcni-whereabouts")


def parse_pod(document: Mapping[str, Any]) -> Pod:
    """A Pod of the API."""
    metadata, status = document.get("metadata") or {}, document.get("status") or {}
    annotations = metadata.get("annotations") or {}
    told = next((annotations[key] for key in STATUS_ANNOTATIONS if annotations.get(key)), None)
    return Pod(
        namespace=metadata.get("namespace") or "",
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        node=(document.get("spec") or {}).get("nodeName") or "",
        phase=status.get("phase") or "",
        interfaces=_interfaces(told) if told else None,
        terminating=bool(metadata.get("deletionTimestamp")),
        static_uid=annotations.get(STATIC_ANNOTATION) or "",
    )


def parse_node(document: Mapping[str, Any]) -> Node:
    """A Node of the API."""
    conditions = (document.get("status") or {}).get("conditions") or []
    taints = (document.get("spec") or {}).get("taints") or []
    return Node(
        name=(document.get("metadata") or {}).get("name") or "",
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        out_of_service=any(t.get("key") == OUT_OF_SERVICE for t in taints),
    )


def parse_networks(document: Mapping[str, Any]) -> list[Network]:
    """The networks of a NetworkAttachmentDefinition that whereabouts serves; those that cannot be read are left out."""
    metadata = document.get("metadata") or {}
    try:
        config = json.loads((document.get("spec") or {}).get("config") or "{}")
    except ValueError:
        return []
    if not isinstance(config, dict):
        return []
    plugins = config.get("plugins") or [config]
    cni_name = str(member(config, "name") or metadata.get("name") or "")
    found = (_network(nad_name(document), cni_name, member(p, "ipam")) for p in plugins if isinstance(p, dict))
    return [network for network in found if network]


def nad_name(document: Mapping[str, Any]) -> str:
    """ "namespace/name" of an object, as network-status has it."""
    metadata = document.get("metadata") or {}
    return f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"


def _network(name: str, cni_name: str, block: Any) -> Network | None:
    if not isinstance(block, dict) or member(block, "type") not in _PLUGINS:
        return None
    faults: list[Fault] = []
    block = {key: value for key, value in block.items() if key.lower() != "configuration_path"}
    source, keys, own = Source(block, NoFiles, faults), IpamConfig(), RangeEntry()
    source.fill(keys, IPAM_KEYS, faults)
    source.fill(own, RANGE_KEYS, faults)
    ranges = read_ranges(own, keys.ip_ranges, source.where, (), [], faults)
    if faults:
        return None
    return Network(
        name,
        cni_name,
        keys.network_name,
        tuple(ranges),
        keys.overlap,
        bool(keys.node_slice_size),
        keys.datastore or ("etcd" if source.names("etcd_host") and not source.names("kubernetes.kubeconfig") else ""),
        keys.cooldown_seconds,
    )


def parse_pool(
    document: Mapping[str, Any], reservation_of: Callable[[str], Reservation | None], networks: Collection[Network] = ()
) -> IPPool:
    """An IPPool of the API with its leases; ValueError when spec.range is no CIDR.

    `networks` tell which pools are of node slices: their names hold a node's name too.
    """
    pool = IPPool(dict(document), len(json.dumps(document, separators=(",", ":"))))
    pool.read_leases(_scope(pool, networks), reservation_of)
    return pool


def _scope(pool: IPPool, networks: Collection[Network]) -> str | None:
    found = pool.named_scope()
    if any(found == n.network_name for n in networks):
        return found
    sliced = {n.network_name for n in networks if n.sliced}
    for name in sorted(sliced, key=len, reverse=True):
        if found and (found.startswith(f"{name}-") or not name):
            return name
    return found


def _interfaces(text: str) -> tuple[PodInterface, ...] | None:
    try:
        listed = json.loads(text)
    except ValueError:
        return None
    if not isinstance(listed, list):
        return None
    found = []
    for entry in listed:
        if not isinstance(entry, dict) or entry.get("default"):
            continue
        ips = entry.get("ips") or []
        addresses = (_address(ip) for ip in ips if isinstance(ip, str))
        name, ifname = str(entry.get("name") or ""), str(entry.get("interface") or "")
        found.append(PodInterface(name, ifname, tuple(a for a in addresses if a)))
    return tuple(found)


def _address(text: str) -> Address | None:
    try:
        return parse_address(text.partition("/")[0])
    except ValueError:
        return None
