"""Node slices: the part of a range from which a node gives addresses, by the NodeSlicePool of whereabouts v0.9.4.

whereabouts' node-slice-controller makes a NodeSlicePool for each network with `node_slice_size`. Its name is the
network_name or, without this key, the network's name. The controller divides the range into slices, and gives each node
a slice. An ADD takes a free slice for a node that has none. Only the controller divides ranges, or takes a slice away.

Pods may use a slice that no node has: a node was deleted while its pods run, or the range was divided again. So an
ADD lists the pools, and skips a slice with an address that is allocated in another pool of the network.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.ranges import Range, format_address, parse_cidr
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, NotFound
from ipam.stores.apiserver.resources import POOLS, SLICES
from ipam.stores.base import OutcomeUnknown, Pauses
from ipam.stores.ippool.objects import IPPool

if TYPE_CHECKING:
    from ipam.config import IpamConfig  # it imports the stores


def narrow(config: IpamConfig, network: str, seconds: float, take: bool) -> None:
    """Set the range of `config` to this node's slice or, if the node has no slice yet, to a free one. If `take` is
    true, assign the free slice to the node.

    Raises TryAgainLater when no slice is left, InvalidConfig for a configuration that does not fit the NodeSlicePool,
    and the errors of the API server.
    """
    (rng,) = config.ranges
    name = config.network_name or network
    api = Api(config.kubeconfig, seconds)
    api.hurries = not take  # only an ADD waits for a server that refuses connections
    try:
        part = _slice(api, name, config.network_name, config.node, rng, take)
    finally:
        api.close()
    for family, value, _ in config.requested:
        if rng.contains(value) and family == rng.family and not part.contains(value):
            raise InvalidConfig(
                f"the requested address {format_address(family, value)} is not of slice {part}, which NodeSlicePool"
                f" {name} gives to node {config.node}: ask for one in it, or run the pod on the node of that address"
            )
    config.ranges = [part]
    config.slice_node = config.node


def _slice(api: Api, name: str, network_name: str, node: str, rng: Range, take: bool) -> Range:
    attempts = Pauses(monotonic() + api.seconds)
    while True:
        version, slices = _read(api, name)
        own = next((text for holder, text in slices if holder == node), "")
        index = None if own else _free(api, name, network_name, node, rng, slices)
        part = _part(api, name, rng, own if index is None else slices[index][1])
        if index is None or not take:
            return part
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        change = {"op": "add", "path": f"/status/allocations/{index}/nodeName", "value": node}
        try:
            api.patch(SLICES, name, [test, change])
            return part
        except OutcomeUnknown as fault:
            attempts.insist(fault)
        except (Conflict, NotFound) as fault:
            what = (
                f"NodeSlicePool {name} of {api} was changed by others each time that node {node} was to take a slice"
                f" of it, for {api.seconds:g} s: retry"
            )
            attempts.insist(TryAgainLater(what, str(fault)))


def _read(api: Api, name: str) -> tuple[str, list[tuple[str, str]]]:
    """(resourceVersion, list of slices) of a NodeSlicePool. A slice is (node, CIDR); a free slice has node ""."""
    try:
        document, _ = api.get(SLICES, name)
    except NotFound:
        raise TryAgainLater(
            f"there is no NodeSlicePool {name} in namespace {api.access.namespace} of {api}: whereabouts' node-slice-controller"
            " makes it of a NAD with node_slice_size. Check that it runs and has seen this NAD, or remove node_slice_size"
        ) from None
    allocations = (document.get("status") or {}).get("allocations") or []
    slices = [(str(a.get("nodeName") or ""), str(a.get("sliceRange") or "")) for a in allocations]
    return str((document.get("metadata") or {}).get("resourceVersion") or ""), slices


def _part(api: Api, name: str, rng: Range, text: str) -> Range:
    try:
        return rng.part(*parse_cidr(text))
    except ValueError:
        raise InvalidConfig(
            f'slice "{text}" of NodeSlicePool {name} is no part of ipam.range {rng}: the NAD and the NodeSlicePool are of'
            f" different ranges. Correct ipam.range, or let the node-slice-controller follow the NAD ({api})"
        ) from None


def _free(api: Api, name: str, network_name: str, node: str, rng: Range, slices: list[tuple[str, str]]) -> int:
    """The index of the first slice in `slices` (node, CIDR) that no node has, and whose addresses are all free.

    A pod of a former node may still have an address of a slice, in the pool of that node. Raises TryAgainLater when
    there is no such slice, InvalidConfig when a slice is no part of `rng`.
    """
    free = [index for index, (holder, _) in enumerate(slices) if not holder]
    pools = []  # without a `network_name`, any pool may be the network's
    for document in api.list_all(POOLS) if free else ():
        try:
            pool = IPPool(document, 0)
        except ValueError:
            continue  # an ADD that uses this pool reports the fault
        if not network_name or pool.name.startswith(f"{network_name}-"):
            pools.append(pool)
    for index in free:
        part = _part(api, name, rng, slices[index][1])
        own = part.pool_name(network_name, node)
        others = (pool for pool in pools if pool.name != own and pool.family == part.family)
        if not any(part.contains(value) for pool in others for value in pool.entries):
            return index
    why = f"{len(free)} are free but have addresses in use by pods of former nodes" if free else "nodes have them all"
    raise TryAgainLater(
        f"NodeSlicePool {name} has no slice for node {node}: of {len(slices)} {why}. Enlarge the range or node_slice_size's"
        f" number, or delete nodes that are gone; `kubectl get nodeslicepool {name} -o yaml` shows the node of each slice",
        str(api),
    )
