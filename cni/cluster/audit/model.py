"""The content of a cluster and its stores as plain values for the rules, parsed from objects of the API. Pure. Leases
have the type ipam.leases.Lease. A member that a store does not keep is "" or 0."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cni.cluster.audit.findings import Finding
from cni.cluster.audit.store import NoFiles
from cni.shared import rail
from cni.shared.config import Fault
from cni.shared.spec import codec
from cni.shared.spec.request import Attachment, member
from ipam.config import IpamConfig
from ipam.keys import IPAM_KEYS, RANGE_KEYS, RangeEntry, read_own_range, read_ranges
from ipam.leases import Lease, Pool
from ipam.ranges import Range, host_of
from ipam.source import Source
from ipam.stores.ippool.objects import IPPool, Reservation

Address = tuple[int, int]  # family and value
Name = tuple[str, str]  # namespace and name
Key = tuple[str, Address, str, str, Name]

STATUS_ANNOTATIONS = ("k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status")
STATIC_ANNOTATION = "kubernetes.io/config.mirror"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_PLUGINS = ("whereabouts", "railcni-whereabouts")


@dataclass(frozen=True)
class PodInterface:
    """An interface in a pod's network-status, which Multus writes. `network` is the "namespace/name" of its NAD."""

    network: str
    ifname: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class Pod:
    """A pod. `interfaces` is None while the pod has no network-status. `static_uid` is the UID that the kubelet gives
    to a static pod and passes to the plugins; the API has another UID."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    interfaces: tuple[PodInterface, ...] | None
    terminating: bool = False
    static_uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def has_uid(self, uid: str) -> bool:
        """Whether `uid` is the pod's UID in the API, or the UID that the kubelet gave to a static pod."""
        return uid in (self.uid, self.static_uid)

    @property
    def is_pending(self) -> bool:
        """Whether the pod's phase is Pending: not all containers have started."""
        return self.phase == "Pending"

    @property
    def is_over(self) -> bool:
        """Whether all containers have ended for good; the kubelet removes the sandbox soon after."""
        return self.phase in ("Succeeded", "Failed")

    def addresses(self) -> list[Address]:
        return [address for interface in self.interfaces or () for address in interface.addresses]


@dataclass(frozen=True)
class Node:
    """A node of the cluster. A pod that was deleted from the API may still run on a node that is not ready."""

    name: str
    ready: bool
    out_of_service: bool

    @property
    def may_run_on(self) -> bool:
        """Whether a deleted pod may still run on the node: it is not ready, and not out of service."""
        return not self.ready and not self.out_of_service


@dataclass(frozen=True)
class IpamBlock:
    """An ipam block in a NAD. `name` is the NAD's "namespace/name", `cni_name` the name in its CNI configuration."""

    name: str
    cni_name: str
    network_name: str
    ranges: tuple[Range, ...]
    overlap: bool
    sliced: bool
    datastore: str  # "" if the NAD names no store: then the flat file (whereabouts.conf) decides
    cooldown: int = 0  # seconds

    def holds(self, address: Address) -> bool:
        """Whether one of the ranges contains the address."""
        return any(rng.family == address[0] and rng.contains(address[1]) for rng in self.ranges)

    def pools(self) -> list[str]:
        """The names of the ranges' pools. With node slices, the pools of single nodes are left out."""
        return [rng.pool_name(self.network_name) for rng in self.ranges]


@dataclass(frozen=True)
class Snapshot:
    """The content of a store and its cluster at one time. If a member is None (not read), its rules are skipped.

    `kind` is the store's kind. `agents` are the nodes whose agents may be alive. `nads` are the names "namespace/name"
    of all NADs, whatever their IPAM plugin. For a file store, `records` are this node's records of the store, and
    `counted` has, for each pool, the number of addresses that its bitmap marks as used. `unread` has a text with the
    reason for each kind of object that could not be read. `findings` are faults found while reading; `counts` are
    numbers of objects.
    """

    kind: str
    leases: Collection[Lease]
    pools: Sequence[IPPool] = ()
    reserved: Collection[Reservation] | None = None
    pods: Mapping[Name, Pod] | None = None
    nodes: Mapping[str, Node] | None = None
    agents: Collection[str] | None = None
    networks: Sequence[IpamBlock] = ()
    nads: Collection[str] = ()
    records: Sequence[tuple[Attachment, Mapping[str, Any]]] | None = None
    counted: Collection[Pool] = ()
    unread: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


# --- from objects of the API ---


def parse_pod(document: Mapping[str, Any]) -> Pod:
    metadata, status = document.get("metadata") or {}, document.get("status") or {}
    annotations = metadata.get("annotations") or {}
    told = next((annotations[key] for key in STATUS_ANNOTATIONS if annotations.get(key)), "")
    return Pod(
        namespace=metadata.get("namespace") or "",
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        node=(document.get("spec") or {}).get("nodeName") or "",
        phase=status.get("phase") or "",
        interfaces=_interfaces(told),
        terminating=bool(metadata.get("deletionTimestamp")),
        static_uid=annotations.get(STATIC_ANNOTATION) or "",
    )


def parse_node(document: Mapping[str, Any]) -> Node:
    conditions = (document.get("status") or {}).get("conditions") or []
    taints = (document.get("spec") or {}).get("taints") or []
    return Node(
        name=(document.get("metadata") or {}).get("name") or "",
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        out_of_service=any(t.get("key") == OUT_OF_SERVICE for t in taints),
    )


def parse_networks(document: Mapping[str, Any]) -> list[IpamBlock]:
    """The readable ipam blocks of type whereabouts or railcni-whereabouts in a NetworkAttachmentDefinition."""
    metadata = document.get("metadata") or {}
    try:
        config = codec.loads(((document.get("spec") or {}).get("config") or "{}").encode())
    except ValueError:
        return []
    if not isinstance(config, dict):
        return []
    listed = config.get("plugins")
    plugins = listed if listed and isinstance(listed, list) else [config]
    cni_name = str(member(config, "name") or metadata.get("name") or "")
    parts = [part for plugin in plugins if isinstance(plugin, dict) for part in rail.each(plugin)]
    found = (_network(nad_name(document), cni_name, member(part, "ipam")) for part in parts)
    return [network for network in found if network]


def nad_name(document: Mapping[str, Any]) -> str:
    """The "namespace/name" of an object, as in network-status."""
    metadata = document.get("metadata") or {}
    return f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"


def _network(name: str, cni_name: str, block: Any) -> IpamBlock | None:
    if not isinstance(block, dict) or member(block, "type") not in _PLUGINS:
        return None
    faults: list[Fault] = []
    block = {key: value for key, value in block.items() if key.lower() != "configuration_path"}
    source, keys, own = Source(block, NoFiles(), faults), IpamConfig(), RangeEntry()
    source.fill(keys, IPAM_KEYS, faults)
    source.fill(own, RANGE_KEYS, faults)
    ranges = read_own_range(own, source.where, (), [], faults)
    ranges += read_ranges(keys.ip_ranges, source.where("ipRanges"), (), [], faults)
    if faults:
        return None
    in_etcd = source.names("etcd_host") and not source.names("kubernetes.kubeconfig")
    store, sliced = keys.datastore or ("etcd" if in_etcd else ""), bool(keys.node_slice_size)
    read = keys.network_name, tuple(ranges), keys.overlap, sliced, store, keys.cooldown_seconds
    return IpamBlock(name, cni_name, *read)


def parse_pool(
    document: Mapping[str, Any],
    reservation_of: Callable[[str], Reservation | None],
    networks: Collection[IpamBlock] = (),
) -> IPPool:
    """The IPPool in an object of the API, with its leases. Raises ValueError when spec.range is no CIDR.

    `reservation_of` returns a reservation by name. `networks` show which networks have one pool per node (node slices).
    The name of such a pool contains the names of the network and the node.
    """
    pool = IPPool(dict(document), len(json.dumps(document, separators=(",", ":"))))
    scope = pool.named_scope()
    if scope and scope not in {n.network_name for n in networks}:
        sliced = sorted({n.network_name for n in networks if n.sliced}, key=len, reverse=True)
        scope = next((name for name in sliced if scope.startswith(f"{name}-") or not name), scope)
    pool.read_leases(scope, reservation_of)
    return pool


def _interfaces(text: str) -> tuple[PodInterface, ...] | None:
    try:
        listed = codec.loads(text.encode())
    except ValueError:
        return None
    if not isinstance(listed, list):
        return None
    found = []
    for entry in listed:
        if not isinstance(entry, dict) or entry.get("default"):
            continue
        addresses, ips = [], entry.get("ips")
        for ip in ips if isinstance(ips, list) else []:  # whoever may change the pod may write anything
            with suppress(ValueError):
                addresses.append(host_of(str(ip)))
        found.append(PodInterface(str(entry.get("name") or ""), str(entry.get("interface") or ""), tuple(addresses)))
    return tuple(found)
