"""The key `rail`: routing that separates the traffic of several NICs in a sandbox.

With several interfaces, Linux answers ARP requests for each of its addresses on every interface, and sends replies
through the link that its main table selects. So peers learn the MAC of a wrong NIC. But RDMA works only if each NIC
carries the traffic of its own addresses. Therefore each rail (an attachment on one of the NICs) gets

    arp_ignore 1, arp_announce 2, rp_filter 2     on the interface, before it comes up (ip-sysctl.rst)
    table TABLE                                   its subnets, the attachment's routes, a default route by the gateway
    from ADDRESS lookup TABLE                     a rule for each of its addresses, priority 7000

The kernel removes the table's routes with the link, but not the rules. DEL finds the rules by TABLE, which is
`tableBase` plus the number of the rail. TABLE must be unique in the sandbox. So if a pod has rails of two groups, the
groups need different values of `tableBase`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

from cni.shared import rail
from cni.shared.config import Fault, Key, mapping
from cni.shared.kernel import files, routes, rules
from cni.shared.kernel.links import Link
from cni.shared.kernel.netlink import KernelError
from cni.shared.kernel.sandbox import Sandbox
from cni.shared.log import Log
from cni.shared.rail import KEYS as KEYS
from cni.shared.rail import Rail
from cni.shared.spec.errors import InvalidConfig, KernelRefused
from cni.shared.spec.request import Request
from cni.shared.spec.result import Result, Route

KEY = Key(mapping, None, "rail").means("which rail of a group of NICs the network is; an object")
PRIORITY = 7000  # of the rules, so that they come before the main table's rule, 32766
SYSCTLS = (("arp_ignore", "1"), ("arp_announce", "2"), ("rp_filter", "2"))
_ROOT = "net/ipv4/conf"

Entry = tuple[str, str]  # destination, gateway


def read(value: Any, request: Request, faults: list[Fault]) -> Rail | None:
    """The checked value of the key `rail`; None when the key is absent or its value is wrong."""
    return rail.read(request.config, faults) if value is not None else None


def plan(
    config: Rail, request: Request, carrier: tuple[str, bool], is_shared: bool, sandbox: Sandbox, log: Log
) -> dict[str, Any] | None:
    """The plan (rail group, index, table); None if `routing` is false. Raises InvalidConfig if the table is in use."""
    if not config.routing:
        return None
    if any(rule.table == config.table for rule in rules.list_of(sandbox.rtnl)):
        raise InvalidConfig(
            f"rail {config.index} of group {config.group}: routing table {config.table} is already in use in the sandbox, perhaps by"
            f" rail {config.index} of another group: give each group its own rail.tableBase"
        )
    return {"group": config.group, "index": config.index, "table": config.table}


def before_up(document: dict[str, Any], link: Link, sandbox: Sandbox) -> None:
    """Set the ARP sysctls, so that the link never answers for other links. Raises KernelRefused when this fails."""
    for name, value in SYSCTLS:
        try:
            files.write_sysctl(f"{_ROOT}/{link.name}/{name}", value)
        except OSError as fault:
            raise KernelRefused(
                f"{name} of {link.name} cannot be set to {value}: {fault.strerror}; /proc/sys must be writable, or set"
                " rail.routing to false"
            ) from None


def after_up(document: dict[str, Any], link: Link, result: Result, sandbox: Sandbox, log: Log) -> bool:
    """Fill the rail's table with routes, then add the rules that lead to it. Raises KernelRefused when this fails."""
    table = document["table"]
    for address in result.ips:
        text = address.address.partition("/")[0]
        route = Route(routes.subnet(address.address), table=table)
        routes.add_route(sandbox.rtnl, link, route, "", text)
    for route in result.routes:
        if route.table is None:
            gw = route.gw or routes.gateway(route.family, result.ips)
            again = Route(route.dst, gw, route.mtu, route.advmss, route.priority, table, route.scope)
            routes.add_route(sandbox.rtnl, link, again, gw)
    for dst, gw in _defaults(result):
        routes.add_route(sandbox.rtnl, link, Route(dst, table=table), gw)
    for address in result.ips:
        source = address.address.partition("/")[0]
        try:
            rules.add(sandbox.rtnl, source, table, PRIORITY)
        except KernelError as fault:
            if fault.errno != errno.EEXIST:
                raise KernelRefused(
                    f"the rule that leads packets from {source} to table {table} cannot be set: {fault.strerror}; the kernel needs"
                    " CONFIG_IP_MULTIPLE_TABLES and its IPv6 counterpart, or set rail.routing to false",
                    str(fault),
                ) from None
    return False


def _defaults(result: Result) -> Iterator[Entry]:
    """Yield a default route for each IP version of which `result` has a gateway but no default route."""
    for family, dst in ((4, "0.0.0.0/0"), (6, "::/0")):
        gw = routes.gateway(family, result.ips)
        if gw and not any(route.family == family and route.dst.endswith("/0") for route in result.routes):
            yield dst, gw


def remove(document: dict[str, Any], sandbox: Sandbox | None, log: Log) -> None:
    """Remove the policy routing rules; the kernel removes everything else with the link."""
    if sandbox is None:
        return
    table = document["table"]
    for rule in rules.list_of(sandbox.rtnl):
        if rule.table != table or rule.priority != PRIORITY or not rule.source:
            continue
        try:
            rules.remove(sandbox.rtnl, rule.source, table, PRIORITY)
        except KernelError as fault:
            if fault.errno not in (errno.ENOENT, errno.ESRCH):
                raise KernelRefused(
                    f"the rule for {rule.source} (table {table}) cannot be removed: {fault.strerror}; repeat the DEL",
                    str(fault),
                ) from None


def differences(document: dict[str, Any], link: Link, expected: Result, sandbox: Sandbox) -> list[str]:
    """A text for each ARP sysctl, rule and route that differs from the state after ADD."""
    table = document["table"]
    found = []
    with sandbox.namespace.entered():
        for name, wanted in SYSCTLS:
            try:
                value = files.read_sysctl(f"{_ROOT}/{link.name}/{name}")
            except OSError as fault:
                value = os.strerror(fault.errno or 0)
            if value != wanted:
                found.append(f"{name} of {link.name} is {value}, was {wanted}")
    there_now = {rule.source.partition("/")[0] for rule in rules.list_of(sandbox.rtnl) if rule.table == table}
    held = {(r.dst, r.gw) for r in routes.list_of(sandbox.rtnl, link.index) if r.table == table}
    for address in expected.ips:
        source = routes.canonical(address.address).partition("/")[0]
        if source not in there_now:
            found.append(f"the rule from {source} to table {table} is gone")
        if (routes.subnet(address.address), "") not in held:
            found.append(f"table {table} has no route to {routes.subnet(address.address)} by {link.name}")
    for dst, gw in _defaults(expected):
        if (dst, gw) not in held:
            found.append(f"table {table} has no default route by {gw}")
    for route in expected.routes:
        if route.table is None and routes.subnet(route.dst) not in {dst for dst, _ in held}:
            found.append(f"table {table} has no route to {route.dst} by {link.name}")
    return found


def unlike(document: dict[str, Any] | None, config: Rail) -> list[str]:
    """A text for each difference between the planned rail, `document`, and the configured rail."""
    if document is None:
        return [f"rail has no routing table, configured is {config.table}"] if config.routing else []
    if not config.routing:
        return [f"rail has the routing table {document['table']}, configured is none (rail.routing)"]
    pairs = {"index": config.index, "group": config.group, "table": config.table}
    return [
        f"rail.{key} is {document[key]}, configured is {value}"
        for key, value in pairs.items()
        if document[key] != value
    ]


def status(config: Rail, is_shared: bool, netdev: Link | None) -> None:
    """Do nothing, because a rail needs nothing beside the link."""
