"""Attachments that a DEL could not end, brought to their end by a later call, since the runtime may not repeat its DEL.

Thick Multus' shim reports success whatever the plugin answers. So the next ADD, DEL or GC of a link plugin on the node,
`railcni ipam flush` and an agent that runs as a process of the node try again, without waiting for anything.
"""

from __future__ import annotations

import time

from cni.attachment import UNENDED
from cni.detach import PART, end, for_attachment, remind_of_others
from cni.kernel.links import Rtnl
from ipam import upkeep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cni.attachment import Book
    from cni.log import Log
    from cni.spec.request import Attachment


def finish(book: Book, log: Log, environ: Mapping[str, str], seconds: float) -> int:
    """End what can be ended now, for about `seconds`; how many are left, but those of which a release alone is pending.

    `environ` is what IPAM plugins get beside the CNI variables of the DEL that failed. IoFailure.
    """
    book.remind(True, UNENDED)  # others need not look meanwhile
    deadline = time.monotonic() + seconds
    left = pending = 0
    for attachment, _, listed in book.all(PART):
        if UNENDED not in listed:
            continue
        held = book.try_locked(attachment, PART) if time.monotonic() < deadline else None
        if held is None:
            left += 1
            continue
        with held:
            record = book.read(attachment, PART)
            if record is None or UNENDED not in record:
                continue
            fault = _end(attachment, record, {**environ, "CNI_PATH": record[UNENDED]}, book, log)
            if fault is None:
                log.info(f"ended {attachment}, which its DEL could not end")
                continue
            log.warning(f"{attachment} cannot be ended yet: {fault}")
            left += 1
            pending += upkeep.is_pending(attachment, book)
    if not left:
        remind_of_others(book)
    return left - pending


def _end(
    attachment: Attachment, record: dict[str, Any], environ: Mapping[str, str], book: Book, log: Log
) -> Exception | None:
    """Why the attachment cannot be ended, or None when it has been."""
    host = Rtnl()
    try:
        faults, _ = end(record, for_attachment(attachment, record, environ), host, book, log, 0)
    except OSError as fault:  # a refusal of the kernel that has no better name: the next DEL or GC tells it
        return fault
    finally:
        host.close()
    return faults[0] if faults else None
