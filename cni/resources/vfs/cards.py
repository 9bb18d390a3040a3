"""The cards of a node that can have virtual functions, and the users of each function.

A function that was moved into a pod still has its directory of netdevs, but the host sees no netdev there. A function
that a program uses through vfio-pci or verbs has an open device node. A function that kubelet has given to a container
is in kubelet's checkpoint, from which kubelet removes an ended pod when it next admits a pod.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cni.node.inventory import attachments as recorded
from cni.node.inventory import functions
from cni.node.inventory.functions import Function
from cni.node.inventory.topology import administrative_states, beside, text, uplinks
from cni.resources.vfs import macs
from cni.resources.vfs.plan import Card, NodeCards
from cni.shared.kernel import sysfs
from cni.shared.kernel.files import names_in
from cni.shared.spec.errors import CniError

CHECKPOINT = "kubelet_internal_checkpoint"
_IN_KERNEL = {
    "vfio-pci": "bus/pci/drivers/vfio-pci",
    "ib_uverbs": "class/infiniband_verbs",
    "rdma_ucm": "class/misc/rdma_cm",
}
"""The directory that sysfs has while a module is loaded or built into the kernel, by the module."""


def read(root: str = "", kubelet: str = "") -> NodeCards:
    """The cards of the node whose sys, proc and dev are below `root`; `kubelet` is the device plugins' folder."""
    sys = f"{root}/sys"
    found = functions.read(sys)
    mtus = {name: int(mtu) for name in names_in(f"{sys}/class/net") if (mtu := text(f"{sys}/class/net/{name}/mtu"))}
    cards, unseen = [], ""
    for one in found:
        most = text(f"{sys}/bus/pci/devices/{one.id}/sriov_totalvfs")
        if one.is_virtual or most in ("", "0"):
            continue
        vfs = {vf.index: vf for vf in found if vf.is_virtual and vf.physical == one.id}
        try:
            cards.append(Card(one, int(most), vfs, *macs.read(one, vfs, root)))
        except OSError as fault:
            unseen = f"the node's network namespace cannot be entered: {fault.strerror}"
            cards.append(Card(one, int(most), vfs))
    return NodeCards(
        cards=cards,
        mtus=mtus,
        up={name for name, up in administrative_states(sys).items() if up},
        uses=_uses([one for one in found if one.is_virtual], root, kubelet),
        unseen=unseen,
        modules=[name for name, place in _IN_KERNEL.items() if os.path.isdir(f"{sys}/{place}")],
    )


def _uses(vfs: Sequence[Function], root: str, kubelet: str) -> Mapping[str, str]:
    """The users of each VF in use, as text, by the ID of the VF."""
    sys = f"{root}/sys"
    if not vfs:
        return {}
    held, given = _recorded(), _given(kubelet)
    holders, all_asked = _holders(f"{root}/proc")
    busy = uplinks(f"{root}/proc/1", sys)
    uses = {}
    for vf in vfs:
        nodes = [f"/dev/infiniband/{name}" for name in vf.nodes]
        if vf.iommu_group:
            nodes.append(f"/dev/vfio/{vf.iommu_group}")
        holding = [f"process {holders[path]}" for path in nodes if path in holders]
        if nodes and not holding and not all_asked:
            holding = ["a process perhaps, since open files cannot be read here without CAP_SYS_PTRACE"]
        above = [f"{link} of the host" for netdev in vf.netdevs for link in beside(netdev, "upper_", sys)]
        needed = [busy[netdev] for netdev in vf.netdevs if netdev in busy]
        away = ["a network namespace"] if not vf.netdevs and sysfs.has_netdev("pci", vf.id, sys) else []
        known = [held[vf.id]] if vf.id in held else [given[vf.id]] if vf.id in given else []
        if found := known + holding + above + needed or away:
            uses[vf.id] = ", ".join(found)
    return uses


def _recorded() -> dict[str, str]:
    """The pods of the attachments of this node, by the PCI addresses of their functions."""
    try:
        found = recorded.found()
    except (CniError, OSError):
        return {}
    held = ((a, a["records"].get("link", {}).get("link", {}).get("pci")) for a in found)
    return {pci: f"pod {a['pod']}" if a["pod"] else f"container {a['containerID']}" for a, pci in held if pci}


def _given(kubelet: str) -> dict[str, str]:
    """The containers to which kubelet has given devices, by the devices' names."""
    try:
        with open(os.path.join(kubelet, CHECKPOINT), encoding="utf-8") as file:
            entries: list[dict[str, Any]] = json.load(file)["Data"]["PodDeviceEntries"] or []
        return {
            device: f"container {entry['ContainerName']} of the pod with UID {entry['PodUID']}"
            for entry in entries
            for devices in entry["DeviceIDs"].values()
            for device in devices
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # no kubelet, or a checkpoint of another format


def _holders(proc: str) -> tuple[dict[str, str], bool]:
    """Return a process ("42 (qemu)") for each path of an open device node, and whether all processes were readable."""
    found, is_whole = {}, True
    for pid in filter(str.isdigit, names_in(proc)):
        try:
            for number in os.listdir(f"{proc}/{pid}/fd"):
                with suppress(FileNotFoundError):  # the file was closed
                    path = os.readlink(f"{proc}/{pid}/fd/{number}")
                    if path.startswith(("/dev/vfio/", "/dev/infiniband/")):
                        found[path] = f"{pid} ({text(f'{proc}/{pid}/comm')})"
        except PermissionError:
            is_whole = False
        except OSError:  # the process has gone
            continue
    return found, is_whole
