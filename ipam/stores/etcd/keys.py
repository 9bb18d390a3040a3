"""The keys of the etcd store and their values. Pure.

The keys below PREFIX/v1/. In a name "%" and "/" are written as %25 and %2F. An address is 8 or 32 hexadecimal digits,
so keys and addresses have the same order.

    lease/POOL/ADDRESS                                           the lease, JSON
    reserved/SCOPE/ADDRESS                                       the pool whose lease reserves the address
    attachment/NETWORK/CONTAINERID/IFNAME/POOL/ADDRESS/SEQUENCE  the lease once more, found by its attachment
    pod/NAMESPACE/NAME/IFNAME/POOL/ADDRESS                       empty: finds the leases of a pod
    node/NODE/POOL/ADDRESS                                       empty: finds the leases of a node
    void/NETWORK/CONTAINERID/IFNAME/SEQUENCE                     empty: claims up to this sequence fail
    former/NAMESPACE/NAME/IFNAME/POOL                            the last address of a pod's interface in the pool
    cooling/KIND/SPACE/ADDRESS                                   the former pod of the address, NAMESPACE/NAME/IFNAME
    full/KIND/SPACE/SIZE/ADDRESS                                 unread: earlier versions marked full blocks

The space of a cooling/ key is a pool (KIND lease) or a scope (KIND reserved). etcd deletes the key after the cooldown.

The keys of the first five lines are created and deleted together. The key below attachment/ has the whole identity of
a lease: while the key exists, the lease is unchanged.
"""

from __future__ import annotations

from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig, StateDamaged
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Want
from ipam.stores.served import from_json, to_json

BLOCK = 64  # addresses that a search reads at once
LEASE, RESERVED = "lease", "reserved"
_DIGITS = {4: 8, 6: 32}  # hexadecimal digits of an address, by family
_HEX = b"0123456789abcdef"  # int() also accepts "0x1", "0_1" and "A"


class Keys:
    """The keys under one prefix. The methods raise InvalidConfig for a name that is not UTF-8."""

    def __init__(self, prefix: str) -> None:
        self.root = f"{prefix.rstrip('/')}/v1/".encode()  # the prefix of all keys

    def taken(self, kind: str, space: str, family: int, value: int) -> bytes:
        """The key of an address in a pool (`kind` LEASE) or a scope (`kind` RESERVED) with the name `space`."""
        return self.all(kind, space) + place_of(family, value)

    def all(self, *names: str) -> bytes:
        """The prefix of all keys that begin with `names`; the first name is the kind of the keys."""
        try:
            escaped = (name.replace("%", "%25").replace("/", "%2F") for name in names)
            return self.root + "".join(f"{name}/" for name in escaped).encode()
        except UnicodeError:
            raise InvalidConfig(f"{names!r:.100} cannot be kept in etcd: it is not UTF-8; want another name") from None

    def span(self, family: int, low: int, high: int, *names: str) -> tuple[bytes, bytes]:
        """(first key, end) of the keys with these names and an address in low..high; the end is excluded."""
        prefix = self.all(*names)
        return prefix + place_of(family, low), next_key(prefix + place_of(family, high))

    def void(self, attachment: Attachment, sequence: int) -> bytes:
        return self.all("void", *attachment.key()) + b"%016x" % sequence

    def identity(self, lease: Lease) -> bytes:
        """The key of `lease` below attachment/, which contains all of the lease's identity."""
        place = place_of(lease.family, lease.value).decode()
        names = (lease.network, lease.container_id, lease.ifname, lease.pool, place)
        return self.all("attachment", *names) + b"%016x" % lease.sequence

    def places(self, want: Want) -> list[tuple[str, str]]:
        """(kind, name) of the pool, and of the scope if any, in which the address of `want` must be unique."""
        reserved = [] if want.scope is None else [(RESERVED, want.scope)]
        return [(LEASE, want.pool), *reserved]

    def unique(self, want: Want) -> list[bytes]:
        """The keys of the address of `want`, in its pool and in its scope. Each key can belong to only one lease."""
        return [self.taken(kind, space, want.family, want.value) for kind, space in self.places(want)]

    def entries(self, lease: Lease) -> dict[bytes, bytes]:
        """{key: value} of `lease`: lease/, attachment/ and node/; reserved/ if it has a scope; pod/ if it has a pod."""
        place = place_of(lease.family, lease.value)
        written = codec.dumps(to_json(lease)).encode()
        found = {self.all(LEASE, lease.pool) + place: written, self.identity(lease): written}
        if lease.scope is not None:
            found[self.all(RESERVED, lease.scope) + place] = lease.pool.encode()
        if lease.pod[1]:
            found[self.all("pod", *lease.pod[:2], lease.ifname, lease.pool) + place] = b""
        found[self.all("node", lease.node, lease.pool) + place] = b""
        return found

    def read(self, key: bytes, value: bytes) -> Lease:
        """The lease in `value`, with the pool and the address in `key`. Raises StateDamaged if there is no lease."""
        kind, _, rest = key.removeprefix(self.root).partition(b"/")
        *names, place = rest.split(b"/")
        try:
            lease = from_json(codec.loads_foreign(value))
            if kind == b"attachment":
                if place.strip(_HEX):
                    raise ValueError
                lease.sequence = int(place, 16)
                *names, place = names
                lease.network, lease.container_id, lease.ifname, lease.pool = map(unescaped, names)
            else:
                (lease.pool,) = map(unescaped, names)
            lease.family = family_of(place)
            lease.value = value_of(place, lease.family)
        except (ValueError, TypeError, StateDamaged):
            raise _foreign(key, "does not hold a lease of railcni", f"its value begins with {value[:200]!r}") from None
        return lease


def end_of(prefix: bytes) -> bytes:
    """The end of the keys that begin with `prefix`: the first key after them. `prefix` ends with "/"."""
    return prefix[:-1] + b"0"


def next_key(key: bytes) -> bytes:
    """The first key after `key`."""
    return key + b"\0"


def unescaped(name: bytes) -> str:
    """The name whose escaped form in a key is `name`."""
    try:
        return name.decode().replace("%2F", "/").replace("%25", "%")
    except UnicodeDecodeError:
        raise _foreign(name, "is no UTF-8") from None


def family_of(key: bytes) -> int:
    """The family, 4 or 6, of the address at the end of a key, by the number of digits."""
    return 4 if len(key.rpartition(b"/")[2]) == _DIGITS[4] else 6


def value_of(key: bytes, family: int) -> int:
    """The address at the end of a key, as an integer. Raises StateDamaged if there is none of this family."""
    place = key.rpartition(b"/")[2]
    if len(place) != _DIGITS[family] or place.strip(_HEX):
        raise _foreign(key, "does not end with an address")
    return int(place, 16)


def sequence_of(key: bytes) -> int:
    """The sequence at the end of a void/ key. Raises StateDamaged if there is none."""
    text = key.rpartition(b"/")[2]
    if len(text) != 16 or text.strip(_HEX):
        raise _foreign(key, "does not end with a sequence")
    return int(text, 16)


def address_of(place: bytes) -> list[tuple[int, int]]:
    """[(family, value)] of `place`, the value of a former/ key; [] if damaged, since the value is only a preference."""
    family = family_of(place)
    try:
        return [(family, value_of(place, family))]
    except StateDamaged:
        return []


def place_of(family: int, value: int) -> bytes:
    """An address as it stands at the end of a key: 8 or 32 hexadecimal digits."""
    return b"%08x" % value if family == 4 else b"%032x" % value


def shown(key: bytes) -> str:
    """A key as text, quoted for a shell command."""
    text = key.decode("ascii", "replace")
    if all(sign.isalnum() or sign in "/%-_.,:=+@" for sign in text):
        return text
    quoted = repr(key + b'"')[2:-2]  # the added double quote makes repr use single quotes, as bash's $'…' needs
    return f"$'{quoted}'"


def _foreign(key: bytes, fault: str, details: str = "") -> StateDamaged:
    name = shown(key)
    return StateDamaged(
        f"etcd key {name} {fault}: find out who wrote it; remove it with `etcdctl del {name}` when nothing uses the address",
        details,
    )
