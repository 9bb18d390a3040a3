"""Write the device-info file, which describes an attachment's device. Multus copies it into the pod's network-status.

Source: Device Information Specification of the Network Plumbing Working Group, version 1.1.0. The specification has no
`type` for RDMA devices without PCI (soft-RoCE): the type "rdma" and the member `rdma` are railcni's own. The file is
DIRECTORY/cni/UNIQUE NAME. Before an ADD the file is missing or empty, or has the device plugin's description of the
attachment's device (section 4.2.1). Only device plugins use the directory dp/ beside cni/.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cni.shared import policy
from cni.shared.kernel import files, rdma_sysfs, sysfs
from cni.shared.log import Log
from cni.shared.records import LINK, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig, IoFailure, TryAgainLater
from cni.shared.spec.request import Attachment, Request, member

CAPABILITY = "CNIDeviceInfoFile"
_VERSION = "1.1.0"
_MARK = "attachment"  # the member of `rdma` with the owner of the file: [network, containerID, ifname]
_MOST_BYTES = 1 << 20


def path(value: Any) -> str:
    """Resolve the path `value` of runtimeConfig; "" without a path. Raises InvalidConfig if the policy forbids it."""
    if not value:
        return ""
    try:
        if not isinstance(value, str) or not value.startswith("/") or value.endswith("/"):
            raise ValueError("want the absolute path of a file")
        return policy.current().confine("deviceInfoRoots", value)
    except ValueError as fault:
        raise InvalidConfig(f"runtimeConfig.{CAPABILITY} {codec.dumps(value)[:60]}: {fault}") from None


def described(device: str, port: int, indexes: dict[str, int], root: str = "/sys") -> dict[str, Any]:
    """The content of the file for a port of a verbs device. `indexes` maps addresses to their GID indexes."""
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
    """Return the resolved path of the file and its owner (attachment and pod), or ("", {}) if no file shall be written.

    The author of a network can name any file. So a file that describes a device not in `devices` is left as it is, with
    a line in the log. Raises InvalidConfig for a path that the policy forbids, and TryAgainLater when another pod's
    attachment owns the file and still has a record.
    """
    place = path(value)
    if not place:
        return "", {}
    whose = {"attachment": list(request.attachment.key()), "pod": list(request.pod)}
    with Records(log=log).locked_info_file(place):
        is_free = _is_free(place, _former(place), [rdma_sysfs.pci_of(device) for device in devices], whose, log)
    return (place, whose) if is_free else ("", {})


def write(path: str, document: dict[str, Any], whose: dict[str, Any], log: Log) -> None:
    """Write `document` to the file, with its owner `whose` (from `claim`); do nothing if the file has another owner
    now. Members that the device plugin wrote are kept. Raises IoFailure when the file cannot be written."""
    with Records(log=log).locked_info_file(path):
        former = _former(path)
        if not _is_free(path, former, [document.get("pci", {}).get("pci-address", "")], whose, log):
            return  # the file was made after the check by `claim`
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


def remove(path: str, whose: dict[str, Any], log: Log) -> None:
    """Remove the file if its owner is `whose` (from `claim`). Raises IoFailure when the file cannot be removed."""
    with Records(log=log).locked_info_file(path):
        is_there = files.mark(path) != ()
        if is_there and member(_former(path), "rdma", _MARK) != whose["attachment"]:
            log.warning(f"the device-info file {path} is not this attachment's: left as it is")
            return
        directory, _, name = path.rpartition("/")
        try:
            files.remove(directory, name)  # removes a killed writer's temporary file too, even if the file is missing
        except OSError as fault:
            if not is_there:
                return  # there is no file
            raise IoFailure(
                f"the device-info file {path} cannot be removed: {fault.strerror}; repeat the DEL"
            ) from None


def _is_free(path: str, former: dict[str, Any], addresses: Sequence[str], whose: dict[str, Any], log: Log) -> bool:
    """Whether the attachment `whose`, which has the PCI devices `addresses`, may replace the content `former`."""
    kind, own, described = former.get("type"), former.get("rdma"), former.get("pci")
    if not isinstance(kind, str) or member(own, _MARK) == whose["attachment"]:
        return True
    if own and isinstance(own, dict):
        _refuse_living(path, member(own, _MARK), whose["pod"])
        return True
    address = member(described, "pci-address")
    if kind == "pci" and (not isinstance(described, dict) or (address and address in addresses)):
        return True
    log.warning(f"{path} describes a device of type {kind} {address or ''}, which is another: left as it is")
    return False


def _refuse_living(path: str, mark: Any, pod: list[str]) -> None:
    """Raise TryAgainLater if the file's owner `mark` is malformed, or is an attachment of another pod with a record."""
    what = f"the device-info file {path} (runtimeConfig.{CAPABILITY})"
    if not isinstance(mark, list) or [type(part) for part in mark] != [str, str, str]:
        raise TryAgainLater(f"{what} does not name its attachment: remove the file")
    other = Attachment(*mark)
    record = Records().read(other, LINK)
    if record and not (pod[1] and record.get("pod") == pod):
        raise TryAgainLater(
            f"{what} is that of {other.ifname} of container {other.container_id} (network {other.network}): want a path for"
            " each attachment, as Multus gives it for the capability; take runtimeConfig out of the network's configuration"
        )


def _former(path: str) -> dict[str, Any]:
    try:
        document = codec.loads_foreign(files.read_regular(path, _MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
