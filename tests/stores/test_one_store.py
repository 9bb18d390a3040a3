"""A range is in one of a cluster's two stores: AddressLeases or IPPools, and in one namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import CniError, InvalidConfig
from ipam.stores.addresslease.requests import Objects
from tests.stores.kubernetes_api import ADDRESSES
from tests.stores.places import Place, made
from tests.stores.test_ipam_verbs import Killed, failing, killed

POOLS, POOL = "ippools", "10.0.0.0-24"
KINDS = ("addresslease", "kubernetes")
NAMED = {"addresslease": "AddressLeases", "kubernetes": "IPPools"}


@pytest.fixture(params=["addresslease", "addresslease, unwell"])
def place(request: pytest.FixtureRequest, tmp_path: Path, free_paths: None) -> Iterator[Place]:
    yield from made(request, tmp_path)


def other(kind: str) -> str:
    return KINDS[1 - KINDS.index(kind)]


def add(place: Place, kind: str, container: str, **more: Any) -> str:
    """The address that the store of `kind` gives on a node of its own."""
    return place.add(container, container, datastore=kind, node=kind, **more)


def refused(place: Place, kind: str, container: str = "late", **more: Any) -> str:
    """The message with which the store of `kind` refuses an ADD, which leaves nothing; STATUS says it too."""
    before = held(place)
    with pytest.raises(CniError) as status:
        place.call("STATUS", datastore=kind, node=kind, **more)
    assert held(place) == before
    with pytest.raises(InvalidConfig) as caught:
        add(place, kind, container, **more)
    place.delete(container, container, datastore=kind, node=kind, **more)
    assert held(place) == before
    assert "late" not in [attachment.container_id for attachment, _, _ in place.records(kind).all()]
    assert caught.value.code == 7
    assert status.value.msg == caught.value.msg
    return caught.value.msg


def held(place: Place) -> tuple[list[str], dict[str, list[str]]]:
    pools = {name: place.server.spec(POOLS, name) or {} for name in place.server.names(POOLS)}
    leases = [name for name in place.server.names(ADDRESSES) if place.server.spec(ADDRESSES, name)["state"] == "held"]
    return leases, {name: sorted(spec.get("allocations", {})) for name, spec in pools.items()}


def assert_names_both_and_the_remedy(said: str, kind: str) -> None:
    start = said[:250]
    assert POOL in start and "IPPool" in start and "AddressLeases" in start, said
    assert f'"datastore": "{kind}"' in start and "railcni ipam migrate" in said[:300], said


@pytest.mark.parametrize("ended", [False, True], ids=["with leases", "after all have ended"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_range_stays_in_the_store_of_its_first_claim(place: Place, kind: str, overlap: bool, ended: bool) -> None:
    more = {"enable_overlapping_ranges": overlap}
    assert add(place, kind, "c1", **more) == "10.0.0.1"
    if ended:
        place.delete("c1", "c1", datastore=kind, node=kind, **more)
    assert_names_both_and_the_remedy(refused(place, other(kind), **more), kind)
    assert add(place, kind, "c2", **more) == ("10.0.0.1" if ended else "10.0.0.2")
    assert add(place, other(kind), "c3", range="10.1.0.0/24") == "10.1.0.1"


@pytest.mark.well("it counts the requests of a well server")
@pytest.mark.parametrize("request_number", range(1, 9))
@pytest.mark.parametrize("first", KINDS)
def test_of_two_first_claims_at_once_one_store_gives_addresses(place: Place, first: str, request_number: int) -> None:
    """The other store's whole ADD comes before the given request of the first one's."""
    given: dict[str, str] = {}
    seen: list[str] = []

    def between(method: str, resource: str, number: int) -> None:
        if resource in (POOLS, ADDRESSES, "overlappingrangeipreservations"):
            seen.append(method)
            if len(seen) == request_number:
                given[other(first)] = outcome(other(first))

    def outcome(kind: str) -> str:
        try:
            return add(place, kind, f"{kind}-1")
        except CniError:
            return ""

    place.server.faults = between
    given[first] = outcome(first)
    place.server.faults = lambda method, resource, number: None
    assert not all(given.values()) or len(given) == 1, given
    again = {kind: outcome(kind) for kind in KINDS}
    assert sum(map(bool, again.values())) == 1, again
    assert all(again[kind] for kind, address in given.items() if address)


@pytest.mark.parametrize("overlap", [True, False])
def test_addressleases_without_an_ippool_keep_the_range(place: Place, overlap: bool) -> None:
    """Those of a version that made none, and after somebody has deleted it."""
    more = {"enable_overlapping_ranges": overlap}
    assert add(place, "addresslease", "c1", **more) == "10.0.0.1"
    place.server.remove(POOLS, POOL)
    assert_names_both_and_the_remedy(refused(place, "kubernetes", **more), "addresslease")
    assert add(place, "addresslease", "c2", enable_overlapping_ranges=not overlap) == "10.0.0.2"
    assert place.server.metadata(POOLS, POOL)["annotations"] == {"railcni.io/names": "net,pool"}
    assert add(place, "addresslease", "c3", **more) == "10.0.0.3"


@pytest.mark.parametrize("allocations", [{}, {"1": {"id": "go", "podref": "ns/go", "ifname": "net1"}}])
def test_a_pool_that_go_whereabouts_made_is_not_given_by_addressleases(
    place: Place, allocations: dict[str, Any]
) -> None:
    place.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": allocations})
    assert_names_both_and_the_remedy(refused(place, "addresslease"), "kubernetes")


def test_a_killed_add_whose_range_is_in_ippools_gives_no_address_when_it_is_repeated(
    place: Place,
) -> None:
    with failing(Objects, "closed_pool", killed, Killed):
        add(place, "addresslease", "c1")
    assert place.server.names(ADDRESSES) == ["10.0.0.1"]
    place.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": {}})
    with pytest.raises(InvalidConfig, match="is in IPPools"):
        add(place, "addresslease", "c1")
    place.delete("c1", "c1", datastore="addresslease", node="addresslease")
    assert held(place) == ([], {POOL: []})


def test_without_the_other_stores_definition_or_rights_a_store_gives_addresses(place: Place) -> None:
    place.server.resources.remove(POOLS)
    assert add(place, "addresslease", "c1") == "10.0.0.1"
    place.server.resources.add(POOLS)
    assert_names_both_and_the_remedy(refused(place, "kubernetes"), "addresslease")
    place.server.resources.remove(ADDRESSES)
    assert add(place, "kubernetes", "c2", range="10.1.0.0/24") == "10.1.0.1"
    place.server.resources.add(ADDRESSES)
    place.server.forbidden = {("list", ADDRESSES)}
    assert add(place, "kubernetes", "c3", range="10.2.0.0/24") == "10.2.0.1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_range_is_in_one_namespace_as_far_as_the_credentials_show_it(
    place: Place, tmp_path: Path, first: str, kind: str
) -> None:
    folder = tmp_path / "another"
    folder.mkdir()
    elsewhere = {"kubernetes": {"kubeconfig": place.server.kubeconfig(folder, "another")}}
    assert add(place, first, "c1") == "10.0.0.1"
    said = refused(place, kind, **elsewhere)
    assert all(word in said[:250] for word in (POOL, "namespace kube-system", "namespace another", "kubeconfig")), said
    assert f"kubectl -n kube-system delete ippool {POOL}" in said
    place.server.forbidden = {("list", f"{POOLS} in all namespaces")}  # credentials of one namespace
    assert add(place, kind, "c2", **elsewhere) == "10.0.0.1"
    add(place, kind, "c3", **elsewhere)
    assert place.log().count("cannot show whether another namespace has it") == 1
