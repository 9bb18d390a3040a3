"""The objects of whereabouts v0.9.4, and the patches that change them. Pure: no I/O, no clock.

IPPool: the allocations of a range, by their offset from the address in spec.range, as a decimal text. An offset of 2^63
or more is read and kept, but never allocated: Go would drop it with its next write.
OverlappingRangeIPReservation: one address that is reserved in a scope, which its name begins with.

The schema has no place for a lease's network, node, boot, netns, uid and sequence: an annotation of the reservation holds
them, and without a reservation the node's record alone. Two annotations of the pool, JSON objects with the oldest member
first, remember freed addresses: the last address of a pod's interface, and the end of each cooldown.

An IPPool is one object, and so one value of etcd, which takes requests of 1.5 MiB (--max-request-bytes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.spec import codec
from cni.shared.spec.request import Attachment
from ipam.leases import COOLDOWN, Lease, Owner, Want, as_text, owner_from_json, returns
from ipam.ranges import BITS, format_address, network_name_of, object_name, parse_address, parse_cidr
from ipam.stores.apiserver.resources import MOVED, MOVING, replacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    Changes = dict[int, dict[str, Any] | None]  # the new allocation of each address, or None

API_VERSION = "whereabouts.cni.cncf.io/v1alpha1"
ANNOTATION = "railcni.io/lease"
NODE_LABEL = "railcni.io/node"
FENCE = "railcni.io/fence"
FORMER, COOLING = "railcni.io/former", "railcni.io/cooling"
MEMORY = 64 << 10  # characters of each: a server takes 256 KiB of annotations
OFFSETS = 1 << 63
LIMIT = 1536 << 10  # bytes
CROWDED = LIMIT * 8 // 10  # bytes, from which on an object remembers no freed addresses
RESERVE = 24 << 10  # bytes that are left to other writers
IN_ADDRESSES = (
    'its addresses are in AddressLeases, and so not in IPPools: want "datastore": "addresslease" (flat file or NAD), or move all ranges by `railcni ipam'
    " migrate --from addresslease:KUBECONFIG --to kubernetes:KUBECONFIG`"
)
_UNTRACKED = {"op": "add", "path": "/metadata/managedFields", "value": [{}]}
"""Drop the managed fields: a patch of 1,000 leases takes the server 31 ms in place of 81, one of 5,000 330 in place of 950,
and the object is a third smaller (v1.36). No tool uses server-side apply on pools."""
_LABEL_SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."


def growth(entries: Iterable[dict[str, Any]]) -> int:
    """The most bytes that the new allocations `entries` add to an object."""
    return sum(64 + sum(map(len, entry.values())) for entry in entries)


def reservation_name(place: Want) -> str:
    """The name of the reservation of an address in its scope."""
    name = object_name(format_address(place.family, place.value))
    if place.scope:
        return f"{place.scope}-{name}"
    return f"0{name}" if name.startswith("-") else name  # ::7, which Go cannot reserve, since no name begins with "-"


def reserved_address(name: str, scope: str) -> tuple[int, int] | None:
    """(family, value) of the address that a reservation of this name keeps in `scope`; None for another scope."""
    if scope and not name.startswith(f"{scope}-"):
        return None
    text = name[len(scope) + 1 :] if scope else name
    try:
        return parse_address(text if "." in text and "-" not in text else text.replace("-", ":"))
    except ValueError:
        return None


class Allocation:
    """One allocation of a pool, at the offset `key`."""

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
        """Whether an IPAMClaim has it, which outlives pods."""
        return "ipamclaimref" in self.document

    @property
    def pod(self) -> tuple[str, str]:
        namespace, _, name = self.text("podref").partition("/")
        return namespace, name

    def is_of(self, lease: Lease) -> bool:
        """Whether the allocation belongs to `lease`. Any ifname matches "": older CRDs of IPPool drop the member."""
        return self.container_id == lease.container_id and self.ifname in ("", lease.ifname)


def is_closed(document: Mapping[str, Any]) -> bool:
    """Whether an IPPool gives no addresses, because they are in AddressLeases."""
    return str((document.get("spec") or {}).get("range")).startswith((MOVED, MOVING))


class Closed(ValueError):
    """The pool gives no addresses, because they are in AddressLeases."""


class IPPool:
    """An IPPool as it was read. `size` is that of its JSON in bytes, as a patch leaves it; `entries` are by address.

    `stray` are the keys of allocations that stand for no address. `scope` and `leases` are empty until `read_leases`.
    """

    __slots__ = (
        *("_spec", "annotations", "entries", "family", "first", "leases", "name"),
        *("scope", "size", "stray", "version"),
    )

    def __init__(self, document: dict[str, Any], size: int) -> None:
        """ValueError when spec.range is no CIDR."""
        metadata = document.get("metadata") or {}
        self.name: str = metadata.get("name") or ""
        self.version: str = metadata.get("resourceVersion") or ""
        self.annotations: dict[str, str] = metadata.get("annotations") or {}
        self.size = size
        if "managedFields" in metadata and size >= CROWDED // 2:
            notes = codec.dumps(metadata["managedFields"])
            self.size -= len(notes) - notes.count(": ") - notes.count(", ")  # the server writes no blanks
        self._spec: dict[str, Any] = document.get("spec") or {}
        cidr = str(self._spec.get("range") or "")
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
        self.scope: str | None = None  # in which its addresses are reserved
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
        """The network's name, with which the pool's name begins: the scope of leases without a record. None for no range.

        `node` is that of a slice's pool, whose name precedes the range.
        """
        try:
            scope = network_name_of(self.name, self.family, self.first)
        except ValueError:
            return None
        if node and f"-{scope}".endswith(f"-{node}"):
            scope = scope.removesuffix(node).removesuffix("-")
        return scope

    def lease(self, entry: Allocation, scope: str | None) -> Lease:
        """The lease that an allocation tells of, in `scope`; neither tells network, node nor sequence."""
        owner = Owner(Attachment("", entry.container_id, entry.ifname), (*entry.pod, ""))
        lease = Lease(Want(self.name, self.family, entry.value, scope), owner)
        lease.claimed = entry.claimed
        return lease

    def read_leases(self, scope: str | None, reservation_of: Callable[[str], Reservation | None]) -> None:
        """Set `scope` and `leases`. `reservation_of` returns the reservation of a name, None if there is none."""
        self.scope, self.leases = scope, []
        for _, entry in sorted(self.entries.items()):
            lease = self.lease(entry, scope)
            found = None if scope is None else reservation_of(reservation_name(lease))
            if found and found.is_of(lease):
                found.tell(lease)
            self.leases.append(lease)

    def former(self) -> dict[str, int]:
        """The last offsets of pods' interfaces, by `interface`."""
        found = self._memory(FORMER)
        return {name: offset for name, offset in found.items() if isinstance(offset, int)}

    def cooling(self, now: int) -> dict[str, list[Any]]:
        """[end, interface] of each cooldown by offset; `now` and the end in seconds since 1970."""
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

    def remembering(self, released: Sequence[Lease]) -> dict[str, str]:
        """The annotation with the former addresses, and those of `released`; {} for nothing new."""
        names = {
            interface(lease.pod, lease.ifname): lease.value - self.first for lease in released if returns(lease.pod)
        }
        former = {name: offset for name, offset in self.former().items() if name not in names}
        return {FORMER: _cut(former | names)} if names else {}

    def cooled(self, given_up: Sequence[Lease], cooldown: int, now: int) -> dict[str, str]:
        """The annotation with the cooldowns, and those of `given_up` for `cooldown` seconds; {} for nothing new."""
        if not (cooldown and given_up):
            return {}
        until = now + cooldown + 1  # the current second does not count
        kept = {str(lease.value - self.first): [until, interface(lease.pod, lease.ifname)] for lease in given_up}
        return {COOLING: _cut({o: k for o, k in self.cooling(now).items() if o not in kept} | kept)}

    def patch(self, changes: Changes, annotations: dict[str, str]) -> list[dict[str, Any]]:
        """The JSON patch of `changes`, an entry or None by address, and of added `annotations`, for the object as read."""
        operations: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": self.version},
            _UNTRACKED,
        ]
        if annotations and not self.annotations:
            operations.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
        elif annotations:
            for name, text in annotations.items():
                path = f"/metadata/annotations/{name.replace('/', '~1')}"
                operations.append({"op": "add", "path": path, "value": text})
        if not isinstance(self._spec.get("allocations"), dict):
            operations.append({"op": "add", "path": "/spec/allocations", "value": {}})
        for value, entry in changes.items():
            former = self.entries.get(value)
            path = f"/spec/allocations/{former.key if former else value - self.first}"
            if entry is not None:
                written = {**former.document, **entry} if former else entry
                operations.append({"op": "add", "path": path, "value": written})
            elif former:
                operations.append({"op": "remove", "path": path})
        return operations

    def apply(self, changes: Changes, version: str, grown: int) -> None:
        """Change as the object does by `patch(changes)`."""
        for value, entry in changes.items():
            former = self.entries.pop(value, None)
            if entry is not None:
                key = former.key if former else str(value - self.first)
                self.entries[value] = Allocation(key, value, {**former.document, **entry} if former else entry)
        self._spec.setdefault("allocations", {})
        self.version = version
        self.size += grown


def allocation(pool: IPPool | None, place: Want) -> Allocation | None:
    """The allocation of the address of `place`; None for none, and where the pool is missing or of the other family."""
    return pool.entries.get(place.value) if pool and pool.family == place.family else None


def interface(pod: tuple[str, str, str], ifname: str) -> str:
    """The name of a pod's interface in an annotation; "" for a pod without a name."""
    return f"{pod[0]}/{pod[1]}/{ifname}" if pod[1] else ""


def _cut(memory: dict[str, Any]) -> str:
    """`memory` as an annotation, without its oldest members when it is too long."""
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
    """A pool for a dry run: the answer shows the members of the server's definition of IPPool."""
    return new_pool("railcni-status", "192.0.2.0/32", {"0": {"id": "status", "podref": "", "ifname": "status"}})


def probed() -> Lease:
    """A lease whose reservation a dry run makes."""
    return Lease(
        Want("192.0.2.0-32", 4, 0xC0000200, ""), Owner(Attachment("railcni", "status", "status"), ("a", "b", ""))
    )


def pruned(kept: dict[str, Any]) -> str:
    """The fault of a definition of IPPool by which the server has made `kept` of `probe()`; "" for none."""
    allocations = (kept.get("spec") or {}).get("allocations") or {}
    if "ifname" in (allocations.get("0") or {"ifname": ""}):
        return ""
    return (
        "the CustomResourceDefinition ippools.whereabouts.cni.cncf.io is too old: it has no ifname, which the server drops"
        " from each lease, so nothing tells the interfaces of a pod apart. Apply conf/kubernetes/crds/ippools.yaml"
    )


def entry_of(owner: Owner) -> dict[str, Any]:
    return {"id": owner.attachment.container_id, "podref": podref(owner.pod), "ifname": owner.attachment.ifname}


def podref(pod: tuple[str, str, str]) -> str:
    return f"{pod[0]}/{pod[1]}" if pod[0] or pod[1] else ""


def reservation(lease: Lease) -> dict[str, Any]:
    """The reservation of the address of `lease`."""
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
    if lease.node and len(lease.node) < 64 and all(c in _LABEL_SIGNS for c in lease.node):
        metadata["labels"] = {NODE_LABEL: lease.node}
    spec = {"podref": podref(lease.pod), "ifname": lease.ifname, "containerid": lease.container_id}
    return {"apiVersion": API_VERSION, "kind": "OverlappingRangeIPReservation", "metadata": metadata, "spec": spec}


class Reservation:
    """A reservation as it was read. `lease` is the lease that it tells of, at the address that its name stands for.

    `address` is None where the name stands for none. `scopes` are those that the name may begin with.
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
        """Find the address in the name: the longest scope that leaves an address counts, else any that does."""
        known = sorted(scopes, key=len, reverse=True)
        split = (self.name[:at] for at, sign in enumerate(self.name) if sign == "-" and at)
        self.address, self.lease.scope = None, ""
        for scope in (*known, *split):
            address = reserved_address(self.name, scope)
            if address:
                self.address, self.lease.scope = address, scope
                self.lease.family, self.lease.value = address
                return

    @property
    def key(self) -> tuple[str | None, tuple[int, int] | None]:
        """The scope and the address that it keeps."""
        return self.lease.scope, self.address

    def is_of(self, lease: Lease) -> bool:
        """Whether it belongs to `lease`, of whatever sequence. Go notes neither container nor pool: the pod decides."""
        own = self.lease
        if own.ifname and lease.ifname and own.ifname != lease.ifname:
            return False
        if own.container_id:
            return own.container_id == lease.container_id and own.pool in ("", lease.pool)
        return bool(lease.pod[1]) and own.pod_name == lease.pod_name

    def tell(self, lease: Lease) -> None:
        """Let `lease`, to which it belongs, have the members that only a reservation tells."""
        own = self.lease
        lease.pod = (*lease.pod_name, own.pod[2])
        lease.network, lease.node, lease.machine = own.network, own.node, own.machine
        lease.netns, lease.boot_id, lease.sequence, lease.since = own.netns, own.boot_id, own.sequence, own.since

    def replacement(self, new: dict[str, Any]) -> list[dict[str, Any]]:
        """The JSON patch that makes it say what `new` says."""
        metadata = new["metadata"]
        members = {"/metadata/annotations": self._annotations | metadata["annotations"], "/spec": new["spec"]}
        if "labels" in metadata:
            members["/metadata/labels"] = self._labels | metadata["labels"]
        return replacement(self.uid, self.version, members)


def _told(spec: Mapping[str, Any], details: Any) -> Lease:
    """The lease that a reservation tells of, but for its address; ValueError or TypeError for `details` of others."""
    known = {"pool": "", "network": "", "node": "", "uid": "", "bootID": "", "netns": "", "sequence": 0, **details}
    namespace, _, name = str(spec.get("podref") or "").partition("/")
    attachment = Attachment(
        as_text(known["network"]), str(spec.get("containerid") or ""), str(spec.get("ifname") or "")
    )
    owner = owner_from_json({**known, "pod": [namespace, name, known["uid"]]}, attachment)
    return Lease(Want(as_text(known["pool"]), 4, 0, ""), owner)
