"""The sysctls of a single link, read from the arrays in which rtnetlink shows them.

Sources: IPV4_DEVCONF_* in include/uapi/linux/ip.h, DEVCONF_* in include/uapi/linux/ipv6.h; devinet_sysctl
(net/ipv4/devinet.c), addrconf_sysctl and ipv6_store_devconf (net/ipv6/addrconf.c) for names and units. Newer kernels
only append parameters to these arrays. Parameters that are missing in IPV4 and IPV6 below are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

from cni.shared.kernel import files

IPV4 = (
    "forwarding", "", "proxy_arp", "accept_redirects", "secure_redirects", "send_redirects", "shared_media",
    "rp_filter", "accept_source_route", "bootp_relay", "log_martians", "tag", "arp_filter", "medium_id", "disable_xfrm",
    "disable_policy", "force_igmp_version", "arp_announce", "arp_ignore", "promote_secondaries", "arp_accept",
    "arp_notify", "accept_local", "src_valid_mark", "proxy_arp_pvlan", "route_localnet",
    "igmpv2_unsolicited_report_interval", "igmpv3_unsolicited_report_interval", "ignore_routes_with_linkdown",
    "drop_unicast_in_l2_multicast", "drop_gratuitous_arp", "bc_forwarding", "arp_evict_nocarrier",
)  # fmt: skip
IPV6 = (
    "forwarding", "hop_limit", "mtu", "accept_ra", "accept_redirects", "autoconf", "dad_transmits",
    "router_solicitations", "router_solicitation_interval", "router_solicitation_delay", "use_tempaddr",
    "temp_valid_lft", "temp_prefered_lft", "regen_max_retry", "max_desync_factor", "max_addresses",
    "force_mld_version", "accept_ra_defrtr", "accept_ra_pinfo", "accept_ra_rtr_pref", "router_probe_interval",
    "accept_ra_rt_info_max_plen", "proxy_ndp", "optimistic_dad", "accept_source_route", "", "disable_ipv6",
    "accept_dad", "force_tllao", "ndisc_notify", "mldv1_unsolicited_report_interval",
    "mldv2_unsolicited_report_interval", "suppress_frag_ndisc", "accept_ra_from_local", "use_optimistic",
    "accept_ra_mtu", "", "use_oif_addrs_only", "accept_ra_min_hop_limit", "ignore_routes_with_linkdown",
    "drop_unicast_in_l2_multicast", "drop_unsolicited_na", "keep_addr_on_down", "router_solicitation_max_interval",
    "seg6_enabled", "seg6_require_hmac", "enhanced_dad", "addr_gen_mode", "disable_policy",
    "accept_ra_rt_info_min_plen", "ndisc_tclass", "rpl_seg_enabled", "ra_defrtr_metric", "ioam6_enabled", "ioam6_id",
    "ioam6_id_wide", "ndisc_evict_nocarrier", "accept_untracked_na", "accept_ra_min_lft", "force_forwarding",
)  # fmt: skip
# "" stands for mc_forwarding, which nobody can write, and stable_secret, which is not in the array.
_SECONDS = frozenset(  # in seconds in the file, in milliseconds in the array
    (
        "router_solicitation_interval", "router_solicitation_delay", "router_probe_interval",
        "router_solicitation_max_interval",
    )
)  # fmt: skip
_UNSIGNED = frozenset(("ra_defrtr_metric", "ioam6_id_wide"))
_NUMBER = Struct("=i")


def values(names: tuple[str, ...], array: bytes) -> dict[str, str]:
    """Map the names of the sysctls in `array` to their values, written as in /proc/sys. `names` is IPV4 or IPV6."""
    found = {}
    for name, (number,) in zip(names, _NUMBER.iter_unpack(array), strict=False):
        if name in _SECONDS and number > 0:
            number //= 1000
        elif name in _UNSIGNED:
            number &= 0xFFFFFFFF
        if name:
            found[name] = str(number)
    return found


def due(
    link: str, wanted: dict[str, tuple[bytes, bytes]], more: dict[str, str]
) -> Iterator[tuple[str, Callable[[str, str], None], str, str]]:
    """Yield (description, function, path, value) for each write that gives a sysctl of `link` its wanted value.

    The paths are below /proc/sys of the thread's namespace. `wanted` maps "ipv4" and "ipv6" to (wanted array, present
    array). `more` maps paths of sysctls that are in no array to wanted values; {} in a path stands for the link.
    """
    for path, value in more.items():
        path = path.format(link)
        if not _holds(path, value):
            yield path, files.write_sysctl, path, value
    for family, names in (("ipv6", IPV6), ("ipv4", IPV4)):
        for name, value in _different(names, *wanted[family]):
            path = f"net/{family}/conf/{link}/{name}"
            yield f"{path} = {value}", files.write_sysctl, path, value


def _holds(path: str, value: str) -> bool:
    try:
        return files.read_sysctl(path) == value
    except OSError:
        return False  # an unset secret cannot be read


def _different(names: tuple[str, ...], wanted: bytes, now: bytes) -> Iterator[tuple[str, str]]:
    held = values(names, now)
    for name, value in values(names, wanted).items():
        if held.get(name, value) != value:
            yield name, value
