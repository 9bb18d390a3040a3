"""The hosts of the matrix, each a short list of commands after which the host is as some administrator has it.

Every host has two network cards, ens2f0 and ens3f0, which are up; ens2f0 is the device that a network asks for unless
`device` names another one. `commands` run in the host, as sh -e. `refused` has, for host-device, passthru or macvlan (all
modes), words of the message with which an ADD is to be refused; everything else is to be attached. `has` is what the
product's table of attributes may call refused or lost (table.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cni.link.plugins import LINK_PLUGINS

DEVICE, OTHER = "ens2f0", "ens3f0"
MODES = ("bridge", "private", "vepa", "passthru")
HOST_DEVICE = "host-device"
IN_LAB = ("sriov",)  # it needs virtual functions: tests/lab/test_hosts_vf.py
PLUGINS = tuple(
    column
    for name in LINK_PLUGINS
    if name not in IN_LAB
    for column in ([f"macvlan-{mode}" for mode in MODES] if name == "macvlan" else [name])
)

_ADDRESSES = "ip addr add 10.0.0.2/24 dev ens2f0; ip addr add fd00:a::2/64 dev ens2f0"
_DEFAULT = ("default route",)


@dataclass(frozen=True)
class Special:
    """Something that need not come back with a device that was moved. `row` are words of the line of the product's table
    that speaks of it, `lines` the lines of the dump that then differ, each by its kind and a word that it has, `logged` a
    word that the log of ADD has."""

    row: str
    lines: tuple[tuple[str, str], ...]
    logged: str = ""

    def covers(self, kind: str, text: str) -> bool:
        """Whether a line of the dump is one of them."""
        return any(kind == wanted and word in text for wanted, word in self.lines)


_QDISCS = Special("qdiscs", (("qdisc", "ens2f0"), ("link.qdisc", "ens2f0")), "qdisc")
_NEXTHOPS = Special("nexthop objects", (("nexthop", ""), ("route", "attribute-30")), "nexthop")
_GROUPS = Special("multicast addresses of the link", (("fdb", "33:33:00:00:00:66"),), "multicast")
_RECEIVES = Special("further unicast addresses", (("fdb", "02:00:00:00:00:77"), ("link.promiscuity", "ens2f0")))
_NEIGHBOURS = Special(
    "parameters net.ipv4.neigh", (("sysctl", "net.ipv4.neigh."), ("sysctl", "net.ipv6.neigh.")), "neigh"
)
_ADVERTISED = Special("routes that a router has advertised", (("route", "proto 9"),))


@dataclass(frozen=True)
class Scene:
    """A host; `needs` are features of the kernel (features.py). `router`: what a router on the wire of ens2f0 advertises,
    and with `is_routed_twice` another one on that of ens3f0.

    `meddling` is what another program does to the device while a plugin works: "up" or "down", each time that the plugin
    has asked the kernel for something; or "up once", "down once" when the device is home again. `is_probed_anew`: after an
    ADD the device goes, and the host has another one of its name and PCI function (unbind and bind of its driver).
    """

    name: str
    commands: str = ""
    device: str = DEVICE
    needs: tuple[str, ...] = ()
    has: tuple[Special, ...] = ()
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    router: str = ""
    is_routed_twice: bool = False
    meddling: str = ""
    is_probed_anew: bool = False

    @property
    def routers(self) -> int:
        """The number of cards with a router."""
        return 0 if not self.router else 1 + self.is_routed_twice

    def refusal(self, plugin: str) -> tuple[str, ...] | None:
        """The words with which `plugin` is to refuse the device; None: it is to attach it."""
        if plugin == HOST_DEVICE:
            return self.refused.get(HOST_DEVICE)
        if plugin == "macvlan-passthru" and "passthru" in self.refused:
            return self.refused["passthru"]
        return self.refused.get("macvlan")


_SCENES = (
    Scene("plain",
        f"{_ADDRESSES}; ip route add 10.5.0.0/16 via 10.0.0.254; ip -6 route add fd00:5::/64 via fd00:a::fe"),
    Scene("bare-and-down", "ip link set ens2f0 down"),
    Scene("down-with-addresses", f"{_ADDRESSES}; ip link set ens2f0 down"),
    Scene("on-link-gateway", "ip addr add 10.0.0.2/32 dev ens2f0; ip route add 10.0.0.1 dev ens2f0 scope link;"
        " ip route add 10.0.0.0/16 via 10.0.0.1 dev ens2f0; ip route add 172.20.0.0/16 via 10.0.0.1 onlink dev ens2f0;"
        " ip addr add fd00:a::2/128 dev ens2f0; ip -6 route add fd00:a::1 dev ens2f0;"
        " ip -6 route add fd00::/16 via fd00:a::1"),
    Scene("route-over-route", "ip addr add 10.0.0.2/32 dev ens2f0; ip route add 10.9.9.0/24 dev ens2f0 scope link;"
        " ip route add 10.8.0.0/16 via 10.9.9.1; ip route add 10.7.0.0/16 via 10.9.9.1 src 10.0.0.2 metric 7"),
    Scene("dhcp-lease", "ip addr add 10.0.0.2/24 brd + dev ens2f0 valid_lft 3600 preferred_lft 1800;"
        " ip route add 10.5.0.0/16 via 10.0.0.254 proto dhcp src 10.0.0.2 metric 100;"
        " ip addr add fd00:a::2/64 dev ens2f0 valid_lft 7200 preferred_lft 3600"),
    Scene("dhcp-by-networkmanager",
        "ip addr add 10.0.0.2/24 brd + dev ens2f0 valid_lft 3600 preferred_lft 3600 noprefixroute;"
        " ip route add 10.0.0.0/24 dev ens2f0 proto kernel scope link src 10.0.0.2 metric 101;"
        " ip route add 10.5.0.0/16 via 10.0.0.254 proto dhcp src 10.0.0.2 metric 101;"
        " ip addr add fd00:a::2/128 dev ens2f0 valid_lft 7200 preferred_lft 3600 noprefixroute;"
        " ip -6 route add fd00:a::/64 dev ens2f0 proto ra metric 101", has=(_ADVERTISED,)),
    Scene("deprecated-address", f"{_ADDRESSES}; ip addr add 10.0.1.2/24 dev ens2f0 valid_lft 3600 preferred_lft 0"),
    Scene("ecmp-over-two-nics",
        f"{_ADDRESSES}; ip route add 10.7.0.0/16 nexthop via 10.0.0.254 dev ens2f0 weight 2 nexthop via 10.3.0.254 dev"
        " ens3f0 weight 3; ip -6 route add fd00:7::/64 metric 50 nexthop via fd00:a::fe dev ens2f0 weight 2 nexthop via"
        " fd00:3::fe dev ens3f0"),
    Scene("ecmp-on-one-nic",
        f"{_ADDRESSES}; ip route add 10.7.0.0/16 nexthop via 10.0.0.253 weight 5 nexthop via 10.0.0.254;"
        " ip -6 route add fd00:7::/64 nexthop via fd00:a::fd nexthop via fd00:a::fe"),
    Scene("same-destination-on-two-nics",
        f"{_ADDRESSES}; ip route add 10.7.0.0/16 via 10.0.0.254 metric 10; ip route add 10.7.0.0/16 via 10.3.0.254 metric 20;"
        " ip route append 10.6.0.0/16 via 10.0.0.254; ip route append 10.6.0.0/16 via 10.3.0.254"),
    Scene("routes-with-attributes",
        f"{_ADDRESSES}; ip route add 10.7.0.0/16 via 10.0.0.254 tos 0x10; ip route add 10.7.0.0/16 via 10.0.0.253;"
        " ip route add 10.6.0.0/16 via 10.0.0.254 mtu lock 1400 advmss 1300 initcwnd 20 initrwnd 30 rto_min 20ms quickack 1"
        " window 5000; ip route add 10.5.0.0/16 via inet6 fe80::fe dev ens2f0;"
        " ip -6 route add fd00:7::/64 via fd00:a::fe pref high metric 7 mtu 1400 hoplimit 9;"
        " ip route add 10.4.0.0/16 dev ens2f0 scope link proto static src 10.0.0.2;"
        " ip route add local 10.99.0.0/16 dev ens2f0; ip route add multicast 239.1.0.0/16 dev ens2f0;"
        " ip -6 route add fd00:6::/64 dev ens2f0 proto static expires 5000"),
    Scene("nexthop-objects",
        f"{_ADDRESSES}; ip nexthop add id 5 via 10.0.0.254 dev ens2f0; ip nexthop add id 6 via 10.3.0.254 dev ens3f0;"
        " ip nexthop add id 7 group 5/6; ip route add 10.7.0.0/16 nhid 5; ip route add 10.6.0.0/16 nhid 7",
        has=(_NEXTHOPS,)),
    Scene("policy-rules-and-tables",
        f"{_ADDRESSES}; ip rule add from 10.0.0.2 table 100 priority 1000; ip rule add iif ens2f0 table 100 priority 1001;"
        " ip rule add oif ens2f0 table 101 priority 1002; ip -6 rule add from fd00:a::2 table 100 priority 1000;"
        " ip route add 10.7.0.0/16 via 10.0.0.254 table 100; ip route add 10.0.0.0/24 dev ens2f0 scope link table 100;"
        " ip route add blackhole 10.8.0.0/16 table 100; ip -6 route add fd00:7::/64 via fd00:a::fe table 100;"
        " ip route add 10.7.0.0/16 via 10.0.0.253 table 5000"),
    Scene("default-route", f"{_ADDRESSES}; ip route add default via 10.0.0.254",
        refused={HOST_DEVICE: _DEFAULT, "passthru": _DEFAULT}),
    Scene("default-route-ipv6", f"{_ADDRESSES}; ip -6 route add default via fd00:a::fe",
        refused={HOST_DEVICE: _DEFAULT, "passthru": _DEFAULT}),
    Scene("own-policy-table",
        f"{_ADDRESSES}; ip route add default via 10.3.0.254; ip route add 10.0.0.0/24 dev ens2f0 table 10001;"
        " ip route add default via 10.0.0.254 table 10001; ip rule add from 10.0.0.2 table 10001;"
        " ip rule add fwmark 7 table 10001; ip -6 route add default via fd00:a::fe dev ens2f0 table 10001;"
        " ip -6 rule add from fd00:a::2 table 10001"),
    Scene("default-route-of-a-worse-metric",
        f"{_ADDRESSES}; ip route add default via 10.3.0.254 metric 100; ip route add default via 10.0.0.254 metric 101"),
    Scene("default-route-elsewhere",
        f"{_ADDRESSES}; ip route add default via 10.3.0.254; ip -6 route add default via fd00:3::fe"),
    Scene("ipv6-only",
        "ip addr add fd00:a::2/64 dev ens2f0; ip addr add 2001:db8::2/64 dev ens2f0; ip addr add fe80::2/64 dev ens2f0;"
        " ip -6 route add fd00:5::/64 via fd00:a::fe; ip -6 route add fd00:6::/64 via fe80::fe dev ens2f0"),
    Scene("ipv6-route-with-source", "sysctl -qw net.ipv6.conf.default.accept_dad=1 net.ipv6.conf.ens2f0.accept_dad=1"
        " net.ipv6.neigh.ens2f0.retrans_time_ms=100 net.ipv6.conf.default.router_solicitation_delay=0 net.ipv6.conf.ens2f0.router_solicitation_delay=0;"
        " ip addr add fd00:a::2/64 dev ens2f0 nodad; ip -6 route add fd00:5::/64 via fd00:a::fe src fd00:a::2",
        has=(_NEIGHBOURS,)),
    Scene("ipv6-address-flags",
        "ip addr add fd00:a::2/64 dev ens2f0 home; ip addr add fd00:b::2/64 dev ens2f0 noprefixroute metric 77; ip addr add fd00:c::2 peer fd00:c::3/128 dev ens2f0"),
    Scene("no-link-local",
        "ip link set ens2f0 addrgenmode none; ip addr flush dev ens2f0; ip addr add fd00:a::2/64 dev ens2f0"),
    Scene("token", "sysctl -qw net.ipv6.conf.ens2f0.router_solicitations=1; ip token set ::77 dev ens2f0"),
    Scene("slaac", router="prefix"),
    Scene("slaac-once", router="prefix once"),
    Scene("slaac-default-route", router="default", refused={HOST_DEVICE: _DEFAULT, "passthru": _DEFAULT}),
    Scene("router-advertisements-on-every-nic", "ip route add default via 10.3.0.254", has=(_ADVERTISED,),
        router="default", is_routed_twice=True),
    Scene("disable-ipv6-by-default", f"{_ADDRESSES}; sysctl -qw net.ipv6.conf.default.disable_ipv6=1"),
    Scene("disable-ipv6-on-it", "ip addr add 10.0.0.2/24 dev ens2f0; sysctl -qw net.ipv6.conf.ens2f0.disable_ipv6=1"),
    Scene("vlan-on-top", f"{_ADDRESSES}; ip link add link ens2f0 name ens2f0.7 type vlan id 7; ip link set ens2f0.7 up;"
        " ip addr add 10.1.0.2/24 dev ens2f0.7", needs=("vlan",), refused={HOST_DEVICE: ("ens2f0.7",)}),
    Scene("macvlan-on-top",
        f"{_ADDRESSES}; ip link add link ens2f0 name upper0 type macvlan mode bridge; ip link set upper0 up; ip addr add 10.1.0.2/24 dev upper0",
        refused={HOST_DEVICE: ("upper0",), "passthru": ("ens2f0",)}),
    Scene("ipvlan-on-top",
        f"{_ADDRESSES}; ip link add link ens2f0 name upper0 type ipvlan; ip link set upper0 up; ip addr add 10.1.0.2/24 dev upper0",
        needs=("ipvlan",), refused={HOST_DEVICE: ("upper0",), "macvlan": ("ens2f0",)}),
    Scene("vxlan-on-top",
        f"{_ADDRESSES}; ip link add upper0 type vxlan id 7 local 10.0.0.2 remote 10.0.0.9 dev ens2f0 dstport 4789; ip link set upper0 up",
        needs=("vxlan",), refused={HOST_DEVICE: ("upper0",)}),
    Scene("vlan-as-device",
        "ip link add link ens2f0 name ens2f0.7 type vlan id 7; ip link set ens2f0.7 up; ip addr add 10.1.0.2/24 dev ens2f0.7",
        device="ens2f0.7", needs=("vlan",)),
    Scene("bridged",
        "ip link add br0 type bridge; ip link set br0 up; ip link set ens2f0 master br0; ip addr add 10.0.0.2/24 dev br0",
        refused={HOST_DEVICE: ("br0",), "macvlan": ("ens2f0", "bridge")}),
    Scene("bridge-as-device",
        "ip link add br0 type bridge; ip link set br0 up; ip link set ens2f0 master br0; ip addr add 10.0.0.2/24 dev br0",
        device="br0", refused={HOST_DEVICE: ("br0",)}),
    Scene("bonded",
        "ip link add bond0 type bond mode active-backup miimon 100; ip link set ens2f0 down; ip link set ens2f0 master bond0; ip link set bond0 up; ip addr add 10.0.0.2/24 dev bond0",
        needs=("bond",), refused={HOST_DEVICE: ("bond0",), "macvlan": ("ens2f0", "bond")}),
    Scene("bond-as-device",
        "ip link add bond0 type bond mode active-backup miimon 100; ip link set ens2f0 down; ip link set ens2f0 master bond0; ip link set bond0 up; ip addr add 10.0.0.2/24 dev bond0",
        device="bond0", needs=("bond",), refused={HOST_DEVICE: ("bond0",)}),
    Scene("dummy-as-device",
        "ip link add rail0 type dummy; ip link set rail0 up; ip addr add 10.1.0.2/24 dev rail0; ip route add 10.5.0.0/16 via 10.1.0.1",
        device="rail0", needs=("dummy",)),
    Scene("macvlan-as-device",
        "ip link add link ens2f0 name mv0 type macvlan mode bridge; ip link set mv0 up; ip addr add 10.1.0.2/24 dev mv0",
        device="mv0", refused={"passthru": ("mv0",)}),
    Scene("macvtap-as-device",
        "ip link add link ens2f0 name mvt0 type macvtap mode bridge; ip link set mvt0 up; ip addr add 10.1.0.2/24 dev mvt0",
        device="mvt0", needs=("macvtap",), refused={"passthru": ("mvt0",)}),
    Scene("ipvlan-as-device",
        "ip link add link ens2f0 name ipvl0 type ipvlan; ip link set ipvl0 up; ip addr add 10.1.0.2/24 dev ipvl0",
        device="ipvl0", needs=("ipvlan",), refused={"macvlan": ("ipvl0", "is an ipvlan")}),
    Scene("set-up-meanwhile", f"{_ADDRESSES}; ip route add 10.5.0.0/16 via 10.0.0.254", meddling="up"),
    Scene("set-down-meanwhile", f"{_ADDRESSES}; ip link set ens2f0 down", meddling="down"),
    Scene("probed-anew", _ADDRESSES, is_probed_anew=True),
    Scene("set-up-once-home", "ip link set ens2f0 down", meddling="up once"),
    Scene("set-down-once-home", f"{_ADDRESSES}; ip route add 10.5.0.0/16 via 10.0.0.254", meddling="down once"),
    Scene("sysctls-of-firewalld",
        f"{_ADDRESSES}; sysctl -qw net.ipv4.conf.ens2f0.rp_filter=1 net.ipv4.conf.ens2f0.arp_ignore=1"
        " net.ipv4.conf.ens2f0.arp_announce=2 net.ipv4.conf.ens2f0.log_martians=1"
        " net.ipv4.conf.ens2f0.accept_redirects=0 net.ipv4.conf.ens2f0.send_redirects=0"
        " net.ipv4.conf.ens2f0.accept_source_route=0 net.ipv6.conf.ens2f0.accept_redirects=0"
        " net.ipv6.conf.ens2f0.accept_ra=0 net.ipv6.conf.ens2f0.autoconf=0"),
    Scene("sysctls-of-a-router",
        f"{_ADDRESSES}; sysctl -qw net.ipv4.conf.ens2f0.forwarding=1 net.ipv4.conf.ens2f0.proxy_arp=1"
        " net.ipv4.conf.ens2f0.promote_secondaries=1 net.ipv4.conf.ens2f0.route_localnet=1"
        " net.ipv6.conf.ens2f0.forwarding=1 net.ipv6.conf.ens2f0.accept_ra=2 net.ipv6.conf.ens2f0.proxy_ndp=1"
        " net.ipv4.conf.ens2f0.arp_notify=1 net.ipv4.conf.ens2f0.ignore_routes_with_linkdown=1"),
    Scene("sysctls-of-ipv6-and-neighbours",
        f"{_ADDRESSES}; sysctl -qw net.ipv6.conf.ens2f0.mtu=1400 net.ipv6.conf.ens2f0.hop_limit=32"
        " net.ipv6.conf.ens2f0.use_tempaddr=2 net.ipv6.conf.ens2f0.keep_addr_on_down=1"
        " net.ipv6.conf.ens2f0.dad_transmits=0 net.ipv4.neigh.ens2f0.base_reachable_time_ms=60000"
        " net.ipv4.neigh.ens2f0.gc_stale_time=600 net.ipv6.neigh.ens2f0.unres_qlen=50 net.ipv6.neigh.ens2f0.retrans_time_ms=500",
        has=(_NEIGHBOURS,)),
    Scene("permanent-neighbours",
        f"{_ADDRESSES}; ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev ens2f0 nud permanent;"
        " ip -6 neigh add fd00:a::9 lladdr 02:00:00:00:00:09 dev ens2f0 nud permanent;"
        " ip neigh add proxy 10.0.0.77 dev ens2f0; ip -6 neigh add proxy fd00:a::77 dev ens2f0"),
    Scene("custom-broadcast",
        "ip addr add 10.0.0.2/24 brd 10.0.0.63 dev ens2f0; ip addr add 10.0.1.2/24 dev ens2f0 label ens2f0:web;"
        " ip addr add 10.0.0.3/24 brd + dev ens2f0; ip addr add 10.0.2.2 peer 10.0.2.3/32 dev ens2f0;"
        " ip addr add 10.0.3.2/24 dev ens2f0 metric 77; ip addr add 10.0.4.2/24 dev ens2f0 scope link noprefixroute"),
    Scene("qdisc",
        f"{_ADDRESSES}; tc qdisc add dev ens2f0 root handle 1: htb default 7; tc qdisc add dev ens2f0 clsact",
        needs=("htb",), has=(_QDISCS,)),
    Scene("altnames-and-alias",
        f"{_ADDRESSES}; ip link property add dev ens2f0 altname enp1s0f0 altname rail-number-zero; ip link set ens2f0 alias 'rail 0'"),
    Scene("group-queue-and-mtu", f"{_ADDRESSES}; ip link set ens2f0 group 7 txqueuelen 500 mtu 4200"),
    Scene("gso-limits", f"{_ADDRESSES}; ip link set ens2f0 gso_max_size 32000 gso_max_segs 16"),
    Scene("promiscuous", f"{_ADDRESSES}; ip link set ens2f0 promisc on allmulticast on"),
    Scene("multicast-address", f"{_ADDRESSES}; ip maddr add 33:33:00:00:00:66 dev ens2f0", has=(_GROUPS,)),
    Scene("another-unicast-address", f"{_ADDRESSES}; bridge fdb add 02:00:00:00:00:77 dev ens2f0 self",
        has=(_RECEIVES,)),
    Scene("own-mac", f"ip link set ens2f0 down address 02:00:00:00:aa:01; ip link set ens2f0 up; {_ADDRESSES}"),
)  # fmt: skip

SCENES = {scene.name: scene for scene in _SCENES}
