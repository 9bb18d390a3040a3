"""Processes of one node that wait for their turn at a pool: who has it does for all what they wish, in one patch."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ipam.ranges import Range
from ipam.stores import kubernetes_turns
from ipam.stores.base import Claimed, Lease, Owner, Want
from ipam.stores.kubernetes_grants import Grants, claim_wish, release_wish
from ipam.stores.kubernetes_objects import PoolObject
from ipam.stores.kubernetes_size import LIMIT
from tests.node import until
from tests.stores import kubernetes_api, kubernetes_proxy
from tests.stores.kinds import owner
from tests.stores.kubernetes_api import ApiServer
from tests.stores.test_kubernetes_store import POOL, POOLS, RESERVATIONS, TEN, Cluster, want

_FORK = multiprocessing.get_context("fork")  # a thread cannot wait for a lock with a bound


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = kubernetes_proxy.start()
    yield server
    server.close()


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path, free_paths: None, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(kubernetes_turns, "DIRECTORY", str(tmp_path / "run"))
    return Cluster(server, tmp_path)


class Calls:
    """Calls of the plugin, a process each, and what they answered."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._answers: Any = _FORK.Queue()
        self.processes: dict[str, Any] = {}

    def start(self, verb: str, container: str, **more: Any) -> int:
        def call() -> None:
            try:
                self._answers.put((container, self._cluster.call(verb, container, **more)))
            except BaseException as fault:
                self._answers.put((container, [repr(fault)]))

        process = self.processes[container] = _FORK.Process(target=call)
        process.start()
        assert process.pid
        return process.pid

    def finish(self, *dead: str) -> dict[str, list[str]]:
        """What each call that is not `dead` answered: the addresses, or its error."""
        found = dict(self._answers.get(timeout=30) for name in self.processes if name not in dead)
        for process in self.processes.values():
            process.join(30)
        self.processes = {}
        return found


@pytest.fixture
def calls(cluster: Cluster) -> Iterator[Calls]:
    calls = Calls(cluster)
    yield calls
    for process in calls.processes.values():
        process.kill()


@contextmanager
def turn(cluster: Cluster) -> Iterator[None]:
    """The turn at the pool whose lock was made first."""
    path = min(cluster.directory.glob("run/pool-*"), key=lambda path: path.stat().st_ctime_ns)
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        fcntl.flock(file, fcntl.LOCK_UN)  # those that were forked meanwhile have it open too


def wishes(cluster: Cluster) -> list[Path]:
    return [path for path in cluster.directory.glob("run/wish-*") if path.read_bytes().endswith(b"\n")]


def wait_for(cluster: Cluster, count: int) -> None:
    assert until(lambda: len(wishes(cluster)) == count, 30), f"{len(wishes(cluster))} wishes"


def patches(cluster: Cluster) -> int:
    return cluster.asked().count(f"PATCH {POOLS}/{POOL}")


PODS = [f"c{i}" for i in range(2, 8)]


def test_those_who_wait_for_their_turn_are_served_with_who_has_it_by_one_patch(cluster: Cluster, calls: Calls) -> None:
    cluster.call("ADD", "c1")
    with turn(cluster):
        for pod in PODS:
            calls.start("ADD", pod)
        wait_for(cluster, len(PODS))
        assert cluster.recorded() == {"c1": ["10.0.0.1"], **{pod: [] for pod in PODS}}
        cluster.asked()
    given = {pod: found[0].removesuffix("/24") for pod, found in calls.finish().items()}
    assert sorted(given.values()) == [f"10.0.0.{i}" for i in range(2, 8)]
    assert patches(cluster) == 1
    assert {entry["id"]: f"10.0.0.{key}" for key, entry in cluster.allocations().items()} == {"c1": "10.0.0.1", **given}
    assert cluster.server.names(RESERVATIONS) == [f"10.0.0.{i}" for i in range(1, 8)]
    assert cluster.recorded() == {"c1": ["10.0.0.1"], **{pod: [address] for pod, address in given.items()}}
    with turn(cluster):
        for pod in PODS:
            calls.start("DEL", pod)
        wait_for(cluster, len(PODS))
    assert set(map(tuple, calls.finish().values())) == {()}
    assert patches(cluster) == 1
    assert list(cluster.allocations()) == ["1"]
    assert cluster.server.names(RESERVATIONS) == ["10.0.0.1"]
    assert list(cluster.recorded()) == ["c1"]
    assert not list(cluster.directory.glob("run/wish-*"))


def test_pods_that_come_back_get_their_addresses_also_when_others_claim_for_them(
    cluster: Cluster, calls: Calls
) -> None:
    cluster.call("ADD", "c1")
    given = {pod: cluster.call("ADD", pod, pod=f"web-{pod[1:]}") for pod in PODS}
    with turn(cluster):
        for pod in PODS:
            calls.start("DEL", pod)
        wait_for(cluster, len(PODS))
    calls.finish()
    assert list(cluster.allocations()) == ["1"]
    with turn(cluster):
        for pod in reversed(PODS):
            calls.start("ADD", f"new-{pod}", pod=f"web-{pod[1:]}")
        wait_for(cluster, len(PODS))
    assert calls.finish() == {f"new-{pod}": addresses for pod, addresses in given.items()}


def test_nothing_is_claimed_for_a_process_that_was_killed_while_it_waited(cluster: Cluster, calls: Calls) -> None:
    cluster.call("ADD", "c1")
    with turn(cluster):
        for pod in PODS:
            calls.start("ADD", pod)
        wait_for(cluster, len(PODS))
        calls.processes["c4"].kill()
        calls.processes["c4"].join()
    given = calls.finish("c4")
    assert sorted(entry["id"] for entry in cluster.allocations().values()) == sorted(["c1", *given])
    assert not list(cluster.directory.glob("run/wish-*"))
    cluster.call("DEL", "c4")
    assert "c4" not in cluster.recorded()


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_what_was_done_for_a_process_that_was_killed_meanwhile_is_cleared_by_its_delete(
    cluster: Cluster,
    calls: Calls,
    verb: str,
) -> None:
    cluster.call("ADD", "c1")
    if verb == "DEL":
        cluster.call("ADD", "c2")
    store = cluster.store(POOL)
    with store.turn():
        store.occupied(POOL, "", 4, TEN, TEN + 255)
        pid = calls.start(verb, "c2")
        wait_for(cluster, 1)
        os.kill(pid, signal.SIGSTOP)  # it lives, and does not see the answer
        assert isinstance(store.claim([want(TEN + 9)], owner("c9")), Claimed)
        os.kill(pid, signal.SIGKILL)
    calls.processes["c2"].join()
    assert ("c2" in {entry["id"] for entry in cluster.allocations().values()}) == (verb == "ADD")
    cluster.call("DEL", "c2")
    assert sorted(entry["id"] for entry in cluster.allocations().values()) == ["c1", "c9"]
    assert list(cluster.recorded()) == ["c1"]
    assert cluster.server.names(RESERVATIONS) == ["10.0.0.1", "10.0.0.9"]


@pytest.mark.parametrize("when", [kubernetes_api.DROP_BEFORE, kubernetes_api.DROP_AFTER])
def test_who_dies_with_the_turn_leaves_nobody_without_an_address_or_with_two(
    cluster: Cluster,
    calls: Calls,
    when: str,
) -> None:
    """Whether its patch was made or not: the others read the pool."""
    cluster.call("ADD", "c1")
    killed: list[str] = []

    def kill(method: str, resource: str, number: int) -> Any:
        if method != "PATCH" or killed:
            return None
        (patch,) = [body for asked, path, body in cluster.server.seen if asked == "PATCH"][-1:]
        own = [op["value"]["id"] for op in patch if op["op"] == "add" and "/spec/allocations/" in op["path"]]
        killed.append(own[0])  # its own comes first
        calls.processes[own[0]].kill()
        return when

    with turn(cluster):
        for pod in PODS:
            calls.start("ADD", pod)
        wait_for(cluster, len(PODS))
        cluster.server.seen.clear()
        cluster.server.faults = kill
    assert until(lambda: bool(killed), 30)
    given = calls.finish(killed[0])
    assert all(len(found) == 1 and found[0].startswith("10.0.0.") for found in given.values()), given
    cluster.call("DEL", killed[0])
    held = {entry["id"]: f"10.0.0.{key}/24" for key, entry in cluster.allocations().items()}
    assert held == {"c1": "10.0.0.1/24", **{pod: found[0] for pod, found in given.items()}}
    assert sorted(cluster.server.names(RESERVATIONS)) == sorted(text.removesuffix("/24") for text in held.values())


def test_an_address_that_is_reserved_by_another_range_is_given_back_and_another_found(
    cluster: Cluster,
    calls: Calls,
) -> None:
    cluster.call("ADD", "c1")
    cluster.call("ADD", "wide", {"range": "10.0.0.0/16", "range_start": "10.0.0.3"})
    with turn(cluster):
        for pod in PODS[:2]:
            calls.start("ADD", pod)
        wait_for(cluster, 2)
    given = calls.finish()
    addresses = [found[0].removesuffix("/24") for found in given.values()]
    assert len(set(addresses)) == 2 and "10.0.0.3" not in addresses
    assert {entry["id"] for entry in cluster.allocations().values()} == {"c1", *PODS[:2]}
    assert len(cluster.allocations()) == 3
    assert sorted(cluster.server.names(RESERVATIONS)) == sorted(["10.0.0.1", "10.0.0.3", *addresses])


def test_who_gets_no_answer_in_time_goes_without(cluster: Cluster, calls: Calls) -> None:
    cluster.call("ADD", "c1")
    with turn(cluster):
        calls.start("ADD", "c2", seconds=4)
        assert calls.finish() == {"c2": ["10.0.0.2/24"]}
    assert not list(cluster.directory.glob("run/wish-*"))


def test_a_delete_of_an_add_that_knew_no_address_yet_lets_no_claim_for_it_come_later(
    cluster: Cluster, calls: Calls
) -> None:
    cluster.call("ADD", "c1")
    with turn(cluster):
        calls.start("ADD", "c2")
        wait_for(cluster, 1)
        calls.processes["c2"].kill()
        calls.processes["c2"].join()
    before = cluster.server.metadata(POOLS, POOL)["resourceVersion"]
    cluster.call("DEL", "c2")
    assert cluster.server.metadata(POOLS, POOL)["resourceVersion"] != before


# --- what is granted ---


def pool(allocations: dict[str, Any] | None = None, size: int = 0, annotations: Any = None) -> PoolObject:
    metadata = {"name": POOL, "resourceVersion": "1", "annotations": annotations}
    return PoolObject({"metadata": metadata, "spec": {"range": "10.0.0.0/24", "allocations": allocations or {}}}, size)


def granted(
    found: PoolObject, *documents: Any, changes: Any = None, held: Callable[[], Any] | None = None
) -> list[Any]:
    grants = Grants(found, changes or {}, lambda scope, family: held() if held else found.entries)
    return [grants.grant(document) for document in documents]


RANGE = Range(4, TEN, 24, TEN + 2, TEN + 4, [(TEN + 3, TEN + 3)])


def of(container: str, pod: str = "", ifname: str = "net1") -> Owner:
    return owner(container, ifname=ifname, pod=("ns", pod, "") if pod else ("", "", ""))


def test_wishes_get_the_lowest_free_addresses_of_their_ranges_until_there_is_none() -> None:
    asked = [claim_wish(RANGE, "", of(f"c{i}")) for i in range(3)]
    assert granted(pool(), *asked) == [{"value": TEN + 2}, {"value": TEN + 4}, None]
    own = {TEN + 2: {"id": "own", "podref": "", "ifname": "net1"}}
    assert granted(pool(), *asked, changes=own) == [{"value": TEN + 4}, None, None]
    assert granted(pool(), *asked, held=lambda: {TEN + 4}) == [{"value": TEN + 2}, None, None]


def test_an_address_that_is_given_up_in_the_same_patch_goes_to_nobody() -> None:
    entries = {str(i): {"id": f"old{i}", "podref": "", "ifname": "net1"} for i in (2, 4)}
    asked = claim_wish(RANGE, "", of("c1"))
    assert granted(pool(entries), asked, changes={TEN + 2: None}, held=lambda: ()) == [{"value": TEN + 4}]


def test_a_sandbox_or_pod_that_has_a_lease_already_comes_to_its_own_turn() -> None:
    entries = {"9": {"id": "old", "podref": "ns/a", "ifname": "net1"}}
    assert granted(pool(entries), claim_wish(RANGE, "", of("old"))) == [None]
    assert granted(pool(entries), claim_wish(RANGE, "", of("new", "a"))) == [None]
    assert granted(pool(entries), claim_wish(RANGE, "", of("new", "a", "net2"))) == [{"value": TEN + 2}]
    twice = [claim_wish(RANGE, "", of(container, "b")) for container in ("c1", "c2")]
    assert granted(pool(entries), *twice) == [{"value": TEN + 2}, None]


def test_an_object_that_can_grow_no_more_grants_nothing() -> None:
    assert granted(pool(size=LIMIT - (24 << 10) - 200), *[claim_wish(RANGE, "", of(f"c{i}")) for i in range(2)]) == [
        {"value": TEN + 2},
        {"value": TEN + 4},
    ]
    assert granted(pool(size=LIMIT - (24 << 10)), claim_wish(RANGE, "", of("c1"))) == [None]


def test_a_release_is_granted_only_as_a_whole_and_of_what_is_still_its_own() -> None:
    entries = {str(i): {"id": "c1", "podref": "ns/web-0", "ifname": "net1"} for i in (2, 4)}
    leases = [Lease(Want(POOL, 4, TEN + i, ""), of("c1", "web-0")) for i in (2, 4)]
    grants = Grants(found := pool(entries), {}, lambda scope, family: found.entries)
    assert grants.grant(release_wish(leases)) == {"released": 2}
    assert grants.changes == {TEN + 2: None, TEN + 4: None}
    assert [(lease.value, lease.pod[:2]) for lease in grants.released] == [
        (TEN + 2, ("ns", "web-0")),
        (TEN + 4, ("ns", "web-0")),
    ]
    assert grants.grant(release_wish(leases)) is None
    entries["4"]["id"] = "other"
    assert granted(pool(entries), release_wish(leases)) == [None]


@pytest.mark.parametrize("document", [{}, {"claim": 1}, {"claim": {"id": "c1"}}, {"release": [[1]]}, {"later": 1}])
def test_a_wish_of_another_version_is_left_alone(document: Any) -> None:
    assert granted(pool(), document) == [None]
