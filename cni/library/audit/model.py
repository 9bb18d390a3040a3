"""What a cluster and its stores hold, as plain values that rules judge. cni.library.audit.documents reads them.

A lease is that of the stores, ipam.leases.Lease. What a store does not tell is "" or 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.library.audit.findings import Finding
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Pool
from ipam.ranges import Range
from ipam.stores.kubernetes.objects import IPPool, Reservation

Address = tuple[int, int]  # family and value
Name = tuple[str, str]  # namespace and name
Key = tuple[str, Address, str, str, Name]

_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class PodInterface:
    """An interface that Multus says a pod has; `network` is "namespace/name" of its NAD."""

    network: str
    ifname: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class Pod:
    """A pod. `interfaces` is None when it has no network-status yet, or none at all.

    The kubelet gives a static pod another UID, and passes that one to the plugins: `static_uid`.
    """

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
        """Whether `uid` is a UID of the pod: that of the API, or the kubelet's of a static pod."""
        return uid in (self.uid, self.static_uid)

    @property
    def is_pending(self) -> bool:
        """Whether its containers have not started yet."""
        return self.phase == "Pending"

    @property
    def is_over(self) -> bool:
        """Whether all its containers have ended for good; kubelet takes its sandbox down soon after."""
        return self.phase in _OVER

    def addresses(self) -> list[Address]:
        """Those that it shows."""
        return [address for interface in self.interfaces or () for address in interface.addresses]


@dataclass(frozen=True)
class Node:
    """A node of the cluster. A pod that is gone from a node that is not ready may run there still."""

    name: str
    ready: bool
    out_of_service: bool

    @property
    def may_run_on(self) -> bool:
        """Whether a pod that was deleted may still run there, since nobody has seen it end."""
        return not self.ready and not self.out_of_service


@dataclass(frozen=True)
class Network:
    """What one ipam block of a NAD says: `name` is "namespace/name" of the NAD, `cni_name` that of its network."""

    name: str
    cni_name: str
    network_name: str
    ranges: tuple[Range, ...]
    overlap: bool
    sliced: bool
    datastore: str  # "" when the NAD leaves it to the flat file
    cooldown: int = 0  # seconds

    def holds(self, address: Address) -> bool:
        """Whether one of its ranges has the address."""
        return any(rng.family == address[0] and rng.contains(address[1]) for rng in self.ranges)

    def pools(self) -> list[str]:
        """The names of its pools; a network with node slices also has a pool for each node."""
        return [rng.pool_name(self.network_name) for rng in self.ranges]


@dataclass(frozen=True)
class Snapshot:
    """What was read of a store and its cluster. None: it was not, or could not be, read, and no rule that needs it speaks.

    `kind` is the store's; `nads` are the "namespace/name" of every NAD, with any IPAM. Of a file store `records` are the
    node's that name it, and `counted` the pools as its own bitmaps count them. `unread` says what could not be read and why.
    `findings` are faults that the reading itself has met, `counts` how many objects of each kind were read.
    """

    kind: str
    leases: Collection[Lease]
    pools: Sequence[IPPool] = ()
    reserved: Collection[Reservation] | None = None
    pods: Mapping[Name, Pod] | None = None
    nodes: Mapping[str, Node] | None = None
    networks: Sequence[Network] = ()
    nads: Collection[str] = ()
    records: Sequence[tuple[Attachment, Mapping[str, Any]]] | None = None
    counted: Collection[Pool] = ()
    unread: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
