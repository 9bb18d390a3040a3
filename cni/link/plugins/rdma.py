"""The plugin rdma: after sriov or host-device in a chain, it moves the verbs device of the netdev into the sandbox too.

A DEL brings the verbs device back before the netdev, because a runtime calls DEL from the end of the chain.

Only in RDMA's exclusive netns mode does a verbs device belong to one namespace. When a namespace ends, the kernel moves
its verbs devices back (rdma_dev_exit_net, drivers/infiniband/core/device.c). This plugin has its own record and lock
for an attachment, since the link plugin of the chain may be of another suite.

Go's rdma-cni writes a file on the node for each attachment, and reads it to end the attachment (pkg/cache, pkg/types):

    /var/lib/cni/rdma/NETWORK-CONTAINERID-IFNAME    JSON: containerRdmaDevName, the verbs device's name in the sandbox;
                                                    sandboxRdmaDevName, its name on the host; deviceID, version

Sources: k8snetworkplumbingwg/rdma-cni for keys and this file; rdma-system(8) for the modes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from errno import ENODEV, EOPNOTSUPP, EPROTONOSUPPORT
from typing import Any

from cni.link.plugins import uplink
from cni.shared import policy
from cni.shared.config import OF_RUNTIMES, Fault, declare, fill, keys_of, misspelt, optional, refuse, string, take
from cni.shared.gc import Began, locked, valid_attachments
from cni.shared.kernel import files, netns, node, rdma_sysfs
from cni.shared.kernel import sandbox as sandboxes
from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.kernel.rdma_netlink import EXCLUSIVE, Rdma, RdmaDevice
from cni.shared.kernel.sandbox import Sandbox
from cni.shared.log import Log
from cni.shared.records import Records
from cni.shared.spec import codec, errors, parsing, result
from cni.shared.spec.request import Request, member

PART = "rdma"  # the part of the attachment records for this plugin
_GO_CACHE = "/var/lib/cni/rdma"
_MOST_BYTES = 1 << 20
_SHARED = (
    "RDMA's netns mode is shared: all sandboxes see all verbs devices, and none can be moved. Run `rdma system set netns"
    " exclusive` while there is no other network namespace, or boot with `options ib_core netns_mode=0` in"
    " /etc/modprobe.d; or take `rdma` out of the chain"
)
_NO_RDMA = "this kernel has no RDMA: load ib_core and the NIC's RDMA driver, or take `rdma` out of the chain"


def device_name(value: Any) -> str:
    """Check and return the name of a device. Raises ValueError for a value that cannot be one."""
    if "/" in string(value):
        raise ValueError("want the name of one device, without /")
    return str(value)


class RdmaConfig:
    """The checked values of KEYS. `device_id` is runtimeConfig.deviceID or, if that is absent, the key `deviceID`."""

    device_id: str = declare(optional(device_name), "", "deviceID").means(
        "PCI address or auxiliary device that the verbs device belongs to; default: that of the netdev"
    )
    verbs_device: str = declare(optional(device_name), "", "verbsDevice").means(
        "name of the verbs device, for one that belongs to neither (soft-RoCE), or for one of several"
    )


KEYS = keys_of(RdmaConfig)


class Passed(result.Result):
    """The result of the previous plugin of the chain, which this plugin returns unchanged."""

    def __init__(self, document: dict[str, Any]) -> None:
        parsed = parsing.parse(document)
        super().__init__(parsed.interfaces, parsed.ips, parsed.routes, parsed.dns)
        self._document = document

    def document(self, version: str) -> dict[str, Any]:
        return {"cniVersion": version, **self._document}


def call(request: Request, log: Log) -> result.Result | None:
    """Serve `request`. Returns the result of an ADD, None for every other verb."""
    if member(request.member("args"), "cni", "debug") is True:
        log.level = "debug"
    verbs: dict[str, Callable[[Request, Records], result.Result | None]]
    verbs = {"ADD": add, "DEL": delete, "CHECK": check, "GC": gc, "STATUS": status}
    return verbs[request.command](request, Records(log=log))


def read(request: Request) -> RdmaConfig:
    """The checked configuration. Raises InvalidConfig with all faults."""
    config = RdmaConfig()
    faults: list[Fault] = []
    fill(config, KEYS, request.config, faults)
    take(config, "device_id", device_name, faults, (("runtimeConfig.deviceID", request.of_runtime("deviceID")),))
    refuse(faults)
    return config


def add(request: Request, records: Records) -> Passed:
    """Move the verbs device into the sandbox. If ADD fails, the device is on the host afterwards."""
    config = read(request)
    for text in misspelt(request.config, (*(key.name for key in KEYS), *OF_RUNTIMES)):
        records.log.warning(text)
    passed = _previous(request)
    with sandboxes.opened(request) as sandbox, records.locked(request.attachment, PART):
        host = _exclusive(errors.KernelRefused)
        former = records.read(request.attachment, PART)
        if former:
            _give_back(former, request, records.log)
        device, parent = _find(config, passed, request, sandbox, host, records)
        _permit(device.name, parent, sandbox)
        record = {
            "netns": request.netns,
            "sandbox": sandbox.identity(),
            "pod": list(request.pod),
            "created": time.time_ns(),
        }
        record |= {"device": device.name, "index": device.index, "parent": parent}
        records.write(request.attachment, PART, record)
        try:
            host.move(device.index, sandbox.namespace.fd)
        except KernelError as fault:
            records.remove(request.attachment, PART)
            raise _refused(device.name, fault, "to the sandbox") from None
        records.log.debug(f"verbs device {device.name} is in sandbox {request.netns}")
    return passed


def _previous(request: Request) -> Passed:
    document = request.member("prevResult")
    if document is None:
        raise errors.InvalidConfig(
            "there is no prevResult: rdma moves the verbs device of what a plugin before it attached; put it after sriov"
            " or host-device in the list `plugins`"
        )
    return Passed(document)


def _exclusive(kind: type[errors.CniError]) -> Rdma:
    """Open an RDMA netlink socket in this namespace. Raises `kind` if the netns mode is shared or RDMA is missing."""
    try:
        rdma = Rdma()
        mode = rdma.netns_mode()
    except OSError as fault:
        raise kind(_NO_RDMA, str(fault)) from None
    if mode != EXCLUSIVE:
        raise kind(_SHARED)
    return rdma


def _find(
    config: RdmaConfig, passed: Passed, request: Request, sandbox: Sandbox, host: Rdma, records: Records
) -> tuple[RdmaDevice, str]:
    """The verbs device to move, and its parent device. The parent is "" if the key `verbsDevice` selects the device."""
    name, parent = config.verbs_device, ""
    if not name:
        parent = config.device_id or _parent(passed, request, sandbox)
        names = rdma_sysfs.devices_of(parent)
        if len(names) > 1:
            raise errors.InvalidConfig(
                f"deviceID {parent} has the verbs devices {', '.join(names)}: name one in the key `verbsDevice`"
            )
        name = names[0] if names else ""
    device = host.device(name) if name else None
    if device:
        return device, parent
    what = f"verbs device {name}" if config.verbs_device else f"the verbs device of {parent}"
    for attachment, _, record in records.all(PART):
        is_meant = record["parent"] == parent if parent else record["device"] == name
        if is_meant and attachment != request.attachment and record["bootID"] == node.boot_id():
            raise errors.TryAgainLater(
                f"{what} is in use by container {attachment.container_id} as {attachment.ifname} (network"
                f" {attachment.network}): wait until that is deleted"
            )
    raise errors.InvalidConfig(
        f"{what} is not on the host: load its RDMA driver, correct the key, or take `rdma` out of the chain",
        f"verbs devices of the host: {' '.join(d.name for d in host.devices())}",
    )


def _permit(device: str, parent: str, sandbox: Sandbox) -> None:
    """Raise InvalidConfig when the policy does not allow the verbs device, or the node needs the device's netdev. If
    the netdev is already in the sandbox, do nothing: the plugin that moved the netdev has checked this."""
    from cni.link.plugins.host_device import moved  # only an ADD needs this module

    hardware = rdma_sysfs.pci_of(device) or parent
    if hardware and any(link.parent_device == hardware for link in sandbox.rtnl.links()):
        return
    below = "" if hardware else rdma_sysfs.netdev_of(device, 1)  # soft-RoCE
    with Rtnl() as host:
        links = host.links()
        netdevs = [link for link in links if (link.parent_device == hardware if hardware else link.name == below)]
        names = [name for name in (device, hardware, *(link.name for link in netdevs)) if name]
        policy.current().permit("devices", f'verbs device "{" ".join(names)}"', names)
        for netdev in netdevs:
            reason = uplink.needed(netdev, links, host)
            if reason:
                raise errors.InvalidConfig(moved.cut_off(f'verbs device "{device}"', reason))


def _parent(passed: Passed, request: Request, sandbox: Sandbox) -> str:
    """The parent device of the attachment's netdev, such as the PCI address "0000:3b:00.2", from the previous result or
    from the link in the sandbox. Raises InvalidConfig when neither shows the parent device."""
    name = request.attachment.ifname
    for interface in passed.interfaces:
        if interface.name == name and interface.sandbox and interface.pci_id:
            return interface.pci_id
    link = sandbox.rtnl.link(name=name)
    if link and link.parent_device:
        return link.parent_device
    what = "belongs to no device (a macvlan, or another software link)" if link else "is not in the sandbox"
    raise errors.InvalidConfig(
        f'"{name}" {what}, so its verbs device is unknown: put rdma after sriov or host-device, or give the key'
        " `deviceID` or `verbsDevice`"
    )


def _refused(name: str, fault: KernelError, where: str) -> errors.KernelRefused | errors.TryAgainLater:
    if fault.errno == ENODEV:
        return errors.TryAgainLater(f"verbs device {name} has vanished meanwhile: retry when it is back", str(fault))
    words = fault.strerror
    if fault.errno == EOPNOTSUPP:
        words = "its driver cannot change the network namespace, as soft-RoCE's: use another device"
    return errors.KernelRefused(f"verbs device {name} cannot be moved {where}: {words}", str(fault))


def delete(request: Request, records: Records) -> None:
    """Return the verbs device to the host, if sandbox and device still exist. Can be repeated."""
    with records.locked(request.attachment, PART):
        record = records.read(request.attachment, PART)
        if record:
            _give_back(record, request, records.log)
            records.remove(request.attachment, PART)
        else:
            _give_back_unrecorded(request, records.log)


def _give_back(record: dict[str, Any], request: Request, log: Log) -> None:
    """Return the verbs device of `record` to the host, under its former name."""
    if record["bootID"] == node.boot_id():
        _bring_back(record["device"], record["index"], sandboxes.of_record(record, request), log)


def _bring_back(name: str, index: int, sandbox: Sandbox | None, log: Log) -> None:
    """Move the verbs device with this `index`, or with this `name` if `index` is 0, from the sandbox to the host."""
    if sandbox is None:
        return
    with sandbox, netns.own() as home, sandbox.namespace.entered():
        try:
            inside = Rdma()
            if inside.netns_mode() != EXCLUSIVE:
                return
        except OSError as fault:
            if fault.errno != EPROTONOSUPPORT:
                raise
            return  # RDMA has been unloaded, and all verbs devices with it
        device = next((d for d in inside.devices() if (d.index == index if index else d.name == name)), None)
        if device is None:
            log.debug(f"verbs device {name} is not in the sandbox any more")
            return
        try:
            if device.name != name:
                inside.rename(device.index, name)
            inside.move(device.index, home.fd)
        except KernelError as fault:
            raise _refused(device.name, fault, "back to the host; repeat the DEL") from None


def _give_back_unrecorded(request: Request, log: Log) -> None:
    """Return to the host the verbs device that the file of Go's rdma-cni names, and remove the file."""
    path = f"{_GO_CACHE}/{'-'.join(request.attachment.key())}"
    name = _cached_name(path)
    if not name:
        return
    _bring_back(name, 0, sandboxes.at(request.netns, request), log)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as fault:
        raise errors.IoFailure(f"{path} cannot be removed: {fault.strerror}; run as root") from None


def _cached_name(path: str) -> str:
    """The verbs device that Go's file `path` names; "" if the file is missing. Raises IoFailure if it is unreadable."""
    try:
        data = files.read_regular(path, _MOST_BYTES, os.O_NOFOLLOW, private=True)
        name = member(codec.loads_foreign(data), "containerRdmaDevName")
        if not isinstance(name, str) or not name:
            raise ValueError("it has no containerRdmaDevName")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as fault:
        raise errors.IoFailure(
            f"{path}, in which Go's rdma-cni describes this attachment, cannot be read: {fault}; repair it, or remove it"
            " when the verbs device is on the host"
        ) from None
    return name


def check(request: Request, records: Records) -> None:
    """Raise AttachmentDiffers when the verbs device is not in the sandbox, or the configuration selects another one."""
    config = read(request)
    _previous(request)
    with sandboxes.opened(request) as sandbox:
        _exclusive(errors.AttachmentDiffers)
        record = records.read(request.attachment, PART)
        if record is None:
            return  # Go's plugin has attached the device, or the record is lost
        for key, has, configured in (
            ("verbsDevice", record["device"], config.verbs_device),
            ("deviceID", record["parent"], "" if config.verbs_device else config.device_id),
        ):
            if has and configured and has != configured:
                raise errors.AttachmentDiffers(
                    f"{key} of container {request.attachment.container_id} is {has}, configured is {configured}: detach and"
                    " attach it again"
                )
        with sandbox.namespace.entered():
            inside = Rdma()
        if not any((d.index, d.name) == (record["index"], record["device"]) for d in inside.devices()):
            raise errors.AttachmentDiffers(
                f"verbs device {record['device']} of container {request.attachment.container_id} is not in the sandbox under"
                " that name: detach and attach it again"
            )


def gc(request: Request, records: Records) -> None:
    """Return the verbs devices of attachments that the runtime does not list. Raises all errors at the end."""
    began = Began()
    valid = valid_attachments(request, records.log)
    if valid is None:
        return
    faults: list[errors.CniError] = []
    chosen = [a for a, _ in records.of_network(request.attachment.network, PART) if a not in valid]
    for attachment, record in locked(chosen, PART, records):
        if record and began.is_after(record["created"]):
            try:
                _give_back(record, request, records.log)
                records.remove(attachment, PART)
            except errors.CniError as fault:
                faults.append(fault)
    records.sweep(request.attachment.network)
    errors.report(faults)


def status(request: Request, records: Records) -> None:
    """Raise NotAvailable when no verbs device can be moved: in shared netns mode, or without RDMA."""
    read(request)
    _exclusive(errors.NotAvailable)
