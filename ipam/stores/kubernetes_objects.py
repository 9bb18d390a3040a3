"""The objects of whereabouts as they stand in a cluster, and the patches that change them. Pure: no I/O, no clock.

IPPool: the allocations of a range, by their offset from the address that stands in spec.range, as a decimal text. An
offset of 2^63 and more is read and kept, but not allocated: Go would drop it with its next write.
OverlappingRangeIPReservation: one address that is reserved in a scope, which is in its name.

What the schema of whereabouts v0.9.4 has no place for is in annotations of the reservation; where there is none, in the
record of the node alone. What is remembered of freed addresses is in two annotations of the pool, each a JSON object with
the oldest first: which address a pod's interface had last, and until when which address is kept for whom.
"""

from __future__ import annotations

from cni.spec import codec
from cni.spec.request import Attachment
from ipam.ranges import BITS, format_address, parse_address, parse_cidr
from ipam.stores import kubernetes_size as sizes
from ipam.stores.base import COOLDOWN, Lease, Owner, Want, returns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

API_VERSION = "whereabouts.cni.cncf.io/v1alpha1"
ANNOTATION = "railcni.io/lease"
NODE_LABEL = "railcni.io/node"
FENCE = "railcni.io/fence"
MOVED = "moved to addressleases.railcni.io: "  # before the range of a pool that gives no address any more
FORMER, COOLING = "railcni.io/former", "railcni.io/cooling"
MEMORY = 64 << 10  # characters of either: a server takes 256 KiB of annotations
OFFSETS = 1 << 63
_UNTRACKED = {"op": "add", "path": "/metadata/managedFields", "value": [{}]}
"""Forget who wrote which member, and note it no more: the server does so until somebody uses server-side apply.

In a pool with 1,000 leases a patch takes it 81 ms with the notes and 31 without, in one with 5,000 950 and 330, and the
object is a third smaller (v1.36). Nobody applies pools.
"""
_LABEL_SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."


def range_of(pool: str, family: int, value: int) -> str:
    """The CIDR that the name of a pool ends in, which holds the address; ValueError when it ends in none."""
    length = pool.rpartition("-")[2]
    if length.isascii() and length.isdigit() and len(length) < 4 and int(length) <= BITS[family]:
        cidr = f"{format_address(family, value >> (host := BITS[family] - int(length)) << host)}/{int(length)}"
        if f"-{pool}".endswith("-" + object_name(cidr)):
            return cidr
    raise ValueError


def object_name(text: str) -> str:
    """`text`, an address or a CIDR, as Go whereabouts writes it into a name."""
    return (text + "0" if text.endswith(":") else text).replace(":", "-").replace("/", "-")


def reservation_name(scope: str, family: int, value: int) -> str:
    name = object_name(format_address(family, value))
    if scope:
        return f"{scope}-{name}"
    return f"0{name}" if name.startswith("-") else name  # ::7, which Go cannot reserve: no name begins with "-"


def reserved_address(name: str, scope: str) -> tuple[int, int] | None:
    """(family, value) of the address that a reservation of this name keeps in `scope`; None when it is of another."""
    if scope and not name.startswith(f"{scope}-"):
        return None
    text = name[len(scope) + 1 :] if scope else name
    try:
        return parse_address(text if "." in text and "-" not in text else text.replace("-", ":"))
    except ValueError:
        return None


class Entry:
    """One allocation: what stands at the offset `key` of a pool."""

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
    def pod(self) -> tuple[str, str]:
        namespace, _, name = self.text("podref").partition("/")
        return namespace, name

    def is_of(self, lease: Lease) -> bool:
        """Whether it belongs to `lease`. An older definition of IPPool has no ifname, and the server drops it."""
        return self.container_id == lease.container_id and self.ifname in ("", lease.ifname)


class PoolObject:
    """An IPPool as it was read. `size` is that of its JSON in bytes, as a patch leaves it; `entries` are by address."""

    __slots__ = ("_spec", "annotations", "entries", "family", "first", "name", "size", "version")

    def __init__(self, document: dict[str, Any], size: int) -> None:
        """ValueError when spec.range is no CIDR."""
        metadata = document.get("metadata") or {}
        self.name: str = metadata.get("name") or ""
        self.version: str = metadata.get("resourceVersion") or ""
        self.annotations: dict[str, str] = metadata.get("annotations") or {}
        self.size = size
        if "managedFields" in metadata and sizes.percent(size) >= sizes.WARN_PERCENT // 2:
            notes = codec.dumps(metadata["managedFields"])
            self.size -= len(notes) - notes.count(": ") - notes.count(", ")  # the server writes no blanks
        self._spec: dict[str, Any] = document.get("spec") or {}
        cidr = str(self._spec.get("range") or "")
        if cidr.startswith(MOVED):
            raise ValueError(
                'its leases have moved to AddressLeases: want "datastore": "addresslease" in this node\'s flat file, or the'
                " way back by `railcni ipam migrate`"
            )
        self.family, self.first, _ = parse_cidr(cidr)
        self.entries: dict[int, Entry] = {}
        top = (1 << BITS[self.family]) - 1
        for key, entry in (self._spec.get("allocations") or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 40 and isinstance(entry, dict)):
                continue  # a stray key: kept, and no address
            value = self.first + int(key)
            if value <= top:
                self.entries[value] = Entry(key, value, entry)

    @property
    def has_allocations(self) -> bool:
        return isinstance(self._spec.get("allocations"), dict)

    def can_hold(self, value: int) -> bool:
        """Whether the address has an offset that Go can write."""
        return 0 <= value - self.first < OFFSETS

    def former(self) -> dict[str, int]:
        """The offsets that interfaces of pods had last, by their names as `interface` has them."""
        found = self._memory(FORMER)
        return {name: offset for name, offset in found.items() if isinstance(offset, int)}

    def cooling(self, now: int) -> dict[str, list[Any]]:
        """[until when, whose interface], by the offsets that are kept for it; `now` and the time in seconds since 1970."""
        found = self._memory(COOLING)
        return {
            offset: kept
            for offset, kept in found.items()
            if offset.isascii() and offset.isdigit() and isinstance(kept, list) and len(kept) == 2
            if isinstance(kept[0], int) and 0 < kept[0] - now <= COOLDOWN + 1
        }

    def _memory(self, name: str) -> dict[str, Any]:
        try:
            found = codec.loads(str(self.annotations.get(name) or "{}").encode())
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def remembering(self, released: Sequence[Lease]) -> dict[str, str]:
        """The annotation that remembers whose the addresses were, besides what is remembered already; {} for nothing new."""
        names = {
            interface(lease.pod, lease.ifname): lease.value - self.first for lease in released if returns(lease.pod)
        }
        former = {name: offset for name, offset in self.former().items() if name not in names}
        return {FORMER: _cut(former | names)} if names else {}

    def cooled(self, given_up: Sequence[Lease], cooldown: int, now: int) -> dict[str, str]:
        """The annotation that keeps the addresses from others for `cooldown` seconds, besides those that it keeps."""
        if not (cooldown and given_up):
            return {}
        until = now + cooldown + 1  # the second that has begun does not count
        kept = {str(lease.value - self.first): [until, interface(lease.pod, lease.ifname)] for lease in given_up}
        return {COOLING: _cut({o: k for o, k in self.cooling(now).items() if o not in kept} | kept)}

    def patch(
        self, changes: dict[int, dict[str, Any] | None], annotations: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """The JSON patch that puts `changes`, an entry or None for each address, into the object as it was read.

        And `annotations`, to those that it has.
        """
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
        if not self.has_allocations:
            operations.append({"op": "add", "path": "/spec/allocations", "value": {}})
        for value, entry in changes.items():
            former = self.entries.get(value)
            path = f"/spec/allocations/{former.key if former else value - self.first}"
            if former is None:
                if entry is not None:
                    operations.append({"op": "test", "path": path, "value": None})
                    operations.append({"op": "add", "path": path, "value": entry})
                continue
            operations.append({"op": "test", "path": f"{path}/id", "value": former.document.get("id")})
            if entry is None:
                operations.append({"op": "remove", "path": path})
            else:
                operations.append({"op": "replace", "path": path, "value": {**former.document, **entry}})
        return operations

    def apply(self, changes: dict[int, dict[str, Any] | None], version: str, grown: int) -> None:
        """Be what the object is after `patch(changes)`."""
        for value, entry in changes.items():
            former = self.entries.pop(value, None)
            if entry is not None:
                key = former.key if former else str(value - self.first)
                self.entries[value] = Entry(key, value, {**former.document, **entry} if former else entry)
        self._spec.setdefault("allocations", {})
        self.version = version
        self.size += grown


def interface(pod: tuple[str, str, str], ifname: str) -> str:
    """How an annotation names an interface of a pod; "" for a pod without a name."""
    return f"{pod[0]}/{pod[1]}/{ifname}" if pod[1] else ""


def _cut(memory: dict[str, Any]) -> str:
    """`memory` as an annotation, without the oldest of it when it would be too long."""
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
    """A pool that is never kept: what the server makes of it tells which members its definition of IPPool has."""
    return new_pool("railcni-status", "192.0.2.0/32", {"0": {"id": "status", "podref": "", "ifname": "status"}})


def pruned(kept: dict[str, Any]) -> str:
    """What is wrong with the definition of IPPool whose server has made `kept` of `probe()`; "" for nothing."""
    allocations = (kept.get("spec") or {}).get("allocations") or {}
    if "ifname" in (allocations.get("0") or {"ifname": ""}):
        return ""
    return (
        "the CustomResourceDefinition ippools.whereabouts.cni.cncf.io is too old: it has no ifname, which the server drops"
        " from each lease, so nothing tells the interfaces of a pod apart. Apply conf/kubernetes/crds/ippools.yaml"
    )


def entry_of(owner: Owner) -> dict[str, Any]:
    """What an allocation of `owner` says."""
    return {"id": owner.attachment.container_id, "podref": podref(owner.pod), "ifname": owner.attachment.ifname}


def podref(pod: tuple[str, str, str]) -> str:
    return f"{pod[0]}/{pod[1]}" if pod[0] or pod[1] else ""


def reservation(name: str, lease: Lease) -> dict[str, Any]:
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
    metadata: dict[str, Any] = {"name": name, "annotations": {ANNOTATION: codec.dumps(details)}}
    if lease.node and len(lease.node) < 64 and all(c in _LABEL_SIGNS for c in lease.node):
        metadata["labels"] = {NODE_LABEL: lease.node}
    spec = {"podref": podref(lease.pod), "ifname": lease.ifname, "containerid": lease.container_id}
    return {"apiVersion": API_VERSION, "kind": "OverlappingRangeIPReservation", "metadata": metadata, "spec": spec}


class Reservation:
    """A reservation as it was read."""

    __slots__ = ("_annotations", "_details", "_labels", "_spec", "created", "uid", "version")

    def __init__(self, document: dict[str, Any]) -> None:
        metadata = document.get("metadata") or {}
        self._annotations: dict[str, str] = metadata.get("annotations") or {}
        self._labels: dict[str, str] = metadata.get("labels") or {}
        self.created: str = metadata.get("creationTimestamp") or ""  # RFC 3339, UTC
        self.uid: str = metadata.get("uid") or ""
        self.version: str = metadata.get("resourceVersion") or ""
        self._spec: dict[str, Any] = document.get("spec") or {}
        self._details: dict[str, Any] = {}
        try:
            details = codec.loads(str(self._annotations.get(ANNOTATION) or "{}").encode())
        except ValueError:
            details = None
        if isinstance(details, dict):
            self._details = details

    def is_of(self, lease: Lease) -> bool:
        """Whether it belongs to `lease`, of whatever sequence. Go notes neither container nor pool: the pod decides."""
        if self._spec.get("ifname", lease.ifname) != lease.ifname:
            return False
        container = self._spec.get("containerid")
        if not container:
            return bool(lease.pod[1]) and self._spec.get("podref") == podref(lease.pod)
        return bool(container == lease.container_id and self._details.get("pool", lease.pool) == lease.pool)

    @property
    def pool(self) -> str:
        """The pool whose allocation it belongs to; "" when it does not tell (Go's)."""
        return self._text("pool")

    def lease(self, want: Want) -> Lease:
        """The lease that it tells of, at the address of `want`; "" and 0 for what it does not tell."""
        text = {key: self._text(key) for key in ("pool", "network", "node", "uid", "bootID", "netns", "machine")}
        namespace, _, name = str(self._spec.get("podref") or "").partition("/")
        sequence = self._details.get("sequence")
        owner = Owner(
            Attachment(text["network"], str(self._spec.get("containerid") or ""), str(self._spec.get("ifname") or "")),
            (namespace, name, text["uid"]),
            text["node"],
            text["bootID"],
            text["netns"],
            sequence if isinstance(sequence, int) and 0 <= sequence < OFFSETS else 0,
            text["machine"],
        )
        return Lease(Want(text["pool"], want.family, want.value, want.scope), owner)

    def replacement(self, new: dict[str, Any]) -> list[dict[str, Any]]:
        """The JSON patch that makes it say what `new` says."""
        metadata = new["metadata"]
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": self.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": self.version},
            {"op": "add", "path": "/metadata/annotations", "value": self._annotations | metadata["annotations"]},
            {"op": "add", "path": "/spec", "value": new["spec"]},
        ]
        if "labels" in metadata:
            operations.append({"op": "add", "path": "/metadata/labels", "value": self._labels | metadata["labels"]})
        return operations

    def _text(self, key: str) -> str:
        found = self._details.get(key)
        return found if isinstance(found, str) else ""
