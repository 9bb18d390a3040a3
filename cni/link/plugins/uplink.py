"""The links that no network may take unless the policy lists them. host-device, sriov, rdma, macvlan, the device plugin
and `railcni doctor` use this module.

A link is refused for its kind (`by_kind`): a bridge, a tunnel, or the host's end of a sandbox's veth. A link is also
refused when it carries traffic that the node needs:

    a default route    the best default route, with all its next hops, of the main table and of each table that a rule
                       without a selector names; also large prefixes in its place (`node_routes.default_routes`)
    the API server     the route that the kernel chooses to each server in KUBECONFIGS
    the node's address a link that has the source address of one of the routes above
    a routing daemon   a route by a gateway that a routing daemon, such as a BGP daemon, has set
    storage            the route to each server of NFS, iSCSI and NVMe over Fabrics that this network namespace uses

A route with a worse metric, or in a table only for packets with a source or mark, does not count. The links below a
refused link are refused too: the lower link of a VLAN or macvlan, the ports of a bridge or bond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from socket import AF_INET, AF_INET6, inet_ntop

from cni.shared import policy
from cni.shared.kernel import addresses, files, node_routes, routes, rules, sandbox
from cni.shared.kernel.links import Link, Rtnl, with_those_below
from cni.shared.kernel.netlink import address_of
from cni.shared.kernel.routes import KernelRoute

KUBECONFIGS = (
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
    "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig",
    "/etc/cni/net.d/multus.d/multus.kubeconfig",
)
BRIDGES = ("bridge", "openvswitch")
_IN_IP = ("gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "ipip", "sit", "ip6tnl", "vti", "vti6")
TUNNELS = (*_IN_IP, "vxlan", "geneve", "xfrm", "wireguard", "ovpn", "tun", "l2tpeth", "gtp", "bareudp", "amt")
_MOST_BYTES = 1 << 20

Way = tuple[int, str]  # the index of a link that the node needs, and a text about the traffic on this link


def needed(
    device: Link, links: Sequence[Link], host: Rtnl, bodies: Sequence[bytes] = (), advertised: bool = True
) -> str:
    """The reason why no network may take `device`, one of the node's `links`; "" for an allowed or listed device.

    `bodies` are all routes of the host; without them the routes are read. If `advertised` is False, a default route
    that a router has advertised on the device itself does not count. Raises KernelError on a refusal of the kernel.
    """
    reason = by_kind(device, host)
    if not reason:
        found = ways(host, bodies or node_routes.all_bodies(host), 0 if advertised else device.index)
        reason = carried(device, links, found)
    return policy.unless_listed((device.name, device.parent_device), reason)


def by_kind(device: Link, host: Rtnl) -> str:
    """The reason to refuse a `device` that is a bridge, a tunnel, or the host's end of a sandbox's veth; otherwise "".
    Other veths are allowed: those with their peer in this namespace, and the uplink of a node that is a container."""
    if device.kind in BRIDGES:
        return f'"{device.name}" is a bridge of the node'
    if device.kind in TUNNELS:
        return f'"{device.name}" is a tunnel of the node ({device.kind})'
    return sandbox.end_of_pair(device, host)


def ways(host: Rtnl, bodies: Iterable[bytes], but_advertised_to: int = 0) -> list[Way]:
    """The links that carry the node's traffic. Default routes advertised on link `but_advertised_to` do not count."""
    bodies = list(bodies)
    found = default_routes(host, bodies)
    used = in_use([r for r in found if (r.index, r.protocol) != (but_advertised_to, routes.RA_PROTOCOL)])
    of_routes = [(route.index, text_of(route)) for route in used]
    of_routes += [
        (r.index, f"carries the route {r.dst} via {r.gw} of a routing daemon") for r in node_routes.of_daemons(bodies)
    ]
    own = _of_addresses(host, [route.source for route in used])
    return [*of_routes, *_to_servers(host), *own, *_to_storage(host)]


def default_routes(host: Rtnl, bodies: Iterable[bytes]) -> list[KernelRoute]:
    """The default routes in `bodies`, one per next hop, in the tables that serve packets without source address and
    mark. The main table always counts, since a VPN's encrypted packets use it. Raises KernelError on a refusal."""
    every, found = node_routes.default_routes(host, bodies), []
    for ordered, is_ipv6 in zip(rules.unconditional(host), (False, True), strict=True):
        own = [route for route in every if (":" in route.dst) is is_ipv6]
        tables = {routes.MAIN_TABLE}
        for rule in ordered:
            tables.add(rule.table)
            if not rule.suppresses_defaults and any(r.table == rule.table and r.dst.endswith("/0") for r in own):
                break
        found += [route for route in own if route.table in tables]
    return found


def in_use(defaults: Sequence[KernelRoute]) -> list[KernelRoute]:
    """The default routes that the kernel prefers among `defaults`, with each of their next hops (pure).

    Routers advertise IPv6 default routes on each link unasked. Such routes do not count if their table has a configured
    IPv6 default route, or if several links have them and the node has an IPv4 default route.
    """
    groups: dict[tuple[int, str], list[KernelRoute]] = {}
    for route in defaults:
        groups.setdefault((route.table, route.dst), []).append(route)
    has_ipv4 = any(":" not in route.dst for route in defaults)
    found: list[KernelRoute] = []
    for group in groups.values():
        configured = [route for route in group if route.protocol != routes.RA_PROTOCOL]
        if configured:
            best = min(configured, key=lambda route: route.priority)
        elif has_ipv4 and len({route.index for route in group}) > 1:
            continue
        else:
            best = min(group, key=lambda route: (route.priority, route.index))
        found += [route for route in group if route.body is best.body]
    return found


def carried(device: Link, links: Sequence[Link], ways: Sequence[Way]) -> str:
    """A text about the first of `ways` whose link is `device` or is on top of `device`; "" if there is none (pure)."""
    known = {link.index: link for link in links}
    for index, text in sorted(ways, key=lambda way: way[0] != device.index):
        if index in known and device.index in with_those_below(index, links):
            return said(device.name, known[index].name, text)
    return ""


def said(device: str, carrier: str, text: str) -> str:
    """The reason why the node needs `device`. `carrier`, this device or a link on top of it, has the traffic `text`."""
    above = "" if carrier == device else f', on top of "{device}",'
    return f'"{carrier}"{above} {text.format(carrier)}'


def text_of(route: KernelRoute) -> str:
    """The text of a `Way` about a default route, in which "{}" stands for the name of the link."""
    via = f" via {route.gw}" if route.gw else ""
    metric = f", metric {route.priority}" if route.priority else ""
    table = "main" if route.table == routes.MAIN_TABLE else str(route.table)
    advertised = " of a router advertisement (set accept_ra 0 on {})"
    return (
        f"carries the default route ({route.dst}{via}{metric}, table {table})"
        f"{advertised if route.protocol == routes.RA_PROTOCOL else ''}"
    )


def _to_servers(host: Rtnl) -> Iterator[Way]:
    for path in KUBECONFIGS:
        for address in servers_of(_text(path)):
            index, source = node_routes.way_to(host, address)
            if index > routes.LOOPBACK:
                yield index, f"carries the route to the API server {address} ({path})"
            yield from _of_addresses(host, [source])


def _to_storage(host: Rtnl) -> Iterator[Way]:
    for address, kind in sorted(set(storage_servers())):
        try:
            index, _ = node_routes.way_to(host, address)
        except ValueError:
            continue  # a host name, or an address of Fibre Channel
        if index > routes.LOOPBACK:
            yield index, f"carries the route to the {kind} server {address}"


def storage_servers(net: str = "/proc/net", classes: str = "/sys/class") -> Iterator[tuple[str, str]]:
    """Yield (address, kind) of each storage server that the node has mounted or logged in to, once per connection.

    CIFS, Ceph and user-space storage are left out, because the kernel has no short list of their servers. Sources:
    fs/nfs/client.c (nfs_server_list_show), drivers/scsi/scsi_transport_iscsi.c, drivers/nvme/host/fabrics.c
    (nvmf_get_address).
    """
    for line in _text(f"{net}/nfsfs/servers").splitlines()[1:]:
        octets = bytes.fromhex(line.split()[1])
        yield inet_ntop(AF_INET if len(octets) == 4 else AF_INET6, octets), "NFS"
    for name, before, kind in (("iscsi_connection", "", "iSCSI"), ("nvme", "traddr=", "NVMe")):
        for one in files.names_in(f"{classes}/{name}"):
            address = _text(f"{classes}/{name}/{one}/address").strip().partition(",")[0]
            if address.startswith(before):
                yield address.removeprefix(before), kind


def _of_addresses(host: Rtnl, sources: Sequence[str]) -> Iterator[Way]:
    """Yield a `Way` for each link that has one of the addresses `sources`. A source "" is ignored."""
    wanted = {address_of(source)[1] for source in sources if source}
    for address in addresses.all_of(host) if wanted else ():
        if address.local in wanted and address.index != routes.LOOPBACK:
            yield address.index, f"has the node's address {address.text}"


def _text(path: str) -> str:
    try:
        return files.read_regular(path, _MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def servers_of(kubeconfig: str) -> list[str]:
    """The IP addresses of the API servers in `kubeconfig`, a text in JSON or YAML. Host names are left out (pure)."""
    found = []
    for after in kubeconfig.split("server")[1:]:
        scheme, _, rest = after.partition("://")
        rest = rest.split("\n")[0]
        host = (
            rest[1:].partition("]")[0] if rest[:1] == "[" else rest.partition("/")[0].partition(":")[0].strip("\"',}] ")
        )
        try:
            address_of(host)
        except ValueError:
            continue
        if scheme.strip("\"': ") in ("https", "http"):
            found.append(host)
    return found
