"""ADD of a link plugin: an attachment as a whole, or nothing of it. What a killed one left is cleared first."""

from __future__ import annotations

import time

from cni import delegate, sandbox
from cni.attachment import Book
from cni.detach import PART, config_of, detach, release
from cni.kernel import ipconfig
from cni.kernel.links import Rtnl
from cni.spec import versions
from cni.spec.errors import CniError, IncompatibleVersion, KernelRefused
from cni.spec.result import Interface, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.log import Log
    from cni.plugins.base import LinkPlugin
    from cni.sandbox import Sandbox
    from cni.spec.request import Request


def add(plugin: LinkPlugin, request: Request, log: Log) -> Result:
    """Attach; whatever fails on the way, nothing is left of it."""
    config = plugin.read(request)
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
            detach(former, request, host, log)
            if delegate.ipam_type(config_of(former)) != kind or not delegate.gives_again(request):
                release(former, request, log)
        planned = plugin.plan(config, request, plugin.survey(config, request, host, there.rtnl, book))
        book.write(request.attachment, PART, _record(plugin, request, planned, there))
        addresses = Result()
        claimed = False
        try:
            if kind:
                addresses = delegate.add(request, log)
                claimed = True
                plugin.check_addresses(planned, addresses.ips)
            link = plugin.apply(planned, host, there.rtnl, there.namespace)
            mac, mtu = "", 0
            if link:
                with there.namespace.entered():
                    try:
                        mac, mtu = ipconfig.configure(there.rtnl, link, addresses, config.dad)
                    except ipconfig.NotUp as fault:
                        raise KernelRefused(plugin.refused_up(planned, fault.cause), str(fault.cause)) from None
        except BaseException as fault:
            _undo(plugin, request, planned, claimed, host, there.rtnl, book, log, fault)
            raise
        interface = Interface(planned.name, mac, mtu, request.netns, plugin.pci_id(planned))
        for address in addresses.ips:
            address.interface = 0
        return Result([interface], addresses.ips, addresses.routes, config.dns or addresses.dns)


def _undo(
    plugin: LinkPlugin,
    request: Request,
    planned: Any,
    claimed: bool,
    host: Rtnl,
    box: Rtnl,
    book: Book,
    log: Log,
    fault: BaseException,
) -> None:
    """Take back what a failed ADD did. What cannot be taken back keeps its record, for the DEL that follows."""
    try:
        plugin.remove(planned, host, box, log)
        if claimed:
            delegate.delete(request, log)
        book.remove(request.attachment, PART)
    except CniError as second:
        if isinstance(fault, CniError):
            fault.details = f"{fault.details}\nnot undone yet, DEL or GC will: {second.msg}".lstrip()


def _record(plugin: LinkPlugin, request: Request, planned: Any, there: Sandbox) -> dict[str, Any]:
    return {
        "plugin": plugin.NAME,
        "netns": request.netns,
        "sandbox": there.identity(),
        "pod": list(request.pod),
        "created": time.time_ns(),
        "config": request.stdin.decode(),
        "link": planned.document(),
    }
