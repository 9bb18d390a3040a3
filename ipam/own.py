"""The addresses that this node itself has on the wire of a network: no pod of the network can use one of them.

The link plugin's keys name the wire: the node's addresses count on `master` (or `bridge`), on the links below and above that, and
on the physical function of a virtual one. The addresses of all links count for a macvlan without `master`, whose master is the
link of the default route, and for a group of rails, because this network names the `master` of its own rail alone.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from cni.shared.config import asks_for_same_index
from cni.shared.spec.request import member
from ipam.ranges import format_address, host_of

if TYPE_CHECKING:
    from typing import Any

    from ipam.leases import Want

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def is_own(network: dict[str, Any], want: Want) -> bool:
    """Whether the node has the address of `want` on the wire of the configuration `network`.

    Most addresses are not the node's. An attempt to bind a socket shows this at less cost than a list of all addresses.
    """
    names = _wire(network)
    if names == [] or not any(_can_bind(want, name) for name in names or [""]):
        return False
    return names is None or want.address in of_wire(names)


def of_wire(names: list[str]) -> set[tuple[int, int]]:
    """The addresses, (family, value), of the links `names` and of the links below and above them."""
    from cni.shared.kernel import addresses  # most addresses are not of the node
    from cni.shared.kernel.links import Rtnl, with_those_below  # most addresses are not of the node

    with Rtnl() as rtnl:
        links = rtnl.links()
        wire = {link.index for link in links if link.name in names}
        below = set().union(*(with_those_below(index, links) for index in wire))
        near = below | {link.index for link in links if wire & with_those_below(link.index, links)}
        return {host_of(address.text) for index in near for address in addresses.list_of(rtnl, index)}


def _wire(network: dict[str, Any]) -> list[str] | None:
    """The names of the links on the wire of the configuration `network`; None for all links, [] for none."""
    if member(network, "linkInContainer") is True:
        return []
    if asks_for_same_index(network):
        return None
    name = member(network, "master") or member(network, "bridge")
    if isinstance(name, str) and name:
        return [name]
    runtime = member(network, "runtimeConfig")
    device = (isinstance(runtime, dict) and member(runtime, "deviceID")) or member(network, "deviceID")
    if isinstance(device, str) and "/" not in device:
        try:
            return os.listdir(f"/sys/bus/pci/devices/{device}/physfn/net")
        except OSError:
            return []
    kind = member(network, "type")
    return None if isinstance(kind, str) and kind.endswith("macvlan") else []


def _can_bind(want: Want, link: str) -> bool:
    found = socket.socket(_FAMILIES[want.family], socket.SOCK_DGRAM)
    try:
        if link:  # the link's VRF may have the address
            found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode() + b"\0")
        found.bind((format_address(want.family, want.value), 0))
    except OSError:
        return False
    finally:
        found.close()
    return True
