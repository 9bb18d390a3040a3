"""The life of a lease through the verbs, alike over every store: requests, preferences, cooldowns, and stores out of reach."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from cni.shared.kernel import node
from cni.shared.spec import request as requests
from cni.shared.spec.errors import AttachmentDiffers, CniError, InvalidConfig, NotAvailable, TryAgainLater
from ipam import local, upkeep
from ipam.leases import recorded_cooldown
from ipam.stores import base
from ipam.stores.etcd.client import EtcdClient
from tests import etcd
from tests.each import pairwise
from tests.stores.kubernetes_api import ApiServer
from tests.stores.places import MAKERS, SHARED, Place, cut, fail, mend, silent

TINY = {"range": "10.0.0.0/30"}


# --- pods that return ---


@pytest.mark.well("the former address of a pod is read from the watch cache")
def test_a_pod_that_returns_gets_its_address_again_also_on_another_node(place: Place) -> None:
    for i in range(3):
        assert place.add(f"c{i}", f"web-{i}", uid=f"u{i}") == f"10.0.0.{i + 1}"
    for i in range(3):
        place.delete(f"c{i}", f"web-{i}", uid=f"u{i}")
    for i in (2, 1, 0):
        assert place.add(f"new{i}", f"web-{i}", uid=f"v{i}", node=another(place)) == f"10.0.0.{i + 1}"


def another(place: Place) -> str:
    """Another node, where nodes share a store."""
    return "node-2" if place.shared else "node-1"


def test_a_pod_whose_address_was_given_on_or_is_excluded_now_gets_another(place: Place) -> None:
    place.add("c0", "web-0")
    place.add("c1", "web-1")
    place.delete("c1", "web-1")
    assert place.add("other", "db-7d9f8-abcde") == "10.0.0.2"
    assert place.add("new", "web-1") == "10.0.0.3"
    place.delete("new", "web-1")
    place.delete("other", "db-7d9f8-abcde")
    assert place.add("newer", "web-1") == "10.0.0.3"
    place.delete("newer", "web-1")
    assert place.add("newest", "web-1", exclude=["10.0.0.3"]) == "10.0.0.2"


def test_a_pod_that_returns_gets_its_address_of_each_range_again(place: Place) -> None:
    ranges = [{"range": "fd00::/64"}]
    place.add("first", ipRanges=ranges)
    assert place.add("c1", "web-0", ipRanges=ranges) == "10.0.0.2 fd00::2"
    place.delete("first", ipRanges=ranges)
    place.delete("c1", "web-0", ipRanges=ranges)
    assert place.add("c2", "web-0", ipRanges=ranges) == "10.0.0.2 fd00::2"


def test_the_lowest_free_address_is_given_also_when_lower_ones_are_reserved_through_another_range(place: Place) -> None:
    for n in (1, 2):
        assert place.add(f"narrow{n}", range="10.0.0.0/28") == f"10.0.0.{n}"
    assert place.add("wide") == "10.0.0.3"
    place.delete("narrow1", range="10.0.0.0/28")
    assert place.add("wide2") == "10.0.0.1"
    assert place.add("wide3") == "10.0.0.4"


@pytest.mark.parametrize("overlap", [True, False])
def test_a_pod_gets_another_address_than_its_predecessor_of_the_same_name_that_lives_on_another_node(
    place: Place, overlap: bool
) -> None:
    """A StatefulSet's pod that was deleted by force, on a node that does not answer."""
    keys = {"enable_overlapping_ranges": overlap}
    assert place.add("old", "web-0", uid="u1", node="node-1", **keys) == "10.0.0.1"
    uid = place.server.add_pod("ns", "web-0")
    for container in ("new", "again"):  # its own sandbox was made again
        assert place.add(container, "web-0", uid=uid, node=another(place), **keys) == "10.0.0.2"


# --- static addresses of a range ---


STATIC = {"addresses": [{"address": "10.0.0.2/24"}]}
OTHER = {"name": "other"}


def test_a_static_address_of_a_range_is_leased_so_that_no_other_network_gives_it(place: Place) -> None:
    """Nor another range of the same network_name."""
    assert place.add("c1", "a", **STATIC) == "10.0.0.1 10.0.0.2"
    assert place.add("c2", "b", config=OTHER) == "10.0.0.3"
    assert place.leased(place.store_ref) == {"10.0.0.1": "c1", "10.0.0.2": "c1", "10.0.0.3": "c2"}
    assert place.add("c1", "a", **STATIC) == "10.0.0.1 10.0.0.2"
    place.check("c1", "a", "10.0.0.1/24", "10.0.0.2/24", **STATIC)
    place.delete("c1", "a", **STATIC)
    assert [place.add(f"d{i}", f"d{i}", config=OTHER) for i in range(2)] == ["10.0.0.1", "10.0.0.2"]


def test_pods_of_one_network_share_a_static_address(place: Place) -> None:
    """As with Go's whereabouts, which leases none."""
    on_two = {"node": "node-2", **STATIC}
    assert place.add("c1", "a", **STATIC) == "10.0.0.1 10.0.0.2"
    for _ in range(2):
        assert place.add("c2", "b", **on_two) == "10.0.0.3 10.0.0.2"
    place.check("c2", "b", "10.0.0.3/24", "10.0.0.2/24", **on_two)
    store_ref = place.store_ref
    place.delete("c1", "a", **STATIC)
    assert place.leased(store_ref) == {"10.0.0.3": "c2"}
    assert place.add("c2", "b", **on_two) == "10.0.0.3 10.0.0.2"
    assert place.leased(store_ref) == {"10.0.0.3": "c2", "10.0.0.2": "c2"}
    place.delete("c2", "b", **on_two)
    assert place.leased(store_ref) == {}


@pytest.mark.well("which pod leases a shared address again, and when, depends on the outcome of each attempt")
def test_a_shared_address_is_leased_again_when_the_pod_with_the_lease_has_ended(place: Place) -> None:
    """The agent calls `flush`, while there is the reminder of it."""
    place.add("c1", "a", **STATIC)
    for container in ("c2", "c3"):
        place.add(container, container, node="node-2", **STATIC)
    records, store_ref = place.records("node-2"), place.store_ref
    assert records.is_reminded(0) and place.flush(store_ref, "node-2") == 0 and records.is_reminded(0)
    assert place.leased(store_ref)["10.0.0.2"] == "c1"
    place.delete("c1", "a", **STATIC)
    assert place.flush(store_ref, "node-2") == 0
    holder = place.leased(store_ref)["10.0.0.2"]
    (other,) = {"c2", "c3"} - {holder}
    assert [place.add(f"d{i}", f"d{i}", config=OTHER) for i in range(2)] == ["10.0.0.1", "10.0.0.5"]
    place.delete(holder, holder, node="node-2", **STATIC)
    assert place.flush(store_ref, "node-2") == 0 and not records.is_reminded(0)
    assert place.leased(store_ref)["10.0.0.2"] == other
    place.delete(other, other, node="node-2", **STATIC)
    assert place.leased(store_ref) == {"10.0.0.1": "d0", "10.0.0.5": "d1"}
    assert records.all() == []


@pytest.mark.well("it counts the attempts at a claim")
@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_a_clock_that_was_set_back_delays_the_lease_of_a_shared_address_by_one_attempt(place: Place) -> None:
    """A claim of this attachment had to fail, at a time that is now ahead."""
    on_two = {"node": "node-2", **STATIC}
    place.add("c1", "a", **STATIC)
    place.add("c2", "b", **on_two)
    ((attachment, _, record),) = place.records("node-2").all()
    place.store(record["store"]).settle(attachment, record["sequence"] + 3600 * 10**9)
    place.delete("c1", "a", **STATIC)
    for _ in range(2):
        place.flush(None, "node-2")
    assert place.leased(record["store"]) == {"10.0.0.3": "c2", "10.0.0.2": "c2"}
    place.delete("c2", "b", **on_two)
    assert place.leased(record["store"]) == {}


def test_a_damaged_list_of_shared_addresses_stops_no_flush(place: Place) -> None:
    place.add("c1", "a", **STATIC)
    ((attachment, _, record),) = place.records().all()
    for shared in (7, [7], [["10.0.0.0-24"]], [["10.0.0.0-24", "x"]], {"a": "b"}):
        place.records().write(attachment, "ipam", {**record, "shared": shared})
        assert place.flush(record["store"]) == 0, shared
    place.delete("c1", "a", **STATIC)
    assert place.leased(record["store"]) == {}


def test_a_static_address_that_another_network_has_given_is_refused(place: Place) -> None:
    for i in range(2):
        place.add(f"c{i}", f"p{i}", config=OTHER)
    with pytest.raises(TryAgainLater, match=r"static address \(ipam.addresses\) 10.0.0.2 .*p1"):
        place.add("c9", "b", **STATIC)
    place.delete("c9", "b", **STATIC)
    assert place.leased(place.store_ref) == {"10.0.0.1": "c0", "10.0.0.2": "c1"}
    assert len(place.records().all()) == 2
    place.delete("c1", "p1", config=OTHER)
    assert place.add("c9", "b", cooldown_seconds=60, **STATIC) == "10.0.0.3 10.0.0.2"


# --- a pod's new sandbox, in kubelet's order: DEL of the old one, then ADD ---


REBOOT = "22222222-3333-4444-5555-666666666666"
SANDBOXES: dict[str, tuple[str, str, str, str]] = {
    # case: uid at the first ADD, uid at the second, the name of the pod, the address (a lower one is free)
    "the same uid": ("u", "u", "web-7d9f8-abcde", "10.0.0.3"),
    "no uid, as of podman": ("", "", "web-7d9f8-abcde", "10.0.0.3"),
    "a uid only later": ("", "u", "web-7d9f8-abcde", "10.0.0.3"),
    "another pod of the name": ("u", "v", "web-7d9f8-abcde", "10.0.0.1"),
}


@pytest.mark.parametrize(("case", "reboot", "place"), pairwise(SANDBOXES, (False, True), MAKERS), indirect=["place"])
def test_a_new_sandbox_gets_the_address_that_the_old_one_has_just_released(
    place: Place, case: str, reboot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, name, expected = SANDBOXES[case]
    for i in range(2):
        place.add(f"other{i}", f"other-7d9f8-{i}")
    assert place.add("old", name, uid=first) == "10.0.0.3"
    place.delete("other0", "other-7d9f8-0")
    if reboot:
        monkeypatch.setattr(node, "boot_id", lambda: REBOOT)
    place.delete("old", name, uid=first)
    assert place.add("new", name, uid=second) == expected


def test_a_released_address_is_only_preferred_and_for_a_while(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [place.add(f"c{i}", f"web-7d9f8-{i}x") for i in range(3)] == [f"10.0.0.{i}" for i in (1, 2, 3)]
    for i in (0, 1, 2):
        place.delete(f"c{i}", f"web-7d9f8-{i}x")
    assert place.add("fresh", "db-7d9f8-abcde") == "10.0.0.1"
    assert place.add("new0", "web-7d9f8-0x") == "10.0.0.2"  # its own was given on
    assert place.add("new2", "web-7d9f8-2x") == "10.0.0.3"
    place.delete("new2", "web-7d9f8-2x")
    assert place.add("new2", "web-7d9f8-2x", exclude=["10.0.0.3"]) == "10.0.0.4"
    place.delete("new2", "web-7d9f8-2x")
    monkeypatch.setattr(local, "SECONDS", 0)
    assert place.add("newer2", "web-7d9f8-2x") == "10.0.0.3"


def test_an_address_in_use_on_the_wire_is_avoided_while_another_is_free(place: Place) -> None:
    for address in ("10.0.0.1/24", "10.0.0.3/24", "10.0.0.2/30"):
        local.found_in_use(place.records(), address)
    assert [place.add(f"c{i}") for i in range(3)] == ["10.0.0.2", "10.0.0.4", "10.0.0.5"]
    assert [place.add(f"d{i}", range="10.0.9.0/30") for i in range(2)] == ["10.0.9.1", "10.0.9.2"]
    local.found_in_use(place.records(), "10.0.8.1/30")
    assert [place.add(f"e{i}", range="10.0.8.0/30") for i in range(2)] == ["10.0.8.2", "10.0.8.1"]
    with pytest.raises(TryAgainLater, match="exhausted"):
        place.add("e2", range="10.0.8.0/30")
    assert local.avoided(str(place.directory / "node-2")) == []


def test_a_damaged_memory_fails_no_call(place: Place) -> None:
    place.add("c0", "web-7d9f8-0x")
    remembered = place.directory / "node-1/remembered"
    for content in (b"{", b"\xff" * local.SLOT, b"[1]", b'{"key": 3}', b'{"key": "x", "until": []}', b"null"):
        remembered.write_bytes(content.ljust(local.SLOT, b"\0") * local.SLOTS)
        assert place.add("new", "web-7d9f8-1x") == "10.0.0.2"
        remembered.write_bytes(content.ljust(local.SLOT, b"\0") * local.SLOTS)
        place.delete("new", "web-7d9f8-1x")


# --- machines of one node name ---


Machine = Callable[..., None]


@pytest.fixture
def be(shared: Place, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """From now on calls are made on the machine `name`, in its boot `boot`, with records of its own. `identity` "": nothing
    tells it. All machines call themselves node-1."""
    top = shared.directory

    def become(name: str, boot: str = "1", identity: str | None = None) -> None:
        shared.directory = top / name
        monkeypatch.setattr(node, "_known", [f"boot-{boot}-of-{name}"])
        monkeypatch.setattr(node, "machine_id", lambda: name if identity is None else identity, raising=False)

    return become


@pytest.mark.parametrize("identity", [None, ""], ids=["known", "unknown"])
def test_what_another_machine_of_the_same_node_name_has_leased_is_freed_neither_by_gc_nor_when_a_pool_is_exhausted(
    shared: Place, be: Machine, identity: str | None
) -> None:
    """Two clusters with one prefix, or two hosts with one name."""
    be("one", identity=identity)
    for container in ("c1", "c2"):
        shared.add(container, **TINY)
    store_ref = shared.store_ref
    be("other", identity=identity)
    with pytest.raises(TryAgainLater, match="exhausted"):
        shared.add("c3", **TINY)
    with pytest.raises(NotAvailable, match="exhausted"):
        shared.call("STATUS", **TINY)
    shared.collect(**TINY)
    assert shared.leased(store_ref) == {"10.0.0.1": "c1", "10.0.0.2": "c2"}


@pytest.mark.parametrize("identity", [None, ""], ids=["without its records", "of a version that told no machine"])
def test_what_an_earlier_boot_of_the_machine_left_is_freed(shared: Place, be: Machine, identity: str | None) -> None:
    if identity is None and shared.block["datastore"] == "kubernetes":
        pytest.skip("a pool tells no node: without records only the agent frees such leases (tests/agent)")
    be("one", identity=identity)
    for container in ("c1", "c2"):
        shared.add(container, **TINY)
    for attachment, part, _ in shared.records().all() if identity is None else ():
        shared.records().remove(attachment, part)
    be("one", boot="2")
    assert shared.add("c3", **TINY) in ("10.0.0.1", "10.0.0.2")
    if identity is None:
        store_ref = shared.store_ref
        shared.collect("c3", **TINY)
        assert list(shared.leased(store_ref).values()) == ["c3"]


def test_a_pod_without_a_uid_takes_no_address_of_a_pod_of_its_name_on_another_machine(
    shared: Place, be: Machine
) -> None:
    be("one")
    assert shared.add("c1", "db") == "10.0.0.1"
    be("other")
    for container in ("c2", "c3"):  # the sandbox was made again there
        assert shared.add(container, "db") == "10.0.0.2"


# --- cooldown ---


def test_a_freed_address_is_given_to_no_other_pod_before_its_cooldown_is_over(place: Place) -> None:
    cool = {"cooldown_seconds": 600}
    place.add("c1", "a", **cool)
    store_ref = place.store_ref
    place.delete("c1", "a", **cool)
    assert place.leased(store_ref) == {}
    assert place.add("c2", "b", **cool) == "10.0.0.2"
    said = r"10\.0\.0\.1 \(pool 10\.0\.0\.0-24\) was freed .*ipam.cooldown_seconds"
    with pytest.raises(TryAgainLater, match=said) as caught:
        place.add("c3", "c", ip="10.0.0.1", **cool)
    assert caught.value.code == 11
    for _ in range(2):
        assert place.add("c4", "a", ip="10.0.0.1", **cool) == "10.0.0.1"


def test_a_pool_whose_free_addresses_cool_says_so(place: Place) -> None:
    block = {**TINY, "cooldown_seconds": 600}
    place.add("c1", **block)
    place.add("c2", **block)
    place.delete("c1", **block)
    with pytest.raises(TryAgainLater, match=r"exhausted: 2 of the 2 .*, 1 of them until their ipam\.cooldown_seconds"):
        place.add("c3", **block)
    with pytest.raises(NotAvailable, match="cooldown_seconds") as caught:
        place.call("STATUS", **block)
    assert caught.value.code == 50
    place.call("STATUS", **TINY)
    assert place.add("c3", **TINY) == "10.0.0.1"


def test_what_gc_frees_cools_and_so_does_what_a_delete_frees_by_its_record_alone(place: Place) -> None:
    place.add("c1", cooldown_seconds=600)
    place.add("c2", cooldown_seconds=600)
    place.delete("c1", range="nonsense")
    place.collect()
    assert place.add("c3", cooldown_seconds=600) == "10.0.0.3"


# --- requests ---


@pytest.mark.parametrize("ways", [{"ip": "10.0.0.77"}, {"config": {"runtimeConfig": {"ips": ["10.0.0.77/24"]}}}])
def test_a_requested_address_is_given_or_its_holder_named(place: Place, ways: dict[str, Any]) -> None:
    assert place.add("c1", "a", **ways) == "10.0.0.77"
    with pytest.raises(TryAgainLater) as caught:
        place.add("c2", "b", **ways)
    assert caught.value.code == 11
    assert all(word in caught.value.msg[:250] for word in ("10.0.0.77", "10.0.0.0-24", "pod ns/a", "c1"))
    with pytest.raises(InvalidConfig, match="excluded"):
        place.add("c3", "c", **ways, exclude=["10.0.0.64/26"])
    with pytest.raises(InvalidConfig, match="outside of 10.0.0.1-10.0.0.9"):
        place.add("c3", "c", **ways, range_end="10.0.0.9")
    assert [record["addresses"] for _, _, record in place.records().all()] == [["10.0.0.77"]]


WAYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "IP": lambda text: {"ip": text},
    "runtimeConfig.ips": lambda text: {"config": {"runtimeConfig": {"ips": [text]}}},
    "args.cni.ips": lambda text: {"config": {"args": {"cni": {"ips": [text]}}}},
}


@pytest.mark.parametrize(("way", "first", "place"), pairwise(WAYS, ("victim", "attacker"), MAKERS), indirect=["place"])
def test_no_request_outside_of_its_networks_ranges_takes_another_pods_address(
    place: Place, way: str, first: str
) -> None:
    """The victim's network has the range of the address; the attacker's has another."""
    length = {"IP": 16, "runtimeConfig.ips": 24, "args.cni.ips": 32}[way]
    asked = {"range": "10.9.0.0/24", **WAYS[way](f"10.0.0.1/{length}")}
    with pytest.raises(InvalidConfig, match="allow_outside_ranges"):
        place.add("attacker", "b", **asked)
    allowed = {**asked, "allow_outside_ranges": True}
    if first == "victim":
        assert place.add("victim", "a") == "10.0.0.1"
        with pytest.raises(TryAgainLater, match="10.0.0.1 .*is held by .*victim"):
            place.add("attacker", "b", **allowed)
        place.delete("victim", "a")
        assert place.add("attacker", "b", **allowed) == "10.9.0.1 10.0.0.1"
    else:
        assert place.add("attacker", "b", **allowed) == "10.9.0.1 10.0.0.1"
        assert place.add("victim", "a") == "10.0.0.2"
        place.check("attacker", "b", "10.9.0.1/24", f"10.0.0.1/{length}", **allowed)
        place.delete("victim", "a")
    store_ref = place.store_ref
    assert place.leased(store_ref) == {"10.9.0.1": "attacker", "10.0.0.1": "attacker"}
    place.delete("attacker", "b", range="10.9.0.0/24")  # the network allows it no longer
    assert place.leased(store_ref) == {}


# --- the annotation, which no store reads ---

ANNOTATED = pytest.mark.parametrize("place", ["file", "kubernetes", "kubernetes, unwell"], indirect=True)


def annotated(place: Place, value: str, name: str = "a", static_uid: str = "") -> dict[str, Any]:
    """Annotate a pod; the keys of a block by which that is read."""
    if ("ns", name) in place.pods:
        place.server.remove_pod("ns", name)
    place.pods["ns", name] = place.server.add_pod("ns", name, preferred=value, static_uid=static_uid)
    directory = place.directory / "pods"
    directory.mkdir(exist_ok=True)
    found: dict[str, Any] = place.block.get("kubernetes") or {"kubeconfig": place.server.kubeconfig(directory)}
    return {"preferred_ip_annotation": True, "kubernetes": found}


@ANNOTATED
def test_an_address_that_the_pods_annotation_names_is_given_when_it_is_free(place: Place) -> None:
    block = annotated(place, "10.0.0.50, fd00::50") | {"ipRanges": [{"range": "fd00::/64"}]}
    for _ in range(2):
        assert place.add("c1", "a", uid=place.pods["ns", "a"], **block) == "10.0.0.50 fd00::50"
    annotated(place, "10.0.0.50", "b")
    assert place.add("c2", "b", **block) == "10.0.0.1 fd00::1"
    annotated(place, "10.0.0.60", "b")
    assert place.add("c2", "b", **block) == "10.0.0.1 fd00::1"  # it keeps what it has
    annotated(place, "10.0.0.70", "c")
    assert place.add("c3", "c", ip="10.0.0.80", **block) == "10.0.0.80 fd00::2"
    annotated(place, "10.0.0.90", "of a static pod", static_uid="of-kubelet")
    assert place.add("c4", "of a static pod", uid="of-kubelet", **block) == "10.0.0.90 fd00::3"


@ANNOTATED
def test_without_the_key_nobody_asks_for_the_pod(place: Place) -> None:
    annotated(place, "10.0.0.50")
    assert place.add("c1", "a") == "10.0.0.1"
    assert not [path for _, path, _ in place.server.seen if path == "a"]


@ANNOTATED
def test_an_annotation_that_cannot_be_followed_is_passed_over(place: Place) -> None:
    for number, value in enumerate(("", "banana", "10.9.9.9", "10.0.0.0", "10.0.0.99", "10.0.0.7,x"), 1):
        before = len(place.log())
        block = annotated(place, value, f"p{number}") | {"exclude": ["10.0.0.96/29"]}
        assert place.add(f"c{number}", f"p{number}", **block) == f"10.0.0.{number}"
        assert ("want addresses" in place.log()[before:]) == (value in ("banana", "10.0.0.7,x")), value


@ANNOTATED
def test_a_pod_that_cannot_be_read_is_no_hindrance(place: Place) -> None:
    block = annotated(place, "10.0.0.50")
    assert place.add("c1", "a", uid="another", **block) == "10.0.0.1"
    assert place.add("c2", "unknown", **block) == "10.0.0.2"
    annotated(place, "10.0.0.50", "b")
    place.server.forbidden = {("get", "pods")}
    assert place.add("c3", "b", **block) == "10.0.0.3"
    assert "there is no pod ns/unknown" in place.log()
    assert "ClusterRole needs the verbs get" in place.log()


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_leases_elsewhere_do_not_wait_for_an_api_server_that_is_away(place: Place) -> None:
    block = annotated(place, "10.0.0.50")
    place.server.close()
    assert place.add("c1", "a", store_timeout=1, **block) == "10.0.0.1"
    assert "is ignored" in place.log()
    place.server = ApiServer()


# --- a store out of reach ---


def changes(data: bytes) -> bool:
    return etcd.is_claim(data) or data.startswith((b"PATCH", b"POST /apis"))


@pytest.mark.parametrize("when", [lambda data: True, changes], ids=["from the first", "at the claim"])
def test_an_add_over_a_store_that_is_silent_ends_within_store_timeout(
    shared: Place, monkeypatch: pytest.MonkeyPatch, when: Callable[[bytes], bool]
) -> None:
    monkeypatch.setattr(EtcdClient, "attempt_seconds", 0.5)
    shared.add("c1")
    silent(shared, when)
    began = time.monotonic()
    with pytest.raises(CniError) as caught:
        shared.add("c2", store_timeout=1)
    assert time.monotonic() - began < 5
    assert caught.value.code == 11
    assert all(words in caught.value.msg[:250] for words in ("has not answered", "127.0.0.1"))


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_claim_that_is_served_after_the_next_call_of_its_attachment_leaves_no_lease(
    shared: Place, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EtcdClient, "attempt_seconds", 0.5)
    shared.add("c0")
    store_ref = shared.store_ref
    assert shared.proxy
    held: list[bytes] = []

    def fault(data: bytes) -> str:
        """The first claim is held back, and nothing passes after it."""
        if held or not changes(data):
            return "request" if held else ""
        held.append(data)
        return "hold"

    fail(shared, fault)
    with pytest.raises(CniError) as caught:
        shared.add("c1", store_timeout=1)
    assert caught.value.code == 11
    mend(shared)
    if verb == "ADD":
        assert shared.add("c2") == "10.0.0.2"  # the address that the late claim is for
        assert shared.add("c1") == "10.0.0.3"
        shared.delete("c2")
    else:
        shared.delete("c1")
    shared.proxy.let_go()
    assert shared.proxy.done.wait(10)
    assert shared.leased(store_ref) == {"10.0.0.1": "c0"} | ({"10.0.0.3": "c1"} if verb == "ADD" else {})
    shared.delete("c1")
    shared.delete("c0")
    assert shared.leased(store_ref) == {}


def test_the_time_of_an_add_is_that_of_all_its_requests_together(shared: Place) -> None:
    shared.add("c1")
    store_ref = shared.store_ref
    assert shared.proxy
    shared.proxy.fault = lambda data: time.sleep(0.7) or ""
    with pytest.raises(CniError) as caught:
        shared.add("c2", store_timeout=1)
    assert caught.value.code == 11
    mend(shared)
    shared.delete("c2")
    shared.delete("c1")
    assert shared.leased(store_ref) == {}


def test_verbs_over_a_silent_store_are_bounded_and_say_so(shared: Place) -> None:
    given = shared.add("c1")
    shared.add("c2")
    silent(shared)
    for code, act in (
        (50, lambda: shared.call("STATUS", store_timeout=1)),
        (11, lambda: shared.check("c1", "", f"{given}/24", store_timeout=1)),
        (11, shared.collect),
    ):
        began = time.monotonic()
        with pytest.raises(CniError) as caught:
            act()
        assert time.monotonic() - began < 12
        assert caught.value.code == code
    assert not isinstance(caught.value, AttachmentDiffers)


def test_a_delete_without_its_store_succeeds_and_is_pending_where_an_address_may_be_leased(shared: Place) -> None:
    shared.add("c1", cooldown_seconds=600)
    store_ref = shared.store_ref
    cut(shared)
    for container in ("c1", "unheard-of", "c1"):
        shared.delete(container, store_timeout=1, cooldown_seconds=600)
    of_go = ["unheard-of"] if store_ref["kind"] == "kubernetes" else []  # Go's plugins write no record
    assert shared.pending() == ["c1", *of_go]
    mend(shared)
    assert shared.leased(store_ref) == {"10.0.0.1": "c1"}
    assert shared.flush(store_ref) == 0
    assert shared.leased(store_ref) == {}
    assert shared.records().all() == []
    assert shared.add("c2", "b", cooldown_seconds=600) == "10.0.0.2"  # it cools from when it was released


def test_a_delete_tries_no_refused_connection_again(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multus calls DEL for each network of a pod, and kubelet waits for all of them."""
    shared.add("c1")
    assert shared.proxy
    shared.proxy.__exit__()
    monkeypatch.setattr(base.Pauses, "wait", lambda *_: pytest.fail("it waits for another attempt"))
    for container in ("c1", "unheard-of"):
        shared.delete(container)
    assert "c1" in shared.pending()


@pytest.mark.well("it measures the time of each change")
@pytest.mark.parametrize("place", ["kubernetes", "addresslease"], indirect=True)
def test_a_del_waits_for_a_server_that_answers_and_has_much_to_do(place: Place) -> None:
    place.add("c0")
    place.server.faults = lambda method, resource, number: None if method == "GET" else time.sleep(0.7)
    place.delete("c0", store_timeout=0.5)
    assert place.pending() == []
    assert place.records().all() == []


def test_what_is_pending_is_made_up_for_by_a_later_operation_and_not_at_each(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        shared.add(f"c{i}")
    cut(shared)
    for i in range(3):
        shared.delete(f"c{i}", store_timeout=1)
    mend(shared)
    attempts = []
    real = upkeep.release

    def release(*arguments: Any, **named: Any) -> None:
        attempts.append(arguments[0].container_id)
        cut(shared)
        real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "release", release)
        began = time.monotonic()
        shared.add("c4")
        assert time.monotonic() - began < 5
    assert attempts == ["c0"]  # the store is away again: one attempt, and the others wait
    mend(shared)
    shared.add("c5")
    assert shared.pending() == ["c0", "c1", "c2"]  # the last attempt was a moment ago
    shared.age()
    monkeypatch.setattr(upkeep, "_FLUSH_SECONDS", 30.0)
    shared.delete("c5")
    assert shared.pending() == []
    assert shared.records().is_reminded(0) is False


@pytest.mark.parametrize("verb", ["ADD", "STATUS"])
def test_what_is_pending_is_made_up_for_before_a_pool_counts_as_exhausted(shared: Place, verb: str) -> None:
    two = {"range": "10.0.0.0/30"}
    for i in range(2):
        shared.add(f"c{i}", **two)
    cut(shared)
    for i in range(2):
        shared.delete(f"c{i}", store_timeout=1, **two)
    mend(shared)
    shared.call(verb, "new", **two)
    assert shared.pending() == []


IMPOSSIBLE = {
    "a retired etcd": {"kind": "etcd", "endpoints": ["http://127.0.0.1:1"], "prefix": "/gone"},
    "a silent etcd": {"kind": "etcd", "endpoints": ["http://127.0.0.1:SILENT"], "prefix": "/gone"},
    "a kubeconfig that has gone": {"kind": "kubernetes", "kubeconfig": "/etc/cni/none", "pools": ["10.9.0.0-24"]},
    "a path that is no directory": {"kind": "file", "path": "/dev/null"},
    "a store of a newer version": {"kind": "tape"},
}


@pytest.mark.parametrize(
    ("shared", "verb", "how"),
    [
        pytest.param(shared, verb, how, marks=() if (verbs + hows) % 3 == shareds else pytest.mark.long)
        for verbs, verb in enumerate(("flush", "GC"))
        for hows, how in enumerate(IMPOSSIBLE)
        for shareds, shared in enumerate(SHARED)
    ],
    indirect=["shared"],
)
def test_a_release_that_cannot_be_made_holds_up_none_that_sorts_after_it(shared: Place, verb: str, how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        text = json.dumps(IMPOSSIBLE[how]).replace("SILENT", str(never_answers.getsockname()[1]))
        absent = dict.fromkeys(("user", "ca", "cert", "key"), "") if "etcd" in how else {}
        shared.server.put("ippools", "kube-system", "10.9.0.0-24", {"range": "no CIDR", "allocations": {}})
        lost = {"store": {**json.loads(text), **absent}, "pools": ["10.9.0.0-24"], "addresses": ["10.9.0.1"]}
        for i in range(3):
            shared.add(f"c{i}")
        *_, (_, _, last) = shared.records().all()
        store_ref = last["store"]
        for attachment, part, record in shared.records().all():
            broken = lost if attachment.container_id in ("c0", "c1") else {}
            shared.records().write(attachment, part, {**record, "pending": True, **broken})
        if verb == "GC":
            with pytest.raises(CniError):
                shared.collect()
        else:
            assert upkeep.flush(shared.records(), store_ref, 1) == 2
        assert shared.pending() == ["c0", "c1"]
        shared.server.remove("ippools", "10.9.0.0-24")
        assert "c2" not in shared.leased(store_ref).values()


# --- every range ---


def test_a_delete_visits_every_range_though_one_has_no_lease_of_it(place: Place) -> None:
    ranges = [{"range": "10.1.0.0/24"}, {"range": "fd00::/64"}]
    assert place.add("c1", ipRanges=ranges) == "10.0.0.1 10.1.0.1 fd00::1"
    store_ref = place.store_ref
    store = place.store(store_ref)
    assert store.release(store.find(requests.Attachment("rdma-net", "c1", "net1"))[:1]) == 1
    place.delete("c1", ipRanges=ranges)
    assert place.leased(store_ref) == {}
    assert place.records().all() == []


def test_a_record_says_nothing_of_a_cooldown_that_there_is_not(place: Place) -> None:
    place.add("c1")
    place.add("c2", cooldown_seconds=5)
    told = {a.container_id: record.get("cooldown") for a, _, record in place.records().all()}
    assert told == {"c1": None, "c2": 5}
    assert [recorded_cooldown({"cooldown": bad}) for bad in (None, "7", -1, 1 << 40)] == [0] * 4


@pytest.mark.parametrize("size", ["10.0.0.0/30", "10.0.0.0/24"])
def test_a_node_that_lost_its_records_gives_its_pods_and_containers_the_addresses_that_they_have(
    shared: Place, size: str
) -> None:
    def add(pod: str, sandbox: str) -> str:
        return shared.add(f"{pod}-{sandbox}", pod, uid=f"uid-{pod}", range=size)

    before = {pod: add(pod, "old") for pod in ("a", "b")}
    store_ref = shared.store_ref
    forget_the_node(shared)
    assert add("a", "old") == before["a"]
    assert {pod: add(pod, "new") for pod in ("a", "b")} == before
    assert shared.leased(store_ref) == {before[pod]: f"{pod}-new" for pod in ("a", "b")}


def forget_the_node(place: Place) -> None:
    """Lose the state directory, as when a node is imaged again or has it in memory."""
    shutil.rmtree(place.directory / "node-1")


@pytest.mark.well("it counts the requests of a well server")
@pytest.mark.parametrize("shared", ["addresslease"], indirect=True)
def test_the_records_of_a_node_are_read_back_once(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "machine_id", lambda: "this-machine")

    def lists(container: str) -> int:
        """The lists that its ADD asks for."""
        shared.server.seen.clear()
        shared.add(container)
        return [(method, path) for method, path, _ in shared.server.seen].count(("GET", "addressleases"))

    for container in ("c1", "c2"):
        shared.add(container)
    forget_the_node(shared)
    assert lists("c3") == 2  # of the node and of the block
    assert sorted(a.container_id for a, _, _ in shared.records().all("ipam")) == ["c1", "c2", "c3"]
    assert lists("c4") == 1
    shared.collect()
    assert shared.records().all() == []


@pytest.mark.parametrize("netns", ["/proc/self/ns/net", "/proc/self/ns/none"])
def test_a_node_gives_no_address_that_its_own_living_record_holds_though_the_store_lost_it(
    shared: Place, netns: str
) -> None:
    given = shared.add("c1", "a")
    ((attachment, part, record),) = shared.records().all()
    shared.records().write(attachment, part, {**record, "netns": netns})
    store = shared.store(record["store"])
    assert store.release(store.find(attachment)) == 1  # as the restore of an old backup does
    is_living = os.path.exists(netns)
    assert (shared.add("c2", "b") == given) is not is_living
