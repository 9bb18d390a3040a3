"""Restore a device that is back on the host to the state in its record (cni.link.plugins.host_device.hoststate).

The stages of `Restoration` are in the order of their dependencies: identity, attributes of the link, parameters
(disable_ipv6 must be off before IPv6 addresses can be added), flags including up, addresses, routes (those without a
gateway first), neighbours. Each stage compares the device with the record and yields the missing steps, so nothing is
written to a device that never left. A pass runs all stages, even after a refusal. At most PASSES passes run. After a
pass with a refusal, another pass follows

    at once, if the pass has changed something, since the refused step may depend on the change
    after a pause, while the duplicate address detection of an address runs: until its end the kernel refuses the address
    as the source of a route
    after a pause, up to EXTRA times in succession, if a refusal was transient

If the last pass has a transient refusal (a failed read, or an errno in TRANSIENT), `restore` raises Unrestored: the
record stays, and the next DEL continues. Every other refusal is logged, because the next DEL would be refused too.

Sources: fib_table_insert (net/ipv4/fib_trie.c): an IPv4 route is inserted before the routes of the same key, with
NLM_F_APPEND after them; fib_sync_down_dev (net/ipv4/fib_semantics.c): the kernel drops a multipath route when the first
of its devices leaves; inet6_addr_modify (net/ipv6/addrconf.c): the flags of an address can be changed later.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cni.link.plugins.host_device.devices import MovePlan
from cni.shared.kernel import addresses, link_sysctls, raw_state, routes
from cni.shared.kernel.addresses import DADFAILED, NODAD, TENTATIVE, Address
from cni.shared.kernel.links import NEWLINK, Link, Rtnl, ifinfo
from cni.shared.kernel.netlink import APPEND, CREATE, EXCLUSIVE, REPLACE, KernelError, attribute
from cni.shared.kernel.netns import Namespace
from cni.shared.kernel.raw_state import SavedRoute
from cni.shared.log import Log
from cni.shared.spec.errors import KernelRefused, Unrestored

if TYPE_CHECKING:
    Step = tuple[Any, ...]  # the name of the part to restore, the function that restores it, and the arguments

PASSES, EXTRA = 60, 3  # 60 passes with their pauses take 3 s; duplicate address detection takes 1 to 2 s
TRANSIENT = frozenset((errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.ENOBUFS, errno.ENOMEM))

_PAUSE_SECONDS = 0.05
_SHOWN = 8


def restore(planned: MovePlan, link: Link, host: Rtnl, log: Log) -> None:
    """Restore the device, which is on the host, to the state in the record. Raises KernelRefused if the kernel refuses
    the name; Unrestored (call again) if another link has the name or a refusal was transient."""
    former = planned.device
    name, other = former["name"], None
    try:
        if link.name != name:
            other = host.link(name=name)
            if other is not None and other.index == link.index:  # udev may have made the former name an alternative
                host.remove_altname(link.index, name)
                other = None
            if other is None:
                host.change_link(link.index, up=False)
                host.change_link(link.index, name=name)
                link = host.link(index=link.index) or link
        if not planned.restoresState and link.alias:
            host.change_link(link.index, alias="")
    except KernelError as fault:
        raise KernelRefused(
            f'device "{name}" is on the host, but cannot get its name: {fault.strerror}; repeat the DEL', str(fault)
        ) from None
    if planned.restoresState:
        _restore_state(former, link, host, log)
    if other:
        reason = f'link "{other.name}" has it as an alternative name; remove that (ip link property del dev {other.name} altname {name})'
        if other.name == name:
            reason = f"another link has that name; rename it (ip link set {name} name ...)"
        raise Unrestored(
            f'device "{name}" is on the host as "{link.name}", and cannot get its name back: {reason},'
            f" then the device (ip link set {link.name} name {name})"
        )


def _restore_state(former: dict[str, Any], link: Link, host: Rtnl, log: Log) -> None:
    """Restore the state `former` of `link`, a device on the host, as far as the kernel allows. Log permanent refusals.
    Raises Unrestored after a transient refusal, when a second call can restore more."""
    try:
        lasting, passing = Restoration(former, link, host).run()
    except KernelError as fault:  # the device has left the host again
        lasting, passing = [f"all of it: {fault}"], []
    if lasting:
        log.warning(
            f'device "{former["name"]}" is on the host again, but without this part of its state: {_said(lasting)}'
        )
    if passing:
        raise Unrestored(
            f'device "{former["name"]}" is on the host again, but not all of its state yet: {_said(passing)}; repeat the DEL'
        )


def _do(call: Callable[..., object], arguments: list[Any]) -> None:
    """Run `call`, and repeat it at once after a transient refusal. A repetition in a later pass could change the order
    of addresses."""
    try:
        call(*arguments)
    except OSError as fault:
        if fault.errno not in TRANSIENT:
            raise
        call(*arguments)


def _reason(fault: OSError) -> str:
    return str(fault if isinstance(fault, KernelError) else fault.strerror)


def _said(refused: list[str]) -> str:
    texts = list(dict.fromkeys(refused))
    return "; ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")


class Restoration:
    """The restoration of one device. `saved` is its state as the kernel showed it; None if an older version wrote the
    record. `index` is the device's present index, and `routes` are the saved routes with this index."""

    def __init__(self, former: dict[str, Any], link: Link, host: Rtnl) -> None:
        self.former = former
        self.name = link.name
        self.saved: dict[str, Any] = former.get("kernel")  # type: ignore[assignment]  # None takes other stages
        self.index = link.index
        self.host = host
        self.routes: list[SavedRoute] = []
        for route in self.saved["routes"] if self.saved else ():
            legs = [[*leg[:2], link.index if leg[2] == former["index"] else leg[2], leg[3]] for leg in route["legs"]]
            self.routes.append(SavedRoute({**route, "legs": legs}))
        self.elapsed = max(0, int(time.monotonic()) - self.saved["read"]) if self.saved else 0
        self.mac_is_the_pfs = False
        self.came_up = False

    def run(self) -> tuple[list[str], list[str]]:
        """Restore the state in passes, each over all stages (see the module's docstring). Returns the texts of the
        refusals in the last pass, (permanent, transient). Raises KernelError if the device leaves the host."""
        idle = 0
        lasting: list[str] = []
        passing: list[str] = []
        for _ in range(PASSES):
            done, lasting, passing = self._pass()
            idle = 0 if done else idle + 1
            is_transient = idle <= EXTRA and passing
            if not (lasting or passing) or not (done or is_transient or self._is_examined()):
                break
            if idle:
                time.sleep(_PAUSE_SECONDS)
        return lasting, passing

    def _pass(self) -> tuple[bool, list[str], list[str]]:
        """Run all stages. Returns whether a step succeeded, and the texts of permanent and of transient refusals."""
        done = False
        lasting: list[str] = []
        passing: list[str] = []
        for what, stage in self._stages():
            try:
                for text, call, *arguments in stage():
                    try:
                        _do(call, arguments)
                        done = True
                    except OSError as fault:
                        if fault.errno != errno.EEXIST:  # the kernel has restored it already
                            refused = passing if fault.errno in TRANSIENT else lasting
                            refused.append(f"{text}: {_reason(fault)}")
            except OSError as fault:
                if fault.errno == errno.ENODEV:
                    raise
                passing.append(f"the {what} cannot be read: {_reason(fault)}")
        return done, lasting, passing

    def _stages(self) -> tuple[tuple[str, Callable[[], Iterator[Step]]], ...]:
        if not self.saved:
            return ("link", self._identity), ("state", self._state_of_old), ("alias", self._alias)
        return (
            ("link", self._identity),
            ("link", self._attributes),
            ("parameters", self._parameters),
            ("flags", self._flags),
            ("parameters", self._parameters),  # a device that comes up gets the MTU of IPv6 again
            ("addresses", self._addresses),
            ("routes", self._surplus),
            ("routes", self._routes),
            ("neighbours", self._neighbours),
            ("alias", self._alias),
        )

    def _is_examined(self) -> bool:
        try:
            return any(address.tentative for address in addresses.list_of(self.host, self.index))
        except KernelError:
            return False

    def _present(self) -> Link:
        link = self.host.link(index=self.index)
        if link is None:
            raise KernelError(errno.ENODEV)
        return link

    def _identity(self) -> Iterator[Step]:
        former, index, change, link = self.former, self.index, self.host.change_link, self._present()
        if link.mac != former["mac"] and not self.mac_is_the_pfs:
            yield f"MAC {former['mac']}", self._set_mac, link
        if link.mtu != former["mtu"]:
            yield f"MTU {former['mtu']}", change, index, "", former["mtu"]
        for name in former["altnames"]:
            if name not in link.altnames:
                yield f"alternative name {name}", self.host.add_altname, index, name
        for name in link.altnames if self.saved else ():
            if name not in former["altnames"]:  # a name that the pod added may be that of a device in another sandbox
                yield f"removal of alternative name {name}", self.host.remove_altname, index, name

    def _alias(self) -> Iterator[Step]:
        """The step that restores the alias. It is the last step, because until then the alias identifies the device."""
        if self._present().alias != self.former["alias"]:
            yield "alias", self.host.change_link, self.index, "", 0, "", self.former["alias"]

    def _set_mac(self, link: Link) -> None:
        """Restore the MAC, unless the driver accepts only the MAC that the PF has set for its VF. With igb and i40e a
        VF gets that MAC when it is next set up, and then accepts no other."""
        if link.up:
            self.host.change_link(self.index, up=False)  # many drivers take a MAC only when down
        try:
            self.host.change_link(self.index, mac=self.former["mac"])
        except KernelError as fault:
            if link.kind or fault.errno not in (errno.EADDRNOTAVAIL, errno.EPERM):
                raise
            self.mac_is_the_pfs = True

    def _now(self) -> raw_state.Raw:
        return raw_state.Raw(self._present().body)

    def _own_routes(self) -> list[SavedRoute]:
        return raw_state.routes(self.host, self.index, routes.bodies_of(self.host, self.index))

    def _attributes(self) -> Iterator[Step]:
        now = self._now()
        wanted = {int(kind): bytes.fromhex(value) for kind, value in self.saved["link"].items()}
        different = [kind for kind, value in wanted.items() if now.attributes.get(kind, value) != value]
        if set(different) & set(raw_state.SIZES):  # setting the size for all families also sets that of IPv4
            different = [kind for kind in different if kind not in raw_state.SIZES] + [
                k for k in raw_state.SIZES if k in wanted
            ]
        for kind in different:
            yield f"link attribute {kind}", *self._change(attribute(kind, wanted[kind]))
        token = bytes.fromhex(self.saved["token"])
        if token and token != now.token:
            yield "token", *self._change(raw_state.token_attributes(token))

    def _change(self, attributes: bytes) -> Step:
        """The function and the arguments of a step that gives the link these netlink attributes."""
        return self.host.request, NEWLINK, ifinfo(self.index) + attributes

    def _parameters(self) -> Iterator[Step]:
        saved, now = self.saved, self._now()
        inet, inet6 = bytes.fromhex(saved["inet"]), bytes.fromhex(saved["inet6"])
        if (inet, inet6) != (now.inet, now.inet6) or saved["parameters"]:
            with Namespace("", self.host.namespace()) as home, home.entered():
                arrays = {"ipv4": (inet, now.inet), "ipv6": (inet6, now.inet6)}
                yield from link_sysctls.due(self.name, arrays, saved["parameters"])

    def _flags(self) -> Iterator[Step]:
        wanted = self.saved["flags"]
        different = (self._now().flags ^ wanted) & raw_state.SETTABLE_FLAGS
        self.came_up = self.came_up or bool(different & wanted & 1)
        if different:
            body = ifinfo(self.index, wanted & different, different)
            yield f"flags {wanted:#x}", self.host.request, NEWLINK, body

    def _addresses(self) -> Iterator[Step]:
        """The steps for the missing addresses, in the kernel's order.

        An IPv6 address that is the source of a route must be usable when the route is set. So such an address is first
        added without duplicate address detection, which it passed before the move, and then gets its former flags.
        """
        saved = [Address(bytes.fromhex(text)) for text in self.saved["addresses"]]
        now = addresses.list_of(self.host, self.index) if saved else []
        there = {(address.text, address.peer): address.flags for address in now}
        sources = {route.source for route in self.routes}
        for address in saved:
            flags, held = address.flags, there.get((address.text, address.peer))
            again = raw_state.address_again(address, self.index, self.elapsed, flags)
            if again is None:
                continue  # the lifetime of the address has ended
            what = f"address {address.text}"
            untested = flags & (NODAD | TENTATIVE | DADFAILED)
            is_source = ":" in address.text and address.local in sources and not untested
            if held is None:
                usable = flags | NODAD if is_source else flags
                first = raw_state.address_again(address, self.index, self.elapsed, usable)
                yield what, self.host.request, raw_state.NEWADDR, first, CREATE | EXCLUSIVE
            if is_source and (held is None or held & NODAD):
                yield what, self.host.request, raw_state.NEWADDR, again, REPLACE

    def _surplus(self) -> Iterator[Step]:
        """The steps that remove unsaved prefix routes, which the kernel added when the device came up."""
        if not self.came_up:
            return
        wanted = {route.identity for route in self.routes}
        for route in self._own_routes():
            if route.protocol == routes.KERNEL_PROTOCOL and route.identity not in wanted:
                body = raw_state.route_again(route, route.legs, 0)
                yield f"removal of route {route}", self.host.request, raw_state.DELROUTE, body

    def _routes(self) -> Iterator[Step]:
        """The steps for missing routes: routes without a gateway, then routes with a gateway. Last, in reverse order,
        come the routes that preceded other routes with an equal `SavedRoute.key`."""
        if not self.routes:
            return
        there = {route.identity: route.is_ahead for route in self._own_routes()}
        missing = [route for route in self.routes if route.is_ahead > there.get(route.identity, -1)]
        if not missing:
            return
        present = raw_state.present(self.host)
        missing = [route for route in missing if _is_due(route, present)]
        first = [route for route in reversed(missing) if route.is_ahead]
        links = {link.index for link in self.host.links()} if any(len(r.legs) > 1 for r in missing) else set()
        others = [route for route in missing if not route.is_ahead]
        for route in sorted(others, key=lambda other: any(own for _, _, _, own in other.legs)) + first:
            yield f"route {route}", self._set_route, route, present, links

    def _set_route(self, route: SavedRoute, present: list[SavedRoute], links: set[int]) -> None:
        legs = route.legs
        if len(legs) > 1:
            legs = [leg for leg in legs if leg[2] in links]
        body = raw_state.route_again(route, legs, self.elapsed)
        if body is None:
            return  # the route has expired
        like = [other for other in present if other.key == route.key]
        here = next((other for other in like if other.identity == route.identity), None)  # in a wrong position
        rest = here or next((other for other in like if other.is_part_of(route)), None)
        flags = CREATE if route.is_ahead else CREATE | APPEND
        if rest and not here and len(like) == 1:
            self.host.request(raw_state.NEWROUTE, body, CREATE | REPLACE)
        elif rest:  # NLM_F_REPLACE would replace the first route of this key, which belongs to another device
            self._exchange(raw_state.route_again(rest, rest.legs, 0), body, flags)
        elif like and len(legs) > 1 and any(leg[2] != self.index for leg in legs):
            raise KernelError(errno.ECANCELED, "another route to that destination has been set meanwhile")
        else:
            self.host.request(raw_state.NEWROUTE, body, flags)

    def _exchange(self, former: bytes | None, body: bytes, flags: int) -> None:
        """Replace the route `former` by the route `body`. When the kernel refuses, set `former` again."""
        if former:
            self.host.request(raw_state.DELROUTE, former)
        try:
            self.host.request(raw_state.NEWROUTE, body, flags)
        except KernelError:
            if former:
                self.host.request(raw_state.NEWROUTE, former, flags)
            raise

    def _neighbours(self) -> Iterator[Step]:
        wanted = self.saved["neighbours"]
        held = set(raw_state.neighbours(self.host, self.index)) if wanted else set()
        for text in wanted:
            if text not in held:
                what, body = f"neighbour {raw_state.neighbour_text(text)}", raw_state.neighbour_again(text, self.index)
                yield what, self.host.request, raw_state.NEWNEIGH, body, CREATE | REPLACE

    def _state_of_old(self) -> Iterator[Step]:
        """The steps for a record of an older version, which has addresses and routes as text, not as netlink bytes."""
        former, link = self.former, self.host.link(index=self.index)
        if link and link.up != former["up"]:
            yield "up", self.host.change_link, self.index, "", 0, "", None, former["up"]
        for a in former["addresses"]:
            yield f"address {a['text']}", lambda a=a: addresses.add(self.host, self.index, **a)
        for r in sorted(former["routes"], key=lambda route: route["gw"] != "") if former["up"] else ():
            yield f"route {r['dst']}", lambda r=r: routes.add(self.host, self.index, **r)


def _is_due(route: SavedRoute, present: list[SavedRoute]) -> bool:
    """Whether the route must be set: it is missing, or now follows routes of its `key` that it preceded when saved."""
    like = [other for other in present if other.key == route.key]
    at = [number for number, other in enumerate(like) if other.identity == route.identity]
    if not at:
        return True
    own = {leg[2] for leg in route.legs}
    return route.is_ahead and any(own.isdisjoint(leg[2] for leg in other.legs) for other in like[: at[0]])
