"""The objects of whereabouts v0.9.4, and the patches that change them. Pure: no I/O, no clock.

An IPPool has the allocations of a range. The key of an allocation is the offset of its address from the address in
spec.range, in decimal digits. An offset of 2^63 or more is read and kept, but never allocated, since whereabouts would
drop it at its next write. An OverlappingRangeIPReservation reserves one address in the scope that begins its name.

The schema has no members for a lease's network, node, boot, netns, uid and sequence. An annotation of the reservation
has them. Without a reservation only the node's record has them. Two annotations of the pool remember freed addresses:
the last address of each pod's interface, and the end of each cooldown. They are JSON objects, the oldest member first.

An IPPool is one value in etcd, which takes requests of at most 1.5 MiB (--max-request-bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from cni.shared.spec import codec
from cni.shared.spec.request import Attachment
from ipam.leases import COOLDOWN, Lease, Owner, Want, as_text, interface_of, owner_from_json, returns
from ipam.ranges import BITS, format_address, network_name_of, object_name, parse_address, parse_cidr
from ipam.stores.apiserver.resources import MOVED, MOVING, POOLS, RESERVATIONS, label, replacement

Changes: TypeAlias = "dict[int, dict[str, Any] | None]"  # the new allocation of each address; None to remove it

API_VERSION = "whereabouts.cni.cncf.io/v1alpha1"
ANNOTATION = "railcni.io/lease"
NODE_LABEL = "railcni.io/node"
FENCE = "railcni.io/fence"
FORMER, COOLING = "railcni.io/former", "railcni.io/cooling"
MEMORY = 64 << 10  # characters of each of these two annotations; an API server takes 256 KiB of annotations
OFFSETS = 1 << 63
LIMIT = 1536 << 10  # bytes
CROWDED = LIMIT * 8 // 10  # bytes; an object of this size or more remembers no freed addresses
RESERVE = 24 << 10  # bytes that are left free for other writers
IN_ADDRESSES = (
    'its addresses are in AddressLeases, and so not in IPPools: want "datastore": "addresslease" (flat file or NAD), or move all ranges by `railcni ipam'
    " migrate --from addresslease:KUBECONFIG --to kubernetes:KUBECONFIG`"
)
_UNTRACKED: dict[str, Any] = {"/metadata/managedFields": [{}]}
"""The change that empties managedFields, since no tool uses server-side apply on pools. A patch then takes the server
31 ms instead of 81 ms with 1,000 leases (v1.36). The object is a third smaller."""


def reservation_name(place: Want) -> str:
    """The name of the object that reserves the address of `place` in its scope."""
    name = object_name(format_address(place.family, place.value))
    if place.scope:
        return f"{place.scope}-{name}"
    return f"0{name}" if name.startswith("-") else name  # ::7: a name cannot begin with "-"


class Allocation:
    """One allocation of a pool. `key` is the offset of the address in the pool, `value` the address."""

    __slots__ = ("container_id", "document", "key", "value")

    def __init__(self, key: str, value: int, document: dict[str, Any]) -> None:
        self.key = key
        self.value = value
        self.document = document
        self.container_id = self.text("id")

    def text(self, name: str) -> str:
        found = self.document.get(name)
        return found if isinstance(found, str) else ""

    @property
    def ifname(self) -> str:
        return self.text("ifname")

    @property
    def claimed(self) -> bool:
        """Whether the allocation belongs to an IPAMClaim, and so outlives the pod."""
        return "ipamclaimref" in self.document

    @property
    def pod(self) -> tuple[str, str]:
        namespace, _, name = self.text("podref").partition("/")
        return namespace, name

    def is_of(self, lease: Lease) -> bool:
        """Whether the allocation belongs to `lease`. An allocation may lack the ifname, since older CRDs drop it."""
        return self.container_id == lease.container_id and self.ifname in ("", lease.ifname)


def range_text(document: Mapping[str, Any]) -> str:
    return str((document.get("spec") or {}).get("range") or "")


def is_closed(document: Mapping[str, Any]) -> bool:
    """Whether an IPPool is closed: it gives no addresses, because the leases of its range are AddressLeases."""
    return range_text(document).startswith((MOVED, MOVING))


class Closed(ValueError):
    """Error: the IPPool is closed, because the leases of its range are AddressLeases."""


class IPPool:
    """An IPPool as it was read. `entries` maps the values of addresses to their allocations.

    `size` is the size of its JSON in bytes without managedFields, which each patch removes. `stray` are the keys of
    allocations at invalid offsets. `read_leases` sets `scope` and `leases`.
    """

    def __init__(self, document: dict[str, Any], size: int, moves: bool = False) -> None:
        """`size` is the size of `document` in bytes. A closed pool is accepted only if `moves` is true, for a
        migration. Raises Closed for a closed pool, ValueError for a wrong spec.range."""
        metadata = document.get("metadata") or {}
        self.name: str = metadata.get("name") or ""
        self.uid: str = metadata.get("uid") or ""
        self.version: str = metadata.get("resourceVersion") or ""
        self.annotations: dict[str, str] = metadata.get("annotations") or {}
        self.size = size
        if "managedFields" in metadata and size >= CROWDED // 2:
            notes = codec.dumps(metadata["managedFields"])
            self.size -= len(notes) - notes.count(": ") - notes.count(", ")  # the server writes no blanks
        self._spec: dict[str, Any] = document.get("spec") or {}
        cidr = range_text(document)
        if moves:
            cidr = cidr.removeprefix(MOVED).removeprefix(MOVING)
        if cidr.startswith(MOVED):
            raise Closed(IN_ADDRESSES)
        if cidr.startswith(MOVING):
            raise Closed(
                "`railcni ipam migrate` moves its leases from AddressLeases to IPPools: run it again, to its end"
            )
        self.family, self.first, prefix = parse_cidr(cidr)
        hosts = BITS[self.family] - prefix
        own = object_name(f"{format_address(self.family, self.first >> hosts << hosts)}/{prefix}")
        if self.name.rpartition("-")[2].isdigit() and not f"-{self.name}".endswith(f"-{own}"):
            raise ValueError(f"{cidr} is not the range at the end of the name")
        self.scope: str | None = None  # the reservation scope of its addresses
        self.leases: list[Lease] = []
        self.stray: list[str] = []
        self.entries: dict[int, Allocation] = {}
        top = (1 << BITS[self.family]) - 1
        for key, entry in (self._spec.get("allocations") or {}).items():
            is_offset = key.isascii() and key.isdigit() and len(key) < 40 and isinstance(entry, dict)
            if is_offset and self.first + int(key) <= top:
                self.entries[self.first + int(key)] = Allocation(key, self.first + int(key), entry)
            else:
                self.stray.append(key)

    def named_scope(self, node: str = "") -> str | None:
        """The scope for leases without a record: the part before the range in the pool's name. None if the name has no
        range. In the name of a node slice's pool, `node` stands between the scope and the range."""
        try:
            scope = network_name_of(self.name, self.family, self.first)
        except ValueError:
            return None
        if node and f"-{scope}".endswith(f"-{node}"):
            scope = scope.removesuffix(node).removesuffix("-")
        return scope

    def lease(self, entry: Allocation, scope: str | None) -> Lease:
        """The lease of an allocation, in `scope`. Network, node and sequence, which an allocation lacks, are empty."""
        owner = Owner(Attachment("", entry.container_id, entry.ifname), (*entry.pod, ""))
        lease = Lease(Want(self.name, self.family, entry.value, scope), owner)
        lease.claimed = entry.claimed
        return lease

    def read_leases(self, scope: str | None, reservation_of: Callable[[str], Reservation | None]) -> None:
        """Set `scope` and `leases`. `reservation_of(name)` returns the reservation `name`, or None."""
        self.scope, self.leases = scope, []
        for _, entry in sorted(self.entries.items()):
            lease = self.lease(entry, scope)
            found = None if scope is None else reservation_of(reservation_name(lease))
            if found and found.is_of(lease):
                found.tell(lease)
            self.leases.append(lease)

    def former(self) -> dict[str, int]:
        """Map each pod's interface, NAMESPACE/NAME/IFNAME, to the offset of its last address."""
        found = self._memory(FORMER)
        return {name: offset for name, offset in found.items() if isinstance(offset, int)}

    def cooling(self, now: int) -> dict[str, list[Any]]:
        """Map the offset of each address in its cooldown to [end of the cooldown, interface of the former pod]. `now`
        and the end are in seconds since 1970."""
        found = self._memory(COOLING)
        return {
            offset: kept
            for offset, kept in found.items()
            if offset.isascii() and offset.isdigit() and len(offset) < 40 and isinstance(kept, list) and len(kept) == 2
            if isinstance(kept[0], int) and 0 < kept[0] - now <= COOLDOWN + 1
        }

    def _memory(self, name: str) -> dict[str, Any]:
        try:
            found = codec.loads(str(self.annotations.get(name) or "{}").encode())
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def memories(self, released: Sequence[Lease], given_up: Sequence[Lease], cooldown: int, now: int) -> dict[str, str]:
        """The annotations to change when pods have freed addresses, at `now` in seconds since 1970.

        The addresses of `released` become the last addresses of their pods. The cooldown of `given_up` begins.
        """
        found: dict[str, str] = {}
        former = {interface_of(x.pod, x.ifname): x.value - self.first for x in released if returns(x.pod)}
        if former:
            found[FORMER] = _cut({name: old for name, old in self.former().items() if name not in former} | former)
        if cooldown and given_up:
            until = now + cooldown + 1  # the current second does not count
            kept = {str(x.value - self.first): [until, interface_of(x.pod, x.ifname)] for x in given_up}
            found[COOLING] = _cut({name: old for name, old in self.cooling(now).items() if name not in kept} | kept)
        return found

    def patch(self, changes: Changes, annotations: dict[str, str]) -> list[dict[str, Any]]:
        """The JSON patch that makes `changes` and sets `annotations`. The patch fails if the object has changed."""
        members: dict[str, Any] = {**_UNTRACKED}
        if annotations and not self.annotations:
            members["/metadata/annotations"] = annotations
        elif annotations:
            for name, text in annotations.items():
                members[f"/metadata/annotations/{name.replace('/', '~1')}"] = text
        if not isinstance(self._spec.get("allocations"), dict):
            members["/spec/allocations"] = {}
        removed = []
        for value, entry in changes.items():
            former = self.entries.get(value)
            path = f"/spec/allocations/{former.key if former else value - self.first}"
            if entry is not None:
                members[path] = {**former.document, **entry} if former else entry
            elif former:
                removed.append({"op": "remove", "path": path})
        return replacement(self.uid, self.version, members) + removed

    def apply(self, changes: Changes, version: str, grown: int) -> None:
        """Apply `changes`, which the server has made. The object now has this `version`, and `grown` more bytes."""
        for value, entry in changes.items():
            former = self.entries.pop(value, None)
            if entry is not None:
                key = former.key if former else str(value - self.first)
                self.entries[value] = Allocation(key, value, {**former.document, **entry} if former else entry)
        self._spec.setdefault("allocations", {})
        self.version = version
        self.size += grown


def allocation(pool: IPPool | None, place: Want) -> Allocation | None:
    """The allocation of the address of `place` in `pool`; None if there is none, or the pool has another family."""
    return pool.entries.get(place.value) if pool and pool.family == place.family else None


def _cut(memory: dict[str, Any]) -> str:
    """`memory` as the text of an annotation, without the oldest members if it would be too long."""
    text = codec.dumps(memory)
    while len(text) > MEMORY:
        for name in list(memory)[: len(memory) // 8 + 1]:
            del memory[name]
        text = codec.dumps(memory)
    return text


def new_pool(name: str, cidr: str, allocations: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "IPPool",
        "metadata": {"name": name},
        "spec": {"range": cidr, "allocations": allocations},
    }


def probe() -> dict[str, Any]:
    """A pool for a dry run: the server's answer shows the members in its CRD of IPPool."""
    return new_pool("railcni-status", "192.0.2.0/32", {"0": {"id": "status", "podref": "", "ifname": "status"}})


def pruned(pool: dict[str, Any], reservation: dict[str, Any]) -> str:
    """The error message if a CRD is too old: the reply to a dry run lacks a member that was sent. Otherwise ""."""
    allocations = (pool.get("spec") or {}).get("allocations") or {}
    if "ifname" not in (allocations.get("0") or {"ifname": ""}):
        kind, lost, why = POOLS, "ifname", "nothing tells the interfaces of a pod apart"
    elif reservation and "containerid" not in (reservation.get("spec") or {}):
        kind, lost, why = RESERVATIONS, "containerid", "nothing tells whose a reservation is"
    else:
        return ""
    return (
        f"the CustomResourceDefinition {kind}.whereabouts.cni.cncf.io is too old: it has no {lost}, which the server drops"
        f" from each object, so {why}. Apply conf/kubernetes/crds/{kind}.yaml"
    )


def entry_of(owner: Owner) -> dict[str, Any]:
    return {"id": owner.attachment.container_id, "podref": podref(owner.pod), "ifname": owner.attachment.ifname}


def podref(pod: tuple[str, str, str]) -> str:
    return f"{pod[0]}/{pod[1]}" if pod[0] or pod[1] else ""


def reservation(lease: Lease) -> dict[str, Any]:
    """The object, as JSON, that reserves the address of `lease`."""
    details = {
        "pool": lease.pool,
        "network": lease.network,
        "node": lease.node,
        "uid": lease.pod[2],
        "bootID": lease.boot_id,
        "netns": lease.netns,
        "sequence": lease.sequence,
        "machine": lease.machine,
    }
    metadata: dict[str, Any] = {"name": reservation_name(lease), "annotations": {ANNOTATION: codec.dumps(details)}}
    if lease.node and label(lease.node) == lease.node:
        metadata["labels"] = {NODE_LABEL: lease.node}
    spec = {"podref": podref(lease.pod), "ifname": lease.ifname, "containerid": lease.container_id}
    return {"apiVersion": API_VERSION, "kind": "OverlappingRangeIPReservation", "metadata": metadata, "spec": spec}


class Reservation:
    """A reservation as it was read. Its annotation, spec and name describe the lease `lease`.

    `address` is None if the name contains no address. `scopes` are the known scopes with which the name may begin.
    """

    __slots__ = ("_annotations", "_labels", "address", "lease", "name", "uid", "version")

    def __init__(self, document: Mapping[str, Any], scopes: Iterable[str] = ("",)) -> None:
        metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
        self._annotations: dict[str, str] = metadata.get("annotations") or {}
        self._labels: dict[str, str] = metadata.get("labels") or {}
        self.name: str = metadata.get("name") or ""
        self.uid: str = metadata.get("uid") or ""
        self.version: str = metadata.get("resourceVersion") or ""
        try:
            self.lease = _told(spec, codec.loads_foreign(str(self._annotations.get(ANNOTATION) or "{}").encode()))
        except (ValueError, TypeError):
            self.lease = _told(spec, {})
        self.lease.since = metadata.get("creationTimestamp") or ""  # RFC 3339, UTC
        self.address: tuple[int, int] | None = None
        self.place(scopes)

    def place(self, scopes: Iterable[str]) -> None:
        """Split the name into scope and address. The scope is the longest of `scopes` before an address. If none of
        `scopes` fits, the name is split at the first "-" before an address."""
        known = sorted(scopes, key=len, reverse=True)
        split = (self.name[:at] for at, sign in enumerate(self.name) if sign == "-" and at)
        self.address, self.lease.scope = None, ""
        for scope in (*known, *split):
            prefix = f"{scope}-" if scope else ""
            text = self.name.removeprefix(prefix)
            if not self.name.startswith(prefix):
                continue
            try:
                self.address = parse_address(text if "." in text and "-" not in text else text.replace("-", ":"))
            except ValueError:
                continue
            self.lease.scope = scope
            self.lease.family, self.lease.value = self.address
            return

    @property
    def key(self) -> tuple[str | None, tuple[int, int] | None]:
        """(scope, address) of the reservation."""
        return self.lease.scope, self.address

    def is_of(self, lease: Lease) -> bool:
        """Whether the reservation names the container of `lease` or, if it names no container, the pod of `lease`."""
        own = self.lease
        if own.ifname and lease.ifname and own.ifname != lease.ifname:
            return False
        if own.container_id:
            return own.container_id == lease.container_id and own.pool in ("", lease.pool)
        return bool(lease.pod[1]) and own.pod_name == lease.pod_name

    def tell(self, lease: Lease) -> None:
        """Copy to `lease`, whose reservation this is, the data that an allocation lacks, such as network and uid."""
        own = self.lease
        lease.pod = (*lease.pod_name, own.pod[2])
        lease.network, lease.node, lease.machine = own.network, own.node, own.machine
        lease.netns, lease.boot_id, lease.sequence, lease.since = own.netns, own.boot_id, own.sequence, own.since

    def replacement(self, new: dict[str, Any]) -> list[dict[str, Any]]:
        """The JSON patch that sets the spec of `new` and adds its metadata. Fails if the object has changed."""
        metadata = new["metadata"]
        members = {"/metadata/annotations": self._annotations | metadata["annotations"], "/spec": new["spec"]}
        if "labels" in metadata:
            members["/metadata/labels"] = self._labels | metadata["labels"]
        return replacement(self.uid, self.version, members)


def _told(spec: Mapping[str, Any], details: Any) -> Lease:
    """The lease that a reservation describes, without its address. Raises ValueError or TypeError for bad `details`."""
    known = {"pool": "", "network": "", "node": "", "uid": "", "bootID": "", "netns": "", "sequence": 0, **details}
    namespace, _, name = str(spec.get("podref") or "").partition("/")
    attachment = Attachment(
        as_text(known["network"]), str(spec.get("containerid") or ""), str(spec.get("ifname") or "")
    )
    owner = owner_from_json({**known, "pod": [namespace, name, known["uid"]]}, attachment)
    return Lease(Want(as_text(known["pool"]), 4, 0, ""), owner)
