"""A dump of a host's network namespace that a person can read: links, addresses, routes, rules, neighbours, sysctls, qdiscs.

The messages are decoded by pyroute2, and none of our own code is used. Every attribute that rtnetlink shows is kept, also
one that pyroute2 does not know, except counters, times and references to other namespaces by number. A line is one
attribute of a link, one sysctl, or one object of the other kinds with all its attributes. The lines of one kind stand in
the kernel's order, since the order of addresses and routes decides which one is used.
"""

from __future__ import annotations

import difflib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import nlmsg
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from tests.rtnetlink import (
    GETADDR,
    GETLINK,
    GETNEIGH,
    GETNEXTHOP,
    GETQDISC,
    GETROUTE,
    GETRULE,
    SKIP_STATS,
    WITH_VFS,
    Route,
)
from tests.view import View

_NOARP, _PERMANENT, _PROXY = 0x40, 0x80, 0x08  # NUD_..., NTF_PROXY
_TENTATIVE = 0x40  # IFA_F_TENTATIVE
_UP, _RUNNING, _LOWER_UP = 0x1, 0x40, 0x10000  # IFF_...
_COMING_UP = (
    _UP | _RUNNING | _LOWER_UP
)  # a link that has carrier is running up to a second later (net/core/link_watch.c)
_DEFAULT_QDISCS = ("noop", "noqueue", "pfifo_fast", "mq")
_ALL_NODES = ("33:33:00:00:00:01", "01:00:5e:00:00:01")
_UNKNOWN = "attributes that pyroute2 does not know"
_KERNEL, _LOCAL = 2, 2  # RTPROT_KERNEL, RTN_LOCAL
_FOR_EVER = 2**32 - 1
_TICKS = os.sysconf("SC_CLK_TCK")  # rta_expires is in clock ticks (net/core/rtnetlink.c, rtnl_put_cacheinfo)
_SLACK_SECONDS = 2  # lifetimes are shown in whole seconds

_LINK_NOISE = {
    "stats", "stats64", "carrier_changes", "carrier_up_count", "carrier_down_count", "af_spec", "new_netnsid",
}  # fmt: skip
_NOISE = {"cacheinfo", "stats", "stats2", "xstats", "probes"}
_FIELD_NOISE = {"pad1", "pad2", "__pad", "resvd", "res1", "res2", "info"}  # info: how many refer to a qdisc
_TREES = (("net.ipv4.conf", "ipv4/conf"), ("net.ipv6.conf", "ipv6/conf"), ("net.ipv4.neigh", "ipv4/neigh"), ("net.ipv6.neigh", "ipv6/neigh"))  # fmt: skip


class nhmsg(nlmsg):
    """struct nhmsg and the NHA_* attributes (include/uapi/linux/nexthop.h), which pyroute2 does not have."""

    prefix = "NHA_"
    fields = (("family", "B"), ("scope", "B"), ("protocol", "B"), ("resvd", "B"), ("flags", "I"))
    nla_map = (
        ("NHA_UNSPEC", "none"), ("NHA_ID", "uint32"), ("NHA_GROUP", "hex"), ("NHA_GROUP_TYPE", "uint16"),
        ("NHA_BLACKHOLE", "flag"), ("NHA_OIF", "uint32"), ("NHA_GATEWAY", "hex"), ("NHA_ENCAP_TYPE", "uint16"),
        ("NHA_ENCAP", "hex"),
    )  # fmt: skip


@dataclass(frozen=True)
class Line:
    """`kind` is what the line speaks of, such as "route", "link.mtu" or "sysctl"; `lifetimes` are seconds that pass."""

    kind: str
    text: str
    lifetimes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text + (f" [{' '.join(map(str, self.lifetimes))} s left]" if self.lifetimes else "")


@dataclass(frozen=True)
class Dump:
    """`taken` is the time.monotonic() of the dump; `is_settled`: no address awaits its duplicate address detection or
    the kernel's own route to it, and no link the news of its carrier."""

    lines: tuple[Line, ...]
    taken: float
    is_settled: bool


@dataclass(frozen=True)
class Difference:
    """A line that one of two dumps has: `sign` is "-" for the earlier and "+" for the later one."""

    sign: str
    line: Line

    def __str__(self) -> str:
        return f"{self.sign} {self.line}"


class Host:
    """Dumps one namespace; `close` it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._route = Route(view)

    def close(self) -> None:
        self._route.close()

    def dump(self) -> Dump:
        messages = sorted((_decoded(ifinfmsg, d) for d in self._ask(GETLINK, 16)), key=lambda m: str(m.get("ifname")))
        names = {int(m["index"]): str(m.get("ifname")) for m in messages}
        resting = {names[m["index"]] for m in messages if not m["flags"] & _UP}
        lines = [line for m in messages for line in _link(m, names)]
        addresses = [_decoded(ifaddrmsg, d) for d in self._ask(GETADDR, 8)]
        lines += [_address(m, names) for m in addresses]
        routes = [_decoded(rtmsg, d) for d in self._ask(GETROUTE, 12)]
        lines += _routes(routes, names)
        lines += [_object("rule", _decoded(fibmsg, d), names) for d in self._ask(GETRULE, 12)]
        lines += list(self._neighbours(names))
        lines += [_object("nexthop", _decoded(nhmsg, d), names) for d in self._nexthops()]
        qdiscs = [_object("qdisc", _decoded(tcmsg, d), names) for d in self._ask(GETQDISC, 20)]
        lines += sorted(qdiscs, key=str)  # in the order of the links, of which a device that comes home is the last
        lines = [line for line in lines if not _comes_with_up(line, resting)]
        with self._view.entered():
            lines += _sysctls()
        waiting = any((m.get("flags") or m["flags"]) & _TENTATIVE for m in addresses)
        # The kernel adds the route of an IPv6 address later, of one without duplicate address detection too (addrconf_dad_work).
        local = {m.get("dst") for m in routes if m["type"] == _LOCAL}
        active = (m for m in addresses if m["family"] == socket.AF_INET6 and names.get(m["index"]) not in resting)
        waiting = waiting or any(
            (m.get("local") or m.get("address")) not in local for m in active
        )  # of a peer: IFA_LOCAL
        waiting = waiting or any(m["flags"] & _COMING_UP == _UP | _LOWER_UP for m in messages)
        return Dump(tuple(lines), time.monotonic(), not waiting)

    def _neighbours(self, names: dict[int, str]) -> Iterator[Line]:
        found = [_decoded(ndmsg, d) for d in self._ask(GETNEIGH, 12)]
        proxies = [_decoded(ndmsg, d) for d in self._ask(GETNEIGH, 12, proxies=True)]
        for m in [*(m for m in found if m["state"] & _PERMANENT), *proxies]:
            yield _object("neighbour", m, names)
        received = (_decoded(ndmsg, d) for d in self._ask(GETNEIGH, 12, socket.AF_BRIDGE))
        texts = [_object("fdb", m, names) for m in received if m["state"] & (_PERMANENT | _NOARP)]
        yield from sorted(texts, key=str)  # a hash table's order

    def _nexthops(self) -> list[bytes]:
        try:
            return self._ask(GETNEXTHOP, 8)
        except OSError:  # before Linux 5.3
            return []

    def _ask(self, kind: int, size: int, family: int = 0, *, proxies: bool = False) -> list[bytes]:
        """The messages of a dump, with their headers."""
        body = bytearray(bytes([family]) + bytes(size - 1))
        if proxies:
            body[10] = _PROXY  # ndm_flags
        return self._route.dump(kind, bytes(body), SKIP_STATS | WITH_VFS)


def settled(host: Host, seconds: float = 20.0) -> Dump:
    """The first dump that is like the one before it and in which no address is tentative; the last one in any case."""
    end = time.monotonic() + seconds
    before = host.dump()
    while True:
        time.sleep(0.03)
        now = host.dump()
        if (now.is_settled and not differences(before, now)) or time.monotonic() > end:
            return now
        before = now


def restored(host: Host, before: Dump, accepts: Callable[[Difference], bool], seconds: float) -> list[Difference]:
    """What differs from `before` when nothing has changed for `seconds`, but for what is accepted: the kernel and routers
    do some of their work a moment later."""
    shown: list[str] = []
    end = 0.0
    while True:
        now = host.dump()
        found = [d for d in differences(before, now) if not accepts(d)]
        texts = [f"{d.sign} {d.line.text}" for d in found]
        if not found or (texts == shown and time.monotonic() > end):
            return found
        if texts != shown:
            shown, end = texts, time.monotonic() + seconds
        time.sleep(0.03)


def differences(before: Dump, after: Dump) -> list[Difference]:
    """The lines that only one of two dumps has, or that stand in another order. Lifetimes may differ by the time between."""
    found: list[Difference] = []
    slack = abs(after.taken - before.taken) + _SLACK_SECONDS
    old, new = [line.text for line in before.lines], [line.text for line in after.lines]
    if old == new:
        blocks = [("equal", 0, len(old), 0, len(new))]
    else:
        blocks = [tuple(op) for op in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()]  # type: ignore[misc]
    for how, i, i_end, j, j_end in blocks:
        if how == "equal":
            for one, two in zip(before.lines[i:i_end], after.lines[j:j_end], strict=True):
                if not _alike(one.lifetimes, two.lifetimes, slack):
                    found += [Difference("-", one), Difference("+", two)]
            continue
        found += [Difference("-", line) for line in before.lines[i:i_end]]
        found += [Difference("+", line) for line in after.lines[j:j_end]]
    return found


def _alike(one: tuple[int, ...], two: tuple[int, ...], slack: float) -> bool:
    if len(one) != len(two):
        return False
    return all(a == b or (_FOR_EVER not in (a, b) and abs(a - b) <= slack) for a, b in zip(one, two, strict=True))


def _comes_with_up(line: Line, resting: set[str]) -> bool:
    """Whether the line is what the kernel gives a link when it is first set up: the groups of all nodes; and of a link that
    is down a default qdisc."""
    words = line.text.split()
    if line.kind == "fdb" and words[-1] in _ALL_NODES:
        return True
    if not resting.intersection(words):
        return False
    automatic = line.kind == "qdisc" and "handle" not in words
    return automatic or (line.kind == "link.qdisc" and words[-1] in _DEFAULT_QDISCS)


# --- one message as lines ---


def _decoded(kind: Any, data: bytes) -> Any:
    """The message, with, as _UNKNOWN, the attributes that pyroute2 does not know, by number."""
    message = kind(data)
    message.decode()
    known = len(kind.nla_map)
    at = 16 + sum(struct.calcsize(f"={form}") for _, form in kind.fields)
    message[_UNKNOWN] = []
    while at + 4 <= len(data):
        length, number = struct.unpack_from("=HH", data, at)
        if number & 0x3FFF >= known:
            message[_UNKNOWN].append((f"attribute-{number & 0x3FFF}", data[at + 4 : at + length].hex()))
        at += max(4, length + 3 & ~3)
    return message


def _link(m: Any, names: dict[int, str]) -> Iterator[Line]:
    name = names[m["index"]]
    fields = [("type", m["ifi_type"]), ("flags", m["flags"]), ("number", m["index"])]
    for key, value in fields + sorted(_attributes(m), key=lambda a: a[0]):
        if key not in _LINK_NOISE:
            yield Line(f"link.{key}", f"link {name} {key} {_text(key, value, names)}")
    for family in (v for k, v in _attributes(m) if k == "af_spec"):
        for key, value in _attributes(family.get("af_inet6")):
            if key in ("inet6_token", "inet6_addr_gen_mode"):
                yield Line(f"link.{key}", f"link {name} {key} {value}")


def _address(m: Any, names: dict[int, str]) -> Line:
    name = names.get(m["index"], m["index"])
    info = m.get("cacheinfo") or {}
    lifetimes = (int(info.get("ifa_preferred", _FOR_EVER)), int(info.get("ifa_valid", _FOR_EVER)))
    parts = [f"{m.get('local') or m.get('address')}/{m['prefixlen']} dev {name} scope {m['scope']}"]
    parts += [f"{k} {_text(k, v, names)}" for k, v in _attributes(m) if k not in ("cacheinfo", "local")]
    return Line("address", "address " + " ".join(parts), lifetimes if min(lifetimes) < _FOR_EVER else ())


def _routes(messages: Sequence[Any], names: dict[int, str]) -> list[Line]:
    """Routes in the kernel's order, and behind them those that it makes by itself of addresses and links: of these a
    device that comes home has the last ones, whoever brings it."""
    own = sorted((_route(m, names) for m in messages if m["proto"] == _KERNEL), key=str)
    return [_route(m, names) for m in messages if m["proto"] != _KERNEL] + own


def _route(m: Any, names: dict[int, str]) -> Line:
    family = "6" if m["family"] == socket.AF_INET6 else "4"
    every = "::" if family == "6" else "0.0.0.0"
    parts = [f"{m.get('dst') or every}/{m['dst_len']} table {m.get('table') or m['table']}"]
    parts += [f"{field} {m[field]}" for field in ("type", "proto", "scope", "tos", "flags", "src_len") if m[field]]
    info = m.get("cacheinfo") or {}
    expires = int(info.get("rta_expires") or 0) // _TICKS
    parts += [f"{k} {_text(k, v, names)}" for k, v in _attributes(m) if k not in ("cacheinfo", "dst", "table")]
    return Line("route", f"route{family} " + " ".join(parts), (expires,) if expires else ())


def _object(kind: str, m: Any, names: dict[int, str]) -> Line:
    """Any other message; of the fields those that are not 0."""
    fields = [(field, m[field]) for field, _ in type(m).fields if field not in _FIELD_NOISE and m[field]]
    parts = [f"{k} {_text(k, v, names)}" for k, v in [*fields, *_attributes(m)] if k not in _NOISE]
    return Line(kind, f"{kind} " + " ".join(parts))


def _attributes(m: Any) -> list[tuple[str, Any]]:
    """The attributes of a message or of an attribute, by their names in lower case and without the prefix."""
    if not isinstance(m, dict):
        return []
    prefix = getattr(m, "prefix", None) or ""
    found = dict.get(m, "attrs") or ()  # the message's own `get` looks among the attributes
    known = [(str(a[0]).removeprefix(prefix).lower(), a[1]) for a in found if a[0] != "UNKNOWN"]
    return known + list(dict.get(m, _UNKNOWN) or ())


def _text(key: str, value: Any, names: dict[int, str]) -> str:
    """A value in one line: links by their names, and without timers and counters that run by themselves."""
    if key in ("oif", "iif", "ifindex", "index", "master") and isinstance(value, int):
        return str(names.get(value, value))
    if key == "flags" and isinstance(value, int):
        return hex(value)
    if key == "operstate" and value == "UNKNOWN":  # of a new link, until the kernel looks at it, up to 1 s later
        return "UP"
    if isinstance(value, dict):
        inner = [(k, v) for k, v in value.items() if k not in ("attrs", "header", "value", _UNKNOWN)]
        inner += _attributes(value)
        return "{" + ", ".join(f"{k} {_text(k, v, names)}" for k, v in inner if not _runs(k)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(key, v, names) for v in value) + "]"
    return str(value)


def _runs(key: str) -> bool:
    return "timer" in key or key in ("direct_pkts", "mcast_n_groups", "mcast_eht_hosts_cnt")


def _sysctls() -> list[Line]:
    """The sysctls of all links of the thread's namespace, of `all` and of `default`."""
    found = []
    for shown, folder in _TREES:
        top = f"/proc/sys/net/{folder}"
        for link in sorted(os.listdir(top)):
            for name in sorted(os.listdir(f"{top}/{link}")):
                found.append(Line("sysctl", f"sysctl {shown}.{link}.{name} = {_value(f'{top}/{link}/{name}')}"))
    return found


def _value(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return "?"
    try:
        return os.read(fd, 4096).decode().strip()
    except OSError:  # stable_secret, while there is none
        return "unset"
    finally:
        os.close(fd)
