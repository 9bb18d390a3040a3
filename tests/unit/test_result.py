"""The result of an ADD in every version of the spec."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.shared.spec import parsing
from cni.shared.spec.errors import DecodingFailure, IncompatibleVersion
from cni.shared.spec.request import SUPPORTED
from cni.shared.spec.result import Interface, IPConfig, Result, Route


def full() -> Result:
    return Result(
        [Interface("net1", "02:00:00:00:00:01", 9000, "/run/netns/pod1", "0000:3b:00.0")],
        [IPConfig("10.0.0.2/24", "10.0.0.1", 0), IPConfig("fd00::2/64", "", 0)],
        [Route("0.0.0.0/0", "10.0.0.1", mtu=8000, priority=7), Route("fd01::/64")],
        {"nameservers": ["10.0.0.53"]},
    )


def test_1_1_0_says_everything() -> None:
    assert full().document("1.1.0") == {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "mtu": 9000, "sandbox": "/run/netns/pod1",
                        "pciID": "0000:3b:00.0"}],
        "ips": [{"interface": 0, "address": "10.0.0.2/24", "gateway": "10.0.0.1"},
                {"interface": 0, "address": "fd00::2/64"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 8000, "priority": 7}, {"dst": "fd01::/64"}],
        "dns": {"nameservers": ["10.0.0.53"]},
    }  # fmt: skip


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0"])
def test_older_versions_leave_out_what_they_do_not_know(version: str) -> None:
    document = full().document(version)
    assert document["interfaces"] == [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/pod1"}]
    assert document["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}, {"dst": "fd01::/64"}]
    assert [a.get("version") for a in document["ips"]] == ([None, None] if version == "1.0.0" else ["4", "6"])


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_the_oldest_versions_have_one_address_a_family_with_its_routes(version: str) -> None:
    assert full().document(version) == {
        "cniVersion": version,
        "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]},
        "ip6": {"ip": "fd00::2/64", "routes": [{"dst": "fd01::/64"}]},
        "dns": {"nameservers": ["10.0.0.53"]},
    }


def test_a_result_without_addresses_cannot_be_said_below_0_3_0() -> None:
    with pytest.raises(IncompatibleVersion, match=r"0\.3\.0 or newer"):
        Result([Interface("net1")]).document("0.2.0")


@given(st.sampled_from(SUPPORTED), st.sampled_from(SUPPORTED))
def test_what_an_older_version_can_say_survives_the_way_through_any_newer(older: str, newer: str) -> None:
    if SUPPORTED.index(older) > SUPPORTED.index(newer):
        older, newer = newer, older
    direct = full().document(older)
    assert parsing.parse(full().document(newer)).document(older) == direct
    assert parsing.parse(direct).document(older) == direct


@pytest.mark.parametrize("document", [
    [], "x", None, {"cniVersion": "9.9.9"}, {"cniVersion": "1.0.0", "ips": [{}]}, {"cniVersion": "1.0.0", "ips": 4},
    {"cniVersion": "1.0.0", "interfaces": ["net1"]}, {"cniVersion": "0.2.0", "ip4": {"gateway": "10.0.0.1"}},
    {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24", "interface": 0}]},
    {"cniVersion": "1.0.0", "ips": [{"address": 7}]},
    {"cniVersion": "1.0.0", "routes": [{"dst": "0.0.0.0/0", "priority": "high"}]},
    {"cniVersion": ["1.0.0"]}, {"cniVersion": "1.0.0", "dns": []},
], ids=repr)  # fmt: skip
def test_what_is_no_result_is_refused_by_name(document: object) -> None:
    with pytest.raises(DecodingFailure, match="prevResult"):
        parsing.parse(document)


@pytest.mark.parametrize(("key", "value"), [
    ("ips", [{"address": "10.0.0.2"}]), ("ips", [{"address": "10.0.0.2/33"}]), ("ips", [{"address": "10.0.0.700/24"}]),
    ("ips", [{"address": "fd00::2/129"}]), ("ips", [{"address": "10.0.0.2/-1"}]), ("ips", [{"address": "\0/24"}]),
    ("ips", [{"address": "10.0.0.2/24", "gateway": "nowhere"}]),
    ("routes", [{"dst": "10.0.0.0"}]), ("routes", [{"dst": "10.0.0.0/8", "gw": "10.0.0.0/8"}]),
])  # fmt: skip
def test_what_is_no_address_is_refused_with_its_key(key: str, value: object) -> None:
    with pytest.raises(DecodingFailure, match="is not a CNI result of version 1.1.0: (address|gateway|dst|gw) '"):
        parsing.parse({"cniVersion": "1.1.0", key: value})
