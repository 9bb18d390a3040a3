"""DEL of a link plugin, and what GC does to one attachment: the link leaves the sandbox, then its addresses are given back.

A DEL that cannot end its attachment writes that down, for the runtime may not call again: cni.unended ends it later.
"""

from __future__ import annotations

import time

from cni import delegate, plugins, sandbox
from cni.attachment import UNENDED, Book
from cni.kernel import node
from cni.kernel.links import Rtnl
from cni.spec import codec
from cni.spec.errors import CniError, Lingers
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
    """End the attachment of `record`, of which the lock is held: what could not be done, and whether the link is gone.

    Its addresses are given back when the link is gone, and the record goes last. `until` as for `detach`.
    """
    try:
        faults = detach(record, request, host, log, until)
    except CniError as fault:
        return [fault], False
    try:
        release(record, request, log)
        if not faults:
            book.remove(request.attachment, PART)
            if UNENDED in record:
                remind_of_others(book)
    except CniError as fault:
        faults.append(fault)
    return faults, True


def remind_of_others(book: Book) -> None:
    """Leave the reminder only if another attachment needs it; one that is marked meanwhile has left it anew."""
    book.remind(False, UNENDED)
    if any(UNENDED in record for _, _, record in book.all(PART)):
        book.remind(True, UNENDED)


def _end_unrecorded(
    plugin: LinkPlugin, request: Request, host: Rtnl, book: Book, log: Log
) -> tuple[list[CniError], bool]:
    """`end` for an attachment that another implementation of the plugin has made, or that there never was."""
    try:
        detach_unrecorded(plugin, request, host, book, log)
    except CniError as fault:
        return [fault], False
    try:
        release(None, request, log)
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


def detach(record: dict[str, Any], request: Request, host: Rtnl, log: Log, until: float) -> list[CniError]:
    """Take the link of `record` out of its sandbox, as the plugin that brought it there does, and what is beside it.

    When it returns the link is gone; why something beside it is not is in the list. What the kernel has not cleared out
    of a dead sandbox is waited for `until` then, in seconds of time.monotonic.
    """
    plugin = plugins.named(record["plugin"])
    planned = plugin.load(record["link"])
    if record["bootID"] != node.boot_id():
        return _remove_extras(record, None, log)  # the links of that boot went with it
    there = sandbox.of_record(record, request)
    if there and not sandbox.is_certain(record["sandbox"]) and not plugin.recognises(planned, there.rtnl):
        there.close()  # a later namespace with the inode of the former
        there = None
    if there is None:
        faults = _remove_extras(record, None, log)
        _remove(plugin, planned, host, None, log, until)
        return faults
    with there:
        faults = _remove_extras(record, there, log)
        _remove(plugin, planned, host, there.rtnl, log, until)
        return faults


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


def detach_unrecorded(plugin: LinkPlugin, request: Request, host: Rtnl, book: Book, log: Log) -> None:
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
                plugin.remove(planned, host, there.rtnl, log)


def _is_recorded(name: str, identity: dict[str, int], book: Book) -> bool:
    return any(record["sandbox"] == identity and record["link"]["name"] == name for _, _, record in book.all(PART))


def release(record: dict[str, Any] | None, request: Request, log: Log) -> None:
    """Give the addresses back with the configuration that they were taken with."""
    former = config_of(record) if record else {}
    if record and any(member(former, key) != member(request.config, key) for key in ("ipam", "rail")):
        request = delegate.with_config(request, record["config"].encode())
    if delegate.ipam_type(request.config):
        delegate.delete(request, log)


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
