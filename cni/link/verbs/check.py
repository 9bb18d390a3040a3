"""CHECK and STATUS of a link plugin. CHECK compares the attachment with its plan, prevResult and the configuration.
STATUS tells whether an ADD could succeed now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cni.link import features, plugins
from cni.link.plugins.common import differs
from cni.link.verbs import delegate
from cni.shared.kernel import addresses, routes
from cni.shared.kernel import sandbox as sandboxes
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.records import LINK, Records
from cni.shared.spec import parsing
from cni.shared.spec.errors import AttachmentDiffers, InvalidConfig
from cni.shared.spec.result import Interface, Result, Route

if TYPE_CHECKING:
    from cni.link.plugins.base import LinkPlugin
    from cni.shared.config import Fault
    from cni.shared.kernel.sandbox import Sandbox
    from cni.shared.spec.request import Request

_KEPT = {"mtu": 65535 - 15, "advmss": 65535 - 40}  # the kernel's limits: ip_metrics_convert, net/ipv4/metrics.c


def check(plugin: LinkPlugin, request: Request, records: Records) -> None:
    """Compare the attachment with its plan, with prevResult and with the configuration of the call.

    Raises AttachmentDiffers with all differences. Absent keys of the configuration are not compared, except macvlan's
    `mode` and `linkInContainer`, since users rely on the defaults of these two.
    """
    faults: list[Fault] = []
    config = plugin.read(request, faults)
    has_features = request.member("rail") is not None or request.member("rdma") is not None
    asked = features.read(request, faults) if has_features else features.Asked()
    delegate.refuse(faults, request)
    previous = request.member("prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    expected = parsing.parse(previous)
    delegate.forward(request, records)
    with sandboxes.opened(request) as sandbox, Rtnl() as host:
        name = request.attachment.ifname
        known = [i for i in expected.interfaces if i.name == name and i.sandbox == request.netns]
        if not known:
            raise InvalidConfig(
                f'prevResult has no interface "{name}" in sandbox {request.netns}: pass on the result of this attachment\'s ADD'
            )
        record = records.read(request.attachment, LINK) or {}
        if record and record["plugin"] != plugin.NAME:
            raise AttachmentDiffers(
                f"attachment {name} of container {request.attachment.container_id} was made by plugin {record['plugin']}, and"
                f" its network is one of {plugin.NAME} by now: detach and attach it again"
            )
        made = plugins.of_made(plugin.NAME)
        planned = made.load(record["link"]) if record else made.adopt(request, host, sandbox.rtnl)
        found = _differences(plugin, planned, config, record, host, sandbox, known[0], expected)
        if asked:
            found += asked.unlike(record.get("extras", {}))
    if found:
        raise AttachmentDiffers(
            f"attachment {name} of container {request.attachment.container_id} is not as ADD left it (detach and attach it"
            f" again): {'; '.join(found)}"
        )


def _differences(
    plugin: LinkPlugin,
    planned: Any,
    config: Any,
    record: dict[str, Any],
    host: Rtnl,
    sandbox: Sandbox,
    known: Interface,
    expected: Result,
) -> list[str]:
    inside, made = sandbox.rtnl, plugins.of_made(plugin.NAME)
    link = inside.link(name=known.name)
    if link is None:
        if planned and (has := plugin.without_link(planned)):
            found = made.differences(planned, config, None, host, inside)
            return found + differs("mtu", has[1] or None, known.mtu or None, config.mtu or None)
        return [f'there is no link "{known.name}" in the sandbox'] if known.mac or planned else []
    found = made.differences(planned, config, link, host, inside) if planned else []
    found += differs("mac", link.mac, known.mac, getattr(config, "mac", ""))
    former = record.get("link", {})
    if config.mtu or former.get("mtuIsAsked"):  # otherwise the chain may set the MTU, as Go's `tuning` does
        found += differs("mtu", link.mtu, known.mtu or former.get("mtu") or None, config.mtu or None)
    if not link.up:
        found.append("link is down")
    others = [i.name for i in expected.interfaces if i.sandbox == known.sandbox and i is not known]
    here = [
        a for a in expected.ips if (not others if a.interface is None else expected.interfaces[a.interface] is known)
    ]
    wanted_here = Result([known], here, _without(expected.routes, others, inside))
    found += _unset(inside, link, wanted_here)
    for name, document in record.get("extras", {}).items():
        found += features.named(name).differences(document, link, wanted_here, sandbox)
    return found


def _unset(inside: Rtnl, link: Link, wanted: Result) -> list[str]:
    """A text for each address and route of `wanted` that the link lacks."""
    found = []
    present = {a.text for a in addresses.list_of(inside, link.index)}
    for address in wanted.ips:
        if routes.canonical(address.address) not in present:
            found.append(f"address {address.address} is not on {link.name}")
    held = routes.list_of(inside, link.index)
    # (destination, table, metric) of the kernel's own routes, and then of each route that the loop has compared
    known = {(routes.subnet(a.address), routes.MAIN_TABLE, routes.IPV6_PREFIX_PRIORITY) for a in wanted.ips}
    for route in wanted.routes:
        dst, gw = routes.subnet(route.dst), routes.next_hop(route, wanted.ips)
        keys: tuple[str, ...] = ("table", "priority", "mtu", "advmss")
        place = (dst, route.table or routes.MAIN_TABLE, route.priority or routes.IPV6_PRIORITY)
        if route.family == 6 and place in known:  # IPv6 keeps the first route's metrics: fib6_add_rt2node, ip6_fib.c
            keys = keys[:2]
        known.add(place)
        more = [(key, value) for key in keys if (value := getattr(route, key))]
        if not any(
            r.dst == dst
            and gw in ("", r.gw)
            and all(getattr(r, key) == min(value, _KEPT.get(key, value)) for key, value in more)
            for r in held
        ):
            words = [route.dst, *(["by", gw] if gw else []), *(f"{key} {value}" for key, value in more)]
            found.append(f"route {' '.join(words)} is not on {link.name}")
    return found


def _without(expected: list[Route], others: list[str], inside: Rtnl) -> list[Route]:
    """The routes `expected` without those through the links named in `others`, which other plugins made."""
    if not others:
        return expected
    links = [link for link in inside.links() if link.name in others]
    elsewhere = {route.dst for link in links for route in routes.list_of(inside, link.index)}
    return [route for route in expected if routes.canonical(route.dst) not in elsewhere]


def status(plugin: LinkPlugin, request: Request, records: Records) -> None:
    """Raise NotAvailable or LimitedConnectivity when an ADD could not succeed now."""
    faults: list[Fault] = []
    config = plugin.read(request, faults)
    asked = features.read(request, faults)
    delegate.refuse(faults, request)
    with Rtnl() as host:
        asked.status(plugin.SHARES_NETDEV, plugin.status(config, host, records.log))
    delegate.forward(request, records)
