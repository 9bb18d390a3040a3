"""The device-info file, in which an attachment's device is described for the runtime: Multus puts it into the pod's
network-status.

Source: Device Information Specification of the Network Plumbing Working Group, version 1.1.0. A `type` for devices
that are RDMA and not PCI (soft-RoCE) it has none: "rdma" is ours, as is the member of that name. By the specification the
file is DIRECTORY/cni/UNIQUE NAME, and holds either nothing or what the device plugin has said of the device that this
attachment gets (4.2.1); dp/ beside it is the device plugin's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared import policy
from cni.shared.kernel import files, rdma_sysfs, sysfs
from cni.shared.records import LINK, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig, IoFailure, TryAgainLater
from cni.shared.spec.request import Attachment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.records import HeldLock
    from cni.shared.spec.request import Request

CAPABILITY = "CNIDeviceInfoFile"
_VERSION = "1.1.0"
_MARK = "attachment"  # the member of `rdma` that says whose file it is: [network, containerID, ifname]
_MOST_BYTES = 1 << 20


def path(value: Any) -> str:
    """Where the file that the runtime names is to be, "" for none; InvalidConfig when that is no place for it."""
    if not value:
        return ""
    try:
        if not isinstance(value, str) or not value.startswith("/") or value.endswith("/"):
            raise ValueError("want the absolute path of a file")
        return policy.current().confine("deviceInfoRoots", value)
    except ValueError as fault:
        raise InvalidConfig(f"runtimeConfig.{CAPABILITY} {codec.dumps(value)[:60]}: {fault}") from None


def described(device: str, port: int, indexes: dict[str, int], root: str = "/sys") -> dict[str, Any]:
    """What the file says of a port of a verbs device, with the GID index of each address."""
    own = {"rdma-device": device, "port": port, "gid-index": indexes}
    address = rdma_sysfs.pci_of(device, root)
    if not address:
        return {"type": "rdma", "version": _VERSION, "rdma": own}
    pci = {"pci-address": address, "rdma-device": device}
    physical = sysfs.physical_function_of(address, root)
    if physical:
        pci["pf-pci-address"] = physical
    return {"type": "pci", "version": _VERSION, "pci": pci, "rdma": own}


def claim(value: Any, devices: Sequence[str], request: Request, log: Log) -> tuple[str, dict[str, Any]]:
    """Where the file that the runtime names is to be, and whose it will be; ("", {}) for none.

    A network's author can name any file there. So one that describes another device is left as it is, with a line in the
    log; TryAgainLater for one that another attachment has written. `devices` are verbs devices, one of which is meant.
    """
    place = path(value)
    if not place:
        return "", {}
    whose = {"attachment": list(request.attachment.key()), "pod": list(request.pod)}
    with _locked(place, log):
        is_free = _is_free(place, _former(place), [rdma_sysfs.pci_of(device) for device in devices], whose, log)
    return (place, whose) if is_free else ("", {})


def write(path: str, document: dict[str, Any], whose: dict[str, Any], log: Log) -> None:
    """Write the file whole or not at all, as `claim` has allowed; IoFailure. What the device plugin has said there stays."""
    with _locked(path, log):
        former = _former(path)
        if not _is_free(path, former, [document.get("pci", {}).get("pci-address", "")], whose, log):
            return  # it was made since
        own = {**document["rdma"], _MARK: whose["attachment"]}
        if former.get("type") == "pci" and isinstance(former.get("pci"), dict):
            pci = {"rdma-device": own["rdma-device"], **document.get("pci", {}), **former["pci"]}
            document = {**former, "version": _VERSION, "pci": pci}
        directory, _, name = path.rpartition("/")
        data = codec.dumps({**document, "rdma": own}).encode() + b"\n"
        try:
            files.write_whole_below(directory, name, data)
        except OSError as fault:
            raise IoFailure(f"the device-info file {path} cannot be written: {fault.strerror}") from None


def remove(path: str, whose: dict[str, Any] | None, devices: Sequence[str], log: Log) -> None:
    """Remove the file, if it is there and this attachment's. IoFailure.

    `whose` is what `claim` answered; None in a record of version 0.1.0, whose files do not say whose they are: then the
    file is removed when it names one of the verbs devices `devices`.
    """
    with _locked(path, log):
        own = _own(_former(path))
        mark = own.get(_MARK)
        is_there = files.mark(path) != ()
        if is_there and (mark != whose["attachment"] if whose else (mark or own.get("rdma-device") not in devices)):
            log.warning(f"the device-info file {path} is not this attachment's: left as it is")
            return
        directory, _, name = path.rpartition("/")
        try:
            files.remove(directory, name)  # where there is no file, what a killed writer of it left
        except OSError as fault:
            if not is_there:
                return  # nothing was to be removed where nothing can be
            raise IoFailure(
                f"the device-info file {path} cannot be removed: {fault.strerror}; repeat the DEL"
            ) from None


def _locked(path: str, log: Log) -> HeldLock:
    """Hold the lock of the file at `path` on this node, so that of two attachments that name it one is first."""
    return Records(log=log).locked_info_file(path)


def _is_free(path: str, former: dict[str, Any], addresses: Sequence[str], whose: dict[str, Any], log: Log) -> bool:
    """Whether the file, which has the content `former`, may be written for the attachment `whose`."""
    kind, own = former.get("type"), _own(former)
    if not isinstance(kind, str) or own.get(_MARK) == whose["attachment"]:
        return True
    if own:
        _refuse_living(path, own.get(_MARK), whose["pod"])
        return True
    described = former.get("pci")
    address = described.get("pci-address") if isinstance(described, dict) else None
    if kind == "pci" and (not isinstance(described, dict) or (address and address in addresses)):
        return True
    log.warning(f"{path} describes a device of type {kind} {address or ''}, which is another: left as it is")
    return False


def _refuse_living(path: str, mark: Any, pod: list[str]) -> None:
    """TryAgainLater when the attachment that `mark` names is still recorded, and is not of the same `pod`, restarted."""
    what = f"the device-info file {path} (runtimeConfig.{CAPABILITY})"
    if not isinstance(mark, list) or [type(part) for part in mark] != [str, str, str]:
        raise TryAgainLater(
            f"{what} was written by railcni 0.1.0, for an attachment that it does not name: remove the file"
        )
    other = Attachment(*mark)
    record = Records().read(other, LINK)
    if record and not (pod[1] and record.get("pod") == pod):
        raise TryAgainLater(
            f"{what} is that of {other.ifname} of container {other.container_id} (network {other.network}): want a path for"
            " each attachment, as Multus gives it for the capability; take runtimeConfig out of the network's configuration"
        )


def _own(former: dict[str, Any]) -> dict[str, Any]:
    """What we have written of a verbs device."""
    own = former.get("rdma")
    return own if isinstance(own, dict) else {}


def _former(path: str) -> dict[str, Any]:
    try:
        document = codec.loads_foreign(files.read_regular(path, _MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
