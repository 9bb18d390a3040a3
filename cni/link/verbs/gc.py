"""GC of a link plugin, and the removal of unended attachments: those whose DEL failed or never came.

The shim of thick Multus reports success even if the plugin fails, and no DEL comes if Multus is killed. So the next
ADD, DEL or GC of a link plugin on the node calls `finish_unended`, which removes such attachments as a DEL would.
`railcni ipam flush` and an agent that runs as a process of the node call it too. An attachment that another call has
locked is skipped. If a sandbox is gone and no DEL has come, its attachment stays for ten minutes (SETTLED) after a call
first noticed this: kubelet may still call DEL, and the pod's next sandbox should get the same address.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cni.link.plugins import whereabouts
from cni.link.verbs import delegate
from cni.link.verbs.detach import CLEARING_SECONDS, end, for_attachment
from cni.shared.gc import VALID_ATTACHMENTS, Began, locked, valid_attachments
from cni.shared.kernel import netns_users, node, sandbox
from cni.shared.kernel.links import Rtnl
from cni.shared.records import LINK, LOOK_SECONDS, RETRY_SECONDS, UNENDED, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, report
from cni.shared.spec.request import Attachment, Request

if TYPE_CHECKING:
    from cni.link.plugins.base import LinkPlugin


def gc(_: LinkPlugin, request: Request, records: Records) -> None:
    """Remove attachments that the runtime does not list or whose DEL failed. Then forward GC to the IPAM plugin. Keep
    an attachment made after this call began, as the runtime's list cannot have it. All errors are raised at the end."""
    began, log = Began(), records.log
    valid = valid_attachments(request, log)
    if valid is None:
        return
    until = time.monotonic() + CLEARING_SECONDS
    faults: list[CniError] = []
    keep: list[Attachment] = []
    network = request.attachment.network
    chosen = [a for a, record in records.of_network(network, LINK) if a not in valid or UNENDED in record]
    with Rtnl() as host:
        for attachment, record in locked(chosen, LINK, records):
            is_valid = attachment in valid and (record is None or UNENDED not in record)
            if record is None or is_valid or not began.is_after(record["created"]):
                keep.append(attachment)
                continue
            own = for_attachment(attachment, record, request.environ)
            left, gone = end(record, own, host, records, until)
            faults += left
            if not gone:
                keep.append(attachment)
    records.sweep(network)
    try:
        delegate.forward(_also_valid(request, keep), records)
    except CniError as fault:
        faults.append(fault)
    report(faults)


def _also_valid(request: Request, keep: list[Attachment]) -> Request:
    if not keep:
        return request
    listed = [
        *(request.member(VALID_ATTACHMENTS) or ()),
        *({"containerID": a.container_id, "ifname": a.ifname} for a in keep),
    ]
    return delegate.with_config(request, codec.dumps({**request.config, VALID_ATTACHMENTS: listed}).encode())


# --- unended attachments ---


def finish_unended(
    records: Records, environ: Mapping[str, str], seconds: float, settled: float = sandbox.SETTLED
) -> int:
    """Try for about `seconds` to remove attachments whose DEL failed or never came. Returns how many remain.

    An attachment of which only addresses remain is not counted. IPAM plugins get `environ` with the CNI variables of a
    DEL, and with the CNI_PATH of the failed DEL, if any. If no DEL came, the sandbox must have been gone for `settled`
    seconds. Raises IoFailure when records cannot be read or written.
    """
    records.look_in(LOOK_SECONDS)  # so that concurrent calls do not search too; a failing DEL shortens the time
    deadline = time.monotonic() + seconds
    boot = node.boot_id()
    chosen = [
        attachment
        for attachment, _, record in records.all(LINK)
        if UNENDED in record or record["bootID"] != boot or netns_users.has_lost_path(record["netns"])
    ]
    if not chosen:
        return 0
    left = pending = 0
    with netns_users.SearchedOnce(), Rtnl() as host:
        for attachment, record in locked(chosen, LINK, records):
            if record is None or time.monotonic() >= deadline:
                left += 1
                continue
            if not _is_due(attachment, record, records, settled):
                continue
            own = {**environ, "CNI_PATH": record.get(UNENDED) or environ.get("CNI_PATH", "")}
            faults: Sequence[Exception]
            try:
                faults, _ = end(record, for_attachment(attachment, record, own), host, records, 0)
            except OSError as fault:  # a kernel error that no plugin handles: the next DEL or GC reports it
                faults = [fault]
            if not faults:
                records.log.info(f"ended {attachment}, which no DEL has ended")
                continue
            if UNENDED not in record:  # the next call that tries uses its own CNI_PATH
                records.write(attachment, LINK, {**record, UNENDED: ""})
            records.log.warning(f"{attachment} cannot be ended yet: {faults[0]}")
            left += 1
            pending += whereabouts.is_pending(attachment, records)
    if left:
        records.look_in(RETRY_SECONDS)
    return left - pending


def _is_due(attachment: Attachment, record: dict[str, Any], records: Records, settled: float) -> bool:
    """Whether to remove the attachment now: its DEL failed, or its sandbox has been gone for `settled` seconds. The
    first call for an attachment without a sandbox writes the time at which the sandbox was missed to the record."""
    if UNENDED in record:
        return True
    since = _gone_since(record)
    if since is None:
        return False
    if node.seconds_up() - since >= settled:
        return True
    if since and sandbox.GONE not in record:
        records.write(attachment, LINK, {**record, sandbox.GONE: since})
    return False


def _gone_since(record: dict[str, Any]) -> float | None:
    """The node's uptime, in seconds, when the sandbox of `record` was first found gone; None if it may still exist.

    A sandbox is gone when its path has disappeared and no process, mount or descriptor uses its namespace. Only a
    process that sees the node's processes can know this. For a sandbox of an earlier boot the result is 0.
    """
    if record["bootID"] != node.boot_id():
        return 0.0
    if not netns_users.has_lost_path(record["netns"]) or not netns_users.sees_node():
        return None
    found = sandbox.kept(record["sandbox"])
    if found:
        found.close()
        return None
    return float(record.get(sandbox.GONE, node.seconds_up()))
