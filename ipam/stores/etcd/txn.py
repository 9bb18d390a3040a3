"""etcd's transactions in the JSON of its gateway. Pure.

The gateway has keys and values in base64, and numbers of 64 bits as strings. An operation is a put, a deletion, a read or an
inner transaction; a comparison tests whether keys exist.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    Op = dict[str, Any]
    Entry = tuple[bytes, bytes]  # key, value

CHUNK = 32  # operations in one inner transaction


def put(key: bytes, value: bytes, lease: str = "") -> Op:
    """`lease` is the ID of the etcd lease that the key ends with."""
    return {"request_put": {"key": _text(key), "value": _text(value), **({"lease": lease} if lease else {})}}


def delete(key: bytes) -> Op:
    return {"request_delete_range": {"key": _text(key)}}


def read(key: bytes, end: bytes = b"", limit: int = 0, keys_only: bool = False, oldest: bool = False) -> Op:
    """The entry of `key`; with `end` those from `key` up to it, excluded, in order, `limit` at most (0: all).

    `oldest`: those come first that were written first.
    """
    request: dict[str, Any] = {"key": _text(key)}
    if end:
        request["range_end"] = _text(end)
    if limit:
        request["limit"] = str(limit)
    if keys_only:
        request["keys_only"] = True
    if oldest:
        request |= {"sort_order": "ASCEND", "sort_target": "MOD"}
    return {"request_range": request}


def count(key: bytes, end: bytes) -> Op:
    """How many keys there are from `key` up to `end`, excluded."""
    return {"request_range": {"key": _text(key), "range_end": _text(end), "count_only": True}}


def exists(key: bytes) -> Op:
    return {"key": _text(key), "target": "CREATE", "result": "GREATER", "create_revision": "0"}


def absent(key: bytes, end: bytes = b"") -> Op:
    """No key; with `end` no key from `key` up to it, excluded."""
    compare = {"key": _text(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    return compare | {"range_end": _text(end)} if end else compare


def transaction(compare: Sequence[Op], then: Iterable[Op], otherwise: Iterable[Op] = ()) -> dict[str, Any]:
    """All of `then` when all of `compare` holds, else all of `otherwise`."""
    return {"compare": list(compare), "success": _packed(list(then)), "failure": _packed(list(otherwise))}


def within(inner: dict[str, Any]) -> Op:
    """A transaction as an operation of another."""
    return {"request_txn": inner}


def _packed(ops: list[Op]) -> list[Op]:
    """`ops`, most of many in inner transactions: etcd limits the operations along one path, not their total.

    The first stays outside: etcd's quota does not count inner ones (server/etcdserver, costTxn).
    """
    if len(ops) <= CHUNK or "request_txn" in ops[0]:
        return ops
    return [ops[0], *(within({"success": ops[i : i + CHUNK]}) for i in range(1, len(ops), CHUNK))]


def answers(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer of each operation, also of those in inner transactions."""
    return list(_answers(reply))


def _answers(reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for response in reply.get("responses") or ():
        for kind, answer in response.items():
            if kind == "response_txn":
                yield from _answers(answer)
            else:
                yield answer


def entries(answer: dict[str, Any]) -> list[Entry]:
    """The entries of a read's answer."""
    return [(a2b_base64(kv["key"]), a2b_base64(kv.get("value") or "")) for kv in answer.get("kvs") or ()]


def number(answer: dict[str, Any]) -> int:
    """The number in a count's answer."""
    return int(answer.get("count") or 0)


def succeeded(reply: dict[str, Any]) -> bool:
    """Whether a transaction's compares held."""
    return bool(reply.get("succeeded"))


def inner(reply: dict[str, Any]) -> list[bool]:
    """Whether the compares of each inner transaction held."""
    return [succeeded(response["response_txn"]) for response in reply.get("responses") or ()]


def _text(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()
