"""The locks of all that an ADD or DEL does with a lease: its own, and those of the links that use it.

A lease of a group of rails is used by several links, each with a record and a lock of its own (ipam.members).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cni.attachment import Book
from cni.spec.request import Attachment
from ipam import members
from ipam.records import PART

LINK_PART = "link"


@contextmanager
def excluded(book: Book, who: Attachment) -> Iterator[list[Attachment] | None]:
    """Hold all locks: whose links use what is leased to `who`; None when an ADD or DEL of one of them is at work."""
    users = members.users(who, book.read(who, PART))
    with ExitStack() as locks:
        for attachment, part in (*((user, LINK_PART) for user in users), (who, PART)):
            held = book.try_locked(attachment, part)
            if held is None:
                yield None
                return
            locks.enter_context(held)
        yield users if members.users(who, book.read(who, PART)) == users else None
