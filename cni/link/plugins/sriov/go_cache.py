"""Read the files of Go's sriov-cni, so that a DEL can end that plugin's attachments and no ADD takes their VFs.

    /var/lib/cni/sriov/CONTAINERID-IFNAME    the network's configuration, its keys as sriov-cni spells them, and
                                             VFID, Master, OrigVfState (the former state of the VF)
    /var/lib/cni/sriov/pci/ADDRESS           the sandbox that has the VF: the path of its namespace

Source: pkg/config, pkg/types and pkg/utils/pci_allocator.go of k8snetworkplumbingwg/sriov-cni.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cni.link.plugins.host_device.devices import MovePlan
from cni.shared.kernel import files, netns, vfs
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure
from cni.shared.spec.request import Attachment, member

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    T = TypeVar("T", str, int)

DIRECTORY = "/var/lib/cni/sriov"
_MOST_BYTES = 1 << 20
_PROTOCOLS = {0x8100: "802.1q", 0x88A8: "802.1ad"}
_STATES = {0: "auto", 1: "enable", 2: "disable"}
_CHANGING = ("vlan", "min_tx_rate", "max_tx_rate", "spoofchk", "trust", "link_state")  # keys that change the VF


def holder(pci: str) -> str:
    """The path of the sandbox to which Go's plugin has given the VF; "" if there is none, or the sandbox is gone."""
    try:
        path = _content(f"pci/{pci}").decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    return path if netns.may_be_at(path) else ""


def plan(attachment: Attachment) -> tuple[dict[str, Any], list[str]] | None:
    """The plan (`SriovPlan.document`) of an attachment that Go's plugin made, and the names of its files in DIRECTORY;
    None without such an attachment. Raises IoFailure when the file of the attachment cannot be read."""
    name = f"{attachment.container_id}-{attachment.ifname}"
    try:
        document = codec.loads_foreign(_content(name))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise _unreadable(name, str(fault)) from None
    state, pci = member(document, "OrigVfState"), member(document, "deviceID")
    if not isinstance(state, dict) or not isinstance(pci, str) or "/" in pci:
        raise _unreadable(name, "it has no deviceID and OrigVfState")
    try:
        former = _former(state)
        device = _device(state, pci)
    except (KeyError, TypeError, ValueError):
        raise _unreadable(name, "its OrigVfState has a member of another kind than expected") from None
    asked = {key for key in _CHANGING if member(document, key) not in (None, "")}
    keys = [key for setting in vfs.SETTINGS if asked.intersection(setting) for key in setting]
    if member(document, "MAC") and former["mac"]:
        keys.append("mac")
    found = MovePlan(
        {"name": attachment.ifname, "mtu": 0, "pci": pci, "device": device, "restoresState": True}
    ).document()
    found |= {"wanted": {}, "keys": keys, "former": former, "mac": "", "told": ["", 0]}
    return found, [name, f"pci/{pci}"]


def _former(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "mac": _member(state, "AdminMAC", str),
        "vlan": _member(state, "Vlan", int),
        "vlanQoS": _member(state, "VlanQoS", int),
        "vlanProto": _PROTOCOLS.get(_member(state, "VlanProto", int), "802.1q"),
        "min_tx_rate": _member(state, "MinTxRate", int),
        "max_tx_rate": _member(state, "MaxTxRate", int),
        "spoofchk": "on" if member(state, "SpoofChk") else "off",
        "trust": "on" if member(state, "Trust") else "off",
        "link_state": _STATES[_member(state, "LinkState", int)],
    }


def _device(state: dict[str, Any], pci: str) -> dict[str, Any]:
    """The state of the netdev to restore; {} for a VF without a netdev (DPDK)."""
    name = _member(state, "HostIFName", str)
    if not name:
        return {}
    identity = {"name": name, "index": 0, "kind": "", "mac": _member(state, "EffectiveMAC", str), "permanentMac": ""}
    identity |= {"bus": "pci", "parent": pci, "alias": "", "altnames": [], "mtu": _member(state, "MTU", int)}
    return identity | {"up": False, "addresses": [], "routes": []}


def _member(state: dict[str, Any], key: str, kind: type[T]) -> T:
    """The member `key`, or the empty value of `kind` if it is missing. Raises ValueError for another type."""
    value = member(state, key) or kind()
    if not isinstance(value, kind):
        raise ValueError(key)
    return value


def forget(names: Sequence[str], sandbox: str) -> None:
    """Remove the files `names` of an ended attachment, but keep a VF's file that names another sandbox than `sandbox`.
    Raises IoFailure when removing fails."""
    for name in names:
        try:
            if name.startswith("pci/") and _content(name).decode("utf-8", "surrogateescape") != sandbox:
                continue
            os.unlink(f"{DIRECTORY}/{name}")
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise IoFailure(f"{DIRECTORY}/{name} cannot be removed: {fault.strerror}; run as root") from None


def _content(name: str) -> bytes:
    return files.read_regular(f"{DIRECTORY}/{name}", _MOST_BYTES, os.O_NOFOLLOW, private=True)


def _unreadable(name: str, words: str) -> IoFailure:
    return IoFailure(
        f"{DIRECTORY}/{name}, in which Go's sriov-cni describes this attachment, cannot be read: {words};"
        " repair the file, or remove it when the VF is as it should be"
    )
