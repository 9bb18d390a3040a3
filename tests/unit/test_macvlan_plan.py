"""What macvlan decides before it touches anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cni.link.plugins import macvlan
from cni.shared.config import Fault, refuse
from cni.shared.kernel.links import Link
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Request, parse
from tests.unit.test_host_device_plan import ENVIRON, link


def request(config: dict[str, Any] | None = None, args: str = "", container: str = "c1") -> Request:
    whole = {"cniVersion": "1.1.0", "name": "rdma", "type": "macvlan", "master": "ens2f0", **(config or {})}
    return parse({**ENVIRON, "CNI_CONTAINERID": container, "CNI_ARGS": args}, json.dumps(whole).encode())


def read(asked: Request) -> macvlan.MacvlanConfig:
    faults: list[Fault] = []
    config = macvlan.read(asked, faults)
    refuse(faults)
    return config


def planned(asked: Request, master: Link | None = None) -> macvlan.MacvlanPlan:
    facts = macvlan.MacvlanFacts(master or link(), [], "boot")
    return macvlan.plan(read(asked), asked, facts)


def test_the_mtu_is_the_masters_and_the_mode_bridge_unless_others_are_asked_for() -> None:
    asked: list[dict[str, Any]] = [{}, {"mtu": 0}, {"mtu": 1500}, {"mtu": 9000}, {"mtu": 68}]
    assert [planned(request(one)).mtu for one in asked] == [9000, 9000, 1500, 9000, 68]
    assert [planned(request(one)).mode for one in ({}, {"mode": ""})] == ["bridge", "bridge"]


def test_a_queue_that_an_earlier_version_has_made_can_be_compared_and_deleted() -> None:
    asked = request({"bcqueuelen": 65537})
    for asked.command in ("CHECK", "DEL", "STATUS"):
        assert read(asked).bcqueuelen == 65537


def test_an_mtu_above_the_masters_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidConfig, match=r"mtu 9001 is above 9000.*ens2f0"):
        planned(request({"mtu": 9001}))


@pytest.mark.parametrize(("of_master", "least"), [(0, 68), (68, 68), (1280, 1280)])
def test_an_mtu_below_the_least_of_master_and_ethernet_is_refused(of_master: int, least: int) -> None:
    with pytest.raises(InvalidConfig, match=f"mtu {least - 1} is below {least}"):
        planned(request({"mtu": least - 1}), link(min_mtu=of_master))
    assert planned(request({"mtu": least}), link(min_mtu=of_master)).mtu == least


def test_runtime_config_wins_over_cni_args_and_these_over_the_key() -> None:
    key = {"mac": "02:00:00:00:00:01"}
    assert planned(request(key)).mac == "02:00:00:00:00:01"
    assert planned(request(key, "MAC=02:00:00:00:00:02")).mac == "02:00:00:00:00:02"
    both = {**key, "runtimeConfig": {"mac": "02-00-00-00-00-03"}}
    assert planned(request(both, "MAC=02:00:00:00:00:02")).mac == "02:00:00:00:00:03"


PLACES = ("mac", "CNI_ARGS MAC", "runtimeConfig.mac")


def with_mac(place: str, mac: str) -> Request:
    """A request that has the MAC in one of PLACES."""
    config: dict[str, Any] = {"mac": {"mac": mac}, "runtimeConfig.mac": {"runtimeConfig": {"mac": mac}}}.get(place, {})
    return request(config, f"MAC={mac}" if place.startswith("CNI_ARGS") else "")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mac", ["02:00:00:AA:BB:CC", "02-00-00-aa-bb-cc", "0200.00aa.bbCC"])
def test_a_mac_may_be_written_in_each_form_that_go_reads(mac: str, place: str) -> None:
    assert planned(with_mac(place, mac)).mac == "02:00:00:aa:bb:cc"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mac", [
    "zz", "02:00:00:00:00", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "0100.5e00.0001",
    "0200.0.1",
])  # fmt: skip
def test_a_bad_mac_is_refused_with_the_place_it_came_from(mac: str, place: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(with_mac(place, mac))
    assert place in caught.value.msg and mac in caught.value.msg


def test_a_derived_mac_is_local_unicast_repeats_for_a_retry_and_differs_for_another() -> None:
    first, retry, other = (planned(request(container=c)).mac for c in ("c1", "c1", "c2"))
    assert first == retry != other
    assert int(first[:2], 16) & 0x03 == 0x02


@pytest.mark.parametrize(("config", "words"), [
    ({"mode": "isolated"}, ["mode", "isolated", "bridge, private, vepa, passthru"]),
    ({"mtu": -1}, ["mtu -1", "integer"]), ({"mtu": "9000"}, ['mtu "9000"', "integer"]),
    ({"mtu": True}, ["mtu true", "integer"]), ({"mtu": 1.5}, ["mtu 1.5", "integer"]),
    ({"mtu": 70_000}, ["mtu 70000", "integer"]), ({"mac": "01:00:00:00:00:01"}, ["mac", "multicast"]),
    ({"mac": "02:00:00:00:00"}, ["mac", "02:00:00:00:00:01"]), ({"mac": "00:00:00:00:00:00"}, ["mac", "zeros"]),
    ({"runtimeConfig": {"mac": 7}}, ["runtimeConfig.mac", "7"]),
    ({"ipam": "host-local"}, ["ipam", "object"]), ({"ipam": {"type": 5}}, ["ipam", "string", "type"]),
    ({"linkInContainer": "yes"}, ["linkInContainer", "true or false"]),
    ({"bcqueuelen": -1}, ["bcqueuelen", "integer"]),
    ({"bcqueuelen": 65537}, ["bcqueuelen 65537", "65536 at most"]),
    ({"master": 3}, ["master 3", "string"]),
], ids=lambda c: json.dumps(c)[:50])  # fmt: skip
def test_a_bad_value_is_refused_with_key_value_and_what_is_wanted(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(request(config))
    assert all(word in caught.value.msg[:250] for word in words), caught.value.msg


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(InvalidConfig, match=r"(?s)3 faults.*master.*mode.*mtu"):
        read(request({"mtu": -1, "mode": "x", "master": 1}))


@pytest.mark.parametrize(("master", "words"), [
    (link(arphrd=32, name="ib0"), ["ib0", "InfiniBand", "ipoib"]),
    (link(arphrd=772, name="lo"), ["lo", "Ethernet"]),
    (link(kind="ipvlan", name="ipvl0"), ["ipvl0", "is an ipvlan", "without ipvlans"]),
], ids=["infiniband", "loopback", "ipvlan"])  # fmt: skip
def test_what_cannot_carry_a_macvlan_is_refused_by_name(master: Link, words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        planned(request(), master)
    assert all(word in caught.value.msg[:250] for word in words), caught.value.msg


def test_a_macvlan_as_master_stands_for_its_lower_device_and_another_master_for_itself() -> None:
    kinds = ("macvlan", "macvtap", "veth", "bond", "")
    assert [planned(request(), link(kind=kind, lower_index=3)).lower for kind in kinds] == [3, 3, 7, 7, 7]


def test_an_absent_master_is_named_with_the_netdevs_that_there_are() -> None:
    asked = request({"master": "ens9"})
    with pytest.raises(InvalidConfig, match='"ens9" does not exist') as caught:
        macvlan.plan(read(asked), asked, macvlan.MacvlanFacts(None, ["lo", "ens2f0"], ""))
    assert "lo ens2f0" in caught.value.details


def test_no_master_and_no_default_route_says_which_key_is_missing() -> None:
    asked = request({"master": ""})
    with pytest.raises(InvalidConfig, match="`master`.*default route"):
        macvlan.plan(read(asked), asked, macvlan.MacvlanFacts(None, [], ""))


def test_a_record_holds_the_whole_plan() -> None:
    before = planned(request({"mtu": 1500, "bcqueuelen": 9}))
    after = macvlan.MacvlanPlan(json.loads(json.dumps(before.document())))
    assert vars(after) == vars(before)
