"""The stores of the API server while its watch cache is behind, it cannot serve, or it serves a request late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import TryAgainLater
from ipam import acquire
from ipam.stores import base
from ipam.stores.addresslease import objects
from ipam.stores.kubernetes import locks
from tests.stores import kubernetes_proxy
from tests.stores.kubernetes_api import Refusal
from tests.stores.test_lease_life import MAKERS, Place

ADDRESSES = "addressleases"
pytestmark = pytest.mark.skipif(bool(kubernetes_proxy.path()), reason="a real server is well")


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, free_paths: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A place over the store that a test names, else over addresslease."""
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "run"))
    yield from MAKERS[getattr(request, "param", "addresslease")](tmp_path)


def fill(place: Place, cidr: str, count: int) -> None:
    for number in range(count):
        place.add(f"f{number}", range=cidr)


# --- a watch cache that is behind ---


@pytest.mark.parametrize(("cidr", "size"), [("10.0.0.0/29", 6), ("10.0.0.0/26", 62)])
def test_a_first_add_reads_a_cache_that_is_behind_once_and_then_finds_the_only_free_address(
    place: Place, cidr: str, size: int
) -> None:
    place.add("last", ip=f"10.0.0.{size}", range=cidr)
    place.server.lag()
    fill(place, cidr, size - 1)
    place.delete("last", range=cidr)
    place.server.queries.clear()
    place.server.seen.clear()
    assert place.add("new", range=cidr) == f"10.0.0.{size}"
    lists = [query for path, query in place.server.queries if path == ADDRESSES and "labelSelector" in query]
    assert [query.get("resourceVersion") == ["0"] for query in lists] == [True] + [False] * (len(lists) - 1)
    assert len(place.server.seen) < 25


LABELS = (objects.STATE, objects.POOL, objects.BLOCK, objects.SPACE)


@pytest.mark.parametrize("label", LABELS)
def test_a_full_pool_whose_objects_have_lost_a_label_is_exhausted(place: Place, label: str) -> None:
    fill(place, "10.0.0.0/30", 2)
    for name in place.server.names(ADDRESSES):
        document = place.server.objects[ADDRESSES, "kube-system", name]
        labels = {key: text for key, text in document["metadata"]["labels"].items() if key != label}
        place.server.put(ADDRESSES, "kube-system", name, document["spec"], labels=labels)
    place.server.seen.clear()
    with pytest.raises(TryAgainLater, match="exhausted: 2 of the 2 addresses"):
        place.add("new", range="10.0.0.0/30")
    assert len(place.server.seen) < 40
    place.delete("f0", range="10.0.0.0/30")
    assert place.add("new", range="10.0.0.0/30") == "10.0.0.1"


def test_a_cooldown_lasts_although_the_cache_has_not_seen_its_lease(place: Place) -> None:
    place.server.lag()
    cooldown = {"cooldown_seconds": 600}
    assert place.add("c1", "a", **cooldown) == "10.0.0.1"
    place.delete("c1", "a", **cooldown)
    assert place.add("c2", "b", **cooldown) != "10.0.0.1"
    assert place.add("c3", "a", **cooldown) == "10.0.0.1"


class Clock:
    """A clock that only pauses move on."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.time, self.time_ns = time.time, time.time_ns

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CONTENDED = (409, Refusal(409, "AlreadyExists", "already exists").document)
TESTED = (422, Refusal(422, "Invalid", "the server rejected our request due to an error in our request").document)


@pytest.mark.parametrize("place", ["addresslease", "kubernetes"], indirect=True)
def test_an_add_that_others_forestall_makes_one_request_a_second_after_five_seconds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add("c1")
    clock = Clock()
    began, asked = clock.now, []
    monkeypatch.setattr(acquire, "time", clock)
    monkeypatch.setattr(base, "time", clock)

    def forestall(method: str, resource: str, number: int) -> Any:
        asked.append(clock.now - began)
        return {"POST": CONTENDED, "PATCH": TESTED}.get(method)

    place.server.faults = forestall
    with pytest.raises(TryAgainLater, match="other attachments claim addresses there at the same time"):
        place.add("c2")
    assert clock.now > began + acquire.CONTENDED_SECONDS - 15
    for until in range(10, int(asked[-1]), 5):
        assert sum(5 < at <= until for at in asked) <= until - 5 + 4, until
