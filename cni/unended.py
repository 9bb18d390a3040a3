"""Attachments that a DEL could not end, brought to their end by a later call, since the runtime may not repeat its DEL.

Thick Multus' shim reports success whatever the plugin answers. So the next ADD, DEL or GC of a link plugin on the node,
`railcni ipam flush` and an agent that runs as a process of the node try again, without waiting for anything.
"""

from __future__ import annotations

import time

from cni.attachment import UNENDED
from cni.detach import PART, end, for_attachment, remind_of_others
from cni.kernel.links import Rtnl
from cni.spec.errors import CniError, IoFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cni.attachment import Book
    from cni.log import Log


def finish(book: Book, log: Log, environ: Mapping[str, str], seconds: float) -> int:
    """End what can be ended now, for about `seconds`; how many attachments are left. IoFailure.

    `environ` is what IPAM plugins get beside the CNI variables of the DEL that failed.
    """
    book.remind(True, UNENDED)  # others need not look meanwhile
    deadline = time.monotonic() + seconds
    host = Rtnl()
    left = 0
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
            request = for_attachment(attachment, record, {**environ, "CNI_PATH": record[UNENDED]})
            faults: list[CniError]
            try:
                faults = end(record, request, host, book, log, 0)[0]
            except OSError as fault:  # a refusal of the kernel that has no better name: the next DEL or GC tells it
                faults = [IoFailure(str(fault))]
            if faults:
                left += 1
                log.warning(f"{attachment} cannot be ended yet: {faults[0].msg}")
            else:
                log.info(f"ended {attachment}, which its DEL could not end")
    if not left:
        remind_of_others(book)
    return left
