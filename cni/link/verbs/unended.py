"""End attachments that a DEL could not end, or whose sandbox has gone without a DEL.

The shim of thick Multus reports success even if the plugin fails, and no DEL comes if Multus is killed. So the next
ADD, DEL or GC of a link plugin on the node ends such attachments, as do `railcni ipam flush` and an agent that runs as
a process of the node. An attachment that another call has locked is skipped. If a sandbox is gone and no DEL has come,
its attachment stays for ten minutes (SETTLED) after the absence was first seen: kubelet may still call DEL, and the
pod's next sandbox has a right to the address.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cni.link.plugins import whereabouts
from cni.link.verbs.detach import PART, end, for_attachment
from cni.shared.kernel import netns, node, sandbox
from cni.shared.kernel.links import Rtnl
from cni.shared.records import LOOK_SECONDS, RETRY_SECONDS, UNENDED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment


def finish(
    records: Records, log: Log, environ: Mapping[str, str], seconds: float, settled: float = sandbox.SETTLED
) -> int:
    """Try for about `seconds` to end the attachments that no DEL has ended, and return the number that remain.

    Attachments whose release of addresses waits for an unreachable store are not counted. IPAM plugins get `environ`
    with the CNI variables of the failed DEL. An attachment without a DEL is ended when its sandbox has been gone for
    `settled` seconds. Raises IoFailure.
    """
    records.look_in(LOOK_SECONDS)  # so that concurrent calls do not try too; a failing DEL shortens the time
    deadline = time.monotonic() + seconds
    chosen = [a for a, _, record in records.all(PART) if UNENDED in record or sandbox.may_be_gone(record)]
    if not chosen:
        return 0
    left = pending = 0
    with netns.SearchedOnce():
        for attachment in chosen:
            held = records.try_locked(attachment, PART) if time.monotonic() < deadline else None
            if held is None:
                left += 1
                continue
            with held:
                record = records.read(attachment, PART)
                if record is None or not _is_due(attachment, record, records, settled):
                    continue
                own = {**environ, "CNI_PATH": record.get(UNENDED) or environ.get("CNI_PATH", "")}
                fault = _end(attachment, record, own, records, log)
                if fault is None:
                    log.info(f"ended {attachment}, which no DEL has ended")
                    continue
                if UNENDED not in record:  # the next call that tries uses its own CNI_PATH
                    records.write(attachment, PART, {**record, UNENDED: ""})
                log.warning(f"{attachment} cannot be ended yet: {fault}")
                left += 1
                pending += whereabouts.is_pending(attachment, records)
    if left:
        records.look_in(RETRY_SECONDS)
    return left - pending


def _is_due(attachment: Attachment, record: dict[str, Any], records: Records, settled: float) -> bool:
    """Whether to end the attachment now. When its sandbox is first seen to be gone, note the time in the record."""
    if UNENDED in record:
        return True
    since = sandbox.gone_since(record)
    if since is None:
        return False
    if node.seconds_up() - since >= settled:
        return True
    if since and sandbox.GONE not in record:
        records.write(attachment, PART, {**record, sandbox.GONE: since})
    return False


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
