"""CHECK, GC and STATUS of a link plugin: what a runtime asks of attachments that stand, or that nobody knows any more."""

from __future__ import annotations

import time

from cni import delegate, sandbox
from cni.attachment import UNENDED, Began, Book
from cni.config import refuse
from cni.detach import CLEARING_SECONDS, PART, end, for_attachment, report
from cni.kernel import ipconfig, routes
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
    from cni.spec.result import Route


def check(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Compare the attachment with its plan, with prevResult and with the configuration of the call.

    AttachmentDiffers names all differences. A key that the configuration does not have wants nothing, but for those whose
    default is a choice: macvlan's `mode` and `linkInContainer`.
    """
    faults: list[Fault] = []
    config = plugin.read(request, faults)
    asked = _asked_beside(request, faults)
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
        recorded_mtu = record["link"].get("mtu", 0) if record else 0
        found = _differences(plugin, planned, config, documents, host, there, known[0], expected, recorded_mtu)
        if asked:
            from cni import extras

            found += extras.unlike(documents or {}, asked)
    if found:
        raise AttachmentDiffers(
            f"attachment {name} of container {request.attachment.container_id} is not as ADD left it (detach and attach it"
            f" again): {'; '.join(found)}"
        )


def _asked_beside(request: Request, faults: list[Fault]) -> dict[str, Any]:
    """What the configuration names beside the link; most name nothing, and load nothing for it."""
    if member(request.config, "rail") is None and member(request.config, "rdma") is None:
        return {}
    from cni import extras

    return extras.read(request, faults)


def _differences(
    plugin: LinkPlugin,
    planned: Any,
    config: Any,
    documents: dict[str, Any] | None,
    host: Rtnl,
    there: Sandbox,
    known: Interface,
    expected: Result,
    recorded_mtu: int,
) -> list[str]:
    from cni.plugins.compare import differs

    box = there.rtnl
    link = box.link(name=known.name)
    if link is None:
        if planned and plugin.unmoved(planned):
            return plugin.differences(planned, config, None, host, box)
        return [f'there is no link "{known.name}" in the sandbox'] if known.mac else []
    found = plugin.differences(planned, config, link, host, box) if planned else []
    found += differs("mac", link.mac, known.mac, getattr(config, "mac", ""))
    found += differs("mtu", link.mtu, known.mtu or recorded_mtu or None, config.mtu or None)
    if not link.up:
        found.append("link is down")
    others = [i.name for i in expected.interfaces if i.sandbox == known.sandbox and i is not known]
    here = [
        a for a in expected.ips if (not others if a.interface is None else expected.interfaces[a.interface] is known)
    ]
    wanted_here = Result([known], here, _without(expected.routes, others, box))
    found += ipconfig.differences(box, link, wanted_here)
    if documents:
        from cni import extras

        found += extras.Extras(documents).differences(link, wanted_here, there)
    return found


def _without(expected: list[Route], others: list[str], box: Rtnl) -> list[Route]:
    """Of a chain's routes, which name no interface, those that are by no link that its `others` plugins made."""
    if not others:
        return expected
    links = [link for link in box.links() if link.name in others]
    elsewhere = {route.dst for link in links for route in routes.list_of(box, link.index)}
    return [route for route in expected if ipconfig.canonical(route.dst) not in elsewhere]


def collect(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """GC: detach what the runtime no longer knows, and what a DEL could not end; then let the IPAM plugin collect.

    What was attached after this call began cannot be in the list, and stays.
    """
    from cni.spec.gc import NOTHING_LISTED, valid_attachments

    began = Began()
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
            if not began.is_after(record["created"]) or (attachment in valid and UNENDED not in record):
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
