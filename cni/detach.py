"""DEL of a link plugin, and what GC does to one attachment: the link leaves the sandbox, then its addresses are given back."""

from __future__ import annotations

from cni import delegate, plugins, sandbox
from cni.attachment import Book
from cni.kernel import node
from cni.kernel.links import Rtnl
from cni.spec import codec
from cni.spec.errors import CniError
from cni.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.log import Log
    from cni.plugins.base import LinkPlugin
    from cni.sandbox import Sandbox
    from cni.spec.request import Request

PART = "link"


def delete(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Detach; any number of times, and whatever has become of the sandbox, the device or the configuration."""
    book = Book(log=log)
    with book.locked(request.attachment, PART):
        record = book.read(request.attachment, PART)
        host = Rtnl()
        faults: list[CniError] = []
        gone = True
        try:
            if record:
                faults += detach(record, request, host, log)
            else:
                detach_unrecorded(plugin, request, host, book, log)
        except CniError as fault:
            gone = False
            faults.append(fault)
        if gone:
            try:
                release(record, request, log)
            except CniError as fault:
                faults.append(fault)
        if not faults:
            book.remove(request.attachment, PART)
        report(faults, kept="" if gone else delegate.ipam_type(request.config))


def detach(record: dict[str, Any], request: Request, host: Rtnl, log: Log) -> list[CniError]:
    """Take the link of `record` out of its sandbox, as the plugin that brought it there does, and what is beside it.

    When it returns the link is gone; why something beside it is not is in the list.
    """
    plugin = plugins.named(record["plugin"])
    planned = plugin.load(record["link"])
    if record["bootID"] != node.boot_id():
        return _remove_extras(record, None, log)  # the links of that boot went with it
    there = sandbox.of_record(record, request)
    if there is None:
        faults = _remove_extras(record, None, log)
        plugin.remove(planned, host, None, log)
        return faults
    with there:
        faults = _remove_extras(record, there, log)
        plugin.remove(planned, host, there.rtnl, log)
        return faults


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
    if any(record["sandbox"] == identity and record["link"]["name"] == name for _, _, record in book.all(PART)):
        return True
    return any(attachment.ifname == name for attachment, _, _ in book.newer(PART))  # in which sandbox cannot be told


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
