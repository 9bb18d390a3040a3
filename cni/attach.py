"""ADD of a link plugin: an attachment as a whole, or nothing of it. What a killed one left is cleared first."""

from __future__ import annotations

import posix
import time

from cni import delegate, sandbox
from cni.attachment import Book
from cni.config import Fault, refuse
from cni.detach import CLEARING_SECONDS, PART, config_of, detach, release, report
from cni.kernel import ipconfig
from cni.kernel.links import Rtnl
from cni.spec import versions
from cni.spec.errors import CniError, IncompatibleVersion, KernelRefused
from cni.spec.request import member
from cni.spec.result import Interface, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.extras import Extras
    from cni.log import Log
    from cni.plugins.base import LinkPlugin
    from cni.sandbox import Sandbox
    from cni.spec.request import Request

_VERBS_DEVICES = "/sys/class/infiniband"  # there when the kernel has RDMA


def add(plugin: LinkPlugin, request: Request, log: Log) -> Result:
    """Attach; whatever fails on the way, nothing is left of it."""
    faults: list[Fault] = []
    config = plugin.read(request, faults)
    asked = _extras(request, faults)
    refuse(faults)
    kind = delegate.ipam_type(request.config)
    if not kind and not versions.at_least(request.cni_version, "0.3.0"):
        raise IncompatibleVersion(
            f"cniVersion {request.cni_version} cannot describe an attachment without addresses: use cniVersion 0.3.0 or newer,"
            " or give the network an ipam block"
        )
    book = Book(log=log)
    with sandbox.opened(request) as there, book.locked(request.attachment, PART):
        host = Rtnl()
        former = book.read(request.attachment, PART)
        if former:
            report(detach(former, request, host, log, time.monotonic() + CLEARING_SECONDS))
            if delegate.ipam_type(config_of(former)) != kind or not delegate.gives_again(request):
                release(former, request, log)
        planned = plugin.plan(config, request, plugin.survey(config, request, host, there.rtnl, book))
        extras = _planned(asked, plugin, planned, request, host, there, log) if asked else None
        record = _record(plugin, request, planned, extras, there)
        book.write(request.attachment, PART, record)
        addresses = Result()
        claimed = False
        try:
            if kind:
                addresses = delegate.add(request, log)
                claimed = True
                plugin.check_addresses(planned, addresses.ips)
            link = plugin.apply(planned, host, there.rtnl, there.namespace)
            outside = plugin.unmoved(planned) or ("", 0)
            interface = Interface(planned.name, *outside, request.netns, plugin.pci_id(planned))
            for address in addresses.ips:
                address.interface = 0
            result = Result([interface], addresses.ips, addresses.routes, config.dns or addresses.dns)
            if link:
                with there.namespace.entered():
                    if extras:
                        extras.before_up(link, there)
                    try:
                        interface.mac, interface.mtu = ipconfig.configure(there.rtnl, link, addresses, config.dad)
                    except ipconfig.NotUp as fault:
                        raise KernelRefused(plugin.refused_up(planned, fault.cause), str(fault.cause)) from None
                    changed = extras.after_up(link, result, there, log) if extras else False
                if changed:
                    book.write(request.attachment, PART, record)
        except BaseException as fault:
            _undo(plugin, request, planned, extras, claimed, host, there, book, log, fault)
            raise
        return result


def _extras(request: Request, faults: list[Fault]) -> dict[str, Any]:
    """What the attachment is to have beside its link. Most have nothing, and load nothing for it."""
    rdma = member(request.config, "rdma")
    if (rdma is False or (rdma is None and not _has_rdma())) and member(request.config, "rail") is None:
        return {}
    from cni import extras

    asked = extras.read(request, faults)
    rail = asked.get("rail")
    if rail and rail.is_same_index and not (delegate.ipam_type(request.config) and delegate.gives_again(request)):
        wanted = "needs the IPAM plugin whereabouts of this suite: want it as ipam.type, in CNI_PATH before any other"
        faults.append(Fault("rail.addressing", rail.addressing, wanted))
    return asked


def _has_rdma() -> bool:
    try:
        posix.stat(_VERBS_DEVICES)
    except OSError:
        return False
    return True


def _planned(
    asked: dict[str, Any], plugin: LinkPlugin, planned: Any, request: Request, host: Rtnl, there: Sandbox, log: Log
) -> Extras | None:
    from cni import extras

    netdev, in_sandbox = plugin.carrier(planned)
    place = extras.Place(plugin.NAME, netdev, in_sandbox, planned.mtu, host, there, log)
    return extras.plan(asked, request, place)


def _undo(
    plugin: LinkPlugin,
    request: Request,
    planned: Any,
    extras: Extras | None,
    claimed: bool,
    host: Rtnl,
    there: Sandbox,
    book: Book,
    log: Log,
    fault: BaseException,
) -> None:
    """Take back what a failed ADD did. What cannot be taken back keeps its record, for the DEL that follows."""
    left = extras.remove(there, log) if extras else []
    try:
        plugin.remove(planned, host, there.rtnl, log)
        if claimed:
            delegate.delete(request, log)
        if not left:
            book.remove(request.attachment, PART)
    except CniError as second:
        left.append(second)
    if left and isinstance(fault, CniError):
        undone = "; ".join(second.msg for second in left)
        fault.details = f"{fault.details}\nnot undone yet, DEL or GC will: {undone}".lstrip()


def _record(
    plugin: LinkPlugin, request: Request, planned: Any, extras: Extras | None, there: Sandbox
) -> dict[str, Any]:
    record = {
        "plugin": plugin.NAME,
        "netns": request.netns,
        "sandbox": there.identity(),
        "pod": list(request.pod),
        "created": time.time_ns(),
        "config": request.stdin.decode(),
        "link": planned.document(),
    }
    if extras:
        record["extras"] = extras.documents
    return record
