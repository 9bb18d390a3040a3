"""ADD of a link plugin: an attachment as a whole, or nothing of it. What a killed one left is cleared first."""

from __future__ import annotations

import posix
import time

from cni import delegate, sandbox
from cni.attachment import Book
from cni.config import Fault, refuse
from cni.detach import CLEARING_SECONDS, PART, Release, config_of, detach, report
from cni.kernel import ipconfig
from cni.kernel.links import Rtnl
from cni.kernel.netlink import KernelError
from cni.spec import versions
from cni.spec.errors import CniError, IncompatibleVersion, InvalidEnvironment, KernelRefused
from cni.spec.request import member
from cni.spec.result import Interface, Result, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.extras import Extras
    from cni.kernel.links import Link
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
    earlier = _earlier(request)
    kind = delegate.ipam_type(request.config)
    if not kind and not versions.at_least(request.cni_version, "0.3.0"):
        raise IncompatibleVersion(
            f"cniVersion {request.cni_version} cannot describe an attachment without addresses: use cniVersion 0.3.0 or newer,"
            " or give the network an ipam block"
        )
    book = Book(log=log)
    with sandbox.opened(request) as there, book.locked(request.attachment, PART):
        host = Rtnl()
        is_foreign = delegate.is_foreign(request)
        former = book.read(request.attachment, PART)
        if former:
            release = Release(former, request, log)
            report(detach(former, request, host, log, time.monotonic() + CLEARING_SECONDS, release))
            if delegate.ipam_type(config_of(former)) != kind or is_foreign:
                release.finish()
        planned = plugin.plan(config, request, plugin.survey(config, request, host, there.rtnl, book))
        extras = _planned(asked, plugin, planned, request, host, there, log) if asked else None
        record = _record(plugin, request, planned, extras, there)
        book.write(request.attachment, PART, record)
        addresses = Result()
        claimed = applied = False
        try:
            if kind and not is_foreign:
                addresses = delegate.add(request, log)
                claimed = True
                plugin.check_addresses(planned, addresses.ips)
            applied = True  # also what fails half-way
            link = plugin.apply(planned, host, there.rtnl, there.namespace)
            if record["link"] != planned.document():  # what the link is like may be known only now
                record["link"] = planned.document()
                book.write(request.attachment, PART, record)
            if is_foreign:
                if link:
                    _set_up(plugin, planned, extras, link, there)
                addresses = delegate.add(request, log)
                claimed = True
                plugin.check_addresses(planned, addresses.ips)
            outside = plugin.unmoved(planned) or ("", 0)
            interface = Interface(planned.name, *outside, request.netns, plugin.pci_id(planned))
            for address in addresses.ips:
                address.interface = 0
            result = Result([interface], addresses.ips, addresses.routes, config.dns or addresses.dns)
            if link:
                with there.namespace.entered():
                    if extras and not link.up:
                        extras.before_up(link, there)
                    try:
                        interface.mac, interface.mtu = ipconfig.configure(there.rtnl, link, addresses, config.dad)
                    except ipconfig.NotUp as fault:
                        raise KernelRefused(plugin.refused_up(planned, fault.cause), str(fault.cause)) from None
                    changed = extras.after_up(link, result, there, log) if extras else False
                if changed:
                    book.write(request.attachment, PART, record)
        except BaseException as fault:
            _undo(plugin, request, planned, extras, claimed, applied, host, there, book, log, fault)
            raise
        return _appended(earlier, result) if earlier else result


def _earlier(request: Request) -> Result | None:
    """The result of the plugins before this one in a chain (prevResult, which is from 0.3.0 on); None for the first.

    InvalidEnvironment when one of them has made the interface that this one is to make (SPEC.md, section 4, ADD): a
    record or link of this attachment is then theirs, and not what a killed ADD left.
    """
    document = member(request.config, "prevResult")
    if document is None or not versions.at_least(request.cni_version, "0.3.0"):
        return None
    earlier = parse(document)
    name = request.attachment.ifname
    if any(made.name == name and made.sandbox == request.netns for made in earlier.interfaces):
        raise InvalidEnvironment(
            f'CNI_IFNAME "{name}" exists already in the sandbox {request.netns}: an earlier plugin of the chain made it. Only'
            " one plugin of a list `plugins` can make the interface: give each a network of its own"
        )
    return earlier


def _appended(earlier: Result, own: Result) -> Result:
    """What the plugins of a chain have made together (SPEC.md, section 5, Success); Go's macvlan drops the others' part."""
    for address in own.ips:
        address.interface = len(earlier.interfaces)
    interfaces = earlier.interfaces + own.interfaces
    return Result(interfaces, earlier.ips + own.ips, earlier.routes + own.routes, own.dns or earlier.dns)


def _extras(request: Request, faults: list[Fault]) -> dict[str, Any]:
    """What the attachment is to have beside its link. Most have nothing, and load nothing for it."""
    rdma = member(request.config, "rdma")
    if (rdma is False or (rdma is None and not _has_rdma())) and member(request.config, "rail") is None:
        return {}
    from cni import extras

    asked = extras.read(request, faults)
    rail = asked.get("rail")
    if rail and rail.is_same_index and (not delegate.ipam_type(request.config) or delegate.is_foreign(request)):
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


def _set_up(plugin: LinkPlugin, planned: Any, extras: Extras | None, link: Link, there: Sandbox) -> None:
    """Set the link up without addresses: another's IPAM plugin may speak through it (dhcp)."""
    with there.namespace.entered():
        if extras:
            extras.before_up(link, there)
        try:
            there.rtnl.change_link(link.index, up=True)
        except KernelError as fault:
            raise KernelRefused(plugin.refused_up(planned, fault), str(fault)) from None
    link.up = True


def _undo(
    plugin: LinkPlugin,
    request: Request,
    planned: Any,
    extras: Extras | None,
    claimed: bool,
    applied: bool,
    host: Rtnl,
    there: Sandbox,
    book: Book,
    log: Log,
    fault: BaseException,
) -> None:
    """Take back what a failed ADD did, and no more. What cannot be taken back keeps its record, for the DEL that follows."""
    left = extras.remove(there, log) if extras else []
    release = Release(None, request, log)
    try:
        if claimed:
            release.by_link(plugin, planned, there)
        if applied:
            plugin.remove(planned, host, there.rtnl, log)
        if claimed:
            release.finish()
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
