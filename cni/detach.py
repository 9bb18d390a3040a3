"""DEL of a link plugin, and what GC does to one attachment: the link leaves the sandbox, then its addresses are given back.

Another's IPAM plugin is called while the link is there, up and without its addresses, for dhcp needs the link.
A DEL that cannot end its attachment writes that down, for the runtime may not call again: cni.unended ends it later.
"""

from __future__ import annotations

import time

from cni import delegate, plugins, sandbox
from cni.attachment import UNENDED, Book
from cni.kernel import node
from cni.kernel.links import Rtnl
from cni.kernel.netlink import KernelError
from cni.spec import codec
from cni.spec.errors import CniError, IncompatibleVersion, Lingers, TryAgainLater, Unrestored
from cni.spec.request import Request, member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cni.log import Log
    from cni.plugins.base import LinkPlugin
    from cni.sandbox import Sandbox
    from cni.spec.request import Attachment

PART = "link"
CLEARING_SECONDS = 2.0  # seen: up to 0.07 s until 150 sandboxes that ended at once were cleared


def delete(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Detach; any number of times, and whatever has become of the sandbox, the device or the configuration."""
    book = Book(log=log)
    with book.locked(request.attachment, PART):
        record = book.read(request.attachment, PART)
        host = Rtnl()
        faults: list[CniError] = []
        gone = False
        if record:
            try:
                faults, gone = end(record, request, host, book, log, time.monotonic() + CLEARING_SECONDS)
            finally:
                if faults or not gone:
                    _mark(record, request, book)
        else:
            faults, gone = _end_unrecorded(plugin, request, host, book, log)
        report(faults, kept="" if gone else delegate.ipam_type(request.config))


def end(
    record: dict[str, Any], request: Request, host: Rtnl, book: Book, log: Log, until: float
) -> tuple[list[CniError], bool]:
    """End the attachment of `record`, of which the lock is held: what could not be done, and whether its IPAM plugin's
    DEL was made.

    That is made when the link is gone, but for another's plugin; the record goes last. `until` as for `detach`.
    """
    release = Release(record, request, log)
    faults: list[CniError] = []
    gone = True
    try:
        faults += detach(record, request, host, log, until, release)
    except CniError as fault:
        faults.append(fault)
        gone = False
    try:
        if gone or release.is_made:
            release.finish()
        if not faults:
            book.remove(request.attachment, PART)
            if UNENDED in record:
                remind_of_others(book)
    except CniError as fault:
        faults.append(fault)
    return faults, gone or release.is_made


def remind_of_others(book: Book) -> None:
    """Leave the reminder only if another attachment needs it; one that is marked meanwhile has left it anew."""
    book.remind(False, UNENDED)
    if any(UNENDED in record for _, _, record in book.all(PART)):
        book.remind(True, UNENDED)


def _end_unrecorded(
    plugin: LinkPlugin, request: Request, host: Rtnl, book: Book, log: Log
) -> tuple[list[CniError], bool]:
    """`end` for an attachment that another implementation of the plugin has made, or that there never was."""
    release = Release(None, request, log)
    try:
        detach_unrecorded(plugin, request, host, book, log, release)
    except CniError as fault:
        return [fault], release.is_made
    try:
        release.finish()
        book.remove(request.attachment, PART)
    except CniError as fault:
        return [fault], True
    return [], True


def _mark(record: dict[str, Any], request: Request, book: Book) -> None:
    """Write down that a DEL could not end the attachment, and with which CNI_PATH it was called."""
    path = ":".join(request.path)
    try:
        if record.get(UNENDED) != path:
            book.write(request.attachment, PART, {**record, UNENDED: path})
    except CniError:
        return  # GC and the next DEL go by the record as it is
    book.remind(True, UNENDED)


def for_attachment(attachment: Attachment, record: dict[str, Any], environ: Mapping[str, str]) -> Request:
    """The DEL that a runtime would send for `attachment`; `environ` has CNI_PATH, and is otherwise another call's."""
    own = {
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": attachment.container_id,
        "CNI_IFNAME": attachment.ifname,
        "CNI_NETNS": record["netns"],
        "CNI_ARGS": "",
    }
    return Request({**environ, **own}, record["config"].encode(), config_of(record), {})


def detach(
    record: dict[str, Any], request: Request, host: Rtnl, log: Log, until: float, release: Release
) -> list[CniError]:
    """Take the link of `record` out of its sandbox, as the plugin that brought it there does, and what is beside it.

    When it returns the link is gone; why something beside it is not, or a device lacks a part of its state, is in the list. What the kernel has not cleared out
    of a dead sandbox is waited for `until` then, in seconds of time.monotonic. `release` is still to be finished.
    """
    plugin = plugins.named(record["plugin"])
    planned = plugin.load(record["link"])
    if record["bootID"] != node.boot_id():
        return _remove_extras(record, None, log)  # the links of that boot went with it
    there = sandbox.of_record(record, request)
    if there and not sandbox.is_certain(record["sandbox"]) and not plugin.recognises(planned, there.rtnl):
        there.close()  # a later namespace with the inode of the former
        there = None
    faults: list[CniError] = []
    try:
        if there is None:
            faults += _remove_extras(record, None, log)
            _remove_unseen(plugin, planned, host, log, until, release)
        else:
            with there:
                faults += _remove_extras(record, there, log)
                release.by_link(plugin, planned, there)
                _remove(plugin, planned, host, there.rtnl, log, until)
    except Unrestored as fault:  # the link is gone from the sandbox
        if UNENDED in record:  # a DEL before this one could not end it: no later one can be expected to
            log.warning(f"{fault}; it is not tried again")
        else:
            faults.append(fault)
    return faults


def _remove_unseen(plugin: LinkPlugin, planned: Any, host: Rtnl, log: Log, until: float, release: Release) -> None:
    """Remove the link of a sandbox that is not there, or cannot be found."""
    try:
        _remove(plugin, planned, host, None, log, until)
    except Unrestored:
        raise
    except TryAgainLater:
        if not release.in_advance():
            raise
        _remove(plugin, planned, host, None, log, until and until + CLEARING_SECONDS)


def _remove(plugin: LinkPlugin, planned: Any, host: Rtnl, box: Rtnl | None, log: Log, until: float) -> None:
    while True:
        try:
            return plugin.remove(planned, host, box, log)
        except Lingers:
            if time.monotonic() >= until:
                raise
        time.sleep(0.005)


def _remove_extras(record: dict[str, Any], there: Sandbox | None, log: Log) -> list[CniError]:
    documents = record.get("extras")
    if not documents:
        return []
    from cni import extras

    return extras.Extras(documents).remove(there, log)


def detach_unrecorded(plugin: LinkPlugin, request: Request, host: Rtnl, book: Book, log: Log, release: Release) -> None:
    """Detach what another implementation of the plugin attached; a link that a record of ours speaks of is not that."""
    there = sandbox.at(request.netns, request)
    if there is None:
        planned = plugin.adopt(request, host, None)
        if planned:
            plugin.remove(planned, host, None, log)
    else:
        with there:
            planned = plugin.adopt(request, host, there.rtnl)
            if planned and not _is_recorded(planned.name, there.identity(), book):
                release.by_link(plugin, planned, there)
                plugin.remove(planned, host, there.rtnl, log)


def _is_recorded(name: str, identity: dict[str, int], book: Book) -> bool:
    if any(record["sandbox"] == identity and record["link"]["name"] == name for _, _, record in book.all(PART)):
        return True
    return any(attachment.ifname == name for attachment, _, _ in book.newer(PART))  # in which sandbox cannot be told


class Release:
    """The DEL of an attachment's IPAM plugin, made once, with the configuration that its addresses were taken with.

    `by_link` makes it for another's plugin while the link is there; `finish` makes it else, when the link is gone.
    """

    __slots__ = ("_fault", "_is_recorded", "_log", "_request", "is_made")

    def __init__(self, record: dict[str, Any] | None, request: Request, log: Log) -> None:
        former = config_of(record) if record else {}
        if record and any(member(former, key) != member(request.config, key) for key in ("ipam", "rail")):
            request = delegate.with_config(request, record["config"].encode())
        self._request = request
        self._is_recorded = record is not None
        self._log = log
        self._fault: CniError | None = None
        self.is_made = False

    def by_link(self, plugin: LinkPlugin, planned: Any, there: Sandbox) -> None:
        """Take the addresses off the link and give them back, when the IPAM plugin is another's and the link is there."""
        if not delegate.is_foreign(self._request):
            return
        from cni.kernel import addresses

        try:
            link = plugin.present(planned, there.rtnl)
            if link is None:
                return
            addresses.clear(there.rtnl, link.index)
        except KernelError as fault:
            self._log.warning(f"the addresses of {planned.name} are given back when it is gone: {fault}")
            return
        self._make()

    def in_advance(self) -> bool:
        """Make it for another's plugin although the link is not gone: dhcp's daemon keeps the sandbox open until then.

        False when it is made already, or the plugin is ours.
        """
        if self.is_made or not delegate.is_foreign(self._request):
            return False
        self._make()
        return True

    def _make(self) -> None:
        self.is_made = True
        try:
            delegate.delete(self._request, self._log)
        except CniError as fault:
            self._fault = fault

    def finish(self) -> None:
        """Make it, unless it is made; raise the CniError with which it failed.

        A plugin that does not speak the network's version has given nothing to an attachment that has no record: its
        ADD failed likewise, and a DEL that failed would fail for ever.
        """
        if not self.is_made and delegate.ipam_type(self._request.config):
            self._make()
        if not self._fault:
            return
        if self._is_recorded or not isinstance(self._fault, IncompatibleVersion):
            raise self._fault
        self._log.warning(self._fault.msg)


def config_of(record: dict[str, Any]) -> dict[str, Any]:
    """The configuration that the ADD of `record` ran with."""
    config: dict[str, Any] = codec.loads(record["config"].encode())
    return config


def report(faults: list[CniError], kept: str = "") -> None:
    """Raise the first of `faults`, when there are any, with the others in its details; `kept`: who keeps the addresses."""
    if not faults:
        return
    first = faults[0]
    if kept:
        first.msg += f"; its addresses stay reserved with {kept} until the link is gone: DEL again"
    first.details = "\n".join(filter(None, [first.details, *(f.msg for f in faults[1:])]))
    raise first
