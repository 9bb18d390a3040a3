"""The keys of the `ipam` block and of the flat file: their types, defaults and meaning, as tables.

docs/reference.md and the JSON Schema of `railcni nad schema` are made from these tables. The case of names does not
matter, unknown keys are ignored, and null counts as absent. A name with a dot is a key of a nested object. Sources:
whereabouts v0.9, pkg/types and doc/extended-configuration.md; `dataDir` is host-local's.
"""

from __future__ import annotations

from typing import Any

from cni.shared.config import Key, boolean, integer, list_of, mapping, one_of, optional, string
from cni.shared.log import LEVELS
from cni.shared.spec.result import MOST_SCOPE
from ipam.ranges import Range, format_address, parse_address, parse_cidr

DATA_DIR = "/var/lib/cni/railcni"
DATASTORES = {
    "file": "",
    "etcd": "etcd_host",
    "kubernetes": "kubernetes.kubeconfig",
    "addresslease": "kubernetes.kubeconfig",
}
"""The kinds of stores, each with the key that names its server; the file store has none."""
NOT_FROM_FLAT_FILE = ("enable_overlapping_ranges",)
MOST_STORE_SECONDS = 60  # the maximum of store_timeout in a network, which may name a slow server that delays ADDs

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
    """Check a prefix length; return it as a number, 26 for "/26" or "26"."""
    digits = string(value).removeprefix("/")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 3 or not 1 <= int(digits) <= 128:
        raise ValueError('want a prefix length such as "/26" or "26"')
    return int(digits)


def log_level(value: Any) -> str:
    """Return the level in lower case; "warning" for an unknown level, which is not a fault in whereabouts either."""
    name = string(value).lower()
    return name if name in LEVELS else "warning"


RANGE_KEYS = (
    Key("range", string, "").means(
        'the CIDR to take an address from, "192.168.2.0/24"; or "first-last/length", "192.168.2.10-192.168.2.20/24"'
    ),
    Key("range_start", string, "").means(
        "the first address to give; default: the second of the CIDR, of a /31 or /127 the first"
    ),
    Key("range_end", string, "").means(
        "the last address to give, included; default: the last but one of the CIDR, of a /31 or /127 the last"
    ),
    Key("exclude", list_of(string, 10_000), ()).means("CIDRs and single addresses that are never given"),
)
"""The keys of one range: of each member of `ipRanges`, and of the block itself."""

IPAM_KEYS = (
    Key("ipRanges", list_of(mapping), (), "ip_ranges").means(
        "further ranges, objects with the keys range, range_start, range_end, exclude: "
        "an attachment gets an address of each, after that of the block's own range"
    ),
    Key("gateway", optional(address), "").means("the gateway of the addresses of its family; it is never given itself"),
    Key("addresses", list_of(mapping), (), "address_entries").means(
        "static addresses, which every attachment gets in addition to those of the ranges; one that lies in a range is leased to one "
        "attachment of the network: objects with the keys address, gateway"
    ),
    Key("routes", list_of(mapping), (), "route_entries").means(
        "routes for the pod: objects with the keys dst, gw, mtu, advmss, priority, table, scope"
    ),
    Key("dns.nameservers", list_of(string), (), "dns_nameservers").means("DNS servers, passed on to the runtime"),
    Key("dns.domain", string, "", "dns_domain").means("the local DNS domain, passed on to the runtime"),
    Key("dns.search", list_of(string), (), "dns_search").means("DNS search domains, passed on to the runtime"),
    Key("dns.options", list_of(string), (), "dns_options").means("resolver options, passed on to the runtime"),
    Key("network_name", string, "").means(
        "separates pools and overlap reservations: each network_name can use the same range again"
    ),
    Key("enable_overlapping_ranges", boolean, True, "overlap").means(
        "skip an address that is leased through another range, under the same network_name; "
        "a flat file cannot change this key"
    ),
    Key("node_slice_size", optional(slice_size, 0), 0).means(
        'the prefix length of each node\'s part of the range, "/26" or "26"; for the kubernetes store'
    ),
    Key("datastore", optional(one_of(*DATASTORES)), "").means(
        "where leases are kept: file, etcd, kubernetes (the pools of whereabouts) or addresslease (an object for each "
        "address); default: kubernetes where kubernetes.kubeconfig is given, etcd where etcd_host is, otherwise file (the NAD's "
        "own etcd_host has precedence over the flat file's choice); a pod of "
        "Kubernetes gets file only if it is named"
    ),
    Key("dataDir", optional(absolute_path, DATA_DIR), DATA_DIR, "data_dir", roots="dataRoots").means(
        "the directory of the file store"
    ),
    Key("kubernetes.kubeconfig", string, "", "kubeconfig", roots="configRoots").means(
        "path of the kubeconfig for the stores kubernetes and addresslease"
    ),
    Key("etcd_host", string, "").means(
        "the endpoints of the etcd store, separated by commas: host:port, with http:// or https:// before it or not; "
        "https is assumed where a certificate is given, and port 2379. They are tried in this order"
    ),
    Key("etcd_prefix", optional(etcd_prefix, "/railcni"), "/railcni").means(
        "the prefix of all keys of the etcd store; clusters that share an etcd need one each"
    ),
    Key("etcd_username", string, "").means("the user of the etcd store"),
    Key("etcd_password", string, "").means("that user's password"),
    Key("etcd_key_file", string, "", roots="configRoots").means("path of the TLS key for the etcd store"),
    Key("etcd_cert_file", string, "", roots="configRoots").means("path of the TLS certificate for the etcd store"),
    Key("etcd_ca_cert_file", string, "", roots="configRoots").means(
        "path of the certificate of the authority that signed the etcd store's"
    ),
    Key("store_timeout", optional(integer(1, 600), 30), 30).means(
        "how many seconds an ADD tries to reach a store that nodes share, any but file, before it fails with code 11; "
        f"the other verbs try for 2 at most. More than {MOST_STORE_SECONDS} only in the node's own flat file"
    ),
    Key("cooldown_seconds", optional(integer(0, 86_400), 0), 0).means(
        "the seconds for which a freed address is given to no other pod"
    ),
    Key("preferred_ip_annotation", boolean, False).means(
        "read the pod's annotation whereabouts.cni.cncf.io/preferred-ip by kubernetes.kubeconfig, and give the addresses "
        "that it names, separated by commas, when they are free"
    ),
    Key("requested_addresses", optional(integer(1, 32), 1), 1).means(
        "how many addresses a pod may request in one range; with allow_outside_ranges also how many of a family outside of all ranges"
    ),
    Key("allow_outside_ranges", boolean, False).means(
        "give a pod an address that it requests outside of all ranges; it is leased under the network_name, in the pool of its subnet"
    ),
    Key("log_file", string, "", roots="logRoots").means(
        "path of a file that log lines are appended to, in addition to stderr"
    ),
    Key("log_level", optional(log_level, "warning"), "warning").means(
        f"the lowest level that is logged: {', '.join(LEVELS)}; any other name is warning"
    ),
    Key("configuration_path", string, "", roots="configRoots").means(
        "in the block: path of the flat file, tried before the usual paths; "
        "in a flat file: the directory that holds the file nodename"
    ),
)
"""The keys of the block in addition to RANGE_KEYS."""

ACCEPTED_KEYS = (
    Key("type", string, "").means("the executable that the link plugin runs for this block: whereabouts"),
    Key("leader_lease_duration", _ANY_INTEGER, 0).means("accepted, no effect: no leader is elected"),
    Key("leader_renew_deadline", _ANY_INTEGER, 0).means("accepted, no effect: no leader is elected"),
    Key("leader_retry_period", _ANY_INTEGER, 0).means("accepted, no effect: no leader is elected"),
    Key("sleep_for_race", _ANY_INTEGER, 0).means("accepted, no effect: a test aid of whereabouts"),
    Key("reconciler_cron_expression", string, "").means("accepted, no effect: it is for whereabouts' reconciler"),
)
"""Keys without effect. Only their types are checked."""

BLOCK_KEYS = (*RANGE_KEYS, *IPAM_KEYS, *ACCEPTED_KEYS)
NESTED = dict.fromkeys(key.name.partition(".")[0] for key in BLOCK_KEYS if "." in key.name)  # names of nested objects
SPELLED = {name.lower(): name for name in (*(key.name for key in BLOCK_KEYS), *NESTED)}
ROOTS = {key.name: key.roots for key in BLOCK_KEYS if key.roots}
ETCD = {key.name: key.default for key in BLOCK_KEYS if key.name.startswith("etcd_")}
"""The keys of etcd's server, prefix and credentials, each with its default. They belong together: see ipam.source."""

ADDRESS_KEYS = (
    Key("address", interface_address, "").means("the address with its prefix length, 192.168.2.7/24"),
    Key("gateway", optional(address), "").means("its gateway"),
)
"""The keys of a member of `addresses`."""

ROUTE_KEYS = (
    Key("dst", destination, "").means("the destination, a CIDR; 0.0.0.0/0 or ::/0 for the default route"),
    Key("gw", optional(address), "").means(
        "the next hop, which no range gives; default: the gateway of the address of that family"
    ),
    Key("mtu", _UINT31, None).means("the path's MTU in bytes (cniVersion 1.1.0)"),
    Key("advmss", _UINT31, None).means("the TCP segment size to advertise, in bytes (cniVersion 1.1.0)"),
    Key("priority", _UINT32, None).means("the metric; the lowest wins (cniVersion 1.1.0)"),
    Key("table", _UINT32, None).means("the routing table (cniVersion 1.1.0)"),
    Key("scope", integer(0, MOST_SCOPE), None).means(
        "the scope, in the kernel's numbers: 0 global, 253 link, 254 host (cniVersion 1.1.0)"
    ),
)
"""The keys of a member of `routes`."""

MEMBERS = {"ipRanges": RANGE_KEYS, "addresses": ADDRESS_KEYS, "routes": ROUTE_KEYS}
"""The lists of objects in the block, each with the keys of these objects."""
