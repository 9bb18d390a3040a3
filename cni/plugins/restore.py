"""A device that is on the host gets what the record says that it had there (cni.plugins.hoststate).

What is there already is left alone: on a device that never left nothing is written. A refusal stops nothing: the rest
goes on, what depends on something else is tried again until nothing more succeeds, and one line in the log says what is
missing in the end. A second DEL could do no more.

Order: MAC, MTU, names, sizes; parameters (disable_ipv6 decides about addresses); flags and up; addresses, routes
without a gateway, those with one, neighbours.

Sources: fib_table_insert (net/ipv4/fib_trie.c) for the order of IPv4 routes: a new one goes before its like, or behind
with NLM_F_APPEND; fib_sync_down_dev (net/ipv4/fib_semantics.c): a multipath route goes with the first device that goes;
inet6_addr_modify (net/ipv6/addrconf.c): flags can be changed later.
"""

from __future__ import annotations

import errno
import time
from _socket import AF_INET, AF_INET6

from cni.kernel import given, kept
from cni.kernel.netlink import APPEND, CREATE, EXCLUSIVE, REPLACE, KernelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cni.kernel.links import Link, Rtnl
    from cni.log import Log

_KERNEL = 2  # RTPROT_KERNEL
_DETECTION_SECONDS = 3.0  # duplicate address detection takes 1 to 2 s
_SHOWN = 8


class _Refusals:
    """What the kernel refused, as text."""

    __slots__ = ("texts",)

    def __init__(self) -> None:
        self.texts: list[str] = []

    def attempt(self, what: str, call: Callable[..., Any], *arguments: Any) -> bool:
        """Call, and note a refusal; that it is there already is none. Whether it was done."""
        try:
            call(*arguments)
        except OSError as fault:
            if fault.errno == errno.EEXIST:
                return True
            text = f"{what}: {fault if isinstance(fault, KernelError) else fault.strerror}"
            if text not in self.texts:
                self.texts.append(text)
            return False
        return True


def restore(former: dict[str, Any], link: Link, host: Rtnl, log: Log) -> None:
    """Make the state of `link`, a device on the host, the former one, as far as the kernel lets it be."""
    refusals = _Refusals()
    try:
        _link(former, link, host, refusals)
        saved = former.get("kernel")
        if saved is None:  # a record of the version before
            if link.up != former["up"]:
                refusals.attempt("up", host.change_link, link.index, "", 0, "", None, former["up"])
            _repeat(_tasks_of_old(former, link, host), refusals, link, host)
        else:
            Restoration(saved, former["index"], link, host, refusals).run()
    except KernelError as fault:
        refusals.texts.append(str(fault))  # the device has gone again
    if refusals.texts:
        more = f" and {len(refusals.texts) - _SHOWN} more" if len(refusals.texts) > _SHOWN else ""
        log.warning(
            f'device "{former["name"]}" is on the host again, but could not get back: {"; ".join(refusals.texts[:_SHOWN])}{more}'
        )


def _link(former: dict[str, Any], link: Link, host: Rtnl, refusals: _Refusals) -> None:
    if link.mac != former["mac"]:
        _restore_mac(former["mac"], link, host, refusals)
    if link.mtu != former["mtu"]:
        refusals.attempt(f"MTU {former['mtu']}", host.change_link, link.index, "", former["mtu"])
    if link.alias != former["alias"]:
        refusals.attempt("alias", host.change_link, link.index, "", 0, "", former["alias"])
    for name in former["altnames"]:
        if name not in link.altnames:
            refusals.attempt(f"alternative name {name}", host.add_altname, link.index, name)


def _restore_mac(mac: str, link: Link, host: Rtnl, refusals: _Refusals) -> None:
    """Give the device its MAC, unless its driver lets it have but another: that of a VF is its PF's to say.

    igb and i40e impose an administrative MAC when the VF is next set up, and refuse any other from then on.
    """
    try:
        if link.up:
            host.change_link(link.index, up=False)  # many drivers take a MAC only when down
            link.up = False
        host.change_link(link.index, mac=mac)
    except KernelError as fault:
        if link.kind or fault.errno not in (errno.EADDRNOTAVAIL, errno.EPERM):
            refusals.texts.append(f"MAC {mac}: {fault}")


class Restoration:
    """The part of the state that is kept as the kernel showed it."""

    __slots__ = ("elapsed", "host", "index", "link", "refusals", "saved", "was")

    def __init__(self, saved: dict[str, Any], was: int, link: Link, host: Rtnl, refusals: _Refusals) -> None:
        self.saved = saved
        self.was = was  # its index when it left
        self.link = link
        self.index = link.index
        self.host = host
        self.refusals = refusals
        self.elapsed = max(0, int(time.monotonic()) - saved["read"])

    def run(self) -> None:
        """Give back all of it."""
        now = kept.link(self.host, self.index)
        self._attributes(now)
        self._parameters(now)
        self._neighbour_parameters()
        token = bytes.fromhex(self.saved["token"])
        if token and token != now.token:
            self.refusals.attempt("token", given.set_token, self.host, self.index, token)
        different = (now.flags ^ self.saved["flags"]) & kept.SETTABLE_FLAGS
        if different:
            self.refusals.attempt(
                f"flags {self.saved['flags']:#x}",
                given.set_flags,
                self.host,
                self.index,
                self.saved["flags"],
                different,
            )
            self._parameters(kept.link(self.host, self.index))  # a device that comes up gets the MTU of IPv6 anew
        self._addresses()
        tasks = self._routes(came_up=bool(different & self.saved["flags"] & 1))
        held = set(kept.neighbours(self.host, self.index)) if self.saved["neighbours"] else set()
        for text in self.saved["neighbours"]:
            if text not in held:
                body = given.neighbour_again(text, self.index)
                call = self._sender(given.NEWNEIGH, body, CREATE | REPLACE)
                tasks.append((f"neighbour {given.neighbour_text(text)}", call))
        _repeat(tasks, self.refusals, self.link, self.host)

    def _attributes(self, now: kept.Raw) -> None:
        wanted = {int(kind): bytes.fromhex(value) for kind, value in self.saved["link"].items()}
        different = [kind for kind, value in wanted.items() if now.attributes.get(kind, value) != value]
        if set(different) & set(kept.SIZES):  # the size of all families sets that of IPv4
            different = [kind for kind in different if kind not in kept.SIZES] + [
                kind for kind in kept.SIZES if kind in wanted
            ]
        for kind in different:
            self.refusals.attempt(f"link attribute {kind}", given.set_link, self.host, self.index, kind, wanted[kind])

    def _parameters(self, now: kept.Raw) -> None:
        saved, refusals = self.saved, self.refusals
        inet, inet6 = bytes.fromhex(saved["inet"]), bytes.fromhex(saved["inet6"])
        if (inet, inet6) != (now.inet, now.inet6) or saved["parameters"]:
            from cni.kernel import parameters
            from cni.kernel.netns import Namespace

            with Namespace("", self.host.namespace()) as home, home.entered():
                arrays = {"ipv4": (inet, now.inet), "ipv6": (inet6, now.inet6)}
                parameters.give_back(self.link.name, arrays, saved["parameters"], refusals.attempt)

    def _neighbour_parameters(self) -> None:
        wanted = self.saved["neighbourParameters"]
        held = kept.neighbour_parameters(self.host, self.index) if wanted else {}
        for family, values in wanted.items():
            call = given.set_neighbour_parameters
            now = held.get(family, "")
            self.refusals.attempt("neighbour parameters", call, self.host, self.index, int(family), values, now)

    def _addresses(self) -> None:
        """In the kernel's order, at once: nothing that is an address depends on another thing here.

        An IPv6 address that a route names as its source must be usable when the route is set: it skips duplicate
        detection, which it has passed before it left. Afterwards it gets the flags that it had.
        """
        saved = [bytes.fromhex(text) for text in self.saved["addresses"]]
        there = {kept.address_key(body) for body in kept.addresses(self.host, self.index)} if saved else set()
        sources = {given.source_of(route) for route in self.saved["routes"]}
        for body in saved:
            if kept.address_key(body) in there:
                continue
            flags = kept.address_flags(body)
            again = given.address_again(body, self.index, self.elapsed)
            if again is None:
                continue  # its lifetime has ended meanwhile
            what = f"address {given.address_text(body)}"
            untested = flags & (kept.NODAD | kept.TENTATIVE | kept.DADFAILED)
            if body[0] == AF_INET6 and kept.address_source(body) in sources and not untested:
                at_once = given.address_again(body, self.index, self.elapsed, flags | kept.NODAD) or again
                self.refusals.attempt(what, self._sender(given.NEWADDR, at_once, CREATE | EXCLUSIVE))
                self.refusals.attempt(what, self._sender(given.NEWADDR, again, REPLACE))
            else:
                self.refusals.attempt(what, self._sender(given.NEWADDR, again, CREATE | EXCLUSIVE))

    def _routes(self, came_up: bool) -> list[tuple[str, Callable[[], None]]]:
        """What to do so that all routes are there again, those without a gateway first.

        On a device that `came_up` here, the prefix routes that the kernel has set and that it did not have go.
        """
        if not self.saved["addresses"] and not self.saved["routes"]:
            return []
        saved = [self._translated(route) for route in self.saved["routes"]]
        own = kept.routes(self.host, self.index, kept.route_bodies(self.host, self.index))
        if came_up:
            self._remove_surplus(own, saved)
        there = {_identity(route): route.get("ahead", False) for route in own}
        missing = [route for route in saved if route.get("ahead", False) > there.get(_identity(route), -1)]
        if not missing:
            return []
        present = given.present(self.host)
        missing = [route for route in missing if _is_due(route, present)]
        first = [route for route in reversed(missing) if route.get("ahead")]  # each goes before the one set earlier
        order = sorted([route for route in missing if not route.get("ahead")], key=given.has_gateway) + first
        return [(f"route {given.destination_text(route)}", self._setter(route, present)) for route in order]

    def _translated(self, route: dict[str, Any]) -> dict[str, Any]:
        """The route with the index that the device has now."""
        legs = [[flags, weight, self.index if at == self.was else at, own] for flags, weight, at, own in route["legs"]]
        return {**route, "legs": legs}

    def _setter(self, route: dict[str, Any], present: list[dict[str, Any]]) -> Callable[[], None]:
        key = kept.key_of(route)
        like = [other for other in present if kept.key_of(other) == key]
        legs = route["legs"]
        if len(legs) > 1:
            links = {link.index for link in self.host.links()}
            legs = [leg for leg in legs if leg[2] in links]
        body = given.route_again(route, legs, self.elapsed)
        if body is None:
            return lambda: None  # it has expired meanwhile
        if any(_identity(other) == _identity(route) for other in like):  # it is there, but behind its like

            def move() -> None:
                self.host.request(given.DELROUTE, body)
                self.host.request(given.NEWROUTE, body, CREATE)

            return move
        rest = next((other for other in like if _is_part(other, route)), None)
        remains = given.route_again(rest, rest["legs"], 0) if rest else None
        if remains and len(like) == 1:
            return self._sender(given.NEWROUTE, body, CREATE | REPLACE)
        if remains:  # the kernel would replace the first of its like, which is another's

            def complete() -> None:
                self.host.request(given.DELROUTE, remains)
                self.host.request(given.NEWROUTE, body, CREATE if route.get("ahead") else CREATE | APPEND)

            return complete
        if len(legs) > 1 and any(leg[2] != self.index for leg in legs) and like:

            def yielded() -> None:
                raise KernelError(errno.EBUSY, "another route to that destination has been set meanwhile")

            return yielded
        return self._sender(given.NEWROUTE, body, CREATE if route.get("ahead") else CREATE | APPEND)

    def _remove_surplus(self, own: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
        wanted = {_identity(route) for route in saved}
        for route in own:
            if given.protocol_of(route) == _KERNEL and _identity(route) not in wanted:
                again = given.route_again(route, route["legs"], 0) or b""
                what = f"removal of route {given.destination_text(route)}"
                self.refusals.attempt(what, self._sender(given.DELROUTE, again, 0))

    def _sender(self, kind: int, body: bytes, flags: int) -> Callable[[], None]:
        def send() -> None:
            self.host.request(kind, body, flags)

        return send


def _identity(route: dict[str, Any]) -> tuple[str, str]:
    return route["common"], str(route["legs"])


def _is_part(other: dict[str, Any], route: dict[str, Any]) -> bool:
    """Whether `other` is what the kernel, or ADD, left of the multipath route `route`; a single leg shows no weight."""
    legs = [(flags, at, own) for flags, _, at, own in route["legs"]]
    return other["common"] == route["common"] and all((f, at, own) in legs for f, _, at, own in other["legs"])


def _is_due(route: dict[str, Any], present: list[dict[str, Any]]) -> bool:
    """Whether the route is not there, or stands behind its like though it stood before."""
    like = [other for other in present if kept.key_of(other) == kept.key_of(route)]
    at = [number for number, other in enumerate(like) if _identity(other) == _identity(route)]
    if not at:
        return True
    own = {leg[2] for leg in route["legs"]}
    return bool(route.get("ahead")) and any(own.isdisjoint(leg[2] for leg in other["legs"]) for other in like[: at[0]])


def keep_others(saved: dict[str, Any], index: int, host: Rtnl) -> None:
    """Set the IPv4 multipath routes again without the device with this index, which has left: the kernel drops them whole."""
    for route in saved["routes"]:
        legs = [leg for leg in route["legs"] if leg[2] != index]
        if kept.family_of(route) == AF_INET and len(legs) not in (0, len(route["legs"])):
            body = given.route_again(route, legs, 0)
            try:
                if body:
                    host.request(given.NEWROUTE, body, CREATE if route.get("ahead") else CREATE | APPEND)
            except KernelError:
                pass  # the other device is down or has gone as well


def _tasks_of_old(former: dict[str, Any], link: Link, host: Rtnl) -> list[tuple[str, Callable[[], None]]]:
    """The addresses and routes of a record of the version before, which decoded them."""
    from cni.kernel import addresses, routes

    def setter(add: Callable[..., None], values: dict[str, Any]) -> Callable[[], None]:
        return lambda: add(host, link.index, **values)

    found = [(f"address {a['text']}", setter(addresses.add, a)) for a in former["addresses"]]
    if former["up"]:
        ordered = sorted(former["routes"], key=lambda route: route["gw"] != "")
        found += [(f"route {r['dst']}", setter(routes.add, r)) for r in ordered]
    return found


def _repeat(tasks: list[tuple[str, Callable[[], None]]], refusals: _Refusals, link: Link, host: Rtnl) -> None:
    """Do all, again and again while that succeeds with some; wait for addresses that are still examined for duplicates."""
    end = time.monotonic() + _DETECTION_SECONDS
    while tasks:
        left: list[tuple[str, Callable[[], None]]] = []
        failed = _Refusals()
        for what, call in tasks:
            if not failed.attempt(what, call):
                left.append((what, call))
        if len(left) == len(tasks):
            if time.monotonic() > end or not _examined(host, link):
                refusals.texts += failed.texts
                return
            time.sleep(0.1)
        tasks = left


def _examined(host: Rtnl, link: Link) -> bool:
    """Whether an address is still examined for duplicates."""
    return any(kept.address_flags(body) & kept.TENTATIVE for body in kept.addresses(host, link.index))
