"""End attachments that a DEL could not end, or whose sandbox has gone without a DEL.

The shim of thick Multus reports success even if the plugin fails, and no DEL comes if Multus is killed. So `railcni
ipam flush`, and an agent that runs as a process of the node, end such attachments later, and wait for no lock. The next
ADD, DEL or GC of a link plugin on the node does so too, but only after a failed DEL: a pod without a DEL may get its
address again in its next sandbox.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cni.link.plugins import whereabouts
from cni.link.verbs.detach import PART, end, for_attachment, remind_of_others
from cni.shared.kernel import netns, sandbox
from cni.shared.kernel.links import Rtnl
from cni.shared.records import UNENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment


def finish(records: Records, log: Log, environ: Mapping[str, str], seconds: float, settled: float | None = None) -> int:
    """Try for about `seconds` to end these attachments; return the number left, without those with only a pending
    release.

    IPAM plugins get the environment `environ`, with the CNI variables of the failed DEL. `settled` is as for
    cni.shared.kernel.sandbox.is_gone; for None, attachments without a DEL stay. Raises IoFailure.
    """

    def is_due(record: dict[str, Any]) -> bool:
        return UNENDED in record or (settled is not None and sandbox.is_gone(record, settled))

    records.remind(True, UNENDED)  # anew, so that concurrent calls do not try too
    deadline = time.monotonic() + seconds
    left = pending = 0
    with netns.SearchedOnce():
        for attachment, _, listed in records.all(PART):
            if UNENDED not in listed and (time.monotonic() > deadline or not is_due(listed)):
                continue
            held = records.try_locked(attachment, PART) if time.monotonic() < deadline else None
            if held is None:
                left += 1
                continue
            with held:
                record = records.read(attachment, PART)
                if record is None or not is_due(record):
                    continue
                own = {**environ, "CNI_PATH": record.get(UNENDED) or environ.get("CNI_PATH", "")}
                fault = _end(attachment, record, own, records, log)
                if fault is None:
                    log.info(f"ended {attachment}, which no DEL has ended")
                    continue
                if UNENDED not in record:
                    records.write(attachment, PART, {**record, UNENDED: own["CNI_PATH"]})  # tried again after a pause
                log.warning(f"{attachment} cannot be ended yet: {fault}")
                left += 1
                pending += whereabouts.is_pending(attachment, records)
    if not left:
        remind_of_others(records)
    return left - pending


def forget(records: Records, below: Callable[[str], str]) -> None:
    """Remove the records of macvlan links that are gone with their sandboxes and whose addresses are released.

    `below` maps a path of the host to its path in this container.
    """
    for attachment, _, record in records.all(PART):
        is_plain = record["plugin"] == "macvlan" and not record.get("extras") and UNENDED not in record
        if not is_plain or not netns.has_lost_path(record["netns"], below):
            continue
        own = for_attachment(attachment, record, {"CNI_PATH": ""})
        if record.get("foreign") or own.ipam_type.removeprefix("railcni-") not in ("", "whereabouts"):
            continue
        held = records.try_locked(attachment, PART)
        if held:
            with held:
                if records.read(attachment, PART) == record and not whereabouts.may_hold(own, records):
                    records.remove(attachment, PART)
                    records.log.info(f"forgot {attachment}, whose sandbox and addresses have gone")


def _end(
    attachment: Attachment, record: dict[str, Any], environ: Mapping[str, str], records: Records, log: Log
) -> Exception | None:
    """End the attachment, and return the first error, None for success."""
    try:
        with Rtnl() as host:
            faults, _ = end(record, for_attachment(attachment, record, environ), host, records, log, 0)
    except OSError as fault:  # a kernel error that no plugin handles: the next DEL or GC reports it
        return fault
    return faults[0] if faults else None
