"""What is wrong with the `ipam` block of a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cni import rail as rails_key
from cni.cli.lint import known
from cni.cli.lint.scope import Scope, keys_of
from cni.cli.lint.table import executable, message_of, proposal, remedy, unknown_keys
from cni.cli.refusals import name_of
from cni.cli.source import Keys
from cni.config import Fault, Key
from cni.spec import codec
from cni.spec.errors import CniError
from cni.spec.request import Request, member
from ipam import config as ipam_config
from ipam import flatfile, rails
from ipam import keys as tables
from ipam.ranges import Range, format_address, parse_address

BLOCK: Sequence[Key] = (*tables.RANGE_KEYS, *tables.IPAM_KEYS, *tables.ACCEPTED_KEYS)
MEMBERS: Mapping[str, Sequence[Key]] = {
    "ipRanges": tables.RANGE_KEYS,
    "addresses": tables.ADDRESS_KEYS,
    "routes": tables.ROUTE_KEYS,
}
"""The tables of the objects in a list of the block."""


class Files(Protocol):
    """What reads the flat file: ipam.flatfile on a node."""

    def load(self, path: str, /) -> bytes | None: ...
    def follow(self, path: str, roots: str = "", /) -> str: ...
    def host_name(self) -> str: ...


class Assumed:
    """A flat file as a cluster has it, where none is at hand: it names the stores, so that a NAD need not."""

    _TEXT = codec.dumps(
        {"kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}, "etcd_host": "localhost"}
    )

    def load(self, path: str, /) -> bytes | None:
        return self._TEXT.encode() if path == flatfile.PATHS[0] else None

    def follow(self, path: str, roots: str = "", /) -> str:
        return flatfile.follow(path, roots)

    def host_name(self) -> str:
        return "node"


class Named(Assumed):
    """The flat file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self, path: str, /) -> bytes | None:
        return flatfile.load(self._path) if path == flatfile.PATHS[0] else None


def has_ipv6(document: Mapping[str, Any]) -> bool:
    """Whether the plugin's block of whereabouts has a range or address of IPv6."""
    block = member(document, "ipam")
    if not isinstance(block, dict):
        return False
    listed = [m for name in ("ipRanges", "addresses") for m in member(block, name) or [] if isinstance(m, dict)]
    texts = [member(block, "range"), *(member(m, name) for m in listed for name in ("range", "address"))]
    return any(isinstance(text, str) and ":" in text for text in texts)


def examine(scope: Scope, keys: Keys, document: Mapping[str, Any], request: Request, flat: Files) -> None:
    """Note what is wrong with the block of the plugin `document`, which stands at `keys`."""
    block = member(document, "ipam")
    at = (*keys, "ipam")
    if not isinstance(block, dict):
        if block is not None and known.own(str(member(document, "type"))) not in known.OWN_LINKS:
            scope.error(at, "ipam is no JSON object", 'write {"type": "whereabouts", "range": "192.168.2.0/24"}')
        return
    kind = member(block, "type")
    if kind is None or kind == "":
        if block:
            scope.error(at, "ipam has no type: no addresses are given", f'add "type": "{known.OWN_IPAM}"')
        return
    if not isinstance(kind, str):
        return  # the plugin's own reader has said so, or will
    if kind in known.PLUGINS - known.IPAMS:
        scope.error((*at, "type"), f"{kind} is no IPAM plugin", f'write "{known.OWN_IPAM}"')
    else:
        executable(scope, (*at, "type"), kind, known.IPAMS, "IPAM plugin")
    if known.meant(kind) == known.OWN_IPAM:
        _whereabouts(scope, at, block, request, flat)


def _whereabouts(scope: Scope, keys: Keys, block: dict[str, Any], request: Request, flat: Files) -> None:
    unknown_keys(scope, keys, block, BLOCK, "whereabouts")
    for name, table in MEMBERS.items():
        listed = member(block, name)
        for i, entry in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(entry, dict):
                unknown_keys(scope, (*keys, name, i), entry, table, f"a member of {name}")
    faults: list[Fault] = []
    try:
        config = ipam_config.examine(request, flat, faults)
    except CniError as refusal:
        scope.error(keys, refusal.msg)
        return
    for fault in faults:
        inside = fault.key.removeprefix("ipam.") if fault.key.startswith("ipam.") else ""
        at = (*keys, *keys_of(inside)) if inside else keys[:-1] if fault.key == "cniVersion" else keys
        read = _reader(inside)
        scope.error(at, message_of(fault), (read and proposal(read, fault.value)) or remedy(fault.wanted))
    for note in config.notes:
        name = note.split(" ", 1)[0]
        if name.startswith("ipam."):
            scope.warn((*keys[:-1], *keys_of(name)), note.partition(" ")[2], "correct it, or remove it", at_key=True)
    if not faults:
        _gateway(scope, keys, config)
        _overlaps(scope, keys, block, config.ranges)
        _rails(scope, keys[:-1], request, config)


def _rails(scope: Scope, keys: Keys, request: Request, config: ipam_config.IpamConfig) -> None:
    """The ranges of all rails, which this block's plugin reads where a pod has one index on them."""
    unread: list[Fault] = []  # the link plugin's to tell
    rail = rails_key.read(request.config, unread)
    if rail is None or unread or not rail.is_same_index:
        return
    faults: list[Fault] = []
    rails.needs_of(rail, config, faults)
    for fault in faults:
        scope.error((*keys, *keys_of(fault.key)), message_of(fault), remedy(fault.wanted))


def _reader(name: str) -> Any:
    """What reads the key `name` of the block, such as ipRanges[0].exclude; None when none does."""
    parts = keys_of(name)
    if len(parts) > 2 and str(parts[0]) in MEMBERS:
        table: Sequence[Key] = MEMBERS[str(parts[0])]
        parts = parts[2:]
    else:
        table = BLOCK
    dotted = name_of(parts).lower()
    return next((key.read for key in table if key.name.lower() == dotted), None)


def _gateway(scope: Scope, keys: Keys, config: ipam_config.IpamConfig) -> None:
    if not config.gateway:
        return
    family, value = parse_address(config.gateway)
    same = [r for r in config.ranges if r.family == family]
    if same and not any(r.contains(value) for r in same):
        inside = format_address(same[0].family, same[0].network + 1)
        message = f"gateway {config.gateway} is in none of the ranges: no pod reaches it"
        scope.warn((*keys, "gateway"), message, f"write an address of {same[0]}, such as {inside}")


def _overlaps(scope: Scope, keys: Keys, block: Mapping[str, Any], ranges: Sequence[Range]) -> None:
    """Two ranges of one block that have addresses in common: a pod gets two of the same subnet."""
    own: list[Keys] = [(*keys, "range")] if member(block, "range") else []
    places = [*own, *((*keys, "ipRanges", i, "range") for i in range(len(member(block, "ipRanges") or [])))]
    for i, second in enumerate(ranges):
        for first in ranges[:i]:
            if first.family == second.family and first.network <= second.top and second.network <= first.top:
                message = (
                    f"{second} overlaps with the range {first} of this network: a pod gets two addresses of one subnet"
                )
                scope.warn(places[i] if i < len(places) else keys, message, "write ranges apart from one another")
                break
