"""DEL of a link plugin, and GC of one attachment: remove the link from the sandbox, then release its addresses.

An IPAM plugin of another suite is called while the link is up, since dhcp needs the link, but after the addresses were
removed from the link. If a DEL cannot remove the whole attachment, it notes this in the record. The runtime may not
call again, so cni.link.verbs.gc removes the rest later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cni.link import plugins
from cni.link.verbs import delegate
from cni.shared.kernel import addresses, node
from cni.shared.kernel import sandbox as sandboxes
from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.records import LINK, RETRY_SECONDS, UNENDED, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, DelegateFailed, Lingers, TryAgainLater, Unrestored, report
from cni.shared.spec.request import Attachment, Request, member

if TYPE_CHECKING:
    from cni.link.plugins.base import LinkPlugin, MadeLinks
    from cni.shared.kernel.sandbox import Sandbox
    from cni.shared.log import Log

CLEARING_SECONDS = 2.0  # longest wait; by measurement the kernel clears 150 sandboxes that end at once in 0.07 s


def delete(plugin: LinkPlugin, request: Request, records: Records) -> None:
    """Remove the attachment, even if sandbox, device or configuration are gone. Raises CniError if some part remains."""
    with records.locked(request.attachment, LINK), Rtnl() as host:
        record = records.read(request.attachment, LINK)
        faults: list[CniError] = []
        gone = False
        try:
            faults, gone = end(record, request, host, records, time.monotonic() + CLEARING_SECONDS, plugin)
        finally:
            if record and (faults or not gone):
                _mark(record, request, records)
        if record and gone and UNENDED in record:
            faults = _untold(faults, records.log)
        kind = request.ipam_type
        if faults and kind and not gone:
            faults[0].msg += f"; its addresses stay reserved with {kind} until the link is gone: repeat the DEL"
        report(faults)


def end(
    record: dict[str, Any] | None,
    request: Request,
    host: Rtnl,
    records: Records,
    until: float,
    plugin: LinkPlugin | None = None,
) -> tuple[list[CniError], bool]:
    """Remove an attachment: link, addresses and `record`. Waits for the kernel only until `until` (time.monotonic).

    If `record` is None, another implementation of `plugin` made the attachment, or it never existed. The IPAM plugin's
    DEL is called when the link is gone, or earlier if the IPAM plugin is of another suite. Returns the errors, and
    whether the link is gone or the IPAM plugin's DEL was called. The caller holds the attachment's lock.
    """
    release = Release(record, request, records)
    was_attached = True
    faults: list[CniError] = []
    gone = True
    try:
        if record:
            faults += detach(record, request, host, records.log, until, release)
        elif plugin:
            was_attached = detach_unrecorded(plugin, request, host, records, release)
    except Unrestored as fault:  # the link is gone from the sandbox
        faults.append(fault)
    except CniError as fault:
        faults.append(fault)
        gone = False
    try:
        if gone or release.is_made:
            release.finish(was_attached)
        if not faults:
            records.remove(request.attachment, LINK)
    except CniError as fault:
        faults.append(fault)
    return faults, gone or release.is_made


def _untold(faults: list[CniError], log: Log) -> list[CniError]:
    """Log the faults of a foreign IPAM plugin in a repeated DEL, and return the other `faults` for the runtime. So a
    plugin that always fails cannot block the pod. The record stays, and cni.link.verbs.gc calls the plugin again."""
    for fault in faults:
        if isinstance(fault, DelegateFailed):
            log.warning(f"{fault}; that plugin is called again later")
    return [fault for fault in faults if not isinstance(fault, DelegateFailed)]


def _mark(record: dict[str, Any], request: Request, records: Records) -> None:
    """Note in the record that this DEL failed, and its CNI_PATH, so that a later call soon repeats the DEL."""
    path = ":".join(request.path)
    try:
        if record.get(UNENDED) != path:
            records.write(request.attachment, LINK, {**record, UNENDED: path})
    except CniError:
        return  # GC and the next DEL use the unchanged record
    records.look_in(RETRY_SECONDS)


def for_attachment(attachment: Attachment, record: dict[str, Any], environ: Mapping[str, str]) -> Request:
    """The DEL that a runtime would send for `attachment`. `environ` has the CNI_PATH and other variables."""
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
    """Remove the features of the attachment, and call the plugin of `record` to remove the link. Returns the errors.

    On return the link is gone: the errors concern only features, or a device that lacks a part of its former state.
    Raises a CniError if the link remains. Waits until `until` (time.monotonic) at most while the kernel clears a dead
    sandbox. When the link is gone, the caller must call `release.finish`.
    """
    made = plugins.of_made(record["plugin"])
    planned = made.load(record["link"])
    if record["bootID"] != node.boot_id():
        return remove_features(record, None, log)  # the links of an earlier boot are gone
    sandbox = sandboxes.of_record(record, request)
    if sandbox and not sandboxes.is_certain(record["sandbox"]) and not made.recognises(planned, sandbox.rtnl):
        sandbox.close()  # it may be a later namespace with the same inode
        sandbox = None
    faults: list[CniError] = []
    try:
        if sandbox is None:
            faults += remove_features(record, None, log)
            _remove_unseen(made, planned, host, log, until, release)
        else:
            with sandbox:
                faults += remove_features(record, sandbox, log)
                release.by_link(made, planned, sandbox)
                _remove(made, planned, host, sandbox.rtnl, log, until)
    except Unrestored as fault:  # the link is gone from the sandbox
        if UNENDED in record:  # an earlier DEL could not restore the device either
            log.warning(f"{fault}; it is not tried again")
        else:
            faults.append(fault)
    return faults


def _remove_unseen(made: MadeLinks, planned: Any, host: Rtnl, log: Log, until: float, release: Release) -> None:
    """Remove the link or return the device of a sandbox that is gone or cannot be found."""
    try:
        _remove(made, planned, host, None, log, until)
    except Unrestored:
        raise
    except TryAgainLater:
        if not release.in_advance():
            raise
        _remove(made, planned, host, None, log, until and until + CLEARING_SECONDS)


def _remove(made: MadeLinks, planned: Any, host: Rtnl, inside: Rtnl | None, log: Log, until: float) -> None:
    while True:
        try:
            return made.remove(planned, host, inside, log)
        except Lingers:
            if time.monotonic() >= until:
                raise
        time.sleep(0.005)


def remove_features(record: dict[str, Any], sandbox: Sandbox | None, log: Log) -> list[CniError]:
    """Undo the features in the record, and return the errors. `sandbox` is None when the sandbox is gone."""
    documents = record.get("extras")
    if not documents:
        return []
    from cni.link import features  # most attachments have none

    return features.remove(documents, sandbox, log)


def detach_unrecorded(plugin: LinkPlugin, request: Request, host: Rtnl, records: Records, release: Release) -> bool:
    """Remove a link without a record, which another implementation of `plugin` made. Returns False if there is none."""
    made = plugins.of_made(plugin.NAME)
    sandbox = sandboxes.at(request.netns, request)
    if sandbox is None:
        planned = made.adopt(request, host, None)
        if planned:
            made.remove(planned, host, None, records.log)
        return planned is not None
    with sandbox:
        planned = made.adopt(request, host, sandbox.rtnl)
        if planned is None or _is_recorded(planned.name, sandbox.identity(), records):
            return False
        release.by_link(made, planned, sandbox)
        made.remove(planned, host, sandbox.rtnl, records.log)
    return True


def _is_recorded(name: str, identity: dict[str, int], records: Records) -> bool:
    if any(record["sandbox"] == identity and record["link"]["name"] == name for _, _, record in records.all(LINK)):
        return True
    return any(
        attachment.ifname == name for attachment, _, _ in records.newer(LINK)
    )  # a newer format may describe the sandbox differently


class Release:
    """One call of the IPAM plugin's DEL for an attachment, with the configuration of the ADD that claimed its addresses.

    `by_link` calls a plugin of another suite while the link exists. `finish` calls any plugin that was not called yet.
    """

    def __init__(self, record: dict[str, Any] | None, request: Request, records: Records) -> None:
        former = config_of(record) if record else {}
        if record and any(member(former, key) != request.member(key) for key in ("ipam", "rail")):
            request = delegate.with_config(request, record["config"].encode())
        self._request = request
        self.ipam_type = request.ipam_type
        self._records = records
        self._fault: CniError | None = None
        self.is_made = False

    def by_link(self, made: MadeLinks, planned: Any, sandbox: Sandbox) -> None:
        """If the IPAM plugin is foreign and the link exists, remove the addresses from the link and release them."""
        if not delegate.is_foreign(self._request):
            return
        try:
            link = made.present(planned, sandbox.rtnl)
            if link is None:
                return
            addresses.clear(sandbox.rtnl, link.index)
        except KernelError as fault:
            self._records.log.warning(f"the addresses of {planned.name} are released when the link is gone: {fault}")
            return
        self._make()

    def in_advance(self) -> bool:
        """Call a foreign plugin's DEL before the link is gone, since dhcp's daemon keeps the sandbox open until that
        DEL. Returns False if the DEL was called already or the plugin is ours."""
        if self.is_made or not delegate.is_foreign(self._request):
            return False
        self._make()
        return True

    def _make(self) -> None:
        self.is_made = True
        try:
            delegate.delete(self._request, self._records)
        except CniError as fault:
            self._fault = fault

    def finish(self, was_attached: bool = True) -> None:
        """Call the DEL, unless it was called already. Raises the CniError of the DEL, also of an earlier call.

        `was_attached` is False if the attachment has neither record nor link, as after a failed ADD. A foreign plugin
        then holds no addresses for the attachment, and may fail in each DEL. So its error is only logged.
        """
        if not self.is_made and self.ipam_type:
            self._make()
        if not self._fault:
            return
        if was_attached or not isinstance(self._fault, DelegateFailed):
            raise self._fault
        self._records.log.warning(self._fault.msg)


def config_of(record: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the ADD that wrote `record`."""
    config: dict[str, Any] = codec.loads(record["config"].encode())
    return config
