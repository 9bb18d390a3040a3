"""GC of a link plugin, which ends each attachment of the network that the runtime does not list, as a DEL would."""

from __future__ import annotations

import time

from cni.link.verbs import delegate
from cni.link.verbs.detach import CLEARING_SECONDS, PART, end, for_attachment
from cni.shared.kernel.links import Rtnl
from cni.shared.records import UNENDED, Began, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, report
from cni.shared.spec.request import NOTHING_LISTED, VALID_ATTACHMENTS, Attachment, Request, valid_attachments


def gc(request: Request, records: Records) -> None:
    """End attachments that the runtime does not list or that a DEL could not end; then forward GC to the IPAM plugin.

    An attachment that was made after the start of this call stays, since the runtime's list cannot contain it.
    """
    began, log = Began(), records.log
    valid = valid_attachments(request)
    if valid is None:
        log.warning(NOTHING_LISTED)
        return
    until = time.monotonic() + CLEARING_SECONDS
    faults: list[CniError] = []
    keep: list[Attachment] = []
    with Rtnl() as host:
        for attachment, listed in records.of_network(request.attachment.network, PART):
            if attachment in valid and UNENDED not in listed:
                continue
            held = records.try_locked(attachment, PART)
            if held is None:  # an ADD or DEL of the attachment is under way
                keep.append(attachment)
                continue
            with held:
                record = records.read(attachment, PART)
                if record is None:
                    continue
                if not began.is_after(record["created"]) or (attachment in valid and UNENDED not in record):
                    keep.append(attachment)
                    continue
                own = for_attachment(attachment, record, request.environ)
                left, gone = end(record, own, host, records, log, until)
                faults += left
                if not gone:
                    keep.append(attachment)
    records.sweep(request.attachment.network)
    try:
        delegate.forward(_also_valid(request, keep), log)
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
