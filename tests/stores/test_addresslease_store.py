"""The store addresslease: what its objects are called and say, what a call asks of the API server, and what is lost or late."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import CniError, InvalidConfig, NotAvailable, StateDamaged, TryAgainLater
from ipam import acquire, search
from ipam.group.indexes import Group
from ipam.leases import Lease, Want
from ipam.ranges import Range, parse_address
from ipam.rules import Need
from ipam.stores import addresslease, apiserver
from ipam.stores.addresslease import AddressLeaseStore, objects
from ipam.stores.apiserver.resources import RIGHTS
from ipam.stores.base import Claimed, Store, Taken
from tests.stores import kubernetes_api, kubernetes_proxy
from tests.stores.claims import AnyAddress
from tests.stores.kinds import owner, want
from tests.stores.kubernetes_api import DROP_AFTER, DROP_BEFORE, ApiServer, Refusal
from tests.stores.places import Place, made

ADDRESSES, POOL = "addressleases", "10.0.0.0-24"
TEN = 10 << 24
FD = 0xFD << 120
Opened = Callable[..., AddressLeaseStore]
needs_own_server = pytest.mark.skipif(
    bool(kubernetes_proxy.path()), reason="20,000 objects are put into the server of these tests, past its API"
)


@pytest.fixture
def opened(server: ApiServer, tmp_path: Path) -> Iterator[Opened]:
    kubeconfig = server.kubeconfig(tmp_path)
    stores: list[AddressLeaseStore] = []

    def again(known: Callable[[], list[Lease]] = list) -> AddressLeaseStore:
        stores.append(AddressLeaseStore({"kind": "addresslease", "kubeconfig": kubeconfig}, 5, known))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


@pytest.fixture(params=["addresslease", "addresslease, unwell"])
def place(request: pytest.FixtureRequest, tmp_path: Path, free_paths: None) -> Iterator[Place]:
    yield from made(request, tmp_path)


def asked(server: ApiServer) -> list[str]:
    """The requests since the last call, as METHOD and resource or object."""
    found = [f"{method} {path}" for method, path, _ in server.seen]
    server.seen.clear()
    return found


def held(place: Place) -> list[str]:
    """The objects that hold an address, and the containers."""
    found = [(name, place.server.spec(ADDRESSES, name) or {}) for name in place.server.names(ADDRESSES)]
    return [f"{name} {spec['containerID']}" for name, spec in found if spec.get("state") == "held"]


def claimed(store: Store, *values: int, container: str = "c1", sequence: int = 1, **more: Any) -> list[Lease]:
    scope = more.pop("scope", "")
    answer = store.claim([want(value, POOL, scope=scope) for value in values], owner(container, sequence, **more))
    assert isinstance(answer, Claimed)
    return answer.leases


# --- objects ---

NAMES = [
    ("10.0.0.0-24", "", 4, TEN + 7, "10.0.0.7"),
    ("blue-10.0.0.0-24", "blue", 4, TEN + 7, "10.0.0.7.net.blue"),
    ("10.0.0.0-24", None, 4, TEN + 7, "10.0.0.7.pool.10.0.0.0-24"),
    ("p", "", 6, FD, "fd00-0-0-0-0-0-0-0"),
    ("p", "a.b", 6, FD + 7, "fd00-0-0-0-0-0-0-7.net.a.b"),
    ("fd00---64", None, 6, FD + 7, "fd00-0-0-0-0-0-0-7.pool.fd00---64"),
]


@pytest.mark.parametrize(("pool", "scope", "family", "value", "name"), NAMES)
def test_an_object_is_called_by_its_address_and_where_it_is_unique(
    pool: str, scope: str | None, family: int, value: int, name: str
) -> None:
    assert objects.name_of(Want(pool, family, value, scope)) == name
    assert objects.address_of(name) == (family, value)


SPACES = [
    "",
    "a",
    "A",
    "a_b",
    "-",
    "a.",
    "net",
    "pool.a",
    "x" * 64,
    "x" * 300,
    "\u00fc",
    "hash-1",
    "a--b",
    "0",
    "a" * 207,
]


@pytest.mark.parametrize(
    "address", ["10.0.0.7", "0.0.0.0", "::", "::1", "fd00::", "2001:db8::ff:0", "ffff:" * 7 + "ffff"]
)
def test_every_name_is_a_subdomain_and_every_label_a_value_whatever_pools_and_scopes_are_called(address: str) -> None:
    family, value = parse_address(address)
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    names = []
    for text in SPACES:
        for pool, scope in ((text or "p", None), ("p", text)):
            lease = Lease(want(value, pool, family=family, scope=scope), owner(node=text, pod=("ns", text, "")))
            metadata = objects.document(lease)["metadata"]
            assert re.fullmatch(rf"{part}(\.{part})*", metadata["name"]) and len(metadata["name"]) <= 253
            assert objects.address_of(metadata["name"]) == (family, value)
            for label in metadata["labels"].values():
                assert re.fullmatch("([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", label) and len(label) <= 63
            names.append(metadata["name"])
    assert len(set(names)) == len(names)


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_the_definition_admits_what_is_written_and_no_object_without_an_address(
    server: ApiServer, opened: Opened
) -> None:
    (lease,) = claimed(opened(), TEN + 7, pod=("ns", "a", "u1"), scope=None)
    (name,) = server.names(ADDRESSES)
    assert server.spec(ADDRESSES, name) == objects.document(lease)["spec"]
    spec = {**(server.spec(ADDRESSES, name) or {}), "address": "banana"}
    store = opened()
    with pytest.raises(CniError, match="should match"):
        store.api.create(ADDRESSES, {**objects.document(lease), "metadata": {"name": "x"}, "spec": spec})
    server.put(ADDRESSES, "kube-system", "10.0.0.9", {**spec, "address": "9.9"})
    with pytest.raises(StateDamaged, match="addresslease 10.0.0.9 .*kubectl delete addresslease 10.0.0.9"):
        claimed(opened(), TEN + 9)


# --- what a call costs ---


@pytest.mark.well("it counts the requests of a well server")
def test_a_first_add_and_one_of_a_new_sandbox_ask_three_times_and_a_del_twice(place: Place) -> None:
    three = [f"GET {ADDRESSES}", f"POST {ADDRESSES}", f"GET ippools/{POOL}"]
    place.add("c0", "b")
    asked(place.server)
    assert place.add("c1", "a") == "10.0.0.2"
    assert asked(place.server) == three
    place.delete("c1", "a")
    assert asked(place.server) == [f"GET {ADDRESSES}/10.0.0.2", f"DELETE {ADDRESSES}/10.0.0.2"]
    place.delete("c0", "b")
    asked(place.server)
    assert place.add("c2", "a") == "10.0.0.2"
    assert asked(place.server) == three


@pytest.mark.well("it counts the requests of a well server")
def test_a_pod_that_returns_costs_one_request_more_and_its_del_one_that_remembers_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresslease, "_FORGETS", 0)  # else one of 32 releases removes old memories
    place.add("c0", "web-0")
    place.delete("c0", "web-0")
    memory = objects.memory_name(("ns", "web-0", ""), "net1")
    assert asked(place.server)[-2:] == [f"DELETE {ADDRESSES}/10.0.0.1", f"POST {ADDRESSES}"]
    assert place.add("c1", "web-0") == "10.0.0.1"
    assert f"GET {ADDRESSES}/{memory}" in asked(place.server)
    assert place.server.names(ADDRESSES) == ["10.0.0.1", memory]


WIDE = "10.0.0.0/16"


@pytest.mark.well("it counts the requests of a well server")
@needs_own_server
@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_add_and_a_del_among_thousands_of_leases_list_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    monkeypatch.setattr("ipam.stores.addresslease._FORGETS", 0)
    monkeypatch.setattr(search, "search_start", lambda *arguments: TEN + 30_000)  # not where all is taken
    fill(place, 4000, scope="" if overlap else None)
    for verb in ("ADD", "DEL"):  # the first ADD lists once, for the IPPool
        place.call(verb, "first", "first", range=WIDE, enable_overlapping_ranges=overlap)
    for pod in ("a", "web-0"):
        for verb in ("ADD", "DEL"):
            asked(place.server)
            place.call(verb, pod, pod, range=WIDE, enable_overlapping_ranges=overlap)
            requests = asked(place.server)
            assert len(requests) <= 12 and f"GET {ADDRESSES}" not in requests, requests


@pytest.mark.well("where a search begins after a full block is fixed for an unwell server")
def test_the_lowest_free_address_is_given_until_the_last_one_of_the_first_block_is_held(place: Place) -> None:
    fill(place, 254)
    assert place.add("c1", "a", range=WIDE) == "10.0.0.255"
    place.server.remove(ADDRESSES, "10.0.0.7")
    elsewhere = place.add("c2", "b", range=WIDE)
    assert elsewhere != "10.0.0.7" and elsewhere.startswith("10.0.")
    place.delete("c1", "a", range=WIDE)
    assert place.add("c3", "c", range=WIDE) == "10.0.0.7"
    assert place.add("c4", "d", range=WIDE) == "10.0.0.255"


@pytest.mark.well("it scripts the answer to each request")
def test_a_server_that_makes_no_tables_is_asked_for_objects(place: Place) -> None:
    def lists(method: str, resource: str, number: int) -> Any:
        query = place.server.queries[-1][1] if place.server.queries else {}
        if method == "GET" and "includeObject" in query and "labelSelector" in query:
            found = [place.server.metadata(ADDRESSES, name) for name in place.server.names(ADDRESSES)]
            return 200, {"kind": "AddressLeaseList", "items": [{"metadata": metadata} for metadata in found]}
        return None

    place.server.faults = lists
    assert [place.add(f"c{i}", f"p{i}", range=WIDE) for i in range(3)] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


@pytest.mark.well("it counts the requests of a well server")
def test_calls_of_a_node_at_once_claim_one_address_each(place: Place) -> None:
    """Each is about to create its object when the others look for the lowest free address."""
    calls, looked = 5, threading.Barrier(5)

    def together(method: str, resource: str, number: int) -> None:
        if (method, resource) == ("POST", ADDRESSES):
            looked.wait(20)

    place.server.faults = together
    with ThreadPoolExecutor(calls) as workers:
        given = list(workers.map(lambda number: place.add(f"c{number}"), range(calls)))
    assert sorted(given) == [f"10.0.0.{number + 1}" for number in range(calls)]
    assert asked(place.server).count(f"POST {ADDRESSES}") == calls


def test_after_a_lost_claim_a_search_begins_near_the_start_and_then_anywhere() -> None:
    """Nodes that claim at once lose the lowest address to one another: the first block fills by their second attempts."""
    owners = [owner(f"c{number}") for number in range(100)]
    starts = [[search.start_of(Range(4, TEN, 16), who, place) - TEN for who in owners] for place in (1, 2, 3)]
    assert max(starts[0]) <= 256
    assert min(max(starts[1]), max(starts[2])) > 1 << 15
    assert all(len(set(found)) > 60 for found in starts)


@pytest.mark.well("it counts the requests of a well server")
def test_an_add_that_finds_two_places_taken_lists_names_and_gives_what_is_free(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add("first", range="10.1.0.0/24")  # the node's first call reads its records back
    fill(place, 300)
    monkeypatch.setattr(search, "search_start", lambda *arguments: TEN + 5)
    asked(place.server)
    assert place.add("c1", "a", range=WIDE) == "10.0.1.45"
    lists = [request for request in asked(place.server) if request == f"GET {ADDRESSES}"]
    assert 1 <= len(lists) <= 4


def fill(place: Place, count: int, scope: str | None = "") -> None:
    """Let the first `count` addresses of a pool be held."""
    for i in range(count):
        lease = Lease(want(TEN + 1 + i, "10.0.0.0-16", scope=scope), owner(f"f{i}", i))
        document = objects.document(lease)
        metadata = document["metadata"]
        place.server.put(ADDRESSES, "kube-system", metadata["name"], document["spec"], labels=metadata["labels"])


@pytest.mark.well("it scripts the answer to each request")
def test_a_pool_is_said_to_be_exhausted_only_after_a_list_that_is_no_moment_old(place: Place) -> None:
    place.add("c1", range="10.0.0.0/30")
    place.add("c2", range="10.0.0.0/30")
    stale = [{"cells": [name]} for name in place.server.names(ADDRESSES)]
    place.delete("c1", range="10.0.0.0/30")

    def old(method: str, resource: str, number: int) -> Any:
        query = place.server.queries.pop()[1] if place.server.queries else {}
        if method == "GET" and query.get("resourceVersion") == ["0"] and "block" in query.get("labelSelector", [""])[0]:
            return 200, {"metadata": {"resourceVersion": "1"}, "rows": stale}
        return None

    place.server.faults = old
    place.server.queries.clear()
    assert place.add("c3", "a", range="10.0.0.0/30") == "10.0.0.1"
    with pytest.raises(TryAgainLater, match="exhausted: 2 of the 2"):
        place.add("c4", "b", range="10.0.0.0/30")


# --- all or none ---


@pytest.mark.well("it scripts the answer to each request")
def test_two_claims_of_one_address_with_and_without_a_scope_at_once_are_never_both_made(
    server: ApiServer, opened: Opened
) -> None:
    answers: list[object] = []

    def meanwhile(method: str, resource: str, number: int) -> None:
        if method == "POST" and len(answers) == 0:
            answers.append(None)
            answers[0] = opened().claim([want(TEN + 1, POOL, scope=None)], owner("other", 2))

    server.faults = meanwhile
    mine = opened().claim([want(TEN + 1, POOL)], owner("c1", 1))
    assert [type(answers[0]), type(mine)].count(Claimed) <= 1
    server.faults = lambda *_: None
    assert len(server.names(ADDRESSES)) == [type(answers[0]), type(mine)].count(Claimed)


@pytest.mark.well("it reads the query of a request that a well server gets")
def test_after_its_create_a_claim_looks_for_the_other_name_as_of_that_moment_or_later(place: Place) -> None:
    """Where the pool has both names; else only the IPPool is read."""
    place.add("c0", "b", enable_overlapping_ranges=False)
    place.add("c1", "a")
    version = place.server.metadata(ADDRESSES, "10.0.0.2")["resourceVersion"]
    assert (f"{ADDRESSES}/10.0.0.2.pool.10.0.0.0-24", {"resourceVersion": [version]}) in place.server.queries


CAUSE = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}


@pytest.mark.well("it scripts the answer to each request")
@pytest.mark.parametrize("causes", [{"causes": [CAUSE]}, {}], ids=["", "1.18.5"])
def test_a_claim_that_asks_a_cache_which_is_behind_asks_the_server_itself(place: Place, causes: dict[str, Any]) -> None:
    text = "Timeout: Too large resource version: 1002, current: 1001"
    late = (504, Refusal(504, "Timeout", text, retryAfterSeconds=1, **causes).document)

    def behind(method: str, resource: str, number: int) -> Any:
        query = place.server.queries.pop()[1] if place.server.queries else {}
        return late if query.get("resourceVersion", ["0"]) != ["0"] else None

    place.server.faults = behind
    assert place.add("c1", "a") == "10.0.0.1"


def test_a_network_that_changes_its_overlap_key_gives_no_address_twice(place: Place) -> None:
    assert place.add("c1", "a", enable_overlapping_ranges=False) == "10.0.0.1"
    assert place.add("c2", "b") == "10.0.0.2"
    assert place.add("c3", "c", enable_overlapping_ranges=False) == "10.0.0.3"
    assert place.add("c1", "a") == "10.0.0.1"  # its lease moves to the other name
    assert held(place) == ["10.0.0.1 c1", "10.0.0.2 c2", "10.0.0.3.pool.10.0.0.0-24 c3"]


# --- an object that others change without taking its address: a late fence of an earlier sandbox, an administrator's label ---


def touched(place: Place) -> None:
    """Let the object have another resourceVersion when its next change or deletion arrives."""
    left = [True]

    def touch(method: str, resource: str, number: int) -> None:
        if resource == ADDRESSES and method in ("PATCH", "DELETE") and left:
            left.clear()
            place.server.note(ADDRESSES, "10.0.0.1", {"example.com/seen": str(number)})

    place.server.faults = touch


OLD, NEW = {"container": "c1", "pod": "web-0"}, {"container": "c2", "pod": "web-0"}
ANOTHER, COOL = {"exclude": ["10.0.0.1/32"]}, {"cooldown_seconds": 60}
APART = {"enable_overlapping_ranges": False}
TOUCHED: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "a pod's next sandbox takes its address over": ("ADD", NEW, ["10.0.0.1 held c2"], "10.0.0.1"),
    "a claim under the other name gives the old one up": ("ADD", OLD | APART, ["10.0.0.1 held c1"], "10.0.0.1"),
    "a claim of another address gives the old one up": ("ADD", OLD | ANOTHER, ["10.0.0.2 held c1"], "10.0.0.2"),
    "another address after a cooldown": (
        "ADD", OLD | ANOTHER | COOL, ["10.0.0.1 cooling c1", "10.0.0.2 held c1"], "10.0.0.2",
    ),
    "DEL": ("DEL", OLD, [], ""),
    "DEL with a cooldown": ("DEL", OLD | COOL, ["10.0.0.1 cooling c1"], ""),
    "GC": ("GC", {}, [], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TOUCHED)
def test_an_object_that_is_touched_during_a_call_costs_its_pod_no_address_and_leaves_no_lease(
    place: Place, name: str
) -> None:
    verb, call, wanted, answer = TOUCHED[name]
    assert place.add("c1", "web-0", uid="u1") == "10.0.0.1"
    touched(place)
    more = {"config": {"cni.dev/valid-attachments": []}} if verb == "GC" else {"uid": "u1"}
    given = place.call(verb, **call, **more)
    place.server.faults = lambda *_: None
    assert " ".join(given) == answer
    found = [place.server.spec(ADDRESSES, object_name) or {} for object_name in place.server.names(ADDRESSES)]
    left = [f"{spec['address']} {spec['state']} {spec['containerID']}" for spec in found if spec["state"] != "former"]
    assert left == wanted


# --- replies that are lost, requests that are late ---


def once(server: ApiServer, verb: str, fault: Any) -> None:
    """Let the next request of a method meet a fault."""
    left = [fault]
    server.faults = lambda method, resource, number: left.pop() if method == verb and left else None


@pytest.mark.well("it scripts the answer to each request")
@pytest.mark.parametrize("fault", [DROP_BEFORE, DROP_AFTER])
def test_a_takeover_and_a_release_whose_reply_is_lost_are_made_once(
    server: ApiServer, opened: Opened, fault: str
) -> None:
    old = claimed(opened(), TEN + 1)
    once(server, "PATCH", fault)
    answer = opened().claim([want(TEN + 1, POOL)], owner("c2", 2), old)
    assert isinstance(answer, Claimed)
    assert [lease.container_id for lease in opened().leases(POOL)] == ["c2"]
    once(server, "DELETE", fault)
    assert opened().release(answer.leases) == 1
    store = opened()
    store.cooldown = 60
    cooled = claimed(store, TEN + 2)
    once(server, "PATCH", fault)
    assert store.release(cooled) == 1
    assert list(opened().leases(POOL)) == []


def test_a_fence_of_a_clock_far_ahead_keeps_no_object(server: ApiServer, opened: Opened) -> None:
    leases = claimed(opened(), TEN + 1)
    server.note(ADDRESSES, "10.0.0.1", {objects.FENCE: "9" * 30})
    assert opened().release(leases) == 1
    assert "10.0.0.1" not in server.names(ADDRESSES)


@pytest.mark.well("it scripts the answer to each request")
def test_the_cooling_addresses_are_read_from_the_beginning_when_their_list_expires(
    server: ApiServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    store.cooldown = 60
    store.release(claimed(store, TEN + 1, TEN + 2))
    monkeypatch.setattr(apiserver, "_PAGE", 1)
    gone = 410, Refusal(410, "Expired", "the list is too old").document
    server.seen.clear()
    server.faults = lambda *_: gone if len(server.seen) == 2 else None
    assert opened().cooling(POOL, "", 4, TEN, TEN + 255, owner("c2", 1)) == {TEN + 1, TEN + 2}
    assert len(server.seen) == 4


@pytest.mark.well("a sweep ends at a fault, and a later one goes on")
def test_an_object_without_an_address_hinders_no_claim_no_release_and_no_sweep(
    server: ApiServer, opened: Opened
) -> None:
    held = claimed(opened(), TEN + 1, container="c9")
    (labels,) = (server.metadata(ADDRESSES, name)["labels"] for name in server.names(ADDRESSES))
    for name in ("10.0.0.9", "nobody"):  # any node can make such an object, with the labels of any attachment
        spec = objects.document(Lease(want(TEN + 9, POOL), owner("c9", 1)), objects.COOLING)["spec"]
        server.put(ADDRESSES, "kube-system", name, spec, labels={**labels, objects.STATE: objects.COOLING})
    assert opened().cooling(POOL, "", 4, TEN, TEN + 255, owner("c1", 1)) == set()
    assert [lease.key() for lease in opened().find(owner("c9", 1).attachment)] == [held[0].key()]
    opened().forget()
    assert server.names(ADDRESSES) == ["10.0.0.1", "nobody"]


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_a_failed_claim_leaves_the_newer_fence_of_an_object_that_it_puts_back(
    server: ApiServer, opened: Opened
) -> None:
    late, other = (Lease(want(TEN + 1, POOL), owner(name, 1)) for name in ("c1", "c2"))
    opened(lambda: [other]).settle(other.attachment, 1)
    claimed(opened(), TEN + 2, container="holder")

    def arrives(method: str, resource: str, number: int) -> None:
        if method == "POST" and server.seen[-1][2]["metadata"]["name"] == "10.0.0.2":
            server.faults = lambda *_: None
            opened(lambda: [late]).settle(late.attachment, 1)
            fences.append(server.metadata(ADDRESSES, "10.0.0.1")["labels"][objects.FENCE])

    fences = [server.metadata(ADDRESSES, "10.0.0.1")["labels"][objects.FENCE]]
    server.faults = arrives
    assert isinstance(opened().claim([want(TEN + i, POOL) for i in (1, 2)], owner("c3", 2)), Taken)
    old, new = fences
    assert old < new == server.metadata(ADDRESSES, "10.0.0.1")["labels"][objects.FENCE]


# --- slices, rights ---


def test_node_slices_are_refused_with_what_to_do(place: Place) -> None:
    with pytest.raises(InvalidConfig) as caught:
        place.add("c1", "a", node_slice_size="/26")
    assert caught.value.code == 7
    assert all(word in caught.value.msg[:250] for word in ("ipam.node_slice_size", "/26", "left out"))


@pytest.mark.well("a right counts as used when the request reaches the server")
def test_the_plugin_has_each_right_that_it_uses_and_no_other(place: Place) -> None:
    place.server.asked.clear()
    for _ in range(2):
        place.add("c1", "web-0")
        place.add("c2", "web-0")
        place.delete("c2", "web-0")
    used = {verb for verb, group, resource, _ in place.server.asked if (group, resource) == ("railcni.io", ADDRESSES)}
    assert used == set(RIGHTS[ADDRESSES].split())


@pytest.mark.well("it writes nothing")
@needs_own_server
def test_a_definition_that_drops_a_member_is_named_by_status(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.call("STATUS")
    for member in ("former", "machineID", "scope"):
        with monkeypatch.context() as patch:
            patch.delitem(kubernetes_api.SPECS[ADDRESSES]["properties"], member)
            with pytest.raises(NotAvailable, match=f"addressleases.railcni.io is too old: the server drops {member}"):
                place.call("STATUS")


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_what_is_remembered_too_long_is_forgotten(
    server: ApiServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "LATE_SECONDS", 0)
    monkeypatch.setattr("ipam.stores.addresslease.FORMER", 2)
    store = opened()
    for i in range(4):
        store.release(claimed(store, TEN + i, container=f"c{i}", pod=("ns", f"web-{i}", "")))
    leases = claimed(store, TEN + 9, container="c9")
    store.cooldown = 1
    store.release(leases)
    store.forget()
    kept = {objects.memory_name(("ns", f"web-{i}", ""), "net1") for i in (2, 3)}
    assert set(server.names(ADDRESSES)) == {*kept, "10.0.0.9"}


@pytest.mark.well("it scripts the answer to each request")
def test_what_a_claim_has_made_goes_also_when_others_change_it_meanwhile(server: ApiServer, opened: Opened) -> None:
    claimed(opened(), TEN + 3, container="other")
    left = [Refusal(409, "Conflict", "the object has been modified").document] * 3
    server.faults = lambda method, resource, number: (409, left.pop()) if method == "DELETE" and left else None
    assert isinstance(opened().claim([want(TEN + i, POOL) for i in (1, 3)], owner("c1", 2)), Taken)
    assert server.names(ADDRESSES) == ["10.0.0.3"]


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_a_restarted_pod_keeps_its_addresses_also_when_a_create_of_its_former_sandbox_comes_late(
    server: ApiServer, opened: Opened
) -> None:
    ranges = [Range(4, TEN, 24), Range(4, TEN + 256, 24)]
    needs = [Need(rng, rng.pool_name(), "") for rng in ranges]
    pod, late = ("ns", "a", "u1"), Lease(want(TEN + 257, "10.0.1.0-24"), owner("old", 1, pod=("ns", "a", "u1")))
    (first,) = claimed(opened(), TEN + 1, container="old", pod=pod)  # killed before the second one

    def arrives(method: str, resource: str, number: int) -> None:
        if method == "PATCH" and "10.0.1.1" not in server.names(ADDRESSES):
            opened().api.create(ADDRESSES, objects.document(late))

    server.faults = arrives

    whose = owner("new", 2, pod=pod)
    store = opened(lambda: [first, late])
    got = acquire.acquire(store, [Group("gpu", [[need] for need in needs], 0)], whose, AnyAddress())
    assert got == [TEN + 1, TEN + 257]
    assert {lease.container_id for pool in ("10.0.0.0-24", "10.0.1.0-24") for lease in opened().leases(pool)} == {"new"}


@pytest.mark.well("it counts the requests of a well server")
def test_only_the_addresses_without_a_lease_are_settled(place: Place) -> None:
    """By a DEL, and by an ADD that is repeated."""
    ranges = [{"range": f"10.{number}.0.0/24"} for number in range(20)]
    place.call("ADD", "c1", "a", ipRanges=ranges)
    place.server.remove(ADDRESSES, "10.7.0.1")
    asked(place.server)
    place.call("ADD", "c1", "a", ipRanges=ranges)
    posts = [request for request in asked(place.server) if request == f"POST {ADDRESSES}"]
    assert len(posts) == 2  # of the object that makes late requests fail, and of the new lease, which takes it over
    place.server.remove(ADDRESSES, "10.7.0.1")
    place.delete("c1", "a", ipRanges=ranges)
    requests = asked(place.server)
    assert requests.count(f"POST {ADDRESSES}") == 1 and len(requests) < 2 * len(ranges) + 8, len(requests)
    assert place.server.names(ADDRESSES) == ["10.7.0.1"] and held(place) == []


@pytest.mark.well("it counts the requests of a well server")
def test_an_object_that_only_makes_late_requests_fail_does_not_end_the_lowest_addresses(
    place: Place, opened: Opened
) -> None:
    late = Lease(want(TEN + 255, "10.0.0.0-16"), owner("gone", 1))
    opened(lambda: [late]).settle(late.attachment, 1)
    assert [place.add(f"c{number}", f"p{number}", range=WIDE) for number in range(2)] == ["10.0.0.1", "10.0.0.2"]
