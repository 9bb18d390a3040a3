"""etcd's transactions as documents of its JSON gateway (etcd, api/etcdserverpb/rpc.proto). Pure.

An operation is a put, a deletion, a read or an inner transaction; a comparison tests whether keys exist. Keys and values
are written in base64. A reply gives numbers as texts, and leaves out what is 0, empty or false.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    Op = dict[str, Any]
    Entry = tuple[bytes, bytes]  # key, value

CHUNK = 32  # operations in one inner transaction


def put(key: bytes, value: bytes, lease: int = 0) -> Op:
    """`lease` is the ID of the etcd lease that the key ends with."""
    request = {"key": _text(key), "value": _text(value)}
    return {"request_put": request | {"lease": str(lease)} if lease else request}


def delete(key: bytes) -> Op:
    return {"request_delete_range": {"key": _text(key)}}


def read(key: bytes, end: bytes = b"", limit: int = 0, keys_only: bool = False, oldest: bool = False) -> Op:
    """The entry of `key`; with `end` those from `key` up to it, excluded, in order, `limit` at most (0: all).

    `oldest`: those come first that were written first.
    """
    request = {"key": _text(key), "limit": limit, "keys_only": keys_only} | _up_to(end)
    if oldest:
        request |= {"sort_order": "ASCEND", "sort_target": "MOD"}
    return {"request_range": request}


def count(key: bytes, end: bytes) -> Op:
    """How many keys there are from `key` up to `end`, excluded."""
    return {"request_range": {"key": _text(key), "count_only": True} | _up_to(end)}


def exists(key: bytes) -> Op:
    return {"key": _text(key), "target": "CREATE", "result": "GREATER"}


def absent(key: bytes, end: bytes = b"") -> Op:
    """No key; with `end` no key from `key` up to it, excluded."""
    return {"key": _text(key), "target": "CREATE", "result": "EQUAL"} | _up_to(end)


def transaction(compare: Sequence[Op], then: Iterable[Op], otherwise: Iterable[Op] = ()) -> Op:
    """All of `then` when all of `compare` holds, else all of `otherwise`."""
    return {"compare": compare, "success": _packed(list(then)), "failure": _packed(list(otherwise))}


def reads(ops: Sequence[Op]) -> Op:
    """The answers of all `ops`, of one moment; etcd logs no reading that has no inner transaction."""
    return {"success": ops}


def within(inner: Op) -> Op:
    """A transaction as an operation of another."""
    return {"request_txn": inner}


def _packed(ops: list[Op]) -> list[Op]:
    """Move all but the first of many `ops` into inner transactions: etcd limits those along one path, not all.

    The first stays outside: etcd's quota does not count inner ones (server/etcdserver, costTxn).
    """
    if len(ops) <= CHUNK or "request_txn" in ops[0]:
        return ops
    return [ops[0], *(within(reads(ops[i : i + CHUNK])) for i in range(1, len(ops), CHUNK))]


class Answer:
    """What a read found: the `entries`, and the `number` of all keys in its span. Of a change both say nothing."""

    __slots__ = ("entries", "number")

    def __init__(self, asked: Op, found: dict[str, Any]) -> None:
        self.number = int(found.get("count", 0))
        self.entries = [(_bytes(entry["key"]), _bytes(entry.get("value", ""))) for entry in found.get("kvs", ())]
        first, end = _bytes(asked["key"]), _bytes(asked.get("range_end", ""))
        if not all(first <= key < end or key == first for key, _ in self.entries):
            raise ValueError("a key that was not asked for")


class Reply:
    """The reply to the transaction `asked`. ValueError, TypeError, KeyError or AttributeError when it is no such reply.

    `succeeded`: whether the transaction's compares held; `inner`: those of each inner transaction; `answers` has the answer
    of each operation, also of those in inner transactions.
    """

    __slots__ = ("answers", "inner", "succeeded")

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
