"""Where the etcd store keeps what: its keys, and the document of a lease. Pure.

Under PREFIX/v1/, with "%" and "/" of a name written as %25 and %2F, and addresses as 8 or 32 hexadecimal digits, so
that the order of keys is that of addresses:

    lease/POOL/ADDRESS                                              the lease, JSON
    reserved/SCOPE/ADDRESS                                          the pool whose lease reserves it
    attachment/NETWORK/CONTAINERID/IFNAME/POOL/ADDRESS/SEQUENCE     the lease once more, found by its attachment
    pod/NAMESPACE/NAME/IFNAME/POOL/ADDRESS                          nothing: the lease is found by its pod,
    node/NODE/POOL/ADDRESS                                          and by its node
    full/KIND/SPACE/SIZE/ADDRESS                                    nothing: SIZE addresses from there on are all taken,
                                                                    of a pool (KIND lease) or a scope (reserved)
    void/NETWORK/CONTAINERID/IFNAME/SEQUENCE                        nothing: claims up to this sequence come too late
    former/NAMESPACE/NAME/IFNAME/POOL                               the address that a pod had there last
    cooling/KIND/SPACE/ADDRESS                                      the pod that had the address, as NAMESPACE/NAME/IFNAME;
                                                                    it goes when the address may be given again

The first five come and go together. The key below attachment/ has all in it that makes a lease this one, so whether it
is there decides whether a lease is still as it was read.
"""

from __future__ import annotations

from cni.spec import codec
from cni.spec.errors import InvalidConfig, StateDamaged
from cni.spec.request import Attachment
from ipam.ranges import format_address, parse_address
from ipam.stores.base import Lease, Owner, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

BLOCK, LARGE = 64, 4096  # addresses; LARGE is 64 blocks, for one transaction compares no more than 128 keys
LEASE, RESERVED = "lease", "reserved"


class Keys:
    """The keys under one prefix. InvalidConfig for a name that cannot be in a key."""

    __slots__ = ("_root",)

    def __init__(self, prefix: str) -> None:
        self._root = f"{prefix.rstrip('/')}/v1/"

    @property
    def root(self) -> bytes:
        """What all keys begin with."""
        return self._root.encode()

    def taken(self, kind: str, space: str, family: int, value: int) -> bytes:
        """The key that stands for an address of a pool (`kind` LEASE) or of a scope (RESERVED)."""
        return self._key(kind, space) + place_of(family, value)

    def all(self, kind: str, *names: str) -> bytes:
        """What the keys of this kind, with these names next, begin with."""
        return self._key(kind, *names)

    def full(self, kind: str, space: str, size: int, family: int, value: int) -> bytes:
        return self._key("full", kind, space, str(size)) + place_of(family, value)

    def void(self, attachment: Attachment, sequence: int) -> bytes:
        return self._key("void", *attachment.key()) + b"%016x" % sequence

    def identity(self, lease: Lease) -> bytes:
        """The key below attachment/ of `lease`."""
        place = place_of(lease.family, lease.value).decode()
        names = (lease.network, lease.container_id, lease.ifname, lease.pool, place)
        return self._key("attachment", *names) + b"%016x" % lease.sequence

    def places(self, want: Want | Lease) -> list[tuple[str, str]]:
        """(kind, space) of each key that only one lease can have."""
        reserved = [] if want.scope is None else [(RESERVED, want.scope)]
        return [(LEASE, want.pool), *reserved]

    def unique(self, want: Want | Lease) -> list[bytes]:
        """The keys that only one lease can have."""
        return [self.taken(kind, space, want.family, want.value) for kind, space in self.places(want)]

    def entries(self, lease: Lease) -> dict[bytes, bytes]:
        """All that stands for `lease`."""
        place = place_of(lease.family, lease.value)
        written = _document(lease)
        found = {self._key(LEASE, lease.pool) + place: written, self.identity(lease): written}
        if lease.scope is not None:
            found[self._key(RESERVED, lease.scope) + place] = lease.pool.encode()
        if lease.pod[1]:
            found[self._key("pod", *lease.pod[:2], lease.ifname, lease.pool) + place] = b""
        found[self._key("node", lease.node, lease.pool) + place] = b""
        return found

    def marks(self, lease: Lease, kept: Collection[bytes] = ()) -> list[bytes]:
        """The marks "full" that must go when `lease` does, those aside whose key is among `kept`."""
        return [
            self.full(kind, space, size, lease.family, lease.value & -size)
            for kind, space in self.places(lease)
            if self.taken(kind, space, lease.family, lease.value) not in kept
            for size in (BLOCK, LARGE)
        ]

    def former(self, lease: Lease) -> bytes:
        """The key that remembers which address the pod of `lease` had in its pool."""
        return self._key("former", *lease.pod[:2], lease.ifname, lease.pool)[:-1]

    def cooling(self, kind: str, space: str, family: int, value: int) -> bytes:
        """The key that stands for an address of a pool or scope while it is given to no other pod."""
        return self._key("cooling", kind, space) + place_of(family, value)

    def _key(self, *names: str) -> bytes:
        try:
            return (self._root + "".join(f"{_escaped(name)}/" for name in names)).encode()
        except UnicodeError:
            raise InvalidConfig(f"{names!r:.100} cannot be kept in etcd: it is no text; want another name") from None


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which ends with "/"."""
    return prefix[:-1] + b"0"


def next_key(key: bytes) -> bytes:
    """The first key behind `key`."""
    return key + b"\0"


def last_name(key: bytes) -> str:
    """The last name in a key."""
    return key.rpartition(b"/")[2].decode()


def unescaped(name: bytes) -> str:
    """A name as it was before it was put into a key."""
    return name.decode().replace("%2F", "/").replace("%25", "%")


def value_of(key: bytes) -> int:
    """The address that a key ends with."""
    return int(last_name(key), 16)


def pod_of(pod: tuple[str, str, str], ifname: str) -> bytes:
    """How a pod and one of its interfaces are named in a value; b"" for a pod without a name."""
    return f"{pod[0]}/{pod[1]}/{ifname}".encode() if pod[1] else b""


def address_of(place: bytes) -> tuple[int, int]:
    """(family, value) of an address as keys end with; ValueError."""
    return (4 if len(place) == 8 else 6), int(place, 16)


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F") if "/" in name or "%" in name else name


def place_of(family: int, value: int) -> bytes:
    """An address as keys end with it."""
    return b"%08x" % value if family == 4 else b"%032x" % value


def _document(lease: Lease) -> bytes:
    machine = {"machine": lease.machine} if lease.machine else {}
    return codec.dumps(
        {
            "pool": lease.pool,
            "address": format_address(lease.family, lease.value),
            "scope": lease.scope,
            "network": lease.network,
            "containerID": lease.container_id,
            "ifname": lease.ifname,
            "pod": list(lease.pod),
            "node": lease.node,
            "bootID": lease.boot_id,
            "netns": lease.netns,
            "sequence": lease.sequence,
            **machine,
        }
    ).encode()


def parse(key: bytes, value: bytes) -> Lease:
    """The lease that `value` tells of; StateDamaged names the key when it does not."""
    try:
        d = codec.loads(value)
        names = ("pool", "address", "network", "containerID", "ifname", "node", "bootID", "netns")
        pool, address, network, container, ifname, node, boot_id, netns = (d[name] for name in names)
        namespace, pod, uid = d["pod"]
        scope, sequence, machine = d["scope"], d["sequence"], d.get("machine", "")
        texts = (
            pool,
            address,
            network,
            container,
            ifname,
            node,
            boot_id,
            netns,
            namespace,
            pod,
            uid,
            scope or "",
            machine,
        )
        if not all(isinstance(text, str) for text in texts) or type(sequence) is not int:
            raise ValueError
        want = Want(pool, *parse_address(address), scope)
    except (ValueError, KeyError, TypeError):
        name = key.decode("utf-8", "replace")
        raise StateDamaged(
            f"etcd key {name} does not hold a lease of railcni: find out who wrote it; remove it with `etcdctl del {name}`"
            " when nothing uses the address",
            f"its value begins with {value[:200]!r}",
        ) from None
    attachment = Attachment(network, container, ifname)
    owner = Owner(attachment, (namespace, pod, uid), node, boot_id, netns, sequence, machine)
    return Lease(want, owner)
