"""Stores whose server is unwell: its watch cache is behind, it cannot serve, it serves late, or somebody has edited it."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam import acquire, upkeep
from ipam.leases import Want
from ipam.ranges import Range
from ipam.rules import Need
from ipam.stores import base, http
from ipam.stores.addresslease import objects
from ipam.stores.apiserver.resources import POOLS, RESERVATIONS, RIGHTS
from ipam.stores.base import Claimed, Store, Unreachable
from ipam.stores.etcd import EtcdStore, txn
from ipam.stores.ippool import locks
from tests.each import pairwise, quick
from tests.stores import kubernetes_proxy
from tests.stores.claims import AnyAddress
from tests.stores.kinds import owner
from tests.stores.kubernetes_api import DROP_AFTER, DROP_LATE, SPECS, Refusal
from tests.stores.places import Place, made, mend, silent
from tests.stores.test_ipam_verbs import Killed, killed
from tests.stores.unwell import ILL, LATE, LOST, LOST_AFTER, Hurry, Unwell, first, in_turn

ADDRESSES = "addressleases"
ILL_STORES = ("addresslease", "kubernetes", "etcd")
pytestmark = pytest.mark.skipif(bool(kubernetes_proxy.path()), reason="a real server is well")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, free_paths: None) -> Iterator[Place]:
    """A place over the store that a test names, else over addresslease."""
    yield from made(request, tmp_path, "addresslease")


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
    lists = [query for path, query in place.server.queries if "railcni.io/block" in str(query.get("labelSelector"))]
    assert [query.get("resourceVersion") == ["0"] for query in lists] == [True] + [False] * (len(lists) - 1)
    assert len(place.server.seen) < 25


LABELS = (objects.STATE, objects.POOL, objects.BLOCK, objects.SPACE)


@pytest.mark.well("it counts the requests of a well server")
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


@pytest.mark.well("it scripts the answer to each request")
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


class Scripted(Store):
    """A store that gives the answers of a script, and notes its deadlines."""

    window = 256

    def __init__(self, answers: list[Any]) -> None:
        super().__init__()
        self.answers = answers
        self.deadlines: list[float] = []

    def finish_by(self, deadline: float = float("inf"), hurries: bool = False) -> None:
        self.deadlines.append(deadline)

    def survey(self, *_: Any) -> base.Survey:
        return base.Survey([], [], [])

    def occupied(self, *_: Any) -> int:
        return 0

    def settle(self, *_: Any) -> None:
        pass

    def claim(self, *_: Any) -> Any:
        return self.answers.pop(0)


def test_the_time_of_an_add_begins_anew_with_each_claim_that_it_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(acquire, "time", clock)
    monkeypatch.setattr(base, "time", clock)
    began, seconds = clock.now, AnyAddress.seconds
    failed = base.Unknown(Unreachable("the server is away"), failed=True)
    store = Scripted([*[base.Taken([])] * 30, failed, failed, Claimed([])])
    need = Need(Range(4, 10 << 24, 24), "10.0.0.0-24", "")
    assert acquire.acquire(store, [need], owner(), AnyAddress()) == [(10 << 24) + 1]
    assert len(store.deadlines) == 31 and store.deadlines[-1] > began + 2 * seconds
    assert store.deadlines == sorted(store.deadlines)


# --- a server that cannot serve changes for a while ---


@contextmanager
def ill(place: Place, choose: Callable[[str], str]) -> Iterator[Unwell]:
    """Let the changes in the place's store fall ill as `choose` says."""
    assert place.proxy
    well = place.proxy.target
    with Unwell(well[1], place.block["datastore"] == "etcd", choose) as unwell:
        place.proxy.target = "127.0.0.1", unwell.port
        yield unwell
        place.proxy.target = well


@contextmanager
def elsewhere(place: Place) -> Iterator[None]:
    """With the locks of another node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "DIRECTORY", str(place.directory / "run2"))
        yield


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "time", Hurry)


def free_rival(store: Store, pool: str) -> int:
    """Release what the container `rival` has leased."""
    return store.release([lease for lease in store.leases(pool) if lease.container_id == "rival"])


@pytest.mark.parametrize(
    ("place", "illness"),
    [  # each illness with one store or two
        pytest.param(store, illness, marks=pytest.mark.long if (m + n) % 2 else ())
        for m, store in enumerate(ILL_STORES)
        for n, illness in enumerate(ILL)
    ],
    indirect=["place"],
)
def test_an_add_outlasts_a_server_that_is_ill(place: Place, illness: str, hurry: None) -> None:
    assert place.add("c1", "a") == "10.0.0.1"
    store_ref = place.store_ref
    with ill(place, first(illness, 7)) as unwell:
        assert place.add("c2", "b") == "10.0.0.2"
        assert place.leased(store_ref) == {"10.0.0.1": "c1", "10.0.0.2": "c2"}
        for container, pod in (("c1", "a"), ("c2", "b")):
            place.delete(container, pod)
    upkeep.flush(place.records(), None, 20)
    assert unwell.met and place.leased(store_ref) == {}
    assert place.records().all() == [] and not place.server.names("overlappingrangeipreservations")


SHARED = {"addresses": [{"address": "10.0.0.2/24"}]}


def share(place: Place) -> dict[str, Any]:
    """Give c1 and c2 the static address, and delete c1, which had the lease; the reference to the store."""
    for container in ("c1", "c2"):
        place.add(container, container, **SHARED)
    store_ref = place.store_ref
    place.delete("c1", "c1", **SHARED)
    return store_ref


@pytest.mark.parametrize("illness", ["timeout", LOST, LOST_AFTER, LATE])
@pytest.mark.parametrize("place", ILL_STORES, indirect=True)
def test_a_shared_address_is_leased_again_although_the_first_attempt_was_open(
    place: Place, illness: str, hurry: None
) -> None:
    """A later attempt of the agent makes it: in etcd when the member has forgotten that the first one was forbidden."""
    store_ref = share(place)
    with ill(place, first(illness, 3)) as unwell:
        place.flush(store_ref)
    assert unwell.met
    place.flush(store_ref)
    ((_, _, record),) = place.records().all("ipam")
    assert record["shared"] == [] if "10.0.0.2" in place.leased(store_ref) else place.records().is_reminded(0)
    assert "10.0.0.2" in place.leased(store_ref) or record["store"]["kind"] == "etcd"
    place.delete("c2", "c2", **SHARED)
    assert place.leased(store_ref) == {} and place.records().all() == []


@pytest.mark.parametrize("illness", ILL)
@pytest.mark.parametrize("place", ["kubernetes"], indirect=True)
def test_a_reservation_of_go_s_is_completed_by_the_add_that_takes_its_lease_over(
    place: Place, illness: str, hurry: None
) -> None:
    """Go's whereabouts names the pod in it, and no container."""
    place.add("other", "b")
    store_ref = place.store_ref
    pool = place.server.spec(POOLS, "10.0.0.0-24")
    pool["allocations"]["2"] = {"id": "old", "podref": "ns/a", "ifname": "net1"}
    place.server.put(POOLS, "kube-system", "10.0.0.0-24", pool)
    place.server.put(RESERVATIONS, "kube-system", "10.0.0.2", {"podref": "ns/a", "ifname": "net1"})
    with ill(place, first(illness, 1)):
        assert place.add("new", "a") == "10.0.0.2"
    assert place.server.spec(RESERVATIONS, "10.0.0.2")["containerid"] == "new"
    assert place.leased(store_ref) == {"10.0.0.1": "other", "10.0.0.2": "new"}
    for container, pod in (("other", "b"), ("new", "a")):
        place.delete(container, pod)
    assert place.records().all() == [] and not place.server.names(RESERVATIONS)


ONE, TWO, THREE = ({"range": f"10.{number}.0.0/30", "exclude": [f"10.{number}.0.2/32"]} for number in range(3))
REFUSALS: dict[str, list[dict[str, Any]]] = {  # the ranges of an ADD, which others fill during its first attempt
    "its range is full": [ONE],
    "its last range is full": [TWO, ONE],
    "its first range is full": [ONE, TWO],
    "its last range of three is full": [TWO, THREE, ONE],
}


@pytest.mark.parametrize(
    ("place", "case", "illness"),
    pairwise(ILL_STORES, REFUSALS, [LOST, LOST_AFTER, LATE, "timeout"]),
    indirect=["place"],
)
def test_an_add_that_is_refused_after_an_open_attempt_leaves_nothing(
    place: Place, case: str, illness: str, hurry: None
) -> None:
    ranges = REFUSALS[case]
    del place.block["range"]
    for number, rng in enumerate((ONE, TWO, THREE)):  # so that each pool exists
        place.add(f"first{number}", "f", node="node-3", ipRanges=[rng])
        place.delete(f"first{number}", "f", node="node-3", ipRanges=[rng])
    place.add("before", "b", node="node-2", ipRanges=[{"range": "10.0.0.4/30"}])
    ((_, _, record),) = place.records("node-2").all("ipam")
    left = [illness]

    def choose(change: str) -> str:
        if not left:
            return ""
        fault = left.pop()
        with elsewhere(place):
            store = place.store({**record["store"]})
            assert isinstance(store.claim([Want("10.0.0.0-30", 4, (10 << 24) + 1, "")], owner("rival")), Claimed)
        return fault

    with ill(place, choose) as unwell:
        with pytest.raises(TryAgainLater, match="exhausted") as refused:
            place.call("ADD", "refused", "r", ipRanges=ranges)
        assert not isinstance(refused.value, Unreachable)
        place.delete("refused", "r", ipRanges=ranges)
        assert free_rival(place.store(record["store"]), "10.0.0.0-30") == 1
        unwell.catch_up()
    assert unwell.met
    assert place.leased(record["store"]) == {"10.0.0.5": "before"}
    assert place.records().all() == []
    assert place.server.names(RESERVATIONS) == (["10.0.0.5"] if place.block["datastore"] == "kubernetes" else [])


@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.parametrize("illness", [LATE, "timeout"])
@pytest.mark.parametrize("place", ILL_STORES, indirect=True)
def test_an_add_whose_second_attempt_loses_its_address_holds_another_alone(
    place: Place, illness: str, at: int, hurry: None
) -> None:
    """The first attempt is open; the rival claims before change number `at` is served."""
    place.add("before", "b", node="node-2")
    ((_, _, record),) = place.records("node-2").all("ipam")
    changes: list[str] = []

    def choose(change: str) -> str:
        changes.append(change)
        if len(changes) == at:
            with elsewhere(place):
                place.store({**record["store"]}).claim([Want("10.0.0.0-24", 4, (10 << 24) + 2, "")], owner("rival"))
        return illness if len(changes) == 1 else ""

    with ill(place, choose) as unwell:
        given = place.add("c1", "a")
        free_rival(place.store(record["store"]), "10.0.0.0-24")
        unwell.catch_up()
    assert place.leased(record["store"]) == {"10.0.0.1": "before", given: "c1"}
    place.delete("c1", "a")
    assert place.leased(record["store"]) == {"10.0.0.1": "before"}


@pytest.mark.parametrize("illness", [LOST, LOST_AFTER, LATE, "timeout"])
@pytest.mark.parametrize(
    ("place", "ends"),
    [
        *((store, "it dies") for store in ILL_STORES),
        *itertools.product(ILL_STORES[:2], ["it may write no more", "it may do nothing more"]),
    ],
    indirect=["place"],
)
def test_an_add_that_ends_after_an_open_attempt_leaves_nothing_when_its_delete_is_made(
    place: Place, ends: str, illness: str, hurry: None
) -> None:
    place.add("before", "b", node="node-2")
    ((_, _, record),) = place.records("node-2").all("ipam")
    left = [illness]

    def choose(change: str) -> str:
        if left and ends == "it dies":
            dying.setattr(http.Connection, "request", killed)
        elif left:
            verbs = ["create", "update", "patch", "delete"] + ["get", "list"] * (ends == "it may do nothing more")
            place.server.forbidden = set(itertools.product(verbs, (ADDRESSES, POOLS, RESERVATIONS)))
        return left.pop() if left else ""

    with ill(place, choose) as unwell:
        with pytest.MonkeyPatch.context() as dying, pytest.raises((Killed, InvalidConfig)):
            place.call("ADD", "ended", "e")
        place.delete("ended", "e")
        place.server.forbidden = set()
        place.flush(None)
        unwell.catch_up()
    assert unwell.met
    assert place.leased(record["store"]) == {"10.0.0.1": "before"}
    assert place.records().all() == []


WORKERS, ROUNDS, TRIES = 5, 4, 200
STORM = {"range": "10.0.0.0/29", "exclude": ["10.0.0.5/32", "10.0.0.6/32"], "store_timeout": 30}


def attached(place: Place, container: str) -> str:
    """The address that an ADD gives; "" for none."""
    try:
        return place.add(container, container)
    except TryAgainLater:
        return ""


def storm(place: Place, held: Path, worker: int) -> None:
    """Attach and detach as a runtime does, which deletes after a failed ADD; `held` has a file for each address in use."""
    for turn in range(ROUNDS):
        container = f"w{worker}-{turn}"
        tries = 1
        while not (address := attached(place, container)):
            place.delete(container, container)
            assert (tries := tries + 1) < TRIES
            time.sleep(0.05)
        (held / address).touch(exist_ok=False)
        assert place.add(container, container) == address
        (held / address).unlink()
        place.delete(container, container)


@pytest.mark.parametrize("place", quick(["file", *ILL_STORES], "etcd", "kubernetes"), indirect=True)
def test_a_storm_over_an_ill_server_gives_no_address_twice_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    """With fewer addresses than workers, so that each ADD meets others. An API server's watch cache still has all held."""
    place.block |= STORM
    store_ref = fill_and_empty(place, place.server.lag)
    (held := tmp_path / "held").mkdir()
    illnesses = [*ILL, *[LATE] * len(ILL)]
    with ill(place, in_turn(3, illnesses)) if place.shared else nullcontext():
        fork = multiprocessing.get_context("fork")
        workers = [fork.Process(target=storm, args=(place, held, worker), daemon=True) for worker in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert [worker.exitcode for worker in workers] == [0] * WORKERS
    upkeep.flush(place.records(), None, 20)
    assert place.records().all() == [] and place.leased(store_ref) == {} and not list(held.iterdir())
    fill_and_empty(place)  # takes over the reservations that were made late
    assert not place.server.names("overlappingrangeipreservations")


def fill_and_empty(place: Place, between: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Give all four addresses, and free them; the reference to the store, which an attachment's record has."""
    fill(place, place.block["range"], 4)
    between()
    store_ref = place.store_ref
    for number in range(4):
        place.delete(f"f{number}")
    return store_ref


@pytest.mark.well("it scripts the answer to each request")
def test_an_add_takes_a_node_slice_though_the_server_cannot_serve_changes_for_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = {**place.block, "datastore": "kubernetes", "node_slice_size": "/26"}
    monkeypatch.setattr(place, "block", block)
    allocations = [{"nodeName": "", "sliceRange": f"10.0.0.{low}/26"} for low in (0, 64)]
    spec = {"range": "10.0.0.0/24", "sliceSize": "/26"}
    place.server.put("nodeslicepools", "kube-system", "rdma-net", spec, {"allocations": allocations})
    left = [(503, "upstream connect error")] * 5
    place.server.faults = lambda method, resource, number: (
        left.pop() if method != "GET" and resource == "nodeslicepools" and left else None
    )
    assert place.add("c1", "a") == "10.0.0.1"
    assert not left


# --- requests that are served late ---


@pytest.mark.parametrize("is_left", [False, True], ids=["", "the holder has left meanwhile"])
def test_a_create_that_is_served_after_its_repetition_was_refused_makes_no_lease(place: Place, is_left: bool) -> None:
    place.server.lag()
    assert place.add("c1", "a", node="node-2") == "10.0.0.1"
    left = [DROP_LATE]
    place.server.faults = lambda method, resource, number: left.pop() if method == "POST" and left else None
    given = place.add("c2", "b")
    assert given != "10.0.0.1" and not left
    place.delete("c1", "a", node="node-2")
    if is_left:
        place.delete("c2", "b")
    assert place.server.catch_up() == [409]
    assert place.leased({"kind": "addresslease", **place.block["kubernetes"]}) == ({} if is_left else {given: "c2"})


REPEATED, TAKEN = "it is repeated", "others take its address"
KILLED, ALONE = "it is killed, and the other leaves", "it is killed"


@pytest.mark.parametrize(
    ("place", "ends", "illnesses", "at"),
    [
        *pairwise(
            ILL_STORES, [REPEATED, TAKEN, KILLED, ALONE], [(LATE,), (LATE, LATE), (LATE, LOST_AFTER)], [1, 2, 3, 4]
        ),
        ("addresslease", TAKEN, (LATE,), 2),
        ("etcd", ALONE, (LATE,), 1),
    ],
    indirect=["place"],
)
def test_a_claim_that_is_served_after_the_release_of_its_attachment_makes_no_lease(
    place: Place, ends: str, illnesses: tuple[str, ...], at: int, hurry: None
) -> None:
    """The first changes of an ADD are ill. When it sends its request number `at` after the first of them, it is killed, or
    another attachment leaves, whose address it has tried to claim: the cache does not show that lease."""
    small = {"range": "10.0.0.0/29"}
    place.server.lag()
    place.add("before", "b", node="node-2", **small)
    ((_, _, record),) = place.records("node-2").all("ipam")
    left, sent = list(illnesses), itertools.count()
    real = http.Connection.request

    def choose(change: str) -> str:
        return left.pop(0) if left else ""

    def request(connection: http.Connection, *arguments: Any) -> tuple[int, bytes]:
        if len(left) < len(illnesses) and next(sent) == at - 1:
            sending.undo()
            if ends in (KILLED, ALONE):
                raise Killed
            leave()
        return real(connection, *arguments)

    def leave() -> None:
        ills, left[:] = left[:], []
        with elsewhere(place):
            place.delete("before", "b", node="node-2", **small)
        left[:] = ills

    with ill(place, choose) as unwell:
        with pytest.MonkeyPatch.context() as sending:
            sending.setattr(http.Connection, "request", request)
            with suppress(Killed, TryAgainLater):
                place.call("ADD", "c1", "a", **small)
        left.clear()
        if ends != ALONE:
            leave()
        if ends != TAKEN:
            place.add("c1", "a", **small)
        place.delete("c1", "a", **small)
        place.flush(None)
        leave()
        if ends == TAKEN:
            fill(place, small["range"], 6)
            for number in range(6):
                place.delete(f"f{number}", **small)
        unwell.catch_up()
    assert unwell.met and place.records().all() == []
    assert place.leased(record["store"]) == {}


KILLS = [0, 1, 2, 3, 4]  # the number of the change after which the first attempt is killed; 0: it is not killed


@pytest.mark.parametrize(("illness", "kill"), [(LOST, 0), (LOST_AFTER, 0), *[(LATE, number) for number in KILLS]])
@pytest.mark.parametrize("place", ILL_STORES, indirect=True)
def test_a_claim_of_a_shared_address_that_is_served_after_the_release_makes_no_lease(
    place: Place, illness: str, kill: int, hurry: None
) -> None:
    store_ref = share(place)
    changes, kills = itertools.count(1), [kill]

    def choose(change: str) -> str:
        number = next(changes)
        if number in kills:
            dying.setattr(http.Connection, "request", killed)
        return illness if number <= max(kill, 2) else ""

    with ill(place, choose) as unwell:
        with pytest.MonkeyPatch.context() as dying, suppress(Killed):
            place.flush(store_ref)
        kills.clear()
        place.flush(store_ref)
        place.delete("c2", "c2", **SHARED)
        unwell.catch_up()
    assert place.leased(store_ref) == {} and place.records().all() == []


# --- what a name and its content both say ---


BLUE, APART = {"network_name": "blue"}, {"enable_overlapping_ranges": False}
EDITED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "address": ("10.0.0.1", {}, {"address": "10.0.0.9"}),
    "address, in a scope": ("10.0.0.1.net.blue", BLUE, {"address": "10.0.0.9"}),
    "address, without a scope": ("10.0.0.1.pool.10.0.0.0-24", APART, {"address": "10.0.0.9"}),
    "scope": ("10.0.0.1", {}, {"scope": "blue"}),
    "scope of another": ("10.0.0.1.net.blue", BLUE, {"scope": "red"}),
    "pool": ("10.0.0.1.pool.10.0.0.0-24", APART, {"pool": "10.0.9.0-24"}),
}


@pytest.mark.parametrize("case", EDITED)
@pytest.mark.parametrize("place", ["addresslease", "addresslease, unwell"], indirect=True)
def test_the_name_of_an_addresslease_counts_when_somebody_has_edited_what_it_says_too(place: Place, case: str) -> None:
    name, block, edited = EDITED[case]
    assert place.add("c1", "a", **block) == "10.0.0.1"
    document = place.server.objects[ADDRESSES, "kube-system", name]
    labels = document["metadata"]["labels"]
    place.server.put(ADDRESSES, "kube-system", name, document["spec"] | edited, labels=labels)
    assert place.add("c1", "a", **block) == "10.0.0.1"
    assert place.add("c2", "b", **block) == "10.0.0.2"
    place.delete("c1", "a", **block)
    place.delete("c2", "b", **block)
    assert place.leased({"kind": "addresslease", **place.block["kubernetes"]}) == {}


@pytest.mark.parametrize("cidr", ["10.0.1.0/24", "10.0.0.0/25", "fd00::/64"])
@pytest.mark.parametrize("place", ["kubernetes", "kubernetes, unwell"], indirect=True)
def test_an_ippool_whose_range_is_not_that_of_its_name_gives_no_address_and_frees_all_once_it_is_corrected(
    place: Place, cidr: str
) -> None:
    assert place.add("c1", "a") == "10.0.0.1"
    pools = "ippools", "kube-system", "10.0.0.0-24"
    spec = place.server.objects[pools]["spec"]
    place.server.put(*pools, spec | {"range": cidr})
    for container, pod in (("c1", "a"), ("c2", "b")):
        with pytest.raises(
            InvalidConfig, match=rf"IPPool 10\.0\.0\.0-24 .*{cidr} is not the range at the end of the name"
        ):
            place.add(container, pod)
    place.server.put(*pools, spec)
    assert place.add("c1", "a") == "10.0.0.1"
    place.delete("c1", "a")
    assert not (place.server.spec("ippools", "10.0.0.0-24") or {}).get("allocations")


ENTRY_EDITS: list[dict[str, Any]] = [
    *({"address": "10.0.0.9"}, {"pool": "10.0.9.0-24"}, {"containerID": "c9"}, {"ifname": "net9"}, {"sequence": 7})
]


@pytest.mark.parametrize("edited", ENTRY_EDITS, ids=lambda edited: next(iter(edited)))
@pytest.mark.parametrize("place", ["etcd", "etcd, unwell"], indirect=True)
def test_the_keys_of_etcd_count_when_somebody_has_edited_what_their_values_say_too(
    place: Place, edited: dict[str, Any]
) -> None:
    assert place.add("c1", "a") == "10.0.0.1"
    store = place.store(place.store_ref)
    assert isinstance(store, EtcdStore)
    for key, value in store.entries():
        if value.startswith(b"{"):
            put = txn.put(key, json.dumps(json.loads(value) | edited).encode())
            store._call(txn.transaction([], [put]))
    assert place.add("c1", "a") == "10.0.0.1"
    assert place.add("c2", "b") == "10.0.0.2"
    place.delete("c1", "a")
    place.delete("c2", "b")
    assert [key for key, _ in store.entries() if b"/former/" not in key and b"/void/" not in key] == []


# --- what DEL waits for, and what STATUS finds ---


def hangs(data: bytes) -> bool:
    of_etcd = b"request_put" in data or b"request_delete_range" in data
    return of_etcd or data.startswith((b"PATCH", b"DELETE", b"POST /api"))


@pytest.mark.well("it scripts the answer to each request")
@pytest.mark.parametrize("place", ILL_STORES, indirect=True)
def test_a_del_whose_changes_hang_has_one_time_for_all_of_them_and_is_pending(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add("c1", "a")
    real = http.Connection.request
    began: list[float] = []  # when each request began, and until when it may last
    deadlines: list[float] = []

    def request(connection: http.Connection, *arguments: Any) -> tuple[int, bytes]:
        began.append(time.monotonic())
        deadlines.append(arguments[-1])
        return real(connection, *arguments)

    monkeypatch.setattr(http.Connection, "request", request)
    silent(place, hangs)
    place.delete("c1", "a")
    whole = began[0] + base.SHARED_SECONDS
    mend(place)
    assert all(until <= max(whole, at + 0.1) for at, until in zip(began, deadlines, strict=True)) and len(began) < 9
    assert place.pending() == ["c1"]


MISSING = {
    "addresslease": [(verb, ADDRESSES) for verb in RIGHTS[ADDRESSES].split()],
    "kubernetes": [(verb, of) for of in (POOLS, RESERVATIONS) for verb in RIGHTS[of].split()],
}


@pytest.mark.well("STATUS writes nothing")
@pytest.mark.parametrize(
    ("place", "right"), [(store, right) for store, rights in MISSING.items() for right in rights], indirect=["place"]
)
def test_status_names_each_missing_right_of_an_add(place: Place, right: tuple[str, str]) -> None:
    place.call("STATUS")
    place.server.forbidden = {right}
    with pytest.raises(CniError, match=f"forbids to {right[0]} {right[1]}"):
        place.call("STATUS")


NOT_FOUND = (404, "404 page not found\n")  # of a server that does not serve the version, or serves it in no namespace
TEXT = {"type": "string"}
DEFINITIONS: dict[str, dict[str, Any] | None] = {
    "missing": None,
    "of another version or scope": {},
    "without containerid": {"properties": {"podref": TEXT, "ifname": TEXT}},
    "without all members": {"properties": {}},
    "with another required member": {
        "properties": {"podref": TEXT, "containerid": TEXT, "ifname": TEXT, "x": TEXT},
        "required": ["x"],
    },
}


@pytest.mark.well("STATUS writes nothing")
@pytest.mark.parametrize("case", DEFINITIONS)
@pytest.mark.parametrize("place", ["kubernetes"], indirect=True)
def test_status_finds_each_wrong_definition_of_reservations(
    place: Place, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.call("STATUS")
    definition = DEFINITIONS[case]
    if definition is None:
        place.server.resources.remove(RESERVATIONS)
    elif not definition:
        place.server.faults = lambda method, resource, number: NOT_FOUND if resource == RESERVATIONS else None
    else:
        monkeypatch.setitem(SPECS, RESERVATIONS, {"type": "object", **definition})
    with pytest.raises(CniError, match="(?i)overlappingrangeipreservation"):
        place.call("STATUS")


# --- an ADD that takes other addresses than before, and is killed ---

TWICE = [[{"range": f"10.{number}.{part}.0/24"} for number in (0, 1)] for part in (0, 1)]
MOVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the keys of the first ADD, and of the second
    "to another range": ({}, {"range": "10.0.1.0/24"}),
    "to two other ranges": ({"ipRanges": TWICE[0]}, {"ipRanges": TWICE[1]}),
    "to one range of two": ({"ipRanges": TWICE[0]}, {}),
    "from a static address": ({"addresses": [{"address": "10.0.0.9/24"}]}, {}),
    "to no scope": ({}, {"enable_overlapping_ranges": False}),
    "to a scope": ({"enable_overlapping_ranges": False}, {"enable_overlapping_ranges": True}),
    "to another name": ({}, {"network_name": "blue"}),
}


@pytest.mark.well("it kills the call at each request")
@pytest.mark.parametrize(
    ("place", "move", "ends", "is_served"),
    pairwise(ILL_STORES, MOVES, ["DEL", "ADD", "GC"], [False, True]),
    indirect=["place"],
)
def test_a_move_to_other_addresses_that_is_killed_at_any_request_leaves_no_lease(
    place: Place, move: str, ends: str, is_served: bool
) -> None:
    former, new = MOVES[move]
    real = http.Connection.request
    if "ipRanges" in former:
        del place.block["range"]
    if not new:
        new = {"range": "10.0.0.0/24"}
    for at in itertools.count(1):
        left = [None] * at

        def request(connection: http.Connection, *arguments: Any, left: list[None] = left) -> tuple[int, bytes]:
            left.pop()
            if left:
                return real(connection, *arguments)
            left.append(None)
            if is_served:
                real(connection, *arguments)
            raise Killed

        given = place.call("ADD", "c1", "a", **former)
        store_ref = place.store_ref
        with pytest.MonkeyPatch.context() as killing, suppress(Killed):
            killing.setattr(http.Connection, "request", request)
            given = place.call("ADD", "c1", "a", **new)
            at = 0
        if ends == "ADD":
            given = place.call("ADD", "c1", "a", **new)
            assert place.leased(store_ref) == dict.fromkeys(given, "c1")
        if ends == "GC":
            place.collect(**new)
        else:
            place.delete("c1", "a", **new)
        assert place.leased(store_ref) == {} and place.records().all() == [], at
        assert not place.server.names(RESERVATIONS)
        if not at:
            break


@pytest.mark.well("it loses the reply to each request")
@pytest.mark.parametrize("place", ["addresslease", "kubernetes"], indirect=True)
def test_a_move_to_another_range_of_which_a_reply_is_lost_leaves_no_lease(place: Place) -> None:
    for at in itertools.count(1):
        changes = itertools.count(1)

        def lost(
            method: str, resource: str, number: int, changes: Iterator[int] = changes, at: int = at
        ) -> Refusal | None:
            return DROP_AFTER if method != "GET" and next(changes) == at else None

        place.call("ADD", "c1", "a")
        store_ref = place.store_ref
        place.server.faults = lost
        with suppress(CniError):
            place.call("ADD", "c1", "a", range="10.0.1.0/24")
        place.server.faults = lambda method, resource, number: None
        place.delete("c1", "a", range="10.0.1.0/24")
        assert place.leased(store_ref) == {} and place.records().all() == [], at
        assert not place.server.names(RESERVATIONS)
        if next(changes) <= at:
            break


@pytest.mark.well("it sets the clock back")
@pytest.mark.parametrize("place", ILL_STORES, indirect=True)
def test_a_container_is_attached_again_at_once_although_the_clock_was_set_back_after_a_delete_that_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add("c1", "a")
    store_ref = place.store_ref
    store = place.store(store_ref)
    store.release(list(store.leases("10.0.0.0-24")))
    place.delete("c1", "a")
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 300_000_000_000)
    began = time.monotonic()
    assert place.add("c1", "a") == "10.0.0.1" == place.add("c1", "a")
    assert time.monotonic() < began + 5
    place.delete("c1", "a")
    assert place.leased(store_ref) == {} and place.records().all() == []
