"""The links that carry the node's default routes: without such a link the node is cut off.

Default routes of both families count, with any origin and metric, in each table that a rule leads to, with each next
hop; also the large prefixes that replace one (`routes.default_routes`). Beside the link of a route, the links below it
count: a VLAN's or macvlan's lower link, the ports of a bridge or bond.
"""

from __future__ import annotations

from cni.shared.kernel import ip_rules, routes
from cni.shared.kernel.links import with_those_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.routes import Route

_OF_A_VRF = 0  # the table of a rule that leads to the table of each packet's VRF (FRA_L3MDEV)


def default_routes(host: Rtnl, bodies: Sequence[bytes] | None = None) -> list[Route]:
    """The default routes in use, one for each next hop. `bodies` are all routes of the host, which are read if they are
    not given. KernelError."""
    tables = {routes.MAIN_TABLE} | ip_rules.tables(host)  # a kernel without rules has the main table alone
    found = routes.default_routes(host, routes.all_bodies(host) if bodies is None else bodies)
    return [route for route in found if _OF_A_VRF in tables or route.table in tables]


def needed(device: Link, links: Sequence[Link], defaults: Sequence[Route]) -> str:
    """Why the node needs `device`, one of its `links`, for its `defaults`; "" when it does not (pure)."""
    known = {link.index: link for link in links}
    for route in sorted(
        defaults, key=lambda route: (route.index != device.index, route.protocol == routes.RA_PROTOCOL)
    ):
        if route.index in known and device.index in with_those_below(route.index, links):
            return _reason(route, known[route.index], device)
    return ""


def _reason(route: Route, carrier: Link, device: Link) -> str:
    table = "main" if route.table == routes.MAIN_TABLE else str(route.table)
    carried = f"the default route ({route.dst}, table {table})"
    if route.protocol == routes.RA_PROTOCOL:
        carried += " by a router advertisement, which the sysctl accept_ra 0 forbids"
    if carrier.index == device.index:
        return f'"{device.name}" carries {carried}'
    return f'"{carrier.name}", on top of "{device.name}", carries {carried}'
