"""Administrative MACs of virtual functions, or their GUIDs on InfiniBand, which are read and set through the netdev of
the card.

From this MAC mlx5 derives the VF's node GUID, which RDMA CM needs to find the VF (mlx5_eswitch_set_vport_mac of the
kernel's drivers/net/ethernet/mellanox/mlx5/core/eswitch.c). On InfiniBand a new VF has neither node nor port GUID, and
its port is down until it follows the card's port (drivers/infiniband/hw/mlx5/ib_virt.c). A VF's driver reads the MAC
and the GUIDs when it is bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from cni.node.inventory.functions import ETHER, INFINIBAND, Function
from cni.node.inventory.topology import text
from cni.shared.kernel import netns, vfs
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.spec.errors import IoFailure

_GUID_LENGTH = len("02:00:00:00:00:00:00:01")


def read(card: Function, numbers: Iterable[int], root: str) -> tuple[str, dict[int, str]]:
    """The card's permanent MAC, and its VFs' administrative MACs by number; on InfiniBand, GUIDs. "" and {} when this
    process does not see the netdev. Raises OSError when the node's network namespace may not be entered.

    Without a namespace, as in a copied tree, the MAC is read from sysfs, and the VFs' MACs are {}."""
    with _links(root) as host:
        if host is None:
            netdev = next(iter(card.netdevs), "") if card.link_type in (ETHER, INFINIBAND) else ""
            mac = text(f"{root}/sys/class/net/{netdev}/address") if netdev else ""
            return mac[-_GUID_LENGTH:], {}
        link = _of(card, host)
        if link is None:
            return "", {}
        if card.link_type == INFINIBAND:  # the address of an IPoIB netdev ends with the port's GUID
            guids = {number: vfs.guid(host, link.index, number) for number in numbers}
            return link.mac[-_GUID_LENGTH:], {number: guid for number, guid in guids.items() if guid}
        states = {number: vfs.read(host, link.index, number) for number in numbers}
        return link.permanent_mac or link.mac, {number: state["mac"] for number, state in states.items() if state}


def write(card: Function, number: int, mac: str, root: str) -> None:
    """Give the VF `number` of `card` the MAC or, on InfiniBand, the GUID and a port that follows the card's port.
    Raises IoFailure when the card has no netdev here, OSError when the kernel refuses."""
    with _links(root) as host:
        link = _of(card, host) if host else None
        if host is None or link is None:
            raise IoFailure(
                f"{card.id}: the card has no netdev in the node's network namespace: see `railcni vfs show`"
            )
        if card.link_type == INFINIBAND:
            vfs.write(host, link.index, number, ("guid",), {"guid": mac})
            vfs.write(host, link.index, number, ("link_state",), {"link_state": "auto"})
            return
        vfs.write(host, link.index, number, ("mac",), {"mac": mac})


def _of(card: Function, host: Rtnl) -> Link | None:
    """The card's first netdev; None without a netdev, or for a card that is neither Ethernet nor InfiniBand."""
    links = (host.link(netdev) for netdev in card.netdevs[:1] if card.link_type in (ETHER, INFINIBAND))
    return next(links, None)


@contextmanager
def _links(root: str) -> Iterator[Rtnl | None]:
    """Yield an rtnetlink socket in the network namespace of the node whose proc is below `root`, or of this process if
    `root` is "". Yield None without a namespace, as in a copied tree. Raises OSError when entering fails."""
    node = netns.at(f"{root}/proc/1/ns/net") if root else netns.own()
    if node is None:
        yield None
        return
    with node, netns.own() as own, nullcontext() if netns.same(node, own) else node.entered():
        host = Rtnl()
    with host:
        yield host
