"""Attachments that a DEL could not end. A later call ends them, since the runtime may not repeat its DEL.

The shim of thick Multus reports success even if the plugin fails. So the next ADD, DEL or GC of a link plugin on the
node, `railcni ipam flush`, and an agent that runs as a process of the node try again, without waiting for any lock.
"""

from __future__ import annotations

import time

from cni.plugins import whereabouts
from cni.shared.kernel.links import Rtnl
from cni.shared.records import UNENDED
from cni.verbs.detach import PART, end, for_attachment, remind_of_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment


def finish(records: Records, log: Log, environ: Mapping[str, str], seconds: float) -> int:
    """Try for about `seconds` to end them; returns how many are left, without those that only have a pending release.

    IPAM plugins get the environment `environ`, with the CNI variables of the DEL that failed. IoFailure.
    """
    records.remind(True, UNENDED)  # concurrent calls need not try
    deadline = time.monotonic() + seconds
    left = pending = 0
    for attachment, _, listed in records.all(PART):
        if UNENDED not in listed:
            continue
        held = records.try_locked(attachment, PART) if time.monotonic() < deadline else None
        if held is None:
            left += 1
            continue
        with held:
            record = records.read(attachment, PART)
            if record is None or UNENDED not in record:
                continue
            fault = _end(attachment, record, {**environ, "CNI_PATH": record[UNENDED]}, records, log)
            if fault is None:
                log.info(f"ended {attachment}, which its DEL could not end")
                continue
            log.warning(f"{attachment} cannot be ended yet: {fault}")
            left += 1
            pending += whereabouts.is_pending(attachment, records)
    if not left:
        remind_of_others(records)
    return left - pending


def _end(
    attachment: Attachment, record: dict[str, Any], environ: Mapping[str, str], records: Records, log: Log
) -> Exception | None:
    """End the attachment; returns the error, None for success."""
    host = Rtnl()
    try:
        faults, _ = end(record, for_attachment(attachment, record, environ), host, records, log, 0)
    except OSError as fault:  # a kernel error that no plugin handles: the next DEL or GC reports it
        return fault
    finally:
        host.close()
    return faults[0] if faults else None
