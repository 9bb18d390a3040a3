"""The objects of the Kubernetes API as plain values. Pure: documents in, values out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cni.cli.inventory import Address, Held, Interface, Network, Node, Pod, PoolState, Reserved
from cni.config import Fault
from cni.spec.request import member
from ipam.entries import RangeEntry, read_ranges
from ipam.keys import IPAM_KEYS, RANGE_KEYS
from ipam.ranges import parse_address
from ipam.source import Source
from ipam.stores.base import Want
from ipam.stores.kubernetes_objects import PoolObject, Reservation, reserved_address
from ipam.stores.kubernetes_view import Names

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


class _NoFiles:
    """The flat file of another node is not at hand."""

    @staticmethod
    def load(path: str, /) -> bytes | None:
        return None

    @staticmethod
    def follow(path: str, roots: str = "", /) -> str:
        return path

    @staticmethod
    def host_name() -> str:
        return ""


class _Keys:
    """What the keys of an ipam block are read into."""

    network_name: str
    overlap: bool
    node_slice_size: int
    datastore: str
    cooldown_seconds: int
    ip_ranges: tuple[Mapping[str, Any], ...]


def _network(name: str, cni_name: str, block: Any) -> Network | None:
    if not isinstance(block, dict) or member(block, "type") not in _PLUGINS:
        return None
    faults: list[Fault] = []
    block = {key: value for key, value in block.items() if key.lower() != "configuration_path"}
    source, keys, own = Source(block, _NoFiles, faults), _Keys(), RangeEntry()
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
    document: Mapping[str, Any], reservations: Iterable[Reserved] = (), networks: Collection[Network] = ()
) -> PoolState:
    """An IPPool of the API, with what `reservations` tell of its entries; ValueError when spec.range is no CIDR.

    `networks` tell the pools of node slices, whose names hold a node's too.
    """
    pool = PoolObject(dict(document), len(json.dumps(document, separators=(",", ":"))))
    scope = _scope(pool, networks)
    own = {r.address: r for r in reservations if r.address and r.scope == scope}
    allocations = (document.get("spec") or {}).get("allocations") or {}
    known = {entry.key for entry in pool.entries.values()}
    held = []
    for value, entry in sorted(pool.entries.items()):
        one = Held(
            pool.name,
            (pool.family, value),
            entry.container_id,
            entry.ifname,
            entry.pod,
            scope=scope,
            claimed="ipamclaimref" in entry.document,
            entry=entry.document,
        )
        reserved = own.get(one.address)
        held.append(_told(one, reserved) if reserved and reserved.is_of(one) else one)
    return PoolState(pool.name, pool, tuple(held), tuple(key for key in allocations if key not in known), scope)


def _scope(pool: PoolObject, networks: Collection[Network]) -> str | None:
    found = Names().scope_of(pool)
    if any(found == n.network_name for n in networks):
        return found
    sliced = {n.network_name for n in networks if n.sliced}
    for name in sorted(sliced, key=len, reverse=True):
        if found and (found.startswith(f"{name}-") or not name):
            return name
    return found


def _told(held: Held, by: Reserved) -> Held:
    """`held` with what only its reservation tells."""
    return replace(
        held,
        uid=by.pod_uid,
        node=by.node,
        network=by.network,
        netns=by.netns,
        boot_id=by.boot_id,
        sequence=by.sequence,
        since=by.since,
    )


def parse_reservation(document: Mapping[str, Any], scopes: Iterable[str] = ("",)) -> Reserved:
    """An OverlappingRangeIPReservation of the API; `scopes` are the network names that its name may begin with."""
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    name = metadata.get("name") or ""
    scope, address = _place(name, scopes)
    reservation = Reservation(dict(document))
    lease = reservation.lease(Want("", *(address or (4, 0)), scope))
    return Reserved(
        name=name,
        scope=scope,
        address=address,
        pod=lease.pod[:2],
        ifname=str(spec.get("ifname") or ""),
        container_id=lease.container_id,
        pool=lease.pool,
        network=lease.network,
        node=lease.node,
        pod_uid=lease.pod[2],
        netns=lease.netns,
        boot_id=lease.boot_id,
        sequence=lease.sequence,
        since=metadata.get("creationTimestamp") or "",
        uid=reservation.uid,
        version=reservation.version,
    )


def _place(name: str, scopes: Iterable[str]) -> tuple[str, Address | None]:
    """The scope and the address that a reservation's name stands for: the longest scope that leaves an address."""
    for scope in sorted(scopes, key=len, reverse=True):
        address = reserved_address(name, scope)
        if address:
            return scope, address
    for at in (i for i, sign in enumerate(name) if sign == "-"):
        address = reserved_address(name, name[:at]) if at else None
        if address:
            return name[:at], address
    return "", None


def _interfaces(text: str) -> tuple[Interface, ...] | None:
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
        found.append(Interface(name, ifname, tuple(a for a in addresses if a)))
    return tuple(found)


def _address(text: str) -> Address | None:
    try:
        return parse_address(text.partition("/")[0])
    except ValueError:
        return None
