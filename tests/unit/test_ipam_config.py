"""The IPAM configuration: what each key does, how the flat file fills in, and what each bad input is told."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure
from cni.shared.spec.request import Request
from ipam import source, stores
from ipam.config import IpamConfig, read
from ipam.keys import ACCEPTED_KEYS, ADDRESS_KEYS, ETCD, IPAM_KEYS, RANGE_KEYS, ROUTE_KEYS
from ipam.leases import COOLDOWN
from ipam.ranges import format_address

INSTALLED = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
RANGE = {"range": "10.0.0.0/24"}
KUBE = {"kubernetes": {"kubeconfig": "/k"}}


class Files:
    """Files by path, and the paths that were asked for."""

    def __init__(self) -> None:
        self.content: dict[str, bytes | Exception] = {}
        self.asked: list[str] = []

    def load(self, path: str, /) -> bytes | None:
        self.asked.append(path)
        content = self.content.get(path)
        if isinstance(content, Exception):
            raise content
        return content

    def follow(self, path: str, roots: str = "", /) -> str:
        return path

    def allow_host(self, host: str, /) -> None:
        pass

    def host_name(self) -> str:
        return "host.example"


def config_of(
    ipam: object,
    *,
    args: str = "",
    files: dict[str, Any] | None = None,
    version: str = "1.1.0",
    command: str = "ADD",
    environ: dict[str, str] | None = None,
    reader: Files | None = None,
    **top: object,
) -> IpamConfig:
    reader = reader or Files()
    for path, content in (files or {}).items():
        reader.content[path] = json.dumps(content).encode() if isinstance(content, dict) else content
    document = {"cniVersion": version, "name": "net", "ipam": ipam, **top}
    pairs = dict(pair.split("=", 1) for pair in args.split(";") if pair)
    return read(Request({"CNI_COMMAND": command, **(environ or {})}, b"", document, pairs), reader)


def refusal(ipam: object, **others: Any) -> str:
    with pytest.raises(InvalidConfig) as refused:
        config_of(ipam, **others)
    assert refused.value.code == 7
    return f"{refused.value.msg}\n{refused.value.details}".rstrip()


def ranges_of(config: IpamConfig) -> list[str]:
    return [f"{r.cidr} {format_address(r.family, r.first)} {format_address(r.family, r.last)}" for r in config.ranges]


def spans_of(config: IpamConfig) -> list[str]:
    return [
        " ".join(f"{format_address(r.family, a)}-{format_address(r.family, b)}" for a, b in r.spans())
        for r in config.ranges
    ]


# What the keys do


def test_one_range_is_enough() -> None:
    config = config_of(RANGE)
    assert ranges_of(config) == ["10.0.0.0/24 10.0.0.1 10.0.0.254"]
    assert (config.addresses, config.routes, config.dns, config.requested, config.notes) == ([], [], {}, [], [])
    assert (config.gateway, config.network_name, config.overlap, config.node_slice_size) == ("", "", True, 0)
    assert (config.datastore, config.data_dir) == ("file", "/var/lib/cni/railcni")
    assert (config.log_file, config.log_level, config.config_path, config.node) == ("", "warning", "", "host.example")


IN_A_29, START_AND_END = {"range": "10.0.0.0/29"}, {"range_start": "00192.00168.1.44", "range_end": "192.168.01.209"}
BOUNDED = {"range": "10.0.0.0/29", "range_start": "10.0.0.2", "exclude": ["10.0.0.3", "10.0.0.4/31"]}
STATIC = {"gateway": "10.0.0.1", "addresses": [{"address": "10.0.0.3/29", "gateway": "10.0.0.6"}]}
HOPS = {"routes": [{"dst": "10.8.0.0/16", "gw": "10.0.0.6"}, {"dst": "10.9.0.0/16", "gw": "10.0.0.2"}]}
# the block, the caller's CNI_ARGS; what the ranges give; the keys of which a note says that they are ignored
GIVEN: dict[str, tuple[dict[str, Any], str, list[str], list[str]]] = {
    "the block's own range before those of the list": (
        {"ipRanges": [{"range": "192.168.10.1/30"}, {"range": "fd00::1/126"}], "range": "abcd::1/126"}, "",
        ["abcd::1-abcd::2", "192.168.10.1-192.168.10.2", "fd00::1-fd00::2"], []),
    "the same range twice": ({**IN_A_29, "ipRanges": [IN_A_29]}, "", ["10.0.0.1-10.0.0.6"] * 2, []),
    "start and end": ({"range": "00192.00168.1.0/24", **START_AND_END}, "", ["192.168.1.44-192.168.1.209"], []),
    "start and excludes": ({"ipRanges": [BOUNDED]}, "", ["10.0.0.2-10.0.0.2 10.0.0.6-10.0.0.6"], []),
    "both ends in the range": (
        {"range": "10.0.0.5-10.0.0.25/24", "range_start": "10.0.0.9"}, "", ["10.0.0.5-10.0.0.25"], ["range_start"]),
    "network and broadcast address as bounds": (
        {**IN_A_29, "range_start": "10.0.0.0", "range_end": "10.0.0.7"}, "", ["10.0.0.1-10.0.0.6"], []),
    "neither gateways nor static addresses": ({**IN_A_29, **STATIC}, "", ["10.0.0.2-10.0.0.2 10.0.0.4-10.0.0.5"], []),
    "nor the caller's gateway": (IN_A_29, "GATEWAY=10.0.0.4", ["10.0.0.1-10.0.0.3 10.0.0.5-10.0.0.6"], []),
    "nor next hops": ({**IN_A_29, **HOPS}, "", ["10.0.0.1-10.0.0.1 10.0.0.3-10.0.0.5"], []),
    "nor that of another range": (
        {**IN_A_29, "ipRanges": [{"range": "fd00::/126"}], "routes": [{"dst": "::/0", "gw": "fd00::1"}]}, "",
        ["10.0.0.1-10.0.0.6", "fd00::2-fd00::2"], []),
    "a next hop that is in no range or is none": (
        {**IN_A_29, "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "10.8.0.0/16", "gw": "0.0.0.0"}]}, "",
        ["10.0.0.1-10.0.0.6"], []),
    "excludes outside of the range": (
        {"range": "10.0.0.0/30", "exclude": ["10.0.1.0/24", "::a00:1", "10.0.0.2"]}, "", ["10.0.0.1-10.0.0.1"],
        ["exclude[0]", "exclude[1]"]),
    "bounds without a range": (
        {"ipRanges": [IN_A_29], "range_start": "1.1.1.1", "exclude": ["10.0.0.1"]}, "", ["10.0.0.1-10.0.0.6"],
        ["range_start", "exclude"]),
}  # fmt: skip


@pytest.mark.parametrize("case", GIVEN)
def test_a_range_gives_what_start_end_excludes_and_gateways_leave(case: str) -> None:
    block, args, spans, ignored = GIVEN[case]
    config = config_of(block, args=args)
    assert spans_of(config) == spans
    assert [note.split()[0] for note in config.notes] == [f"ipam.{key}" for key in ignored]


def test_static_addresses_alone_are_enough_and_keep_their_host_bits() -> None:
    own, other = {"address": "010.10.0.1/24", "gateway": "10.10.0.254"}, {"address": "3FFE:ffff:0:01ff::1/64"}
    read = [(one.address, one.gateway) for one in config_of({"addresses": [own, other]}).addresses]
    assert read == [("10.10.0.1/24", "10.10.0.254"), ("3ffe:ffff:0:1ff::1/64", "")]


def test_routes_are_read_with_all_that_the_newest_spec_has() -> None:
    more = {"mtu": 1400, "advmss": 1360, "priority": 5, "table": 100, "scope": 0}
    routes = [{"dst": "192.168.7.7/16", "gw": "10.0.0.9", **more}, {"dst": "::/0", "gw": "", "mtu": 0}]
    route, plain = config_of({**RANGE, "routes": routes}).routes
    assert (route.dst, route.gw, {key: getattr(route, key) for key in more}) == ("192.168.0.0/16", "10.0.0.9", more)
    assert (plain.dst, plain.gw, plain.mtu, plain.table, plain.scope) == ("::/0", "", None, None, None)


DNS = {"nameservers": ["8.8.8.8"], "domain": "example.com", "search": ["a", "b"], "options": ["ndots:1"]}
OF_GO = {"leader_lease_duration": 1500, "leader_renew_deadline": 1000, "leader_retry_period": 500, "sleep_for_race": 1}
HOST, AGENTS = {"etcd_host": "e:2379"}, {"datastore": "kubernetes", "kubernetes": {"kubeconfig": "/etc/agents"}}
# beside a range: the block, the flat file, and what is read
READ: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "dns, without what is unknown": ({"dns": {**DNS, "unknown": 1}}, {}, {"dns": DNS}),
    "keys in any case": ({"Gateway": "10.0.0.1", "Enable_Overlapping_Ranges": False, "DNS": {"Domain": "example.com"}}, {},
                         {"gateway": "10.0.0.1", "overlap": False, "dns": {"domain": "example.com"}}),
    "of an inner object the one to the letter": (
        {"dns": {"Domain": "other", "domain": "example.com", "SEARCH": ["a"]}}, {},
        {"dns": {"domain": "example.com", "search": ["a"]}}),
    "to the letter before without case": ({"LOG_LEVEL": "error", "log_level": "debug"}, {}, {"log_level": "debug"}),
    "also when that comes first": ({"log_level": "debug", "LOG_LEVEL": "error"}, {}, {"log_level": "debug"}),
    "the first of those without case": ({"Log_Level": "debug", "LOG_LEVEL": "error"}, {}, {"log_level": "debug"}),
    "so in the flat file": ({}, {"LOG_LEVEL": "error", "log_level": "debug"}, {"log_level": "debug"}),
    "of any spelling in the block before the flat file": (
        {"LOG_LEVEL": "debug"}, {"log_level": "error"}, {"log_level": "debug"}),
    "empty to the letter in the block: the flat file": (
        {"log_level": "", "LOG_LEVEL": "error"}, {"Log_Level": "debug"}, {"log_level": "debug"}),
    "no failure for the name of a level": ({"log_level": "info"}, {}, {"log_level": "warning"}),
    "nor for none": ({"log_level": ""}, {}, {"log_level": "warning"}),
    "a level in any case": ({"log_level": "Verbose"}, {}, {"log_level": "verbose"}),
    "unknown and null keys, and those that change nothing": (
        {"type": "whereabouts", "colour": "blue", "routes": None, **OF_GO}, {}, {"routes": [], "datastore": "file"}),
    "a slice's size with a slash": ({**KUBE, "node_slice_size": "/26"}, {}, {"node_slice_size": 26}),
    "and without one": ({**KUBE, "node_slice_size": "26"}, {}, {"node_slice_size": 26}),
    "an empty one": ({"node_slice_size": ""}, {}, {"node_slice_size": 0}),
    "the store that is named": ({"datastore": "file", **KUBE}, {}, {"datastore": "file"}),
    "the store whose place is given": (KUBE, {}, {"datastore": "kubernetes"}),
    "that of etcd": (HOST, {}, {"datastore": "etcd"}),
    "of two places the kubeconfig": ({**HOST, **KUBE}, {}, {"datastore": "kubernetes"}),
    "but the one that is named": ({"datastore": "etcd", **HOST, **KUBE}, {}, {"datastore": "etcd"}),
    "a network's etcd before the kubeconfig that the agent added": (HOST, AGENTS, {"datastore": "etcd"}),
    "unless it names another": ({**HOST, "datastore": "kubernetes"}, AGENTS, {"datastore": "kubernetes"}),
    "or brings a kubeconfig": ({**HOST, "kubernetes": {"kubeconfig": "/mine"}}, AGENTS, {"datastore": "kubernetes"}),
    "the agent's": ({}, AGENTS, {"datastore": "kubernetes"}),
    "a default of the store that is repeated": (
        {"etcd_prefix": "/railcni"}, {**HOST, "etcd_username": "own"}, {"etcd_username": "own"}),
    "etcd beside a flat file without etcd": (HOST, KUBE, {"datastore": "etcd", "kubeconfig": "/k"}),
    "keys of etcd where the store is another": (
        {"datastore": "file", "etcd_prefix": "/other"}, {**HOST, "etcd_prefix": "/own"}, {"datastore": "file"}),
    "the overlap switch is not the flat file's": ({}, {"enable_overlapping_ranges": False}, {"overlap": True}),
    "but the block's": ({"enable_overlapping_ranges": False}, {"enable_overlapping_ranges": True}, {"overlap": False}),
    "a cooldown as long as the stores take one for true": (
        {"cooldown_seconds": COOLDOWN}, {}, {"cooldown_seconds": COOLDOWN}),
    "what is overridden may be wrong": ({"gateway": "10.0.0.1"}, {"gateway": 5}, {"gateway": "10.0.0.1"}),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_of_the_block_and_the_flat_file_this_is_read(case: str) -> None:
    block, flat, read = READ[case]
    config = config_of({**RANGE, **block}, files={INSTALLED: flat})
    assert {name: getattr(config, name) for name in read} == read


def test_ranges_are_read_in_any_case_and_that_of_the_flat_file_comes_before_the_blocks_list() -> None:
    more = {"IPRanges": [{"Range": "fd00::/64"}]}
    for config in (config_of({"RANGE": "10.0.0.0/24", **more}), config_of(more, files={INSTALLED: RANGE})):
        assert [r.cidr for r in config.ranges] == ["10.0.0.0/24", "fd00::/64"]


def test_a_gateway_serves_the_addresses_of_its_family_and_that_of_the_caller_comes_first() -> None:
    config = config_of({**RANGE, "ipRanges": [{"range": "fd00::/64"}], "gateway": "192.168.10.1"})
    assert [config.gateway_of(address) for address in ("10.0.0.7/24", "fd00::7/64")] == ["192.168.10.1", ""]
    assert config.gateway_of("10.0.0.7/24", own="10.0.0.9") == "10.0.0.9"
    config = config_of({**RANGE, "gateway": "10.0.0.1"}, args="GATEWAY=10.0.0.3,fd00::1")
    assert config.gateway_of("10.0.0.7/24", own="10.0.0.9") == "10.0.0.3"
    assert [config.gateway_of(address) for address in ("10.9.0.7/24", "fd00::7/64")] == ["10.0.0.1", "fd00::1"]


# What the caller asks for


def requested(config: IpamConfig) -> list[tuple[str, int | None]]:
    return [(format_address(family, value), length) for family, value, length in config.requested]


def with_args(ips: list[str], **ipam: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "ipam": {**RANGE, **ipam}, "args": {"cni": {"ips": ips}}}


def test_requests_are_read_from_all_three_places_and_count_once() -> None:
    config = config_of(
        {**RANGE, "allow_outside_ranges": True, "requested_addresses": 2},
        args="IP=10.0.0.7, 172.16.0.1/12;IgnoreUnknown=1", runtimeConfig={"ips": ["10.0.0.7/24", "10.0.0.8"]},
    )  # fmt: skip
    assert requested(config) == [("10.0.0.7", 24), ("172.16.0.1", 12), ("10.0.0.8", None)]
    config = config_of(RANGE, args="IP=10.0.0.7/16", runtimeConfig={"ips": ["10.0.0.7"]})
    assert requested(config) == [("10.0.0.7", 16)]
    found = read(Request({"CNI_COMMAND": "ADD"}, b"", with_args(["10.0.0.9"]), {}), Files())
    assert requested(found) == [("10.0.0.9", None)]
    alone = config_of({"type": "whereabouts", "allow_outside_ranges": True}, args="IP=10.0.0.7/24")
    assert requested(alone) == [("10.0.0.7", 24)]


def test_a_request_for_a_static_address_adds_nothing() -> None:
    assert config_of({"addresses": [{"address": "10.0.0.7/24"}]}, args="IP=10.0.0.7/24").requested == []


@pytest.mark.parametrize(("args", "reason"), [
    ("IP=banana", 'CNI_ARGS IP "banana": want an address, with or without /length'),
    ("IP=10.0.0.7,", 'CNI_ARGS IP "": want an address'),
    ("IP=172.16.0.1", 'CNI_ARGS IP "172.16.0.1": is in no range of this network'),
    ("IP=224.0.0.5/24", 'CNI_ARGS IP "224.0.0.5/24": is multicast: want an address of a subnet'),
    ("IP=10.0.0.1", 'CNI_ARGS IP "10.0.0.1": is a gateway'),
    ("IP=10.0.0.255", 'CNI_ARGS IP "10.0.0.255": is the first or last address of 10.0.0.0/24'),
    ("IP=10.0.0.200", 'CNI_ARGS IP "10.0.0.200": is excluded from 10.0.0.0/24: want another'),
    ("IP=10.0.0.240", 'CNI_ARGS IP "10.0.0.240": is outside of 10.0.0.1-10.0.0.239, which range 10.0.0.0/24 gives'),
    ("GATEWAY=x", 'CNI_ARGS GATEWAY "x": want an IPv4 or IPv6 address'),
])  # fmt: skip
def test_a_request_that_cannot_be_met_is_refused_with_the_reason(args: str, reason: str) -> None:
    block = {**RANGE, "gateway": "10.0.0.1", "exclude": ["10.0.0.200/29"], "range_end": "10.0.0.239"}
    assert reason in refusal(block, args=args)


SLICED = {"node_slice_size": "/28", "datastore": "kubernetes", "kubernetes": {"kubeconfig": "/etc/cni/kubeconfig"}}


@pytest.mark.parametrize(("block", "ips", "reason"), [
    ({}, "10.7.0.7/16", "is in no range of this network: want one that is, or ipam.allow_outside_ranges"),
    ({"allow_outside_ranges": True}, "10.7.0.7", "is in no range of this network: want one that is, or address/length"),
    ({"allow_outside_ranges": True}, "169.254.169.254/16", "is link-local, and in no range of this network"),
    ({"allow_outside_ranges": True}, "fe80::7/64", "is link-local, and in no range of this network"),
    ({"allow_outside_ranges": True}, "127.0.0.1/8", "is loopback"),
    ({"allow_outside_ranges": True}, "224.0.0.5/24", "is multicast"),
    ({"allow_outside_ranges": True}, "ff02::1/64", "is multicast"),
    ({"allow_outside_ranges": True}, "255.255.255.255/32", "is broadcast"),
    ({"allow_outside_ranges": True}, "10.7.0.0/16", "is the first or last address of 10.7.0.0/16"),
    ({"allow_outside_ranges": True}, "10.7.255.255/16", "is the first or last address of 10.7.0.0/16"),
    ({"allow_outside_ranges": True}, "fd00::/64", "is the first or last address of fd00::/64"),
    ({"allow_outside_ranges": True, "routes": [{"dst": "10.8.0.0/16", "gw": "10.7.0.1"}]}, "10.7.0.1/16",
     "is a gateway"),
    ({"allow_outside_ranges": True}, "10.7.0.7/16,10.8.0.7/16", "may request 1 outside of the ranges"),
    ({}, "10.0.0.7,10.0.0.8", "may request 1 in 10.0.0.0/24: want fewer, or a larger ipam.requested_addresses"),
    ({"requested_addresses": 2}, "10.0.0.7,10.0.0.8,10.0.0.9", "may request 2 in 10.0.0.0/24"),
    ({"allow_outside_ranges": True, **SLICED}, "10.7.0.7/16", "is in no range of this network: want one that is"),
])  # fmt: skip
def test_what_no_pod_may_request_is_refused_when_it_is_added_only(block: dict[str, Any], ips: str, reason: str) -> None:
    for way in ({"args": f"IP={ips}"}, {"runtimeConfig": {"ips": ips.split(",")}}):
        assert reason in refusal({**RANGE, **block}, **way)  # type: ignore[arg-type]


def test_a_network_may_have_link_local_ranges_and_give_what_is_requested_in_them() -> None:
    assert config_of({"range": "169.254.8.0/24"}, args="IP=169.254.8.7").requested
    assert config_of({"range": "10.0.0.0/24", "addresses": [{"address": "169.254.8.7/16"}]}, args="IP=169.254.8.7")


def test_what_was_given_before_the_network_had_to_allow_it_hinders_no_delete() -> None:
    for ips in ("10.7.0.7/16", "10.0.0.7,10.0.0.8", "169.254.169.254/16"):
        for verb in ("DEL", "CHECK"):
            assert read(Request({"CNI_COMMAND": verb}, b"", with_args(ips.split(",")), {}), Files()).outside == []
    excluded = with_args(["10.0.0.7"], exclude=["10.0.0.0/28"])
    assert read(Request({"CNI_COMMAND": "DEL"}, b"", excluded, {}), Files()).requested


@pytest.mark.parametrize(("block", "files", "bound"), [
    ({"store_timeout": 61}, {}, "ipam.store_timeout 61: want 60 at most"),
    ({"store_timeout": 61}, {INSTALLED: {"store_timeout": 600}}, "ipam.store_timeout 61: want 60 at most"),
    ({"configuration_path": "/x"}, {"/x": {"store_timeout": 61}}, '/x: store_timeout "(not shown)": is wrong'),
    ({"store_timeout": 60}, {}, ""), ({}, {INSTALLED: {"store_timeout": 600}}, ""),
])  # fmt: skip
def test_a_network_lets_an_add_wait_for_a_minute_and_the_administrator_for_longer(
    block: dict[str, Any], files: dict[str, Any], bound: str
) -> None:
    for command in ("DEL", "CHECK", "STATUS", "GC"):
        assert config_of({**RANGE, **block}, files=files, command=command)
    if bound:
        assert bound in refusal({**RANGE, **block}, files=files)
    else:
        assert config_of({**RANGE, **block}, files=files)


def test_requests_of_a_wrong_type_are_refused() -> None:
    assert 'runtimeConfig.ips "10.0.0.7": want a list' in refusal(RANGE, runtimeConfig={"ips": "10.0.0.7"})
    assert "runtimeConfig.ips [7]: want a list" in refusal(RANGE, runtimeConfig={"ips": [7]})
    assert 'runtimeConfig.ips[1] "x": want an address' in refusal(RANGE, runtimeConfig={"ips": ["10.0.0.7", "x"]})


# The flat file


def test_the_flat_file_fills_what_the_block_leaves_out() -> None:
    flat = {
        **KUBE, "datastore": "kubernetes", "log_file": "/tmp/w.log", "log_level": "debug", "gateway": "10.0.0.5",
        "dns": {"domain": "flat", "nameservers": ["1.1.1.1"]}, "exclude": ["10.0.0.9"],
    }  # fmt: skip
    own = {"gateway": "10.0.0.1", "dns": {"domain": "block"}, "kubernetes": {"k8s_api_root": "x"}, "log_file": ""}
    config = config_of({**RANGE, **own}, files={INSTALLED: flat})
    wanted = {
        "datastore": "kubernetes", "kubeconfig": "/k", "log_file": "/tmp/w.log", "log_level": "debug",
        "gateway": "10.0.0.1", "dns": {"domain": "block", "nameservers": ["1.1.1.1"]}, "config_path": INSTALLED,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert spans_of(config) == ["10.0.0.2-10.0.0.8 10.0.0.10-10.0.0.254"]


# The store of the flat file, whose credentials the author of a network cannot read

OWN_ETCD = {
    "etcd_host": "10.0.0.1:2379", "etcd_prefix": "/own", "etcd_username": "own", "etcd_password": "s3cret",
    "etcd_key_file": "/f/key", "etcd_cert_file": "/f/cert", "etcd_ca_cert_file": "/f/ca",
}  # fmt: skip
OTHER_ETCD = {name: value.replace("own", "other").replace("/f/", "/g/") + "0" for name, value in OWN_ETCD.items()}
ATTACHED = ("DEL", "CHECK", "GC")


def etcd_of(config: IpamConfig) -> dict[str, str]:
    return {name: getattr(config, name) for name in ETCD}


def test_the_table_has_every_key_of_etcd() -> None:
    assert set(OWN_ETCD) == set(ETCD) == {key.name for key in IPAM_KEYS if key.name.startswith("etcd_")}


@pytest.mark.parametrize("name", OWN_ETCD)
@pytest.mark.parametrize("command", ["ADD", "STATUS"])
def test_a_block_with_one_other_key_of_etcd_must_bring_all_that_the_flat_file_has(name: str, command: str) -> None:
    block = {**RANGE, name: OTHER_ETCD[name]}
    msg = refusal(block, files={INSTALLED: OWN_ETCD}, command=command)
    assert f"ipam.{name} " in msg and f"is not that of {INSTALLED}: want all of the store in the block" in msg
    assert all(other in msg for other in OWN_ETCD if other != name)
    assert "s3cret" not in msg


@pytest.mark.parametrize("name", OWN_ETCD)
@pytest.mark.parametrize("command", ATTACHED)
def test_what_was_attached_with_one_other_key_is_read_key_by_key_as_borrowed(name: str, command: str) -> None:
    flat = dict(OWN_ETCD)
    if name == "etcd_host":
        del flat["etcd_password"]  # else it was refused before
    config = config_of({**RANGE, name: OTHER_ETCD[name]}, files={INSTALLED: flat}, command=command)
    assert f"ipam.{name} " in config.borrowed and "s3cret" not in config.borrowed
    assert etcd_of(config) == {"etcd_password": "", **flat, name: OTHER_ETCD[name]}
    with pytest.raises(InvalidConfig):
        stores.open_store(stores.ref_of(config), 0)


@pytest.mark.parametrize("named", [*([name] for name in OWN_ETCD), [*OWN_ETCD]], ids=lambda named: named[0])
@pytest.mark.parametrize("command", ["ADD", *ATTACHED])
def test_a_block_that_repeats_the_flat_files_store_has_it(named: list[str], command: str) -> None:
    block = {**RANGE, **{name: OWN_ETCD[name] for name in named}}
    config = config_of(block, files={INSTALLED: OWN_ETCD}, command=command)
    assert (etcd_of(config), config.borrowed, config.datastore) == (OWN_ETCD, "", "etcd")


@pytest.mark.parametrize("command", ["ADD", *ATTACHED])
def test_a_block_with_a_store_of_its_own_gets_nothing_of_the_flat_files(command: str) -> None:
    config = config_of({**RANGE, **OTHER_ETCD}, files={INSTALLED: OWN_ETCD}, command=command)
    assert (etcd_of(config), config.borrowed) == (OTHER_ETCD, "")
    bare = {"etcd_host": "10.0.0.9", **dict.fromkeys(set(ETCD) - {"etcd_host"}, "")}
    config = config_of({**RANGE, **bare}, files={INSTALLED: OWN_ETCD}, command=command)
    assert etcd_of(config) == {**bare, "etcd_prefix": "/railcni"}


@pytest.mark.parametrize("name", ["etcd_host", "etcd_prefix"])
def test_the_flat_files_key_goes_to_its_own_server_and_prefix_alone(name: str) -> None:
    block, files = {**RANGE, **OWN_ETCD, name: OTHER_ETCD[name]}, {INSTALLED: OWN_ETCD}
    assert f"is the key of {INSTALLED} for its own etcd_host and etcd_prefix" in refusal(block, files=files)
    assert config_of({**block, "etcd_key_file": "/g/key"}, files=files).etcd_key_file == "/g/key"


def test_a_malformed_endpoint_is_told_with_its_key() -> None:
    with pytest.raises(InvalidConfig, match='^ipam.etcd_host "127.0.0.1:x": .*port'):
        stores.ref_of(config_of({**RANGE, "etcd_host": "127.0.0.1:x"}))


class Confining(Files):
    """Allows files below /allowed."""

    def follow(self, path: str, roots: str = "", /) -> str:
        if roots == "configRoots" and not path.startswith("/allowed/"):
            raise ValueError("is not in configRoots")
        return path


PATHS_OF_STORES = ["kubernetes.kubeconfig", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file"]


@pytest.mark.parametrize("name", PATHS_OF_STORES)
@pytest.mark.parametrize("flat", [{}, OWN_ETCD, KUBE], ids=["none", "etcd", "kubernetes"])
def test_a_file_that_networks_may_not_name_is_refused_for_what_is_new_and_never_opened(
    name: str, flat: dict[str, Any]
) -> None:
    outer, _, inner = name.partition(".")
    block = {
        **RANGE, **OTHER_ETCD, "etcd_key_file": "/allowed/k", "etcd_cert_file": "/allowed/c", "etcd_ca_cert_file": "",
    }  # fmt: skip
    block |= {outer: {inner: "/other"} if inner else "/other"}
    files = {INSTALLED: flat}
    assert f'ipam.{name} "/other": is not in configRoots' in refusal(block, files=files, reader=Confining())
    for command in ATTACHED:
        config = config_of(block, files=files, command=command, reader=Confining())
        assert f'ipam.{name} "/other": is not in configRoots' in config.borrowed


@pytest.mark.parametrize("flat", [KUBE, OWN_ETCD], ids=["kubernetes", "etcd"])
def test_a_file_that_the_flat_file_names_may_lie_anywhere_also_where_the_block_repeats_it(flat: dict[str, Any]) -> None:
    for block in ({}, flat):
        config = config_of({**RANGE, **block}, files={INSTALLED: flat}, reader=Confining())
        assert (config.kubeconfig == "/k" if flat is KUBE else etcd_of(config) == OWN_ETCD) and config.borrowed == ""


def test_the_file_that_the_block_names_goes_before_the_installed_ones_and_one_that_is_not_there_is_noted() -> None:
    first, second = source.PATHS[:2]
    block = {**RANGE, "configuration_path": "/my.conf"}
    files = {"/my.conf": {"log_level": "debug"}, first: {"log_level": "error"}, second: {"log_level": "panic"}}
    named = config_of(block, files=files)
    assert (named.log_level, named.notes) == ("debug", [])
    assert config_of(RANGE, files=files).log_level == "error"
    other = config_of(block, files={second: {"log_level": "panic"}})
    assert (other.config_path, other.notes) == (
        second,
        [f"ipam.configuration_path /my.conf is not there: {second} is read"],
    )
    assert "/my.conf is not there" in config_of(block, files={}).notes[0]


def test_the_nodes_name_is_the_environments_then_the_nodename_files_then_the_hosts() -> None:
    flat = {INSTALLED: {"configuration_path": "/etc/w.d"}, "/etc/w.d/nodename": b"node-7.example\n"}
    assert config_of(RANGE, files=flat, environ={"NODENAME": " node-1 "}).node == "node-1"
    assert config_of(RANGE, files=flat).node == "node-7.example"
    assert config_of({**RANGE, "configuration_path": "/my.conf"}, files=flat).node == "node-7.example"
    assert config_of(RANGE, files={INSTALLED: {"configuration_path": "/etc/w.d"}}).node == "host.example"
    assert config_of(RANGE, files={**flat, "/etc/w.d/nodename": PermissionError(13, "no")}).node == "host.example"
    assert config_of({**RANGE, "configuration_path": "/my.conf"}, files={"/my.conf": {}}).node == "host.example"


@pytest.mark.parametrize(("flat", "told"), [
    ({"gateway": "q"}, f'{INSTALLED}: gateway "q": want an IPv4 or IPv6 address'),
    ({"range": "q"}, f'{INSTALLED}: range "q": want a CIDR'),
    ({"ipRanges": [{"range": 5}]}, f"{INSTALLED}: ipRanges[0].range 5: want a string"),
    ({"kubernetes": 5}, f"{INSTALLED}: kubernetes 5: want a JSON object"),
    (b'{"a": ', f"the flat file {INSTALLED} is not JSON"), (b'{"a": ', "line 1"),
    (b"[]", f"the flat file {INSTALLED} is no JSON object"), (b"\xff\xfe", f"the flat file {INSTALLED} is not JSON"),
])  # fmt: skip
def test_a_fault_in_the_flat_file_is_told_with_its_path(flat: Any, told: str) -> None:
    assert told in refusal({} if "range" in told else RANGE, files={INSTALLED: flat})


def test_a_flat_file_that_cannot_be_read_is_an_io_failure_with_its_path() -> None:
    with pytest.raises(IoFailure, match=f"{INSTALLED} cannot be read: Input/output error") as failure:
        config_of(RANGE, files={INSTALLED: OSError(5, "Input/output error")})
    assert failure.value.code == 5


def test_what_is_no_regular_file_or_too_large_is_not_read_as_a_flat_file(tmp_path: Path) -> None:
    path = tmp_path / "whereabouts.conf"
    path.write_text('{"log_level": "debug"}')
    assert source.OF_NODE.load(str(path)) == b'{"log_level": "debug"}'
    assert source.OF_NODE.load(str(tmp_path / "absent")) is source.OF_NODE.load(str(path / "nodename")) is None
    assert source.OF_NODE.host_name() == os.uname().nodename
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b" " * ((1 << 20) + 1))
    kinds = {"": "regular", "fifo": "regular", "/dev/zero": "regular", "large": "larger", "\0": "null"}
    for name, reason in kinds.items():
        with pytest.raises(ValueError, match=reason):
            source.OF_NODE.load(os.path.join(tmp_path, name))


@pytest.mark.usefixtures("free_paths")
def test_a_configuration_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    document = {"name": "net", "ipam": {**RANGE, "configuration_path": str(tmp_path)}}
    with pytest.raises(InvalidConfig, match=f"the flat file {tmp_path} is no regular file"):
        read(Request({"CNI_COMMAND": "ADD"}, b"", document, {}))


# A flat file that the network chose: it may be anybody's

SECRET = "s3cr3t-0f-s0meb0dy"
CHOSEN = "/etc/cni/somebody.json"
VALUES: list[Any] = [
    SECRET, f"/{SECRET}", f"10.0.0.1-{SECRET}/24", [SECRET], {SECRET: SECRET}, [{"range": SECRET}],
    [{"range": "10.0.0.0/24", "exclude": [SECRET]}],
    [{"address": SECRET}, {"address": "10.0.0.1/24", "gateway": SECRET}],
    [{"dst": SECRET}, {"dst": "10.0.0.0/8", "gw": SECRET}], 4711_4711, [4711_4711],
]  # fmt: skip
FLAT_KEYS = sorted({*(key.name for key in (*RANGE_KEYS, *IPAM_KEYS, *ACCEPTED_KEYS)), "dns", "kubernetes"})


@pytest.mark.parametrize("key", FLAT_KEYS)
def test_no_value_of_a_flat_file_that_the_network_chose_is_told_whatever_is_wrong(key: str) -> None:
    outer, _, inner = key.partition(".")
    block = {"configuration_path": CHOSEN, "addresses": [{"address": "10.9.9.9/24"}]}
    for value in VALUES:
        files = {CHOSEN: {outer: {inner: value} if inner else value}}
        try:
            config_of(block, files=files)
            config_of({**block, **RANGE}, files=files)
        except InvalidConfig as refused:
            text = f"{refused.msg} {refused.details}"
            assert f"{CHOSEN}: {outer}" in text
            assert "s3cr3t" not in text and "4711" not in text, text


SAID: dict[str, tuple[str, str]] = {
    "one\ntwo": ("a: b", "one\ntwo"), "two": ("one; and more", "one\ntwo"), "": ("2 faults: one; two", "one\n two\n\n"),
}  # fmt: skip


@pytest.mark.parametrize("shown", SAID)
def test_an_error_shows_the_lines_of_its_details_that_its_message_does_not_have(shown: str) -> None:
    document = CniError(*SAID[shown]).document("1.1.0")
    assert document.get("details", "") == shown


@pytest.mark.parametrize(
    "content", [f'{{"a": {SECRET}}}', f'"{SECRET}"', f"{SECRET}", '{"a": 4711e999}', '{"range": "s3cr3t\x00"}']
)
def test_nothing_of_a_chosen_file_that_is_no_flat_file_is_told(content: str) -> None:
    msg = refusal({**RANGE, "configuration_path": CHOSEN}, files={CHOSEN: content.encode()})
    assert f"the flat file {CHOSEN} is" in msg
    assert "s3cr3t" not in msg and "4711" not in msg


def test_what_a_chosen_file_rightly_says_is_not_told_by_the_error_that_follows_from_it() -> None:
    flat = {"etcd_host": f"https://{SECRET}:2379,{SECRET}-b", "kubernetes": {"kubeconfig": f"/{SECRET}/k"}}
    flat["etcd_username"] = SECRET
    hidden = config_of({**RANGE, "configuration_path": CHOSEN}, files={CHOSEN: flat}).hidden
    for text in (f"{SECRET}:2379: refused", f"{SECRET}-b:2379", f"kubeconfig /{SECRET}/k cannot be read"):
        for part in hidden:
            text = text.replace(part, "")
        assert "s3cr3t" not in text
    assert config_of({**RANGE, "etcd_host": SECRET, "etcd_username": ""}, files={INSTALLED: flat}).hidden == []


def test_the_networks_own_values_and_the_administrators_are_told(tmp_path: Path) -> None:
    assert SECRET in refusal({**RANGE, "gateway": SECRET, "configuration_path": CHOSEN}, files={CHOSEN: {}})
    assert SECRET in refusal(RANGE, files={INSTALLED: {"gateway": SECRET}})
    assert SECRET in refusal({**RANGE, "configuration_path": INSTALLED}, files={INSTALLED: {"gateway": SECRET}})


# Which store


@pytest.mark.parametrize("command", ["ADD", "STATUS"])
@pytest.mark.parametrize(("block", "files", "told"), [
    ({}, {}, "ipam.datastore null: no store is named, and none is assumed for a pod"),
    ({}, {INSTALLED: {"log_level": "debug"}}, f"{INSTALLED} names none"),
    ({"datastore": "file"}, {}, ""), ({}, {INSTALLED: {"datastore": "file"}}, ""), ({"etcd_host": "e:2379"}, {}, ""),
    ({}, {INSTALLED: {"kubernetes": {"kubeconfig": "/k"}}}, ""),
])  # fmt: skip
def test_what_no_pod_can_use_says_why(block: dict[str, Any], files: dict[str, Any], told: str, command: str) -> None:
    unnamed = config_of({**RANGE, **block}, files=files, command=command).unnamed
    assert told in (f"{unnamed} {unnamed.details}" if unnamed else "") and bool(told) == bool(unnamed)


@pytest.mark.parametrize(("block", "files"), [
    ({"datastore": "kubernets"}, {}), ({"etcd_host": 7}, {}), ({}, {INSTALLED: {"datastore": "fil"}}),
    ({}, {INSTALLED: {"kubernetes": {"kubeconfig": 7}}}), ({}, {INSTALLED: b"{"}), ({"kubernetes": "x"}, {}),
    ({}, {INSTALLED: {"kubernetes": "x"}}), ({"configuration_path": "/other"}, {}), ({"configuration_path": 7}, {}),
])  # fmt: skip
def test_a_store_that_is_named_wrongly_is_one_fault(block: dict[str, Any], files: dict[str, Any]) -> None:
    said = refusal({**RANGE, **block}, files=files, args="K8S_POD_NAME=p", reader=Confining())
    assert "faults in the network configuration" not in said and "no store is named" not in said


def test_a_del_is_not_refused_for_want_of_a_store() -> None:
    assert config_of(RANGE, args="K8S_POD_NAME=p", command="DEL").datastore == "file"


# What each bad input is told


@pytest.mark.parametrize(("block", "told"), [
    ({"range": "10.0.0.0/33"}, 'ipam.range "10.0.0.0/33": want a CIDR or first-last/length'),
    ({"range": 10}, "ipam.range 10: want a string"),
    ({"range": "10.0.1.9-10.0.0.2/24"}, "starts outside of 10.0.0.0/24"),
    ({**RANGE, "range_start": "10.0.1.1"}, 'ipam.range_start "10.0.1.1": want an address of the range 10.0.0.0/24'),
    ({**RANGE, "range_end": "fd00::1"}, 'ipam.range_end "fd00::1": want an address of the range 10.0.0.0/24'),
    ({**RANGE, "range_start": "x"}, 'ipam.range_start "x": want an IPv4 or IPv6 address'),
    ({**RANGE, "range_start": "10.0.0.9", "range_end": "10.0.0.8"}, 'ipam.range_end "10.0.0.8": is below range_start 10.0.0.9'),
    ({**RANGE, "exclude": "10.0.0.1"}, 'ipam.exclude "10.0.0.1": want a list'),
    ({**RANGE, "exclude": ["10.0.0.1", "10.0.0.0/123"]}, 'ipam.exclude[1] "10.0.0.0/123": want a CIDR or an address'),
    ({**RANGE, "exclude": ["10.0.0.0/24"]}, "has no address to give: exclude, gateway and addresses cover all from 10.0.0.1 to 10.0.0.254"),
    ({"range": "10.0.0.1/32", "gateway": "10.0.0.1"}, "has no address to give"),
    ({"range": "10.0.0.0/24", "range_end": "10.0.0.0"}, "range_start and range_end leave only the CIDR's first or last address"),
    *(
        ({"range": text}, f'ipam.range "{text}": gives {first}, which is {kind}: want addresses of a subnet')
        for text, first, kind in (
            ("224.0.0.0/24", "224.0.0.1", "multicast"),
            ("239.255.0.9-239.255.0.20/16", "239.255.0.9", "multicast"),
            ("127.0.0.0/8", "127.0.0.1", "loopback"), ("0.0.0.0/0", "0.0.0.1", "reserved"),
            ("255.255.255.255/32", "255.255.255.255", "broadcast"), ("ff02::/64", "ff02::1", "multicast"),
            ("::/64", "::1", "loopback"), ("::/128", "::", "unspecified"),
        )
    ),
    ({"ipRanges": "x"}, 'ipam.ipRanges "x": want a list'),
    ({"ipRanges": ["10.0.0.0/24"]}, 'ipam.ipRanges ["10.0.0.0/24"]: want a JSON object'),
    ({"ipRanges": [RANGE, {}]}, 'ipam.ipRanges[1].range "": want a CIDR'),
    ({"ipRanges": [RANGE, {**RANGE, "exclude": ["x"]}]}, 'ipam.ipRanges[1].exclude[0] "x": want a CIDR or an address'),
    ({**RANGE, "gateway": "q"}, 'ipam.gateway "q": want an IPv4 or IPv6 address'),
    ({**RANGE, "gateway": "fd00::1"}, 'ipam.gateway "fd00::1": want an IPv4 address, as the ranges are'),
    ({"addresses": [{"address": "10.0.0.1"}]}, 'ipam.addresses[0].address "10.0.0.1": want address/length'),
    ({"addresses": [{"gateway": "10.0.0.1"}]}, "ipam.addresses[0].address null: want address/length"),
    ({"addresses": [{"address": "10.0.0.7/24", "gateway": "fd00::1"}]}, 'ipam.addresses[0].gateway "fd00::1": want an IPv4 address'),
    ({"addresses": [{"address": "10.0.0.7/24"}, {"address": "10.0.0.7/16"}]}, "ipam.addresses[1].address \"10.0.0.7/16\": is there twice"),
    ({"addresses": [{"address": "224.0.0.1/24"}]}, 'ipam.addresses[0].address "224.0.0.1/24": is multicast: want an address of a subnet'),
    ({**RANGE, "routes": [{"gw": "10.0.0.1"}]}, "ipam.routes[0].dst null: want a CIDR"),
    ({**RANGE, "routes": [{"dst": "default"}]}, 'ipam.routes[0].dst "default": want a CIDR'),
    ({**RANGE, "routes": [{"dst": "0.0.0.0/0", "gw": "x"}]}, 'ipam.routes[0].gw "x": want an IPv4 or IPv6 address'),
    ({**RANGE, "routes": [{"dst": "0.0.0.0/0", "gw": "fd00::1"}]}, 'ipam.routes[0].gw "fd00::1": want an IPv4 address, as dst is'),
    ({**RANGE, "routes": [{"dst": "0.0.0.0/0", "mtu": -1}]}, "ipam.routes[0].mtu -1: want an integer from 0"),
    ({**RANGE, "routes": [{"dst": "0.0.0.0/0", "scope": 255}]}, "ipam.routes[0].scope 255: want an integer from 0 to 254"),  # the kernel has none
    ({**RANGE, "dns": "8.8.8.8"}, 'ipam.dns "8.8.8.8": want a JSON object'),
    ({**RANGE, "dns": {"nameservers": "8.8.8.8"}}, 'ipam.dns.nameservers "8.8.8.8": want a list'),
    ({**RANGE, "node_slice_size": "/x"}, 'ipam.node_slice_size "/x": want a prefix length'),
    ({**RANGE, "node_slice_size": "/129"}, 'ipam.node_slice_size "/129": want a prefix length'),
    ({**RANGE, **KUBE, "node_slice_size": "/22"}, 'ipam.node_slice_size "/22": is larger than the range 10.0.0.0/24: want /24 or a longer prefix'),
    ({**RANGE, **KUBE, "node_slice_size": "/26", "ipRanges": [{"range": "10.1.0.0/24"}]}, 'ipam.node_slice_size "/26": divides one range, and this network has 2: want no ipRanges, or no node_slice_size'),
    ({**RANGE, "enable_overlapping_ranges": "yes"}, 'ipam.enable_overlapping_ranges "yes": want true or false'),
    ({**RANGE, "datastore": "postgres"}, 'ipam.datastore "postgres": want one of file, etcd, kubernetes'),
    ({**RANGE, "datastore": "kubernetes"}, 'ipam.datastore "kubernetes": want kubernetes.kubeconfig beside it'),
    ({**RANGE, "datastore": "etcd"}, 'ipam.datastore "etcd": want etcd_host beside it'),
    ({**RANGE, **HOST, "etcd_prefix": "railcni"}, 'ipam.etcd_prefix "railcni": want "/" and printable ASCII'),
    ({**RANGE, "store_timeout": 0}, "ipam.store_timeout 0: want"),
    ({**RANGE, "dataDir": "leases"}, 'ipam.dataDir "leases": want an absolute path'),
    ({**RANGE, "kubernetes": {"kubeconfig": 5}}, "ipam.kubernetes.kubeconfig 5: want a string"),
    ({**RANGE, "leader_lease_duration": "x"}, 'ipam.leader_lease_duration "x": want an integer'),
    ({**RANGE, "cooldown_seconds": COOLDOWN + 1}, "ipam.cooldown_seconds 86401: want an integer"),
    ({**RANGE, "preferred_ip_annotation": True}, "ipam.preferred_ip_annotation true: want kubernetes.kubeconfig"),
    ({**RANGE, "configuration_path": 5}, "ipam.configuration_path 5: want a string"),
    ({"type": "whereabouts", "etcd_password": "s3cret"}, 'ipam ["type", "etcd_password"]: gives no address: want range, ipRanges or addresses'),
    (None, "has no `ipam`"), ([], "has an `ipam` that is no JSON object"),
])  # fmt: skip
def test_bad_input_is_told_its_key_its_value_and_what_would_be_right(block: object, told: str) -> None:
    msg = refusal(block)
    assert told in msg[:250]


def test_all_faults_are_told_at_once_and_no_password() -> None:
    ranges = [{"range": "10.0.0.0/24", "exclude": ["z"]}, {"range": 1}]
    block = {"range": "x", "gateway": "y", "ipRanges": ranges, "routes": [{}], "addresses": [{}], "dns": 1}
    assert refusal(block, args="IP=w;GATEWAY=v").startswith("9 faults")
    assert "4711" not in refusal({**RANGE, "etcd_password": 4711})


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
@pytest.mark.parametrize(("block", "args", "count"), [
    ({**RANGE, "ipRanges": [{"range": "10.1.0.0/24"}]}, "", 2),
    ({**RANGE, "addresses": [{"address": "10.1.0.1/24"}]}, "", 2),
    ({**RANGE, "allow_outside_ranges": True}, "IP=10.1.0.1/24", 2),
    ({**RANGE, "requested_addresses": 2}, "IP=10.0.0.7,10.0.0.8", 2),
    ({"ipRanges": [{"range": "fd00::/64"}, {"range": "fd01::/64"}, {"range": "fd02::/64"}]}, "", 3),
])  # fmt: skip
def test_a_version_with_one_address_refuses_two(version: str, block: dict[str, Any], args: str, count: int) -> None:
    msg = refusal(block, args=args, version=version)
    assert f"this attachment gets {count}: want 0.3.0 or newer" in msg
    config_of(block, args=args, version="0.3.0")


def test_a_version_with_one_address_of_a_family_takes_one_of_each() -> None:
    config_of({**RANGE, "ipRanges": [{"range": "fd00::/64"}]}, args="IP=10.0.0.7", version="0.2.0")


# The tables


def test_every_key_says_what_it_means() -> None:
    for key in (*RANGE_KEYS, *IPAM_KEYS, *ACCEPTED_KEYS, *ADDRESS_KEYS, *ROUTE_KEYS):
        assert len(key.doc) > 10, key.name


def test_no_two_keys_of_a_block_have_the_same_name_but_for_case() -> None:
    names = [key.name.lower() for key in (*RANGE_KEYS, *IPAM_KEYS, *ACCEPTED_KEYS)]
    assert len(names) == len(set(names))
