"""What `ip addr show dev NAME` says, in iproute2's form, read by pyroute2: not by the code that made the link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyroute2 import IPRoute

_LINK_FLAGS = (  # in the order in which ip/ipaddress.c writes them; include/uapi/linux/if.h
    (1 << 3, "LOOPBACK"),
    (1 << 1, "BROADCAST"),
    (1 << 4, "POINTOPOINT"),
    (1 << 12, "MULTICAST"),
    (1 << 7, "NOARP"),
    (1 << 9, "ALLMULTI"),
    (1 << 8, "PROMISC"),
    (1 << 10, "MASTER"),
    (1 << 11, "SLAVE"),
    (1 << 5, "DEBUG"),
    (1 << 15, "DYNAMIC"),
    (1 << 14, "AUTOMEDIA"),
    (1 << 13, "PORTSEL"),
    (1 << 0, "UP"),
    (1 << 16, "LOWER_UP"),
    (1 << 17, "DORMANT"),
    (1 << 18, "ECHO"),
)
_UP, _RUNNING = 1 << 0, 1 << 6
_ADDRESS_FLAGS = (  # likewise; include/uapi/linux/if_addr.h
    (1 << 0, "secondary"),
    (1 << 1, "nodad"),
    (1 << 2, "optimistic"),
    (1 << 3, "dadfailed"),
    (1 << 4, "home"),
    (1 << 5, "deprecated"),
    (1 << 6, "tentative"),
    (1 << 7, ""),  # permanent: shown where it is missing, as "dynamic"
    (1 << 8, "mngtmpaddr"),
    (1 << 9, "noprefixroute"),
    (1 << 10, "autojoin"),
    (1 << 11, "stable-privacy"),
)
_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_FOREVER = 0xFFFFFFFF


class Shown:
    """A link of the calling thread's network namespace: `text` as `ip` shows it, and what of it a program compares."""

    def __init__(self, ipr: IPRoute, link: Any) -> None:
        addresses = list(ipr.get_addr(index=link["index"]))
        self.name: str = link.get("ifname")
        self.mac: str = link.get("address") or ""
        self.mtu: int = link.get("mtu")
        self.up = bool(link["flags"] & _UP)
        self.addresses = [f"{a.get('local') or a.get('address')}/{a['prefixlen']}" for a in addresses]
        self.inet = ", ".join(a for a in self.addresses if ":" not in a)
        self.text = "\n".join([*_link_lines(ipr, link), *(line for a in addresses for line in _address_lines(a))])


def show(name: str) -> Shown | None:
    """The link `name`, or None."""
    with IPRoute() as ipr:
        found = ipr.link_lookup(ifname=name)
        return Shown(ipr, ipr.get_links(found[0])[0]) if found else None


def names() -> list[str]:
    """The names of all links but `lo`."""
    with IPRoute() as ipr:
        return [link.get("ifname") for link in ipr.get_links() if link.get("ifname") != "lo"]


def _link_lines(ipr: IPRoute, link: Any) -> Iterator[str]:
    flags = [name for bit, name in _LINK_FLAGS if link["flags"] & bit]
    if link["flags"] & _UP and not link["flags"] & _RUNNING:
        flags.insert(0, "NO-CARRIER")
    lower, lower_is_down = _lower(ipr, link)
    if lower_is_down:
        flags.append("M-DOWN")
    text = f"{link['index']}: {link.get('ifname')}{lower}: <{','.join(flags)}> mtu {link.get('mtu')}"
    text += f" qdisc {link.get('qdisc')}"
    if link.get("master"):
        text += f" master {ipr.get_links(link.get('master'))[0].get('ifname')}"
    text += f" state {link.get('operstate')} group {link.get('group') or 'default'}"
    yield text + (f" qlen {link.get('txqlen')}" if link.get("txqlen") else "")
    kind = {1: "ether", 772: "loopback"}.get(link["ifi_type"], f"[{link['ifi_type']}]")
    text = f"    link/{kind} {link.get('address')} brd {link.get('broadcast')}"
    namespace = link.get("link_netnsid")
    yield text + (f" link-netnsid {namespace}" if namespace is not None else "")


def _lower(ipr: IPRoute, link: Any) -> tuple[str, bool]:
    """What stands behind the name for the link below, and whether that is in this namespace and down."""
    index = link.get("link")
    if index is None:
        return "", False
    if link.get("link_netnsid") is not None:
        return f"@if{index}", False
    if not index:
        return "@NONE", False
    below = ipr.get_links(index)[0]
    return f"@{below.get('ifname')}", not below["flags"] & _UP


def _address_lines(address: Any) -> Iterator[str]:
    local = address.get("local") or address.get("address")
    family = "inet" if address["family"] == 2 else "inet6"
    text = f"    {family} {local}/{address['prefixlen']}"
    if address.get("broadcast"):
        text += f" brd {address.get('broadcast')}"
    text += f" scope {_SCOPES.get(address['scope'], address['scope'])}"
    flags = address.get("flags") or address["flags"]
    for bit, name in _ADDRESS_FLAGS:
        if bit == 1 << 7:
            text += "" if flags & bit else " dynamic"
        elif flags & bit:
            text += " temporary" if name == "secondary" and family == "inet6" else f" {name}"
    yield text + (f" {address.get('label')}" if address.get("label") else "")
    times = address.get("cacheinfo")
    yield f"       valid_lft {_lifetime(times['ifa_valid'])} preferred_lft {_lifetime(times['ifa_preferred'])}"


def _lifetime(seconds: int) -> str:
    return "forever" if seconds == _FOREVER else f"{seconds}sec"
