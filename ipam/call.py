"""The code that single networks and groups of rails share: configuration, policy, owner and reference to the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cni.shared import policy
from cni.shared.config import asks_for_same_index
from cni.shared.kernel import node
from cni.shared.spec import codec
from cni.shared.spec.errors import InvalidConfig
from ipam import config as configuration
from ipam import stores
from ipam.leases import Owner
from ipam.ranges import BITS, Range, host_of, parse_cidr

if TYPE_CHECKING:
    from cni.shared.log import Log
    from cni.shared.spec.request import Request
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group


def configured(request: Request, log: Log) -> IpamConfig:
    """Read and check the configuration, and set up `log` by it. Raises InvalidConfig and IoFailure as `config.read`."""
    config = configuration.read(request)
    log.path, log.level, log.hidden = config.log_file, config.log_level, config.hidden
    for note in config.notes:
        log.warning(note)
    if config.node_slice_size and config.datastore == "file":
        log.warning("ipam.node_slice_size has no effect: the file store's addresses are this node's alone")
    return config


def configured_rail(request: Request, log: Log) -> tuple[IpamConfig, Group | None]:
    """The checked configuration, and the group if the network is a rail with addressing same-index, otherwise None."""
    if not asks_for_same_index(request):
        return configured(request, log), None
    from ipam.group import indexes  # most networks are not rails

    rail = indexes.rail_of(request.config)
    config = configured(request, log)
    return config, indexes.group_of(rail, config)


def permit(config: IpamConfig, group: Group | None) -> None:
    """Raise InvalidConfig when the policy does not let networks use a range, a static address or the network_name.

    Only ADD and STATUS call this: an existing attachment can always be compared and deleted. The policy for stores
    holds for every verb (ipam.source).
    """
    node_policy, name = policy.current(), config.network_name
    if not any(policy.matches(one, name) for one in node_policy.networkNames):
        raise node_policy.refusal("networkNames", f'ipam.network_name "{name[:60]}"')
    if "*" in node_policy.ranges:
        return
    try:
        allowed = [Range(*parse_cidr(text)) for text in node_policy.ranges]
    except ValueError as fault:
        raise InvalidConfig(f"{node_policy.path}: ranges {codec.dumps(node_policy.ranges)[:100]}: {fault}") from None
    used = [(f"range {rng}", rng) for rng in ([n.rng for n in group.needs] if group else config.ranges)]
    used += [(f"static address {a.address}", Range(*(at := host_of(a.address)), BITS[at[0]])) for a in config.addresses]
    for what, rng in used:
        if not any(r.family == rng.family and r.network <= rng.network and rng.top <= r.top for r in allowed):
            raise node_policy.refusal("ranges", what)


def ref_of(config: IpamConfig, group: Group | None) -> dict[str, Any]:
    """The reference to the store of `config`, with the pools of all rails if there is a `group`."""
    store_ref = stores.ref_of(config)
    if group and "pools" in store_ref:
        store_ref["pools"] = group.pools()
    return store_ref


def owner_of(request: Request, config: IpamConfig) -> Owner:
    texts = (*request.pod, request.netns)  # a store could not keep bytes that are not UTF-8: each becomes "?"
    namespace, name, uid, netns = (text.encode("utf-8", "replace").decode() for text in texts)
    machine = "" if config.datastore == "file" else node.machine_id()  # a file store is of one machine
    boot = node.boot_id()
    return Owner(request.attachment, (namespace, name, uid), config.node, boot, netns, time.time_ns(), machine)


def reached(recorded: dict[str, Any], config: IpamConfig) -> dict[str, Any]:
    """The reference in a record, completed by that of `config`, such as with a password, if both mean the same store."""
    if not stores.is_shared(recorded) or config.datastore != recorded.get("kind"):
        return recorded
    return stores.joined(recorded, stores.ref_of(config))
