"""Leases: which address of a pool belongs to which attachment. To claim an address is to make its lease. No I/O.

An address is (family, value). A pool's name ends with its range (ipam.ranges). The reservation scope of a lease is a
name or None. An address has at most one lease in its pool and, if the scope is a name, in all pools of this scope.

The IPAM part of an attachment's record (cni.shared.records) names the store and the addresses of the leases. The part
is written before the claim, so DEL and GC find the leases that a killed ADD may have claimed. A lost lease file can be
restored from these parts. An IPAM part has the members of every record and these:

    store      {"kind": "file", "path": DIRECTORY}, or a reference to another kind of store (ipam.stores.ref_of)
    netns      CNI_NETNS of the ADD
    node       the node's name
    pod        [namespace, name, uid]; "" for an unknown part
    sequence   the time of the claim, in ns since 1970
    scope      the reservation scope of all addresses, null for none
    pools, addresses   lists of the same length: the pool and the text of each address. While a claim is under way, they
               also have the leases that it gives up, if the store makes it in several steps
    scopes     the scope of each address, as in `scope`; absent if all are the same. Missing ones at the end are `scope`
    machine    the node's machine ID (cni.shared.kernel.node.machine_id); absent if there is none
    cooldown   the seconds for which the freed addresses are given to no other pod; absent for 0
    pending    true when a DEL could not release the addresses
    shared     [pool, address] of each static address that another attachment of the network leases; absent for none
    reason     the error of the last failed release; absent before the first failure
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cni.shared.spec.request import Attachment
from ipam.ranges import format_address, parse_address

PART = "ipam"  # the name of the IPAM part of a record
COOLDOWN = 86_400  # the longest cooldown, in seconds; a longer one comes from a wrong clock
_SEQUENCES = 1 << 63  # the limit of SQLite, etcd's keys and JSON readers in Go


class Want:
    """An address in a pool and a reservation scope. The address is to be claimed, or is already leased."""

    __slots__ = ("family", "pool", "scope", "value")

    def __init__(self, pool: str, family: int, value: int, scope: str | None) -> None:
        self.pool = pool
        self.family = family
        self.value = value
        self.scope = scope

    @property
    def address(self) -> tuple[int, int]:
        return self.family, self.value

    @property
    def place(self) -> tuple[str, int, int]:
        return self.pool, self.family, self.value

    @property
    def text(self) -> str:
        """The canonical text of the address."""
        return format_address(self.family, self.value)

    def excludes(self, other: Want) -> bool:
        """Whether a store cannot lease both `self` and `other`: same address, and same pool or same scope."""
        same = self.pool == other.pool or (self.scope is not None and self.scope == other.scope)
        return same and self.address == other.address


def returns(pod: tuple[str, str, str]) -> bool:
    """Whether a later pod may get the name of `pod` (namespace, name, uid). A StatefulSet's names end in -NUMBER."""
    stem, _, ordinal = pod[1].rpartition("-")
    return bool(stem) and ordinal.isascii() and ordinal.isdigit()


def interface_of(pod: tuple[str, str, str], ifname: str) -> str:
    """The name of a pod's interface in notes on freed addresses, NAMESPACE/NAME/IFNAME; "" for a pod without a name."""
    return f"{pod[0]}/{pod[1]}/{ifname}" if pod[1] else ""


class Owner:
    """The owner of a claim: attachment, pod (namespace, name, uid; "" for an unknown part), node, boot and CNI_NETNS.

    `sequence` is the time of the claim in ns since 1970, which identifies the claim. In a store that nodes share,
    `machine` distinguishes machines with the same node name (cni.shared.kernel.node.machine_id).
    """

    __slots__ = ("attachment", "boot_id", "machine", "netns", "node", "pod", "sequence")

    def __init__(
        self,
        attachment: Attachment,
        pod: tuple[str, str, str] = ("", "", ""),
        node: str = "",
        boot_id: str = "",
        netns: str = "",
        sequence: int = 0,
        machine: str = "",
    ) -> None:
        self.attachment = attachment
        self.machine = machine
        self.pod = pod
        self.node = node
        self.boot_id = boot_id
        self.netns = netns
        self.sequence = sequence


class Lease(Want):
    """An address and its owner, with the fields of Want and Owner.

    `claimed` is true if an IPAMClaim, which outlives the pod, has the address. `since` is the time at which the
    reservation was made (RFC 3339).
    """

    __slots__ = (
        *("boot_id", "claimed", "container_id", "ifname", "machine", "netns", "network", "node", "pod"),
        *("sequence", "since"),
    )

    def __init__(self, want: Want, owner: Owner) -> None:
        super().__init__(*want.place, want.scope)
        self.network, self.container_id, self.ifname = owner.attachment.key()
        self.pod = owner.pod
        self.node = owner.node
        self.boot_id = owner.boot_id
        self.netns = owner.netns
        self.machine = owner.machine
        self.sequence = owner.sequence
        self.claimed = False
        self.since = ""

    @property
    def owner(self) -> Owner:
        return Owner(self.attachment, self.pod, self.node, self.boot_id, self.netns, self.sequence, self.machine)

    @property
    def attachment(self) -> Attachment:
        return Attachment(self.network, self.container_id, self.ifname)

    @property
    def pod_name(self) -> tuple[str, str]:
        """The pod's namespace and name, whatever its UID."""
        return self.pod[:2]

    @property
    def pod_ref(self) -> str:
        """The pod as namespace/name; "" for a lease without a pod's name."""
        return "/".join(self.pod[:2]) if self.pod[1] else ""

    @property
    def created(self) -> float:
        """The time of the claim, in seconds since 1970."""
        return self.sequence / 1e9

    def key(self) -> tuple[Any, ...]:
        """The identity of the lease. A later claim of the address, even by the same owner, has another key."""
        return (*self.place, self.container_id, self.ifname, self.network, self.sequence)

    @property
    def identity(self) -> tuple[str, tuple[int, int], str, str, tuple[str, str]]:
        """The values by which a lease is recognised when it is read again. Every store keeps them, even an IPPool
        that Go's whereabouts wrote."""
        return self.pool, self.address, self.container_id, self.ifname, self.pod_name

    def is_of_pod(self, owner: Owner) -> bool:
        """Whether the lease is for the ifname and the pod (namespace and name) of `owner`, whatever the pod's UID."""
        return bool(owner.pod[1]) and self.pod_name == owner.pod[:2] and self.ifname == owner.attachment.ifname

    def holder(self) -> str:
        """A description of the owner for messages: pod, container, ifname, network and node."""
        pod = f"pod {self.pod_ref}, " if self.pod_ref else ""
        node = f", node {self.node}" if self.node else ""
        return f"{pod}container {self.container_id}, {self.ifname}, network {self.network}{node}"

    def user(self) -> str:
        """A short description of the owner for messages: the pod, or else the container."""
        return f"pod {self.pod_ref}" if self.pod_ref else f"container {self.container_id or 'unknown'}"


class Pool:
    """A pool that has leases: its name, its family, and the number of leases (`used`)."""

    def __init__(self, name: str, family: int, used: int) -> None:
        self.name = name
        self.family = family
        self.used = used


def given_up(instead_of: Sequence[Lease], wants: Sequence[Want]) -> list[Lease]:
    """The leases in `instead_of` whose address becomes free by a claim of `wants`, since no want excludes them."""
    return [lease for lease in instead_of if not any(want.excludes(lease) for want in wants)]


def by_place(leases: Iterable[Lease]) -> list[Lease]:
    """The leases, sorted by pool and then by address."""
    return sorted(leases, key=lambda lease: lease.place)


def want_from_json(document: Mapping[str, Any], pool: Any, address: Any) -> Want:
    """The Want with the JSON values `pool`, `address` and `document["scope"]`. Raises ValueError or KeyError."""
    scope = document["scope"]
    return Want(as_text(pool), *parse_address(as_text(address)), None if scope is None else as_text(scope))


def owner_from_json(document: Mapping[str, Any], attachment: Attachment) -> Owner:
    """The owner in `document`, which `recorded_document` or `ipam.stores.served.to_json` wrote. Raises ValueError for a
    wrong type, or a missing member other than `machine`."""
    try:
        namespace, name, uid = map(as_text, document["pod"])
        node, boot_id, netns = (as_text(document[key]) for key in ("node", "bootID", "netns"))
        sequence = document["sequence"]
    except (KeyError, TypeError) as fault:
        raise ValueError(f"{fault} is missing or of a wrong type") from None
    if type(sequence) is not int or not 0 <= sequence < _SEQUENCES:
        raise ValueError("sequence is of a wrong type")
    machine = as_text(document.get("machine", ""))
    return Owner(attachment, (namespace, name, uid), node, boot_id, netns, sequence, machine)


def as_text(value: Any) -> str:
    """Return `value`, a str. Raises ValueError for any other type."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is of a wrong type")
    return value


def are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


# --- the IPAM part of a record ---


def recorded_document(store: dict[str, Any], wants: Sequence[Want], owner: Owner, cooldown: int = 0) -> dict[str, Any]:
    """The IPAM part of a record for a claim of `wants` by `owner` in the store with the reference `store`."""
    found: dict[str, Any] = {
        "store": store,
        "netns": owner.netns,
        "node": owner.node,
        "pod": list(owner.pod),
        "sequence": owner.sequence,
        "scope": wants[0].scope if wants else None,
        "pools": [want.pool for want in wants],
        "addresses": [want.text for want in wants],
        "pending": False,
    }
    scopes = [want.scope for want in wants]
    if len(set(scopes)) > 1:
        found["scopes"] = scopes
    if owner.machine:
        found["machine"] = owner.machine
    if cooldown:
        found["cooldown"] = cooldown
    return found


def recorded_cooldown(record: dict[str, Any] | None) -> int:
    """The cooldown in a record, in seconds; 0 if the record has none."""
    found = record.get("cooldown") if record else None
    return found if isinstance(found, int) and 0 < found <= COOLDOWN else 0


def recorded_leases(attachment: Attachment, record: dict[str, Any]) -> list[Lease]:
    """The leases in a record. Raises ValueError when a member is not as `recorded_document` writes it."""
    owner = owner_from_json(record, attachment)
    try:
        scopes = record.get("scopes", [])
        # ipam.upkeep._lease_shared appends addresses, which all have the record's `scope`, to the other two lists alone
        scopes = [*scopes, *[record["scope"]] * (len(record["pools"]) - len(scopes))]
        places = zip(record["pools"], record["addresses"], scopes, strict=True)
        found = [Lease(want_from_json({"scope": scope}, pool, text), owner) for pool, text, scope in places]
        if not isinstance(record["store"], dict):
            raise TypeError("store")
    except (KeyError, TypeError) as fault:
        raise ValueError(f"{fault} is missing or of a wrong type") from None
    return found
