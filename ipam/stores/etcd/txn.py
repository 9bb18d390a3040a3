"""etcd's transactions as messages of its gRPC service (etcd, api/etcdserverpb/rpc.proto). Pure.

An operation is a put, a deletion, a read or an inner transaction; a comparison tests whether keys exist.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Op = bytes
    Entry = tuple[bytes, bytes]  # key, value

CHUNK = 32  # operations in one inner transaction
_RANGE, _PUT, _DELETE, _TXN = 1, 2, 3, 4  # fields of an operation, and of its answer
_IS_CREATED, _IS_GREATER = b"\x10\x01", b"\x08\x01"  # a comparison with the revision 0 of a key's creation


def put(key: bytes, value: bytes, lease: int = 0) -> Op:
    """`lease` is the ID of the etcd lease that the key ends with."""
    return field(_PUT, field(1, key) + field(2, value) + (b"\x18" + varint(lease) if lease else b""))


def delete(key: bytes) -> Op:
    return field(_DELETE, field(1, key))


def read(key: bytes, end: bytes = b"", limit: int = 0, keys_only: bool = False, oldest: bool = False) -> Op:
    """The entry of `key`; with `end` those from `key` up to it, excluded, in order, `limit` at most (0: all).

    `oldest`: those come first that were written first.
    """
    request = field(1, key)
    if end:
        request += field(2, end)
    if limit:
        request += b"\x18" + varint(limit)
    if oldest:
        request += b"\x28\x01\x30\x03"  # ascending, by the last change
    if keys_only:
        request += b"\x40\x01"
    return field(_RANGE, request)


def count(key: bytes, end: bytes) -> Op:
    """How many keys there are from `key` up to `end`, excluded."""
    return field(_RANGE, field(1, key) + field(2, end) + b"\x48\x01")


def exists(key: bytes) -> Op:
    return _IS_GREATER + _IS_CREATED + field(3, key)


def absent(key: bytes, end: bytes = b"") -> Op:
    """No key; with `end` no key from `key` up to it, excluded."""
    return _IS_CREATED + field(3, key) + (field(64, end) if end else b"")


def transaction(compare: Sequence[Op], then: Iterable[Op], otherwise: Iterable[Op] = ()) -> bytes:
    """All of `then` when all of `compare` holds, else all of `otherwise`."""
    return _joined(1, compare) + _joined(2, _packed(list(then))) + _joined(3, _packed(list(otherwise)))


def reads(ops: Sequence[Op]) -> bytes:
    """The answers of all `ops`, of one moment; etcd logs no reading that has no inner transaction."""
    return _joined(2, ops)


def within(inner: bytes) -> Op:
    """A transaction as an operation of another."""
    return field(_TXN, inner)


def _packed(ops: list[Op]) -> list[Op]:
    """`ops`, most of many in inner transactions: etcd limits the operations along one path, not their total.

    The first stays outside: etcd's quota does not count inner ones (server/etcdserver, costTxn).
    """
    if len(ops) <= CHUNK or ops[0][0] >> 3 == _TXN:
        return ops
    return [ops[0], *(within(_joined(2, ops[i : i + CHUNK])) for i in range(1, len(ops), CHUNK))]


def answers(reply: bytes) -> list[bytes]:
    """The answer of each operation, also of those in inner transactions."""
    found: list[bytes] = []
    for response in _repeated(reply, 3):
        for kind, answer in fields(response):
            found += answers(answer) if kind == _TXN else [answer]
    return found


def entries(answer: bytes) -> list[Entry]:
    found = [dict(fields(entry)) for entry in _repeated(answer, 2)]
    return [(entry[1], entry.get(5, b"")) for entry in found]


def number(answer: bytes) -> int:
    return scalar(answer, 4)


def succeeded(reply: bytes) -> bool:
    """Whether a transaction's compares held."""
    return scalar(reply, 2) == 1


def inner(reply: bytes) -> list[bool]:
    """Whether the compares of each inner transaction held."""
    return [succeeded(answer) for response in _repeated(reply, 3) for _, answer in fields(response)]


# --- the encoding of Protocol Buffers ---


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """A field of a text, of bytes or of a message."""
    size = len(content)
    if number < 16 and size < 128:
        return bytes((number << 3 | 2, size)) + content
    return varint(number << 3 | 2) + varint(size) + content


def scalar(message: bytes, number: int) -> int:
    """The value of a field that is a number; 0 for none."""
    values = [value for found, value in fields(message) if found == number]
    return int.from_bytes(values[-1], "little") if values else 0


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of each field; a number's content is little-endian. ValueError, IndexError."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value.to_bytes(10, "little")
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        at += size
        if at > len(message):
            raise ValueError("a field is cut off")
        yield tag >> 3, message[at - size : at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(the number at `at`, the place after it)."""
    value = shift = 0
    while (octet := message[at]) > 127:
        value |= (octet & 127) << shift
        shift, at = shift + 7, at + 1
    return value | octet << shift, at + 1


def _repeated(message: bytes, number: int) -> list[bytes]:
    return [content for found, content in fields(message) if found == number]


def _joined(number: int, contents: Iterable[bytes]) -> bytes:
    return b"".join([field(number, content) for content in contents])
