"""A device that is on the host gets what the record says that it had there (cni.plugins.hoststate).

The stages of `Restoration` stand in the order of dependency: identity, attributes of the link, parameters (disable_ipv6
decides about addresses), flags and up, addresses, routes (those without a gateway first), neighbours. Each stage reads
what is there and names the steps that are due: on a device that never left nothing is written. A pass goes through all
stages, past each refusal, and `goes_on` decides whether another pass follows:

    a refusal, and something was done   another pass: what was refused may have depended on what was done
    a refusal that is transient         up to EXTRA passes more after a pause, although nothing was done
    PASSES passes                       the end in any case

What is refused at the end is divided by `can_be_mended`. A failed read, or an errno that is transient by nature, is
reported as Unrestored: the record stays, and the next DEL goes on. The other refusals are logged, for a second DEL could
do no more.

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
from cni.spec.errors import Unrestored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from cni.kernel.links import Link, Rtnl
    from cni.log import Log

    Step = tuple[Any, ...]  # what it gives back, as text; the function that does it, and its arguments

PASSES, EXTRA = 16, 3
TRANSIENT = frozenset((errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.ENOBUFS, errno.ENOMEM))

_KERNEL = 2  # RTPROT_KERNEL
_PAUSE_SECONDS = 0.05
_DETECTION_SECONDS = 3.0  # duplicate address detection takes 1 to 2 s
_SHOWN = 8


class Refusal:
    """`what` could not be given back, or could not be read (`is_read`), and why."""

    __slots__ = ("errno", "is_read", "text")

    def __init__(self, what: str, fault: OSError, is_read: bool = False) -> None:
        self.errno = fault.errno or 0
        self.is_read = is_read
        self.text = f"{what}: {fault if isinstance(fault, KernelError) else fault.strerror}"


def can_be_mended(refusal: Refusal) -> bool:
    """Whether the same step may succeed later although nothing else has changed (pure)."""
    return refusal.is_read or refusal.errno in TRANSIENT


def goes_on(passes: int, idle: int, refused: list[Refusal]) -> bool:
    """Whether another pass follows `passes` passes, of which the last `idle` did nothing; the last one was `refused` this
    (pure)."""
    if not refused or passes >= PASSES:
        return False
    return idle == 0 or (idle <= EXTRA and any(map(can_be_mended, refused)))


def restore(former: dict[str, Any], link: Link, host: Rtnl, log: Log) -> None:
    """Make the state of `link`, a device on the host, the former one, as far as the kernel lets it be.

    Unrestored when something is missing that a second call can give back; what the kernel refuses for good is logged.
    """
    try:
        refused = Restoration(former, link.index, host).run()
    except KernelError as fault:
        refused = [Refusal("all of it", fault)]  # the device has gone again
    lasting = [refusal for refusal in refused if not can_be_mended(refusal)]
    if lasting:
        log.warning(f'device "{former["name"]}" is on the host again, but could not get back: {_said(lasting)}')
    if len(lasting) < len(refused):
        passing = [refusal for refusal in refused if can_be_mended(refusal)]
        raise Unrestored(
            f'device "{former["name"]}" is on the host again, but not all of its state yet: {_said(passing)}; DEL again'
        )


def _do(call: Callable[..., object], arguments: list[Any]) -> None:
    """Call; once more at once where the refusal is transient, for addresses have the order in which they are added."""
    try:
        call(*arguments)
    except OSError as fault:
        if fault.errno not in TRANSIENT:
            raise
        call(*arguments)


def _said(refused: list[Refusal]) -> str:
    texts = list(dict.fromkeys(refusal.text for refusal in refused))
    return "; ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")


class Restoration:
    """The state of a device that is to be given back. `saved` is what the kernel showed of it, None in a record of the
    version before; `was` the device's index then, `index` its index now."""

    __slots__ = ("came_up", "elapsed", "former", "host", "index", "mac_is_the_pfs", "name", "saved", "was")

    def __init__(self, former: dict[str, Any], index: int, host: Rtnl) -> None:
        self.former = former
        self.name = former["name"]
        self.saved: dict[str, Any] = former.get("kernel")  # type: ignore[assignment]  # None takes other stages
        self.was = former["index"]
        self.index = index
        self.host = host
        self.elapsed = max(0, int(time.monotonic()) - self.saved["read"]) if self.saved else 0
        self.mac_is_the_pfs = False
        self.came_up = False

    def run(self) -> list[Refusal]:
        """Go through all stages as often as `goes_on` says: what is refused in the end. KernelError ENODEV: the device has gone."""
        passes = idle = 0
        end = time.monotonic() + _DETECTION_SECONDS
        while True:
            done, refused = self._pass()
            passes, idle = passes + 1, 0 if done else idle + 1
            if goes_on(passes, idle, refused):
                if idle:
                    time.sleep(_PAUSE_SECONDS)
            elif not refused or passes >= PASSES or not self._await_detection(end):
                return refused

    def _pass(self) -> tuple[bool, list[Refusal]]:
        """Do all steps that are due: whether one was done, and what was refused."""
        done = False
        refused: list[Refusal] = []
        for what, stage in self._stages():
            try:
                for text, call, *arguments in stage():
                    try:
                        _do(call, arguments)
                        done = True
                    except OSError as fault:
                        if fault.errno != errno.EEXIST:  # it is there already
                            refused.append(Refusal(text, fault))
            except OSError as fault:
                if fault.errno == errno.ENODEV:
                    raise
                refused.append(Refusal(f"the {what} cannot be read", fault, is_read=True))
        return done, refused

    def _stages(self) -> tuple[tuple[str, Callable[[], Iterator[Step]]], ...]:
        if not self.saved:
            return ("link", self._identity), ("state", self._state_of_old)
        return (
            ("link", self._identity),
            ("link", self._attributes),
            ("parameters", self._parameters),
            ("neighbour parameters", self._neighbour_parameters),
            ("flags", self._flags),
            ("parameters", self._parameters),  # a device that comes up gets the MTU of IPv6 anew
            ("addresses", self._addresses),
            ("routes", self._surplus),
            ("routes", self._routes),
            ("neighbours", self._neighbours),
        )

    def _await_detection(self, end: float) -> bool:
        """Wait until no address is examined for duplicates, `end` at most; whether there was any, which may have been refused
        to a route as its source."""
        was_examined = False
        while time.monotonic() < end and self._is_examined():
            was_examined = True
            time.sleep(_PAUSE_SECONDS)
        return was_examined

    def _is_examined(self) -> bool:
        try:
            held = kept.addresses(self.host, self.index)
        except KernelError:
            return False
        return any(kept.address_flags(body) & kept.TENTATIVE for body in held)

    def _identity(self) -> Iterator[Step]:
        former, index, change = self.former, self.index, self.host.change_link
        link = self.host.link(index=index)
        if link is None:
            raise KernelError(errno.ENODEV)
        if link.mac != former["mac"] and not self.mac_is_the_pfs:
            yield f"MAC {former['mac']}", self._set_mac, link
        if link.mtu != former["mtu"]:
            yield f"MTU {former['mtu']}", change, index, "", former["mtu"]
        if link.alias != former["alias"]:
            yield "alias", change, index, "", 0, "", former["alias"]
        for name in former["altnames"]:
            if name not in link.altnames:
                yield f"alternative name {name}", self.host.add_altname, index, name

    def _set_mac(self, link: Link) -> None:
        """Give the device its MAC, unless its driver lets it have but another: that of a VF is its PF's to say.

        igb and i40e impose an administrative MAC when the VF is next set up, and refuse any other from then on.
        """
        if link.up:
            self.host.change_link(self.index, up=False)  # many drivers take a MAC only when down
        try:
            self.host.change_link(self.index, mac=self.former["mac"])
        except KernelError as fault:
            if link.kind or fault.errno not in (errno.EADDRNOTAVAIL, errno.EPERM):
                raise
            self.mac_is_the_pfs = True

    def _attributes(self) -> Iterator[Step]:
        now = kept.link(self.host, self.index)
        wanted = {int(kind): bytes.fromhex(value) for kind, value in self.saved["link"].items()}
        different = [kind for kind, value in wanted.items() if now.attributes.get(kind, value) != value]
        if set(different) & set(kept.SIZES):  # the size of all families sets that of IPv4
            different = [kind for kind in different if kind not in kept.SIZES] + [k for k in kept.SIZES if k in wanted]
        for kind in different:
            yield f"link attribute {kind}", given.set_link, self.host, self.index, kind, wanted[kind]
        token = bytes.fromhex(self.saved["token"])
        if token and token != now.token:
            yield "token", given.set_token, self.host, self.index, token

    def _parameters(self) -> Iterator[Step]:
        saved, now = self.saved, kept.link(self.host, self.index)
        inet, inet6 = bytes.fromhex(saved["inet"]), bytes.fromhex(saved["inet6"])
        if (inet, inet6) != (now.inet, now.inet6) or saved["parameters"]:
            from cni.kernel import parameters
            from cni.kernel.netns import Namespace

            with Namespace("", self.host.namespace()) as home, home.entered():
                arrays = {"ipv4": (inet, now.inet), "ipv6": (inet6, now.inet6)}
                yield from parameters.due(self.name, arrays, saved["parameters"])

    def _neighbour_parameters(self) -> Iterator[Step]:
        wanted = self.saved["neighbourParameters"]
        held = kept.neighbour_parameters(self.host, self.index) if wanted else {}
        for family, values in wanted.items():
            body = given.neighbour_parameters(self.index, int(family), values, held.get(family, ""))
            if body:
                yield "neighbour parameters", self.host.request, given.SETNEIGHTBL, body

    def _flags(self) -> Iterator[Step]:
        wanted = self.saved["flags"]
        different = (kept.link(self.host, self.index).flags ^ wanted) & kept.SETTABLE_FLAGS
        self.came_up = self.came_up or bool(different & wanted & 1)
        if different:
            yield f"flags {wanted:#x}", given.set_flags, self.host, self.index, wanted, different

    def _addresses(self) -> Iterator[Step]:
        """In the kernel's order, at once: nothing that is an address depends on another thing here.

        An IPv6 address that a route names as its source must be usable when the route is set: it skips duplicate
        detection, which it has passed before it left. Afterwards it gets the flags that it had.
        """
        saved = [bytes.fromhex(text) for text in self.saved["addresses"]]
        now = kept.addresses(self.host, self.index) if saved else []
        there = {kept.address_key(body): kept.address_flags(body) for body in now}
        sources = {given.source_of(route) for route in self.saved["routes"]}
        for body in saved:
            flags, held = kept.address_flags(body), there.get(kept.address_key(body))
            again = given.address_again(body, self.index, self.elapsed)
            if again is None:
                continue  # its lifetime has ended meanwhile
            what = f"address {given.address_text(body)}"
            untested = flags & (kept.NODAD | kept.TENTATIVE | kept.DADFAILED)
            is_source = body[0] == AF_INET6 and kept.address_source(body) in sources and not untested
            if held is None:
                first = given.address_again(body, self.index, self.elapsed, flags | kept.NODAD) if is_source else again
                yield what, self.host.request, given.NEWADDR, first, CREATE | EXCLUSIVE
            if is_source and (held is None or held & kept.NODAD):
                yield what, self.host.request, given.NEWADDR, again, REPLACE

    def _surplus(self) -> Iterator[Step]:
        """On a device that came up here, the prefix routes that the kernel has set and that it did not have go."""
        if not self.came_up:
            return
        wanted = {_identity(route) for route in self._saved_routes()}
        for route in kept.routes(self.host, self.index, kept.route_bodies(self.host, self.index)):
            if given.protocol_of(route) == _KERNEL and _identity(route) not in wanted:
                body = given.route_again(route, route["legs"], 0)
                what = f"removal of route {given.destination_text(route)}"
                yield what, self.host.request, given.DELROUTE, body

    def _routes(self) -> Iterator[Step]:
        """Those without a gateway first; of those that go before their like the last one first."""
        saved = self._saved_routes()
        if not saved:
            return
        own = kept.routes(self.host, self.index, kept.route_bodies(self.host, self.index))
        there = {_identity(route): route.get("ahead", False) for route in own}
        missing = [route for route in saved if route.get("ahead", False) > there.get(_identity(route), -1)]
        if not missing:
            return
        present = given.present(self.host)
        missing = [route for route in missing if _is_due(route, present)]
        first = [route for route in reversed(missing) if route.get("ahead")]
        links = {link.index for link in self.host.links()} if any(len(r["legs"]) > 1 for r in missing) else set()
        for route in sorted([r for r in missing if not r.get("ahead")], key=given.has_gateway) + first:
            yield f"route {given.destination_text(route)}", self._set_route, route, present, links

    def _saved_routes(self) -> list[dict[str, Any]]:
        """The routes with the index that the device has now."""
        return [
            {**route, "legs": [[flags, weight, self.index if at == self.was else at, own] for flags, weight, at, own in route["legs"]]}
            for route in self.saved["routes"]
        ]  # fmt: skip

    def _set_route(self, route: dict[str, Any], present: list[dict[str, Any]], links: set[int]) -> None:
        legs = route["legs"]
        if len(legs) > 1:
            legs = [leg for leg in legs if leg[2] in links]
        body = given.route_again(route, legs, self.elapsed)
        if body is None:
            return  # it has expired meanwhile
        like = [other for other in present if kept.key_of(other) == kept.key_of(route)]
        here = next((other for other in like if _identity(other) == _identity(route)), None)  # behind its like
        rest = here or next((other for other in like if _is_part(other, route)), None)
        flags = CREATE if route.get("ahead") else CREATE | APPEND
        if rest and not here and len(like) == 1:
            self.host.request(given.NEWROUTE, body, CREATE | REPLACE)
        elif rest:  # the kernel would replace the first of its like, which is another's
            self._exchange(given.route_again(rest, rest["legs"], 0), body, flags)
        elif like and len(legs) > 1 and any(leg[2] != self.index for leg in legs):
            raise KernelError(errno.ECANCELED, "another route to that destination has been set meanwhile")
        else:
            self.host.request(given.NEWROUTE, body, flags)

    def _exchange(self, former: bytes | None, body: bytes, flags: int) -> None:
        """Set the route `body` in place of `former`, which comes back when that is refused."""
        if former:
            self.host.request(given.DELROUTE, former)
        try:
            self.host.request(given.NEWROUTE, body, flags)
        except KernelError:
            if former:
                self.host.request(given.NEWROUTE, former, flags)
            raise

    def _neighbours(self) -> Iterator[Step]:
        wanted = self.saved["neighbours"]
        held = set(kept.neighbours(self.host, self.index)) if wanted else set()
        for text in wanted:
            if text not in held:
                body = given.neighbour_again(text, self.index)
                yield (
                    f"neighbour {given.neighbour_text(text)}",
                    self.host.request,
                    given.NEWNEIGH,
                    body,
                    CREATE | REPLACE,
                )

    def _state_of_old(self) -> Iterator[Step]:
        """Up, addresses and routes of a record of the version before, which decoded them."""
        from cni.kernel import addresses, routes

        former, link = self.former, self.host.link(index=self.index)
        if link and link.up != former["up"]:
            yield "up", self.host.change_link, self.index, "", 0, "", None, former["up"]
        for a in former["addresses"]:
            yield f"address {a['text']}", lambda a=a: addresses.add(self.host, self.index, **a)
        for r in sorted(former["routes"], key=lambda route: route["gw"] != "") if former["up"] else ():
            yield f"route {r['dst']}", lambda r=r: routes.add(self.host, self.index, **r)


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
