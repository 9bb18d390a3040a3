"""The netlink codec against pyroute2: what we encode it decodes to what was meant, and what it encodes we do."""

from __future__ import annotations

import ipaddress
from sys import byteorder
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroute2.netlink import nlmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from cni.shared.kernel import addresses, netlink, routes, vfs
from cni.shared.kernel.links import MACVLAN_MODES, Link, Rtnl

numbers = st.integers(1, 2**31 - 1)
macs = st.binary(min_size=6, max_size=6).map(lambda b: b.hex(":"))
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_@é", min_size=1).filter(lambda n: len(n.encode()) <= 15)
ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).map(str).filter(lambda a: "." not in a and not a.startswith("::ffff:"))
any_ip = st.one_of(ipv4, ipv6)


class Recorder(Rtnl):
    """Keeps the requests instead of sending them, and answers each with `reply`."""

    __slots__ = ("reply", "sent")

    def __init__(self, reply: bytes = b"") -> None:
        super().__init__()
        self.close()
        self.sent: list[tuple[int, bytes, int]] = []
        self.reply = reply

    def request(self, kind: int, body: bytes, flags: int = 0) -> list[bytes]:
        self.sent.append((kind, body, flags))
        return [self.reply]

    def get(self, kind: int, body: bytes) -> bytes:
        return self.request(kind, body)[0]

    def one(self, decoder: type[nlmsg], kind: int, flags: int) -> Any:
        """The one request, decoded by pyroute2; its type and flags are compared."""
        [(sent_kind, body, sent_flags)] = self.sent
        assert (sent_kind, sent_flags) == (kind, flags)
        message = decoder(netlink.pack_message(kind, flags, 1, body))
        message.decode()
        return message


def encoded(message: nlmsg, **fields: Any) -> bytes:
    """The body that pyroute2 makes of `fields` and the attributes in `attrs`."""
    for name, value in fields.items():
        message[name] = value
    message.encode()
    return bytes(message.data[16:])


CREATE_NEW = netlink.CREATE | netlink.EXCLUSIVE
RTM = {"NEWLINK": 16, "DELLINK": 17, "GETLINK": 18, "NEWADDR": 20, "DELADDR": 21, "NEWROUTE": 24}


# messages and attributes


@given(
    st.lists(
        st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.binary(max_size=40))
    )
)
def test_messages_that_were_packed_are_unpacked(parts: list[tuple[int, int, int, bytes]]) -> None:
    data = b""
    for part in parts:
        data += netlink.pack_message(*part)
        data += bytes(-len(data) % 4)
    assert list(netlink.unpack_messages(data)) == parts


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40))))
def test_attributes_that_were_packed_are_unpacked(parts: list[tuple[int, bytes]]) -> None:
    data = b"head" + b"".join(netlink.attribute(kind, payload) for kind, payload in parts)
    assert netlink.unpack_attributes(data, 4) == dict(parts)
    assert netlink.unpack_list(data[4:]) == parts
    assert len(data) % 4 == 0


@given(st.binary(max_size=200))
@example(bytes(4))  # a length of 0, which moves nothing on
@example(bytes(16))
def test_bytes_that_are_no_messages_are_refused_and_never_loop(data: bytes) -> None:
    for unpack in (lambda data: list(netlink.unpack_messages(data)), netlink.unpack_attributes, netlink.unpack_list):
        try:
            unpack(data)
        except ValueError as fault:
            assert "netlink" in str(fault)


@given(st.integers(17, 100))
def test_a_message_that_was_cut_off_is_refused(length: int) -> None:
    data = netlink.pack_message(16, 0, 1, bytes(100))
    with pytest.raises(ValueError, match="netlink message of 116 bytes in"):
        list(netlink.unpack_messages(data[:length]))


@given(st.binary(min_size=1, max_size=15).filter(lambda b: b"\0" not in b))
def test_names_that_are_not_utf8_survive(octets: bytes) -> None:
    assert netlink.unpack_attributes(netlink.string(3, netlink.text_of(octets + b"\0"))) == {3: octets + b"\0"}


# links


maybe_mac, mtus, fds = st.one_of(st.just(""), macs), st.integers(0, 65535), st.integers(-1, 1000)
u32 = st.integers(0, 2**32 - 1)
modes = st.sampled_from(sorted(MACVLAN_MODES))


@given(name=names, lower=numbers, mode=modes, mtu=mtus, mac=maybe_mac, bcqueuelen=u32, fd=fds)
def test_a_macvlan_is_asked_for_with_what_was_given(**has: Any) -> None:
    recorder = Recorder()
    recorder.add_macvlan(*has.values())
    message = recorder.one(ifinfmsg, RTM["NEWLINK"], CREATE_NEW)
    assert message["index"] == 0
    shown = {key: message.get(key) for key in ("ifname", "link", "mtu", "address", "net_ns_fd")}
    wanted = {"ifname": has["name"], "link": has["lower"], "mtu": has["mtu"] or None, "address": has["mac"] or None}
    assert shown == wanted | {"net_ns_fd": has["fd"] if has["fd"] >= 0 else None}
    info = message.get("linkinfo")
    assert info.get("kind") == "macvlan"
    assert info.get("data").get("macvlan_mode") == has["mode"]
    # pyroute2 does not know IFLA_MACVLAN_BC_QUEUE_LEN, which is 7 in if_link.h; it shows the number and the bytes
    unknown = [(a[0], a[1]) for a in info.get("data")["attrs"] if a[0] != "IFLA_MACVLAN_MODE"]
    assert unknown == ([("UNKNOWN", {"header": {"length": 8, "type": 7}})] if has["bcqueuelen"] else [])
    assert not has["bcqueuelen"] or has["bcqueuelen"].to_bytes(4, byteorder) in recorder.sent[0][1]


@given(
    index=numbers, name=st.one_of(st.just(""), names), mtu=mtus, mac=maybe_mac,
    alias=st.one_of(st.none(), st.text("ab c", max_size=20)), up=st.one_of(st.none(), st.booleans()), fd=fds,
)  # fmt: skip
def test_a_change_says_what_was_given_and_no_more(**has: Any) -> None:
    recorder = Recorder()
    recorder.change_link(*has.values())
    message = recorder.one(ifinfmsg, RTM["NEWLINK"], 0)
    assert message["index"] == has["index"]
    assert (message["change"], message["flags"]) == (has["up"] is not None, bool(has["up"]))
    expected = {"IFLA_IFNAME": has["name"] or None, "IFLA_MTU": has["mtu"] or None, "IFLA_IFALIAS": has["alias"]}
    expected |= {"IFLA_ADDRESS": has["mac"] or None, "IFLA_NET_NS_FD": has["fd"] if has["fd"] >= 0 else None}
    assert {a[0]: a[1] for a in message["attrs"]} == {k: v for k, v in expected.items() if v is not None}


@given(
    index=numbers, name=names, mac=macs, permanent=maybe_mac, mtu=numbers, bounds=st.tuples(numbers, numbers),
    flags=st.integers(0, 2**31 - 1), master=st.integers(0, 100), lower=st.integers(0, 100),
    netnsid=st.one_of(st.none(), st.integers(0, 100)),
    altnames=st.lists(st.text("abc", min_size=1, max_size=127), max_size=4), alias=st.text("ab c", max_size=20),
    parent=st.one_of(st.none(), st.tuples(st.just("pci"), st.just("0000:3b:00.0"))),
)  # fmt: skip
def test_a_link_is_read_as_pyroute2_wrote_it(**has: Any) -> None:
    octets = bytes.fromhex(has["permanent"].replace(":", ""))
    parent = has["parent"] or ("", "")
    given = {"IFNAME": has["name"], "ADDRESS": has["mac"], "MTU": has["mtu"], "PERM_ADDRESS": octets}
    given |= {"MIN_MTU": has["bounds"][0], "MAX_MTU": has["bounds"][1], "MASTER": has["master"], "LINK": has["lower"]}
    given |= {"IFALIAS": has["alias"], "PARENT_DEV_BUS_NAME": parent[0], "PARENT_DEV_NAME": parent[1]}
    attrs: list[tuple[str, Any]] = [(f"IFLA_{name}", value) for name, value in given.items() if value]
    if has["netnsid"] is not None:
        attrs.append(("IFLA_LINK_NETNSID", has["netnsid"]))
    if has["altnames"]:
        attrs.append(("IFLA_PROP_LIST", {"attrs": [("IFLA_ALT_IFNAME", n) for n in has["altnames"]]}))
    link = Link(encoded(ifinfmsg(), index=has["index"], flags=has["flags"], ifi_type=1, attrs=attrs))
    assert (link.index, link.name, link.arphrd) == (has["index"], has["name"], 1)
    assert (link.mac, link.permanent_mac) == (has["mac"], has["permanent"])
    assert (link.mtu, link.min_mtu, link.max_mtu) == (has["mtu"], *has["bounds"])
    assert (link.up, link.carrier) == (bool(has["flags"] & 1), bool(has["flags"] & 0x10000))
    assert (link.master_index, link.lower_index, link.lower_netnsid) == (has["master"], has["lower"], has["netnsid"])
    assert (link.altnames, link.alias) == (has["altnames"], has["alias"])
    assert (link.parent_bus, link.parent_device) == parent
    assert (link.kind, link.macvlan_mode, link.bcqueuelen) == ("", "", 0)


@pytest.mark.parametrize("mode", sorted(MACVLAN_MODES))
def test_the_mode_of_a_macvlan_is_read_as_pyroute2_wrote_it(mode: str) -> None:
    data = {"attrs": [("IFLA_MACVLAN_MODE", mode)]}
    info = {"attrs": [("IFLA_INFO_KIND", "macvlan"), ("IFLA_INFO_DATA", data)]}
    link = Link(encoded(ifinfmsg(), index=1, attrs=[("IFLA_LINKINFO", info)]))
    assert (link.kind, link.macvlan_mode) == ("macvlan", mode)


def test_a_link_without_any_attribute_is_read() -> None:
    link = Link(encoded(ifinfmsg(), index=5))
    assert (link.index, link.name, link.mac, link.mtu) == (5, "", "", 0)
    assert (link.altnames, link.lower_netnsid) == ([], None)


# addresses


@given(
    index=numbers, ip=any_ip, length=st.integers(0, 32), broadcast=st.booleans(), nodad=st.booleans(),
    scope=st.sampled_from([0, 253]), metric=u32,
)  # fmt: skip
@example(index=1, ip="10.1.2.2", length=31, broadcast=True, nodad=False, scope=0, metric=0)
def test_an_address_is_added_with_what_was_given(
    index: int, ip: str, length: int, broadcast: bool, nodad: bool, scope: int, metric: int
) -> None:
    recorder = Recorder()
    addresses.add(recorder, index, f"{ip}/{length}", broadcast, nodad, scope=scope, label="net1", metric=metric)
    message = recorder.one(ifaddrmsg, RTM["NEWADDR"], CREATE_NEW)
    assert (message["family"], message["prefixlen"]) == (10 if ":" in ip else 2, length)
    assert (message["index"], message["scope"]) == (index, scope)
    assert (message.get("local"), message.get("address")) == (ip, None)  # an ordinary address is its own peer
    assert message.get("label") == "net1"
    assert message.get_attr("IFA_FLAGS") == (2 if nodad and ":" in ip else None)
    assert message.get("IFA_RT_PRIORITY") == (metric or None)
    has_broadcast = broadcast and ":" not in ip and length < 31
    network = ipaddress.ip_interface(f"{ip}/{length}").network
    assert message.get("broadcast") == (str(network.broadcast_address) if has_broadcast else None)


@given(
    index=numbers, ip=any_ip, length=st.integers(0, 32), flags=st.integers(0, 0xFFF),
    scope=st.sampled_from([0, 253, 254]), metric=u32,
)  # fmt: skip
def test_an_address_is_read_as_pyroute2_wrote_it(
    index: int, ip: str, length: int, flags: int, scope: int, metric: int
) -> None:
    attrs: list[Any] = [("IFA_ADDRESS", ip), ("IFA_FLAGS", flags), ("IFA_RT_PRIORITY", metric)]
    if ":" not in ip:
        attrs += [("IFA_LOCAL", ip), ("IFA_LABEL", "net1:0"), ("IFA_BROADCAST", "192.0.2.255")]
    fields = {"family": 10 if ":" in ip else 2, "prefixlen": length, "index": index, "scope": scope}
    fields |= {"flags": flags & 255}
    address = addresses.Address(encoded(ifaddrmsg(), attrs=attrs, **fields))
    assert (address.text, address.peer, address.index) == (f"{ip}/{length}", "", index)
    assert (address.flags, address.scope, address.metric) == (flags, scope, metric)
    assert (address.label, address.broadcast) == (("", "") if ":" in ip else ("net1:0", "192.0.2.255"))
    states = (address.permanent, address.tentative, address.duplicate)
    assert states == tuple(bool(flags & bit) for bit in (0x80, 0x40, 0x08))


def test_a_point_to_point_address_has_its_own_and_its_peer() -> None:
    attrs = [("IFA_ADDRESS", "192.0.2.2"), ("IFA_LOCAL", "192.0.2.1"), ("IFA_FLAGS", 0x80)]
    address = addresses.Address(encoded(ifaddrmsg(), family=2, prefixlen=32, index=1, attrs=attrs))
    assert (address.text, address.peer) == ("192.0.2.1/32", "192.0.2.2")


@pytest.mark.parametrize("text", ["", "192.0.2.1", "192.0.2/24", "::1", "2001:db8::1/x", "nope/24", "192.0.2.1/24/3"])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="no address with a prefix length"):
        addresses.add(Recorder(), 1, text)


# routes


@given(
    index=numbers, dst=any_ip, length=st.integers(0, 32), gw=st.one_of(st.just(""), any_ip),
    priority=st.one_of(st.none(), st.integers(0, 2**32 - 1)), table=st.one_of(st.none(), st.integers(1, 2**32 - 1)),
    scope=st.one_of(st.none(), st.sampled_from([0, 200, 253])), mtu=st.one_of(st.none(), st.integers(68, 65535)),
    advmss=st.one_of(st.none(), st.integers(1, 65535)), onlink=st.booleans(),
)  # fmt: skip
def test_a_route_is_added_with_what_was_given(**has: Any) -> None:
    recorder, dst, gw = Recorder(), has["dst"], has["gw"]
    more = [has[key] for key in ("priority", "table", "scope", "mtu", "advmss", "onlink")]
    routes.add(recorder, has["index"], f"{dst}/{has['length']}", gw, *more)
    message = recorder.one(rtmsg, RTM["NEWROUTE"], netlink.CREATE)
    assert (message["family"], message["dst_len"]) == (10 if ":" in dst else 2, has["length"])
    assert (message["type"], message["proto"], message["flags"]) == (1, 3, 4 if has["onlink"] else 0)
    assert message["scope"] == (has["scope"] if has["scope"] is not None else 0 if gw else 253)
    assert (message.get("dst"), message.get("oif")) == (dst, has["index"])
    assert (message.get("table"), message.get("priority")) == (has["table"] or 254, has["priority"])
    if gw and (":" in gw) == (":" in dst):
        assert (message.get("gateway"), message.get("via")) == (gw, None)
    else:
        assert message.get("gateway") is None
        assert message.get("via") == ({"family": 10 if ":" in gw else 2, "addr": gw} if gw else None)
    metrics = message.get("metrics")
    shown = {key: metrics.get(key) for key in ("mtu", "advmss")} if metrics is not None else None
    assert shown == ({key: has[key] for key in ("mtu", "advmss")} if has["mtu"] or has["advmss"] else None)


hops = st.fixed_dictionaries({"oif": st.integers(1, 1000), "flags": st.sampled_from([0, 4]), "gateway": st.booleans()})


@given(
    version=st.sampled_from([4, 6]), data=st.data(), length=st.integers(1, 32), priority=u32,
    table=st.integers(256, 2**32 - 1), scope=st.sampled_from([0, 253]), mtu=st.integers(0, 65535),
    several=st.lists(hops, min_size=1, max_size=4),
)  # fmt: skip
def test_a_route_is_read_as_pyroute2_wrote_it(**has: Any) -> None:
    several, ip = has["several"], ipv4 if has["version"] == 4 else ipv6
    dst, gw, source = (has["data"].draw(ip) for _ in range(3))
    attrs: list[Any] = [("RTA_DST", dst), ("RTA_TABLE", has["table"]), ("RTA_PRIORITY", has["priority"])]
    attrs.append(("RTA_PREFSRC", source))
    if has["mtu"]:
        attrs.append(("RTA_METRICS", {"attrs": [("RTAX_MTU", has["mtu"]), ("RTAX_ADVMSS", has["mtu"])]}))
    flags, gateways = 0, [[("RTA_GATEWAY", gw)] if h["gateway"] else [] for h in several]
    if len(several) == 1:
        flags = several[0]["flags"]
        attrs += [("RTA_OIF", several[0]["oif"]), *gateways[0]]
    else:
        legs = [
            {"oif": h["oif"], "flags": h["flags"], "hops": 0, "attrs": gateway}
            for h, gateway in zip(several, gateways, strict=True)
        ]
        attrs.append(("RTA_MULTIPATH", legs))
    fields = {"dst_len": has["length"], "table": 252, "proto": 4, "scope": has["scope"], "type": 1}
    body = encoded(rtmsg(), family=2 if has["version"] == 4 else 10, flags=flags, attrs=attrs, **fields)
    found = list(routes.unpack(body))
    expected = [(h["oif"], h["flags"] == 4, gw if h["gateway"] else "") for h in several]
    assert [(r.index, r.onlink, r.gw) for r in found] == expected
    for r in found:
        assert (r.dst, r.source) == (f"{dst}/{has['length']}", source)
        assert (r.table, r.priority, r.mtu, r.advmss) == (has["table"], has["priority"], has["mtu"], has["mtu"])
        assert (r.scope, r.protocol, r.kind) == (has["scope"], 4, 1)


@pytest.mark.parametrize(("family", "dst"), [(2, "0.0.0.0/0"), (10, "::/0")])
def test_a_route_without_a_destination_is_the_default_route(family: int, dst: str) -> None:
    [route] = routes.unpack(encoded(rtmsg(), family=family, table=254, attrs=[("RTA_OIF", 3)]))
    assert (route.dst, route.table, route.index) == (dst, 254, 3)


def test_a_gateway_of_the_other_family_is_read() -> None:
    via = ("RTA_VIA", {"family": 10, "addr": "fe80::1"})
    [route] = routes.unpack(
        encoded(rtmsg(), family=2, dst_len=24, attrs=[("RTA_DST", "192.0.2.0"), ("RTA_OIF", 3), via])
    )
    assert route.gw == "fe80::1"


def test_what_the_kernel_learned_of_a_path_is_no_route() -> None:
    assert list(routes.unpack(encoded(rtmsg(), family=10, flags=0x200, attrs=[("RTA_OIF", 3)]))) == []


@given(st.integers(0, 127), st.binary(min_size=8, max_size=8).map(lambda b: b.hex(":")))
def test_the_guids_of_a_virtual_function_are_set_as_pyroute2_sets_them(vf: int, guid: str) -> None:
    """pyroute2 pads the value to 32 bytes."""
    recorder, (node, port) = Recorder(), ("ib_node_guid", "ib_port_guid")
    vfs.write(recorder, 7, vf, ("guid",), {"guid": guid})
    info = [(f"IFLA_VF_{key.upper()}", {"vf": vf, key: guid}) for key in (node, port)]
    attrs = [("IFLA_VFINFO_LIST", {"attrs": [("IFLA_VF_INFO", {"attrs": info})]})]
    theirs = _members(encoded(ifinfmsg(), index=7, attrs=attrs))
    ours = _members(recorder.sent[0][1])
    assert list(ours) == list(theirs) == [10, 11]
    assert all(theirs[kind][:16] == payload and not any(theirs[kind][16:]) for kind, payload in ours.items())


def _members(body: bytes) -> dict[int, bytes]:
    """The attributes of the one VF of the message."""
    [(_, info)] = netlink.unpack_list(netlink.unpack_attributes(body, 16)[22])
    return netlink.unpack_attributes(info)
