"""Tables of the known plugins, and of the keys that runtimes and Multus read; functions that report unknown plugins and
keys, each with the known name that the author most likely meant."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cni.documents.diagnostic import Scope, correction, keys_of, name_of, shown
from cni.documents.tree import Keys
from cni.link import plugins
from cni.link.plugins import LINK_PLUGINS
from cni.node.installation.layout import PLAIN
from cni.shared.config import OF_RUNTIMES, Fault, Key, slip
from ipam import keys as tables

OWN_IPAM = "whereabouts"
OWN_CHAINED = "rdma"
PREFIX = "railcni-"


def own(name: str) -> str:
    """The plain name of a railcni executable: "macvlan" for "railcni-macvlan" or "macvlan"; "" for any other name."""
    plain = name.removeprefix(PREFIX)
    return plain if plain in PLAIN else ""


LINKS = {
    "accelerated-bridge", "aws-cni", "azure-vnet", "bridge", "calico", "cilium-cni", "cnv-bridge", "dummy",
    "flannel", "ib-sriov", "ib-sriov-cni", "ipoib", "ipvlan", "kindnet", "kube-ovn", "macvtap", "multus",
    "multus-shim", "ovn-k8s-cni-overlay", "ovs", "ptp", "tap", "userspace", "vlan", "weave-net",
    *LINK_PLUGINS, *(PREFIX + name for name in LINK_PLUGINS),
}  # fmt: skip
"""Plugins that make or move an interface: only the first plugin of a chain may be one (containernetworking/plugins)."""

CHAINED = {
    "bandwidth", "cnv-tuning", "coordinator", "firewall", "ifb", "istio-cni", "linkerd-cni", "loopback",
    "portmap", "railcni-rdma", "rdma", "route-override", "sbr", "tuning", "vrf",
}  # fmt: skip
"""Plugins that change the interface of a plugin before them in the chain."""

IPAMS = {
    "calico-ipam", "dhcp", "host-local", "ipam-static", "kube-ovn", "nv-ipam", "railcni-whereabouts",
    "spiderpool", "static", "whereabouts",
}  # fmt: skip
"""Plugins that an `ipam` block can name."""

SHARING = {"bridge", "dummy", "ipvlan", "macvtap", "ptp", "tap", "vlan"} | {
    name for name in LINKS if own(name) and plugins.named(own(name)).SHARES_NETDEV
}
"""Plugins that make a new link. Such a link has no verbs device, so the plugin `rdma` has nothing to move."""

OF_MULTUS = ("deviceID", "pciBusID", "resourceName")
"""Keys that Multus writes for an allocated device, or reads."""

OF_LISTS = ("cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins")
PLUGINS = LINKS | CHAINED | IPAMS

Nested = Mapping[str, Sequence[Key]]
"""The tables of keys of nested objects, by the key that takes such an object."""


def note_faults(scope: Scope, keys: Keys, faults: Sequence[Fault], table: Sequence[Key], nested: Nested) -> None:
    """Add each fault as an error at its key below `keys`. `table` has the keys, `nested` those of nested objects."""
    for fault in faults:
        parts = keys_of(fault.key)
        scope.error((*keys, *parts), message_of(fault), fix_of(fault, reader_of(parts, table, nested)))


def reader_of(parts: Keys, table: Sequence[Key], nested: Nested) -> Any:
    """The function that parses the value of the key `parts`, such as ("ipRanges", 0, "exclude"); None if unknown."""
    inner = {name.lower(): members for name, members in nested.items()}.get(str(parts[0]).lower()) if parts else None
    rest = parts[2:] if len(parts) > 2 and isinstance(parts[1], int) else parts[1:]
    for members, keys in ((inner or (), rest), (table, parts)):
        if found := next((key.read for key in members if key.name.lower() == name_of(keys).lower()), None):
            return found
    return None


def fix_of(fault: Fault, read: Any) -> str:
    """The remedy for `fault`: to write a similar value that the parser `read` accepts, or a wanted kind of value."""
    return (read and proposal(read, fault.value)) or remedy(fault.wanted)


def message_of(fault: Fault) -> str:
    """The message of `fault` without the key, which a diagnostic has in a field of its own."""
    return f"{shown(fault.value)}: {fault.wanted}" if fault.value is not None else fault.wanted


def remedy(wanted: str) -> str:
    """The remedy "write X" for the message `wanted` if it ends with "want X"; "" for another message."""
    _, found, what = wanted.rpartition("want ")
    return f"write {what}" if found else ""


def proposal(read: Any, value: Any) -> str:
    """The remedy "write X", where X is similar to `value` and the parser `read` accepts X; "" if no such X is found."""
    for candidate in (value, *_like(value)):
        try:
            read(candidate)
        except (ValueError, TypeError):
            continue
        return f"write {json.dumps(candidate)}" if candidate is not value else ""
    try:
        read(value)
    except ValueError as fault:
        _, listed, choices = str(fault).partition("want one of ")
        return correction(value, choices.split(", "), "") if listed and isinstance(value, str) else ""
    return ""


def _like(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("true", "false"):
            yield text.lower() == "true"
        if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
            yield int(text)
        yield from (text, text.lower(), text.replace("_", "-").lower())
        yield [text]
    elif isinstance(value, float) and value.is_integer():
        yield int(value)
    elif isinstance(value, int):
        yield str(value)
        if value in (0, 1):
            yield bool(value)
    elif isinstance(value, list) and len(value) == 1:
        yield value[0]


def unknown_keys(
    scope: Scope, keys: Keys, document: Mapping[str, Any], table: Iterable[Key], whose: str, kind: str = ""
) -> None:
    """Warn of each key of `document` that is unknown, or differs in case from the key in `table`. `keys` is the path of
    `document`, `whose` its name in messages. `kind` is the plugin's name, "" for a nested object."""
    names = [key.name for key in table]
    tops = {n.partition(".")[0] for n in names} | ({*OF_RUNTIMES, *OF_MULTUS} if kind else set())
    for name, value in document.items():
        at = (*keys, name)
        nested = [n.partition(".")[2] for n in names if "." in n and n.partition(".")[0].lower() == name.lower()]
        if name in tops:
            pass
        elif same := next((n for n in sorted(tops) if n.lower() == name.lower()), ""):
            scope.warn(at, f'"{name}" is read as "{same}"', f'write "{same}"', at_key=True)
        else:
            message = f'{whose} has no key "{name}": it is ignored'
            scope.warn(at, message, correction(name, sorted(tops), _elsewhere(name, kind, tops)), at_key=True)
        if nested and isinstance(value, dict):
            for inner in value:
                if inner.lower() not in {n.lower() for n in nested}:
                    message = f'{whose} has no key "{name_of((name, inner))}": it is ignored'
                    scope.warn((*at, inner), message, correction(inner, nested), at_key=True)


def executable(scope: Scope, at: Keys, name: str, names: Collection[str], what: str) -> None:
    """Report an executable `name` that is not among `names`. It is an error if `name` looks like a misspelt railcni
    executable, otherwise a warning, since another project may have such an executable (macvlan2, vxlan)."""
    if name not in names:
        ours = () if name[-1:].isdigit() else [n for n in sorted(names) if own(n)]
        fix = correction(name, sorted(names), "check that the runtime's plugin folder has it")
        note = scope.error if name.lower() in ours or slip(name, ours) else scope.warn
        note(at, f"no {what} of the name {name} is known", fix)


def _elsewhere(name: str, kind: str, tops: Collection[str]) -> str:
    """The remedy for the unknown key `name`: move it into or out of "ipam" if it is known there, else remove it, or
    write one of the known keys `tops` if these are few, as in a route."""
    if kind and name.lower() in {k.name.lower() for k in (*tables.RANGE_KEYS, *tables.IPAM_KEYS)}:
        return f'move "{name}" into "ipam"'
    if not kind and any(name.lower() == k.name.lower() for own in LINK_PLUGINS for k in plugins.named(own).KEYS):
        return f'move "{name}" out of "ipam", to the plugin'
    return f"remove it, or write one of {', '.join(sorted(tops))}" if 1 < len(tops) < 10 else "remove it"
