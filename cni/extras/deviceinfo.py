"""The device-info file, in which an attachment's device is described for the runtime: Multus puts it into the pod's
network-status.

Source: Device Information Specification of the Network Plumbing Working Group, version 1.1.0. A `type` for devices
that are RDMA and not PCI (soft-RoCE) it has none: "rdma" is ours, as is the member of that name.
"""

from __future__ import annotations

import posix

from cni import policy
from cni.kernel import files, rdma, sysfs
from cni.spec import codec
from cni.spec.errors import InvalidConfig, IoFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.log import Log

CAPABILITY = "CNIDeviceInfoFile"
_VERSION = "1.1.0"
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
    address = rdma.pci_of(device, root)
    if not address:
        return {"type": "rdma", "version": _VERSION, "rdma": own}
    pci = {"pci-address": address, "rdma-device": device}
    physical = sysfs.physical_function_of(address, root)
    if physical:
        pci["pf-pci-address"] = physical
    return {"type": "pci", "version": _VERSION, "pci": pci, "rdma": own}


def write(path: str, document: dict[str, Any], log: Log) -> None:
    """Write the file whole or not at all; IoFailure. What the device plugin has said there of a PCI device stays."""
    former = _former(path)
    kind = former.get("type")
    if kind == "pci" and isinstance(former.get("pci"), dict):
        pci = {"rdma-device": document["rdma"]["rdma-device"], **document.get("pci", {}), **former["pci"]}
        document = {**former, "version": _VERSION, "pci": pci, "rdma": document["rdma"]}
    elif isinstance(kind, str) and kind not in ("pci", "rdma"):
        log.warning(f"{path} describes a device of type {kind}: left as it is")
        return
    directory, _, name = path.rpartition("/")
    data = codec.dumps(document).encode() + b"\n"
    try:
        try:
            files.write_durably(directory, name, data)
        except FileNotFoundError:
            files.make_private_directory(directory)
            files.write_durably(directory, name, data)
    except OSError as fault:
        raise IoFailure(f"the device-info file {path} cannot be written: {fault.strerror}") from None


def remove(path: str) -> None:
    """Remove the file; there need not be one. IoFailure."""
    directory, _, name = path.rpartition("/")
    try:
        files.remove_durably(directory, name)
    except FileNotFoundError:
        pass
    except OSError as fault:
        if not _is_there(path):
            return  # nothing was to be removed where nothing can be
        raise IoFailure(f"the device-info file {path} cannot be removed: {fault.strerror}; DEL again") from None


def _is_there(path: str) -> bool:
    try:
        posix.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return True


def _former(path: str) -> dict[str, Any]:
    try:
        document = codec.loads_foreign(files.read_regular(path, _MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
