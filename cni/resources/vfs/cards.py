"""The cards of a node that can have virtual functions, and the users of each function.

A function that was moved into a pod still has its directory of netdevs in sysfs, but the host sees no netdev there. A
function that a program uses through vfio-pci or verbs has an open device node. A function that kubelet has given to a
container is in kubelet's checkpoint. kubelet removes an ended pod from the checkpoint when it next admits a pod.

Administrative MACs of virtual functions, or their GUIDs on InfiniBand, are read and set through the netdev of the card.
From such a MAC mlx5 derives the VF's node GUID, which RDMA CM needs to find the VF (mlx5_eswitch_set_vport_mac of the
kernel's drivers/net/ethernet/mellanox/mlx5/core/eswitch.c). On InfiniBand a new VF has neither node nor port GUID, and
its port is down until it follows the card's port (drivers/infiniband/hw/mlx5/ib_virt.c). A VF's driver reads the MAC
and the GUIDs when it is bound.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from cni.node.inventory import attachments as recorded
from cni.node.inventory import functions
from cni.node.inventory.functions import ETHER, INFINIBAND, Function
from cni.node.inventory.topology import administrative_states, beside, text, uplinks
from cni.resources.vfs.plan import Card, NodeCards
from cni.shared.kernel import netns, sysfs
from cni.shared.kernel import vfs as administrative
from cni.shared.kernel.files import names_in, read_whole
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, IoFailure

CHECKPOINT = "kubelet_internal_checkpoint"
_GUID_LENGTH = len("02:00:00:00:00:00:00:01")
_IN_KERNEL = {
    "vfio-pci": "bus/pci/drivers/vfio-pci",
    "ib_uverbs": "class/infiniband_verbs",
    "rdma_ucm": "class/misc/rdma_cm",
}
"""The directory that sysfs has while a module is loaded or built into the kernel, by the module."""


def read(root: str = "", kubelet: str = "") -> NodeCards:
    """The cards of the node whose sys, proc and dev are below `root`. `kubelet` is kubelet's folder."""
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
            cards.append(Card(one, int(most), vfs, *read_macs(one, vfs, root)))
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
    """Map the PCI address of each VF in use to a text that names its users."""
    sys = f"{root}/sys"
    if not vfs:
        return {}
    users = _given(kubelet) | _recorded()
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
        known = [users[vf.id]] if vf.id in users else []
        if found := known + holding + above + needed or away:
            uses[vf.id] = ", ".join(found)
    return uses


def _recorded() -> dict[str, str]:
    """Map the PCI address of each attached function of this node to a text that names the function's pod."""
    try:
        found = recorded.found()
    except (CniError, OSError):
        return {}
    held = ((a, a["records"].get("link", {}).get("link", {}).get("pci")) for a in found)
    return {pci: f"pod {a['pod']}" if a["pod"] else f"container {a['containerID']}" for a, pci in held if pci}


def _given(kubelet: str) -> dict[str, str]:
    """Map the ID of each device that kubelet has allocated to a text that names the device's container."""
    try:
        document = codec.loads(read_whole(os.path.join(kubelet, CHECKPOINT)))
        entries: list[dict[str, Any]] = document["Data"]["PodDeviceEntries"] or []
        return {
            device: f"container {entry['ContainerName']} of the pod with UID {entry['PodUID']}"
            for entry in entries
            for devices in entry["DeviceIDs"].values()
            for device in devices
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # kubelet is missing, or its checkpoint has another format


def _holders(proc: str) -> tuple[dict[str, str], bool]:
    """Return (map from each open device node to a process, "42 (qemu)"; whether all processes could be read)."""
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


# --- MACs of VFs ---


def read_macs(card: Function, numbers: Iterable[int], root: str) -> tuple[str, dict[int, str]]:
    """Return (permanent MAC of the card, administrative MACs of its VFs by number); on InfiniBand, GUIDs in place of
    MACs. Return ("", {}) if this process does not see the netdev. Return (the card's MAC in sysfs, {}) if `root` has no
    namespace, as in a copied tree. Raises OSError when the node's network namespace may not be entered."""
    with _links(root) as host:
        if host is None:
            netdev = next(iter(card.netdevs), "") if card.link_type in (ETHER, INFINIBAND) else ""
            mac = text(f"{root}/sys/class/net/{netdev}/address") if netdev else ""
            return mac[-_GUID_LENGTH:], {}
        link = _of(card, host)
        if link is None:
            return "", {}
        if card.link_type == INFINIBAND:  # the address of an IPoIB netdev ends with the port's GUID
            guids = {number: administrative.guid(host, link.index, number) for number in numbers}
            return link.mac[-_GUID_LENGTH:], {number: guid for number, guid in guids.items() if guid}
        states = {number: administrative.read(host, link.index, number) for number in numbers}
        return link.permanent_mac or link.mac, {number: state["mac"] for number, state in states.items() if state}


def write_mac(card: Function, number: int, mac: str, root: str) -> None:
    """Give the VF `number` of `card` the MAC `mac`. On InfiniBand, `mac` is a GUID, and the state of the VF's port then
    follows the card's. Raises IoFailure when the card has no netdev here, OSError when the kernel refuses."""
    with _links(root) as host:
        link = _of(card, host) if host else None
        if host is None or link is None:
            raise IoFailure(
                f"{card.id}: the card has no netdev in the node's network namespace: see `railcni vfs show`"
            )
        if card.link_type == INFINIBAND:
            administrative.write(host, link.index, number, ("guid",), {"guid": mac})
            administrative.write(host, link.index, number, ("link_state",), {"link_state": "auto"})
            return
        administrative.write(host, link.index, number, ("mac",), {"mac": mac})


def _of(card: Function, host: Rtnl) -> Link | None:
    """The card's first netdev; None without a netdev, or for a card that is neither Ethernet nor InfiniBand."""
    links = (host.link(netdev) for netdev in card.netdevs[:1] if card.link_type in (ETHER, INFINIBAND))
    return next(links, None)


@contextmanager
def _links(root: str) -> Iterator[Rtnl | None]:
    """Yield an rtnetlink socket in the network namespace of the node whose proc is below `root`, or of this process if
    `root` is "". Yields None if `root` has no namespace, as in a copied tree. Raises OSError when entering fails."""
    node = netns.at(f"{root}/proc/1/ns/net") if root else netns.own()
    if node is None:
        yield None
        return
    with node, nullcontext() if netns.is_own(node) else node.entered():
        host = Rtnl()
    with host:
        yield host
