"""The lint's rules for the `ipam` block of a plugin configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni.documents.diagnostic import Scope, keys_of
from cni.documents.tree import Keys
from cni.link.plugins import LINK_PLUGINS
from cni.lint import known
from cni.lint.known import executable, fix_of, message_of, reader_of, remedy, unknown_keys
from cni.shared import rail as rails_key
from cni.shared.config import Fault
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Request, member
from ipam import config as ipam_config
from ipam import neighbourhood, source
from ipam.group import indexes
from ipam.keys import BLOCK_KEYS, MEMBERS, read_ranges
from ipam.ranges import Range, format_address, parse_address, parse_cidr
from ipam.stores import IN_CLUSTER

_ASSUMED = (
    b'{"kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}, "etcd_host": "localhost"}'
)


class FlatFile(source.Files):
    """The nodes' flat file (whereabouts.conf, with defaults for `ipam` blocks), read from the user's copy at `path`. If
    `path` is "", the lint assumes a flat file that names the store, which an `ipam` block may then omit. `hosts`
    collects the store hosts that `ipam` blocks name, which the policy of each node must allow. `warned` has the warnings
    about the file itself: each is given once, at the first network."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.hosts: list[str] = []
        self.warned: set[str] = set()

    def load(self, path: str, /) -> bytes | None:
        if path != source.PATHS[0]:
            return None
        return super().load(self.path) if self.path else _ASSUMED

    def follow(self, path: str, roots: str = "", /) -> str:
        return super().follow(path, roots) if roots else path  # a path in the flat file is a path on a node

    def allow_host(self, host: str, /) -> None:
        self.hosts.append(host)

    def host_name(self) -> str:
        return "node"

    def warn(self, scope: Scope, keys: Keys, message: str, fix: str) -> None:
        """Warn of a fault of the file, at the value with the path `keys`. The same warning is given only once."""
        if message not in self.warned:
            self.warned.add(message)
            scope.warn(keys, self.shown(message), fix)

    def shown(self, text: str) -> str:
        """Return the message `text` with the path of the user's copy in place of the path of a node's flat file."""
        return text.replace(source.PATHS[0], self.path or source.PATHS[0])


def has_ipv6(document: Mapping[str, Any]) -> bool:
    """Whether the `ipam` block of the plugin configuration `document` has an IPv6 range or address."""
    lists = [member(document, "ipam", name) for name in ("ipRanges", "addresses")]
    listed = [one for found in lists if isinstance(found, list) for one in found]
    texts = [member(document, "ipam", "range"), *(member(m, name) for m in listed for name in ("range", "address"))]
    return any(isinstance(text, str) and ":" in text for text in texts)


@dataclass(frozen=True)
class Use:
    """A range of addresses: `text` is the range as text, and `keys` its path in the document `scope`. `owner` describes
    the network or nv-ipam pool that has the range. `low` and `high` are its first and last address, as integers of the
    IP version `family`. `master` is the network's parent netdev, or "". If `guarded` is true, railcni gives an address
    only once among all guarded ranges with the same `network_name`. `given` is the parsed range, None for a pool.
    `kept_back` has the owner's gateways, next hops and static addresses, each as (IP version, integer)."""

    owner: str
    text: str
    family: int
    low: int
    high: int
    scope: Scope
    keys: Keys
    network_name: str = ""
    guarded: bool = False
    master: str = ""
    given: Range | None = None
    kept_back: Sequence[tuple[int, int]] = ()


def overlaps(uses: Sequence[Use]) -> None:
    """Warn if ranges of different networks overlap. Networks with one master netdev may have the same range. Ranges of
    networks with different masters may overlap if their pools are separate."""
    for i, second in enumerate(uses):
        for first in uses[:i]:
            is_apart = first.family != second.family or first.low > second.high or second.low > first.high
            if first.owner == second.owner or is_apart:
                continue
            is_one_space = first.guarded and second.guarded and first.network_name == second.network_name
            is_on_two_wires = bool(first.master and second.master and first.master != second.master)
            if not is_on_two_wires:
                _kept_back(first, second)
                _kept_back(second, first)
            about = f"{second.text} overlaps with {first.text} of {first.owner}"
            fix = "write the same range in both, or ranges apart from one another"
            if is_one_space and first.text == second.text:
                if not is_on_two_wires:
                    continue
                message = f"{first.owner} has {first.text} too, on the master {first.master}: a pod with both has two links in one subnet, and answers ARP for each address on both"
                fix = "give each master a range of its own, unless no pod and no node has both"
            elif is_one_space:
                message = f"{about}: pods of one subnet get another prefix length than those of the other"
            elif is_on_two_wires:
                continue  # separate pools for different masters: on purpose
            else:
                message = f"{about}, and nothing keeps both from giving the same address"
            second.scope.warn(second.keys, message, fix)
            break


def _kept_back(keeping: Use, giving: Use) -> None:
    """Warn if `giving` may give pods an address that is a gateway, next hop or static address of `keeping`."""
    for family, value in keeping.kept_back:
        if giving.given and family == giving.family and giving.given.usable(value):
            text = format_address(family, value)
            message = f"{giving.text} gives {text} to a pod, and {keeping.owner} has it as a gateway, next hop or static address"
            giving.scope.warn(giving.keys, message, f'write "exclude": ["{text}"] here too')


def written(scope: Scope, keys: Keys, block: Any) -> None:
    """Warn of unknown keys in the original `ipam` block, which is at the path `keys`, if its type is whereabouts."""
    if known.own(str(member(block, "type"))) != known.OWN_IPAM:
        return
    unknown_keys(scope, keys, block, BLOCK_KEYS, "whereabouts")
    for name, table in MEMBERS.items():
        listed = member(block, name)
        for i, entry in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(entry, dict):
                unknown_keys(scope, (*keys, name, i), entry, table, f"a member of {name}")


def examine(
    scope: Scope, keys: Keys, document: Mapping[str, Any], request: Request, flat: FlatFile, uses: list[Use]
) -> None:
    """Add the faults in the `ipam` block of the plugin configuration `document`, which is at the path `keys`, to the
    findings, and its ranges to `uses`. `request` is the ADD with which a runtime would call the plugin."""
    block = member(document, "ipam")
    at = (*keys, "ipam")
    if not isinstance(block, dict):
        if block is not None and known.own(str(member(document, "type"))) not in LINK_PLUGINS:
            scope.error(at, "ipam is no JSON object", 'write {"type": "whereabouts", "range": "192.168.2.0/24"}')
        return
    kind = member(block, "type")
    if kind is None or kind == "":
        if block:
            scope.error(at, "ipam has no type: no addresses are given", f'add "type": "{known.OWN_IPAM}"')
        return
    if not isinstance(kind, str):
        return  # the plugin's own reader reports this
    if kind in known.PLUGINS - known.IPAMS:
        scope.error((*at, "type"), f"{kind} is no IPAM plugin", f'write "{known.OWN_IPAM}"')
    else:
        executable(scope, (*at, "type"), kind, known.IPAMS, "IPAM plugin")
    if known.own(kind) == known.OWN_IPAM:
        config = _whereabouts(scope, at, block, request, flat)
        if config is not None:
            owner, wire = f"the network {scope.network}", str(member(document, "master") or "")
            for place, one in zip(_places(at, block), config.ranges, strict=False):
                span = str(one), one.family, one.network, one.top
                uses.append(
                    Use(owner, *span, scope, place, config.network_name, config.overlap, wire, one, config.kept_back)
                )


def _places(keys: Keys, block: Mapping[str, Any]) -> list[Keys]:
    """The paths of the ranges in the `ipam` block, which is at the path `keys`, in the order of `IpamConfig.ranges`."""
    own: list[Keys] = [(*keys, "range")] if member(block, "range") else []
    return [*own, *((*keys, "ipRanges", i, "range") for i in range(len(member(block, "ipRanges") or [])))]


def _whereabouts(
    scope: Scope, keys: Keys, block: dict[str, Any], request: Request, flat: FlatFile
) -> ipam_config.IpamConfig | None:
    """Add the faults of a whereabouts block to the findings. Returns its configuration, or None if it has faults."""
    faults: list[Fault] = []
    flat.hosts.clear()
    try:
        config = ipam_config.examine(request, faults, flat)
    except CniError as refusal:
        scope.error(keys, flat.shown(refusal.msg))
        return None
    for fault in faults:
        inside = keys_of(fault.key.removeprefix("ipam.")) if fault.key.startswith("ipam.") else ()
        at = keys[:-1] if fault.key == "cniVersion" else (*keys, *inside)
        message = message_of(fault) if inside or at == keys[:-1] else str(fault)  # the key is outside of the block
        scope.error(at, flat.shown(message), fix_of(fault, reader_of(inside, BLOCK_KEYS, MEMBERS)))
    for note in config.notes:
        name = note.split(" ", 1)[0]
        if name.startswith("ipam."):
            scope.warn((*keys[:-1], *keys_of(name)), note.partition(" ")[2], "correct it, or remove it", at_key=True)
        elif source.PATHS[0] in note:
            flat.warn(scope, keys, note, "correct it there")
    if config.unnamed and not faults:
        message = f"no store is named, here or in {flat.path}: a pod of Kubernetes gets no address"
        fix = "name a store there, unless the agent does; conf/whereabouts.d has one for each store"
        flat.warn(scope, keys, message, fix)
    if not faults:
        for host in flat.hosts:
            message = f'nodes refuse the store at "{host}" unless their policy has that host in `storeHosts`'
            scope.warn((*keys, "etcd_host"), message, "add it there, or leave the store to the flat file")
        _gateways(scope, keys, config)
        _own(scope, keys, config)
        _network_name(scope, keys, config)
        _overlaps(scope, keys, block, config.ranges)
        _rails(scope, keys[:-1], request, config)
    return None if faults else config


def _rails(scope: Scope, keys: Keys, request: Request, config: ipam_config.IpamConfig) -> None:
    """Check `rail.ranges`, from which the IPAM plugin gives a pod the same index on each rail (a NIC of the node)."""
    unread: list[Fault] = []  # the check of the link plugin reports these
    rail = rails_key.read(request.config, unread)
    if rail is None or unread or not rail.is_same_index:
        return
    faults: list[Fault] = []
    indexes.needs_of(rail, config, faults)
    for fault in faults:
        scope.error((*keys, *keys_of(fault.key)), message_of(fault), remedy(fault.wanted))
    given = read_ranges(rail.ranges[rail.index], "", (), [], [])
    for i, route in enumerate(config.routes):
        family, value = parse_address(route.gw) if route.gw else (0, 0)
        if any(r.family == family and r.usable(value) for r in given):
            message = f"the networks of the other rails give the index of {route.gw}, since they read only rail.ranges"
            fix = f"exclude it in rail.ranges[{rail.index}] in every network of the group"
            scope.warn((*keys, "ipam", "routes", i, "gw"), message, fix)


def _gateways(scope: Scope, keys: Keys, config: ipam_config.IpamConfig) -> None:
    """Warn of each gateway outside of the network's subnets, since pods cannot reach it."""
    subnets = [*config.ranges, *(Range(*parse_cidr(a.address)) for a in config.addresses)]
    of_routes = [(("routes", i, "gw"), route.gw) for i, route in enumerate(config.routes)]
    for place, text in [(("gateway",), config.gateway), *of_routes]:
        if not text or text.startswith("fe80:"):
            continue
        family, value = parse_address(text)
        same = [r for r in subnets if r.family == family]
        if same and not any(r.contains(value) for r in same):
            inside = format_address(same[0].family, same[0].network + 1)
            message = f"gateway {text} is in none of the ranges: no pod reaches it"
            scope.warn((*keys, *place), message, f"write an address of {same[0]}, such as {inside}")


def _own(scope: Scope, keys: Keys, config: ipam_config.IpamConfig) -> None:
    """Warn if a range has an address that this machine has on the master, since other nodes would give it to pods."""
    master = config.request.member("master")
    if not isinstance(master, str) or not master or config.request.member("linkInContainer") is True:
        return
    try:
        held = neighbourhood.addresses_of([master])
    except OSError:
        return
    for family, value in sorted(held):
        if any(r.family == family and r.usable(value) for r in config.ranges):
            text = format_address(family, value)
            message = f"this machine has {text} on {master}, and other nodes give it to a pod"
            scope.warn((*keys[:-1], "master"), message, f'write "exclude": ["{text}"] beside the range')


def _network_name(scope: Scope, keys: Keys, config: ipam_config.IpamConfig) -> None:
    name = config.network_name
    if name and config.datastore in IN_CLUSTER and not re.fullmatch("[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
        better = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "blue"
        message = f'network_name "{name}" stands before the names of objects in Kubernetes, which take fewer characters'
        scope.error((*keys, "network_name"), message, f"write lowercase letters, digits, - and ., such as {better}")


def _overlaps(scope: Scope, keys: Keys, block: Mapping[str, Any], ranges: Sequence[Range]) -> None:
    """Warn of ranges in one `ipam` block whose subnets overlap, since a pod would get two addresses of one subnet."""
    places = _places(keys, block)
    for i, second in enumerate(ranges):
        for first in ranges[:i]:
            if first.family == second.family and first.network <= second.top and second.network <= first.top:
                message = (
                    f"{second} overlaps with the range {first} of this network: a pod gets two addresses of one subnet"
                )
                scope.warn(places[i] if i < len(places) else keys, message, "write ranges apart from one another")
                break
