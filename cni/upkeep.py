"""CHECK, GC and STATUS of a link plugin: what a runtime asks of attachments that stand, or that nobody knows any more."""

from __future__ import annotations

import time

from cni import delegate, sandbox
from cni.attachment import UNENDED, Book
from cni.config import refuse
from cni.detach import CLEARING_SECONDS, PART, end, for_attachment, report
from cni.kernel import ipconfig
from cni.kernel.links import Rtnl
from cni.spec import codec, result
from cni.spec.errors import AttachmentDiffers, CniError, InvalidConfig
from cni.spec.request import Attachment, Request, member
from cni.spec.result import Interface, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.config import Fault
    from cni.log import Log
    from cni.plugins.base import LinkPlugin
    from cni.sandbox import Sandbox


def check(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Compare the attachment with its plan and with prevResult; AttachmentDiffers names all differences."""
    faults: list[Fault] = []
    config = plugin.read(request, faults)
    refuse(faults)
    previous = member(request.config, "prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    expected = result.parse(previous)
    delegate.forward(request, log)
    with sandbox.opened(request) as there:
        host, box = Rtnl(), there.rtnl
        name = request.attachment.ifname
        known = [i for i in expected.interfaces if i.name == name and i.sandbox == request.netns]
        if not known:
            raise InvalidConfig(
                f'prevResult has no interface "{name}" in sandbox {request.netns}: pass on the result of this attachment\'s ADD'
            )
        record = Book(log=log).read(request.attachment, PART)
        if record and record["plugin"] != plugin.NAME:
            raise AttachmentDiffers(
                f"attachment {name} of container {request.attachment.container_id} was made by plugin {record['plugin']}, and"
                f" its network is one of {plugin.NAME} by now: detach and attach it again"
            )
        planned = plugin.load(record["link"]) if record else plugin.adopt(request, host, box)
        documents = record.get("extras") if record else None
        found = _differences(plugin, planned, documents, host, there, known[0], expected, _wanted_mtu(config, record))
    if found:
        raise AttachmentDiffers(
            f"attachment {name} of container {request.attachment.container_id} is not as ADD left it (detach and attach it"
            f" again): {'; '.join(found)}"
        )


def _wanted_mtu(config: Any, record: dict[str, Any] | None) -> int:
    recorded = record["link"].get("mtu", 0) if record else 0
    return getattr(config, "mtu", 0) or recorded


def _differences(
    plugin: LinkPlugin,
    planned: Any,
    documents: dict[str, Any] | None,
    host: Rtnl,
    there: Sandbox,
    known: Interface,
    expected: Result,
    mtu: int,
) -> list[str]:
    box = there.rtnl
    link = box.link(name=known.name)
    if link is None:
        if planned and plugin.unmoved(planned):
            return plugin.differences(planned, None, host)
        return [f'there is no link "{known.name}" in the sandbox'] if known.mac else []
    found = plugin.differences(planned, link, host) if planned else []
    if known.mac and link.mac != known.mac:
        found.append(f"MAC is {link.mac}, was {known.mac}")
    wanted = known.mtu or mtu
    if wanted and link.mtu != wanted:
        found.append(f"MTU is {link.mtu}, was {wanted}")
    if not link.up:
        found.append("link is down")
    here = [a for a in expected.ips if a.interface is None or expected.interfaces[a.interface] is known]
    wanted_here = Result([known], here, expected.routes)
    found += ipconfig.differences(box, link, wanted_here)
    if documents:
        from cni import extras

        found += extras.Extras(documents).differences(link, wanted_here, there)
    return found


def collect(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """GC: detach what the runtime no longer knows, and what a DEL could not end; then let the IPAM plugin collect.

    What was attached after this call began cannot be in the list, and stays.
    """
    from cni.spec.gc import NOTHING_LISTED, valid_attachments

    began = time.time_ns()
    valid = valid_attachments(request)
    if valid is None:
        log.warning(NOTHING_LISTED)
        return
    book = Book(log=log)
    host = Rtnl()
    until = time.monotonic() + CLEARING_SECONDS
    faults: list[CniError] = []
    keep: list[Attachment] = []
    for attachment, listed in book.of_network(request.attachment.network, PART):
        if attachment in valid and UNENDED not in listed:
            continue
        held = book.try_locked(attachment, PART)
        if held is None:  # an ADD or DEL of it is under way
            keep.append(attachment)
            continue
        with held:
            record = book.read(attachment, PART)
            if record is None:
                continue
            if record["created"] >= began or (attachment in valid and UNENDED not in record):
                keep.append(attachment)
                continue
            own = for_attachment(attachment, record, request.environ)
            left, gone = end(record, own, host, book, log, until)
            faults += left
            if not gone:
                keep.append(attachment)
    book.sweep(request.attachment.network)
    try:
        delegate.forward(_also_valid(request, keep), log)
    except CniError as fault:
        faults.append(fault)
    report(faults)


def _also_valid(request: Request, keep: list[Attachment]) -> Request:
    if not keep:
        return request
    from cni.spec.gc import VALID_ATTACHMENTS

    listed = [
        *(member(request.config, VALID_ATTACHMENTS) or ()),
        *({"containerID": a.container_id, "ifname": a.ifname} for a in keep),
    ]
    return delegate.with_config(request, codec.dumps({**request.config, VALID_ATTACHMENTS: listed}).encode())


def status(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Whether an ADD could be served now; NotAvailable or LimitedConnectivity when not."""
    from cni import extras

    faults: list[Fault] = []
    config = plugin.read(request, faults)
    asked = extras.read(request, faults)
    refuse(faults)
    extras.status(asked, plugin.NAME, plugin.status(config, Rtnl(), log))
    delegate.forward(request, log)
