"""What a cluster and its stores hold, as plain values that findings are made of. cni.cli.objects reads them.

A `Held` is an address that a store has given to somebody, whatever the store. What a store does not tell is "" or 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni.spec.request import Attachment
from ipam.ranges import Range, format_address
from ipam.stores.base import Lease, Owner, Want
from ipam.stores.kubernetes_objects import PoolObject, range_of

Address = tuple[int, int]  # family and value

_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Interface:
    """An interface that Multus says a pod has; `network` is "namespace/name" of its NAD."""

    network: str
    ifname: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class Pod:
    """A pod. `interfaces` is None when it has no network-status yet, or none at all.

    A static pod has another UID on its node, which is what its plugins are told: `static_uid`.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    interfaces: tuple[Interface, ...] | None
    terminating: bool = False
    static_uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def has_uid(self, uid: str) -> bool:
        return uid in (self.uid, self.static_uid)

    @property
    def is_pending(self) -> bool:
        return self.phase == "Pending"

    @property
    def is_over(self) -> bool:
        """Whether all its containers have ended for good; kubelet takes its sandbox down soon after."""
        return self.phase in _OVER

    def shows(self, address: Address) -> bool:
        return any(address in interface.addresses for interface in self.interfaces or ())


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
        return any(rng.family == address[0] and rng.contains(address[1]) for rng in self.ranges)

    def pools(self) -> list[str]:
        """The names of its pools; of a network with node slices there are others besides, one a node."""
        return [rng.pool_name(self.network_name) for rng in self.ranges]


@dataclass(frozen=True)
class Held:
    """An address of `pool` that a store has given away. `entry` is what stands in the store, to be compared whole.

    `scope`: where it must be reserved, None where nowhere. `claimed`: by an IPAMClaim, which outlives the pod. `since`:
    when its reservation was made, for who finds no sequence.
    """

    pool: str
    address: Address
    container_id: str
    ifname: str
    pod: tuple[str, str]
    uid: str = ""
    node: str = ""
    network: str = ""
    sequence: int = 0
    scope: str | None = None
    claimed: bool = False
    netns: str = ""
    boot_id: str = ""
    since: str = ""
    entry: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def text(self) -> str:
        return format_address(*self.address)

    @property
    def owner(self) -> str:
        """Whose it is, for messages."""
        return f"pod {'/'.join(self.pod)}" if self.pod[1] else f"container {self.container_id or 'unknown'}"


@dataclass(frozen=True)
class Reserved:
    """An OverlappingRangeIPReservation. `address` is None when its name tells none."""

    name: str
    scope: str
    address: Address | None
    pod: tuple[str, str]
    ifname: str
    container_id: str
    pool: str
    network: str
    node: str
    pod_uid: str
    netns: str
    boot_id: str
    sequence: int
    since: str
    uid: str
    version: str

    def is_of(self, held: Held) -> bool:
        """Whether it belongs to `held`; Go notes neither container nor pool."""
        if self.ifname and held.ifname and self.ifname != held.ifname:
            return False
        if self.container_id:
            return self.container_id == held.container_id and self.pool in ("", held.pool)
        return self.pod == held.pod


@dataclass(frozen=True)
class PoolState:
    """An IPPool: its object, what it holds, and the keys of it that are no addresses."""

    name: str
    pool: PoolObject
    held: tuple[Held, ...]
    stray: tuple[str, ...]
    scope: str | None  # in which its addresses are reserved

    @property
    def cidr(self) -> str:
        try:
            return range_of(self.name, self.pool.family, self.pool.first)
        except ValueError:
            return ""


def lease_of(held: Held) -> Lease:
    """The lease that `held` tells of, for who frees it."""
    attachment = Attachment(held.network, held.container_id, held.ifname)
    owner = Owner(attachment, (*held.pod, held.uid), held.node, held.boot_id, held.netns, held.sequence)
    return Lease(Want(held.pool, *held.address, held.scope), owner)


def of_lease(lease: Lease) -> Held:
    """A lease of a store that keeps all of it."""
    return Held(
        lease.pool,
        (lease.family, lease.value),
        lease.container_id,
        lease.ifname,
        lease.pod[:2],
        lease.pod[2],
        lease.node,
        lease.network,
        lease.sequence,
        lease.scope,
        netns=lease.netns,
        boot_id=lease.boot_id,
    )
