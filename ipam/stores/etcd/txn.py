"""etcd's transactions as documents of its JSON gateway (etcd, api/etcdserverpb/rpc.proto). Pure.

An operation is a put, a deletion, a read or an inner transaction. A comparison tests whether keys exist. Keys and
values are base64. A reply has numbers as strings, and omits members that are 0, empty or false.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

Op: TypeAlias = "dict[str, Any]"
Entry = tuple[bytes, bytes]  # key, value

CHUNK = 32  # operations in one inner transaction


def put(key: bytes, value: bytes, lease: int = 0) -> Op:
    """The operation that writes a key. etcd deletes it when the etcd lease with the ID `lease` ends (0: never)."""
    request = {"key": _text(key), "value": _text(value)}
    return {"request_put": request | {"lease": str(lease)} if lease else request}


def delete(key: bytes) -> Op:
    return {"request_delete_range": {"key": _text(key)}}


def read(key: bytes, end: bytes = b"", limit: int = 0, keys_only: bool = False, oldest: bool = False) -> Op:
    """The operation that reads `key`; with `end`, the keys from `key` up to but excluding `end`, at most `limit`.

    A `limit` of 0 means all. The keys are sorted; with `oldest` they are sorted by their last writes, oldest first.
    """
    request = {"key": _text(key), "limit": limit, "keys_only": keys_only} | _up_to(end)
    if oldest:
        request |= {"sort_order": "ASCEND", "sort_target": "MOD"}
    return {"request_range": request}


def count(key: bytes, end: bytes) -> Op:
    """The operation that counts the keys from `key` up to but excluding `end`."""
    return {"request_range": {"key": _text(key), "count_only": True} | _up_to(end)}


def exists(key: bytes) -> Op:
    return {"key": _text(key), "target": "CREATE", "result": "GREATER"}


def absent(key: bytes, end: bytes = b"") -> Op:
    """The test that `key` does not exist; with `end`, that no key from `key` up to but excluding `end` exists."""
    return {"key": _text(key), "target": "CREATE", "result": "EQUAL"} | _up_to(end)


def transaction(compare: Sequence[Op], then: Iterable[Op], otherwise: Iterable[Op] = ()) -> Op:
    """The transaction that runs `then` if all of `compare` hold, else `otherwise`."""
    return {"compare": compare, "success": _packed(list(then)), "failure": _packed(list(otherwise))}


def reads(ops: Sequence[Op]) -> Op:
    """The transaction that runs the reads `ops` at one revision. If all are plain reads, etcd writes no Raft entry."""
    return {"success": ops}


def within(inner: Op) -> Op:
    """The transaction `inner` as an operation of another transaction."""
    return {"request_txn": inner}


def _packed(ops: list[Op]) -> list[Op]:
    """Return `ops`; if they are many, all but the first are in inner transactions, since etcd limits each transaction.

    The first stays outside, so that etcd's quota counts it: the quota does not count inner operations (costTxn in
    server/etcdserver).
    """
    if len(ops) <= CHUNK or "request_txn" in ops[0]:
        return ops
    return [ops[0], *(within(reads(ops[i : i + CHUNK])) for i in range(1, len(ops), CHUNK))]


class Answer:
    """The answer to an operation: the `entries` (key, value) that it read, and the `number` of all keys in its span."""

    __slots__ = ("entries", "number")

    def __init__(self, asked: Op, found: dict[str, Any]) -> None:
        self.number = int(found.get("count", 0))
        self.entries = [(_bytes(entry["key"]), _bytes(entry.get("value", ""))) for entry in found.get("kvs", ())]
        first, end = _bytes(asked["key"]), _bytes(asked.get("range_end", ""))
        if not all(first <= key < end or key == first for key, _ in self.entries):
            raise ValueError("a key that was not asked for")


class Reply:
    """The reply to the transaction `asked`. Raises ValueError, TypeError, KeyError or AttributeError if malformed.

    `succeeded`: whether the transaction's comparisons held; `inner` has the same for each inner transaction.
    `answers` has the answer to each operation, also to the operations in inner transactions.
    """

    def __init__(self, asked: Op, document: dict[str, Any]) -> None:
        self.succeeded = document.get("succeeded", False) is True
        if not self.succeeded and not asked.get("compare"):
            raise ValueError("nothing was compared, and yet it failed")
        self.answers: list[Answer] = []
        self.inner: list[bool] = []
        made = asked.get("success" if self.succeeded else "failure", ())
        for op, response in zip(made, document.get("responses", ()), strict=True):
            (kind,) = op
            found = response[kind.replace("request", "response")]
            if kind == "request_txn":
                nested = Reply(op[kind], found)
                self.inner.append(nested.succeeded)
                self.answers += nested.answers
            else:
                self.answers.append(Answer(op[kind], found))


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _bytes(text: str) -> bytes:
    return binascii.a2b_base64(text)


def _up_to(end: bytes) -> dict[str, Any]:
    return {"range_end": _text(end)} if end else {}
