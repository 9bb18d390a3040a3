"""Tables of the keys of the `ipam` block and of the flat file (whereabouts.conf), with types, defaults and meanings.
The functions below the tables read the lists of ranges, addresses and routes.

docs/reference.md and the JSON Schema of `railcni nad schema` are made from these tables. The case of names does not
matter, unknown keys are ignored, and null counts as absent. A name with a dot is a key of a nested object. Sources:
whereabouts v0.9, pkg/types and doc/extended-configuration.md; host-local for `dataDir`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cni.shared.config import (
    Fault,
    Key,
    attempt,
    boolean,
    declare,
    fill,
    integer,
    keys_of,
    list_of,
    mapping,
    misspelt,
    one_of,
    optional,
    string,
)
from cni.shared.log import LEVELS
from cni.shared.spec.result import MOST_SCOPE, IPConfig, Route
from ipam.ranges import Range, format_address, host_of, parse_address, parse_cidr, parse_range, parse_span, unassignable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")
    Where = Callable[[str], str]  # returns the name of a key for messages (ipam.source.Source.where)

DATA_DIR = "/var/lib/cni/railcni"
DATASTORES = {
    "file": "",
    "etcd": "etcd_host",
    "kubernetes": "kubernetes.kubeconfig",
    "addresslease": "kubernetes.kubeconfig",
}
"""Each kind of store with the key that names its server; "" for the file store, which has no server."""
NOT_FROM_FLAT_FILE = ("enable_overlapping_ranges",)
MOST_STORE_SECONDS = 60  # the most that a network may set as store_timeout, since a slow server delays ADDs

_UINT31 = integer(0, (1 << 31) - 1)
_UINT32 = integer(0, (1 << 32) - 1)
_ANY_INTEGER = integer(-(1 << 63), (1 << 63) - 1)


def address(value: Any) -> str:
    """Check an address; return the canonical form."""
    return format_address(*parse_address(string(value)))


def interface_address(value: Any) -> str:
    """Check an address with a prefix length; return the canonical form, with the host bits."""
    try:
        family, number, prefix = parse_cidr(string(value))
    except ValueError:
        raise ValueError("want address/length, such as 192.168.2.7/24 or fd00::7/64") from None
    return f"{format_address(family, number)}/{prefix}"


def destination(value: Any) -> str:
    """Check a CIDR; return the canonical form without host bits, since the kernel refuses a route with host bits."""
    return Range(*parse_cidr(string(value))).cidr


def absolute_path(value: Any) -> str:
    if not string(value).startswith("/"):
        raise ValueError("want an absolute path: a plugin may be run from anywhere")
    return str(value)


def etcd_prefix(value: Any) -> str:
    if not string(value).startswith("/") or not value.isascii() or not value.isprintable() or len(value) > 200:
        raise ValueError('want "/" and printable ASCII after it, 200 characters at most')
    return str(value)


def slice_size(value: Any) -> int:
    """Check a prefix length, "/26" or "26", and return it as a number."""
    digits = string(value).removeprefix("/")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 3 or not 1 <= int(digits) <= 128:
        raise ValueError('want a prefix length such as "/26" or "26"')
    return int(digits)


def log_level(value: Any) -> str:
    """Return the level in lower case; "warning" for an unknown level. whereabouts accepts unknown levels too."""
    name = string(value).lower()
    return name if name in LEVELS else "warning"


class RangeEntry:
    """The keys of one range, as the configuration has them; "" or () for an absent key. The block itself and each
    member of `ipRanges` have these keys."""

    range: str = declare(string, "").means(
        'the CIDR to take an address from, "192.168.2.0/24"; or "first-last/length", "192.168.2.10-192.168.2.20/24"'
    )
    range_start: str = declare(string, "").means(
        "the first address to give; default: the second of the CIDR, of a /31 or /127 the first"
    )
    range_end: str = declare(string, "").means(
        "the last address to give, included; default: the last but one of the CIDR, of a /31 or /127 the last"
    )
    exclude: Sequence[str] = declare(list_of(string, 10_000), ()).means(
        "CIDRs and single addresses that are never given"
    )


RANGE_KEYS = keys_of(RangeEntry)


class IpamKeys:
    """The keys of the block in addition to those of its range."""

    ip_ranges: Sequence[dict[str, Any]] = declare(list_of(mapping), (), "ipRanges").means(
        "further ranges, objects with the keys range, range_start, range_end, exclude: "
        "an attachment gets an address of each, after that of the block's own range"
    )
    gateway: str = declare(optional(address), "").means(
        "the gateway of the addresses of its family; it is never given itself"
    )
    address_entries: Sequence[dict[str, Any]] = declare(list_of(mapping), (), "addresses").means(
        "static addresses, which every attachment gets in addition to those of the ranges; one that lies in a range is leased to one "
        "attachment of the network: objects with the keys address, gateway"
    )
    route_entries: Sequence[dict[str, Any]] = declare(list_of(mapping), (), "routes").means(
        "routes for the pod: objects with the keys dst, gw, mtu, advmss, priority, table, scope"
    )
    dns_nameservers: Sequence[str] = declare(list_of(string), (), "dns.nameservers").means(
        "DNS servers, passed on to the runtime"
    )
    dns_domain: str = declare(string, "", "dns.domain").means("the local DNS domain, passed on to the runtime")
    dns_search: Sequence[str] = declare(list_of(string), (), "dns.search").means(
        "DNS search domains, passed on to the runtime"
    )
    dns_options: Sequence[str] = declare(list_of(string), (), "dns.options").means(
        "resolver options, passed on to the runtime"
    )
    network_name: str = declare(string, "").means(
        "separates pools and overlap reservations: each network_name can use the same range again"
    )
    overlap: bool = declare(boolean, True, "enable_overlapping_ranges").means(
        "skip an address that is leased through another range, under the same network_name; "
        "a flat file cannot change this key"
    )
    node_slice_size: int = declare(optional(slice_size, 0), 0).means(
        'the prefix length of each node\'s part of the range, "/26" or "26"; for the kubernetes store'
    )
    datastore: str = declare(optional(one_of(*DATASTORES)), "").means(
        "where leases are kept: file, etcd, kubernetes (the pools of whereabouts) or addresslease (an object for each "
        "address); default: kubernetes where kubernetes.kubeconfig is given, etcd where etcd_host is, otherwise file (the NAD's "
        "own etcd_host has precedence over the flat file's choice); a pod of "
        "Kubernetes gets file only if it is named"
    )
    data_dir: str = declare(optional(absolute_path, DATA_DIR), DATA_DIR, "dataDir", roots="dataRoots").means(
        "the directory of the file store"
    )
    kubeconfig: str = declare(string, "", "kubernetes.kubeconfig", roots="configRoots").means(
        "path of the kubeconfig for the stores kubernetes and addresslease"
    )
    etcd_host: str = declare(string, "").means(
        "the endpoints of the etcd store, separated by commas: host:port, with http:// or https:// before it or not; "
        "https is assumed where a certificate is given, and port 2379. They are tried in this order"
    )
    etcd_prefix: str = declare(optional(etcd_prefix, "/railcni"), "/railcni").means(
        "the prefix of all keys of the etcd store; clusters that share an etcd need one each"
    )
    etcd_username: str = declare(string, "").means("the user of the etcd store")
    etcd_password: str = declare(string, "").means("that user's password")
    etcd_key_file: str = declare(string, "", roots="configRoots").means("path of the TLS key for the etcd store")
    etcd_cert_file: str = declare(string, "", roots="configRoots").means(
        "path of the TLS certificate for the etcd store"
    )
    etcd_ca_cert_file: str = declare(string, "", roots="configRoots").means(
        "path of the certificate of the authority that signed the etcd store's"
    )
    store_timeout: int = declare(optional(integer(1, 600), 30), 30).means(
        "how many seconds an ADD tries to reach a store that nodes share, any but file, before it fails with code 11; "
        f"the other verbs try for 2 at most. More than {MOST_STORE_SECONDS} only in the node's own flat file"
    )
    cooldown_seconds: int = declare(optional(integer(0, 86_400), 0), 0).means(
        "the seconds for which a freed address is given to no other pod"
    )
    preferred_ip_annotation: bool = declare(boolean, False).means(
        "read the pod's annotation whereabouts.cni.cncf.io/preferred-ip by kubernetes.kubeconfig, and give the addresses "
        "that it names, separated by commas, when they are free"
    )
    requested_addresses: int = declare(optional(integer(1, 32), 1), 1).means(
        "how many addresses a pod may request in one range; with allow_outside_ranges also how many of a family outside of all ranges"
    )
    allow_outside_ranges: bool = declare(boolean, False).means(
        "give a pod an address that it requests outside of all ranges; it is leased under the network_name, in the pool of its subnet"
    )
    log_file: str = declare(string, "", roots="logRoots").means(
        "path of a file that log lines are appended to, in addition to stderr"
    )
    log_level: str = declare(optional(log_level, "warning"), "warning").means(
        f"the lowest level that is logged: {', '.join(LEVELS)}; any other name is warning"
    )
    configuration_path: str = declare(string, "", roots="configRoots").means(
        "in the block: path of the flat file, tried before the usual paths; "
        "in a flat file: the directory that holds the file nodename"
    )


IPAM_KEYS = keys_of(IpamKeys)

ACCEPTED_KEYS = (
    Key(string, "", "type").means("the executable that the link plugin runs for this block: whereabouts"),
    Key(_ANY_INTEGER, 0, "leader_lease_duration").means("accepted, no effect: no leader is elected"),
    Key(_ANY_INTEGER, 0, "leader_renew_deadline").means("accepted, no effect: no leader is elected"),
    Key(_ANY_INTEGER, 0, "leader_retry_period").means("accepted, no effect: no leader is elected"),
    Key(_ANY_INTEGER, 0, "sleep_for_race").means("accepted, no effect: a test aid of whereabouts"),
    Key(string, "", "reconciler_cron_expression").means("accepted, no effect: it is for whereabouts' reconciler"),
)
"""Keys without effect. Only their types are checked."""

BLOCK_KEYS = (*RANGE_KEYS, *IPAM_KEYS, *ACCEPTED_KEYS)
NESTED = dict.fromkeys(key.name.partition(".")[0] for key in BLOCK_KEYS if "." in key.name)  # names of nested objects
SPELLED = {name.lower(): name for name in (*(key.name for key in BLOCK_KEYS), *NESTED)}
ROOTS = {key.name: key.roots for key in BLOCK_KEYS if key.roots}
ETCD = {key.name: key.default for key in BLOCK_KEYS if key.name.startswith("etcd_")}
"""The keys of etcd's server, prefix and credentials, each with its default. ipam.source treats them as one unit."""

ADDRESS_KEYS = (
    Key(interface_address, "", "address").means("the address with its prefix length, 192.168.2.7/24"),
    Key(optional(address), "", "gateway").means("its gateway"),
)
"""The keys of a member of `addresses`."""

ROUTE_KEYS = (
    Key(destination, "", "dst").means("the destination, a CIDR; 0.0.0.0/0 or ::/0 for the default route"),
    Key(optional(address), "", "gw").means(
        "the next hop, which no range gives; default: the gateway of the address of that family"
    ),
    Key(_UINT31, None, "mtu").means("the path's MTU in bytes (cniVersion 1.1.0)"),
    Key(_UINT31, None, "advmss").means("the TCP segment size to advertise, in bytes (cniVersion 1.1.0)"),
    Key(_UINT32, None, "priority").means("the metric; the lowest wins (cniVersion 1.1.0)"),
    Key(_UINT32, None, "table").means("the routing table (cniVersion 1.1.0)"),
    Key(integer(0, MOST_SCOPE), None, "scope").means(
        "the scope, in the kernel's numbers: 0 global, 253 link, 254 host (cniVersion 1.1.0)"
    ),
)
"""The keys of a member of `routes`."""

MEMBERS = {"ipRanges": RANGE_KEYS, "addresses": ADDRESS_KEYS, "routes": ROUTE_KEYS}
"""The lists of objects in the block, each with the keys of these objects."""


# --- ranges, addresses, routes: each function returns the valid objects, and adds a fault for each invalid one ---


def read_own_range(
    own: RangeEntry, where: Where, kept_back: Sequence[tuple[int, int]], notes: list[str], faults: list[Fault]
) -> list[Range]:
    """A list with the block's own range, without the addresses in `kept_back`; [] if the range is absent or faulty."""
    if own.range:
        rng = _range(own, where, kept_back, notes, faults)
        return [rng] if rng else []
    for name in ("range_start", "range_end", "exclude"):
        if getattr(own, name):
            notes.append(f"{where(name)} has no effect: it needs {where('range')} beside it")
    return []


def read_ranges(
    documents: Iterable[Mapping[str, Any]],
    name: str,
    kept_back: Sequence[tuple[int, int]],
    notes: list[str],
    faults: list[Fault],
) -> list[Range]:
    """The valid ranges in `documents` (the members of the list at key `name`), without the addresses in `kept_back`."""
    entries = _filled(documents, name, RangeEntry, RANGE_KEYS, notes, faults)
    ranges = [_range(entry, prefix.__add__, kept_back, notes, faults) for prefix, entry in entries]
    return [r for r in ranges if r]


def _filled(
    documents: Iterable[Mapping[str, Any]],
    name: str,
    make: Callable[[], T],
    table: Sequence[Key],
    notes: list[str],
    faults: list[Fault],
) -> Iterator[tuple[str, T]]:
    """Yield (prefix, object) for each document without a fault. `documents` are the members of the list at key `name`.

    The prefix is the member's path, such as "ipRanges[1].". `make` makes the object, whose attributes get the values of
    the keys in `table`. Misspelt keys are added to `notes`.
    """
    for i, document in enumerate(documents):
        prefix, entry, before = f"{name}[{i}].", make(), len(faults)
        fill(entry, table, document, faults, prefix)
        notes += misspelt(document, [key.name for key in table], prefix)
        if len(faults) == before:
            yield prefix, entry


def _range(
    entry: RangeEntry, where: Where, kept_back: Sequence[tuple[int, int]], notes: list[str], faults: list[Fault]
) -> Range | None:
    before = len(faults)
    parsed = attempt(parse_range, entry.range, where("range"), faults)
    start = attempt(parse_address, entry.range_start, where("range_start"), faults) if entry.range_start else None
    end = attempt(parse_address, entry.range_end, where("range_end"), faults) if entry.range_end else None
    holes = [attempt(parse_span, text, where(f"exclude[{i}]"), faults) for i, text in enumerate(entry.exclude)]
    if parsed is None or len(faults) > before:
        return None
    family, value, prefix, span = parsed
    first, last = span or (start[1] if start else None, end[1] if end else None)
    blocked = [(value, value) for kept_family, value in kept_back if kept_family == family]
    blocked += [hole[1:] for hole in holes if hole and hole[0] == family]
    rng = Range(family, value, prefix, first, last, blocked)
    if span is None:
        for name, bound in (("range_start", start), ("range_end", end)):
            if bound and not (bound[0] == family and rng.contains(bound[1])):
                faults.append(Fault(where(name), getattr(entry, name), f"want an address of the range {rng}"))
        if start and end and start[0] == end[0] and start[1] > end[1]:
            wanted = f"is below range_start {entry.range_start}: want it at or above"
            faults.append(Fault(where("range_end"), entry.range_end, wanted))
    elif start or end:
        notes.append(f"{where('range_start')} and range_end have no effect: {entry.range} names both ends")
    for i, hole in enumerate(holes):
        if hole and not (hole[0] == family and hole[1] <= rng.top and hole[2] >= rng.network):
            notes.append(f"{where(f'exclude[{i}]')} has no effect: {entry.exclude[i]} is outside of {rng}")
    if len(faults) > before:
        return None
    if not rng.size():
        faults.append(Fault(where("range"), entry.range, _why_empty(rng)))
    elif kind := unassignable(family, rng.first):
        given = format_address(family, rng.first)
        faults.append(Fault(where("range"), entry.range, f"gives {given}, which is {kind}: want addresses of a subnet"))
    return rng


def _why_empty(rng: Range) -> str:
    if rng.first > rng.last:
        return "range_start and range_end leave only the CIDR's first or last address, which are not given: want more"
    first, last = format_address(rng.family, rng.first), format_address(rng.family, rng.last)
    return f"has no address to give: exclude, gateway and addresses cover all from {first} to {last}"


def read_addresses(
    documents: Iterable[Mapping[str, Any]], where: Where, notes: list[str], faults: list[Fault]
) -> list[IPConfig]:
    addresses: list[IPConfig] = []
    for prefix, address in _filled(documents, where("addresses"), lambda: IPConfig(""), ADDRESS_KEYS, notes, faults):
        if not address.address:
            faults.append(Fault(prefix + "address", None, "want address/length, such as 192.168.2.7/24"))
        elif any(address.address.split("/")[0] == a.address.split("/")[0] for a in addresses):
            faults.append(Fault(prefix + "address", address.address, "is there twice: want each address once"))
        elif kind := unassignable(*host_of(address.address)):
            faults.append(Fault(prefix + "address", address.address, f"is {kind}: want an address of a subnet"))
        elif address.gateway and (":" in address.gateway) != (address.family == 6):
            wanted = f"want an IPv{address.family} address, as its address is"
            faults.append(Fault(prefix + "gateway", address.gateway, wanted))
        else:
            addresses.append(address)
    return addresses


def read_routes(
    documents: Iterable[Mapping[str, Any]], where: Where, notes: list[str], faults: list[Fault]
) -> list[Route]:
    """The valid routes in `documents`. As in the CNI spec, an mtu, advmss or priority of 0 counts as absent."""
    routes: list[Route] = []
    for prefix, route in _filled(documents, where("routes"), lambda: Route(""), ROUTE_KEYS, notes, faults):
        route.mtu, route.advmss, route.priority = route.mtu or None, route.advmss or None, route.priority or None
        if not route.dst:
            faults.append(Fault(prefix + "dst", None, "want a CIDR; 0.0.0.0/0 or ::/0 for the default route"))
        elif route.gw and (":" in route.gw) != (route.family == 6):
            faults.append(Fault(prefix + "gw", route.gw, f"want an IPv{route.family} address, as dst is"))
        else:
            routes.append(route)
    return routes
