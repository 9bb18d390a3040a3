"""The Kubernetes store against an API server, and the verbs over it: what it writes, what it asks, what it says.

The objects here are those of whereabouts v0.9.4.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.shared.kernel import files
from cni.shared.records import Records
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure, NotAvailable, TryAgainLater
from cni.shared.spec.request import Attachment
from ipam import acquire, rules
from ipam.leases import Lease, Want
from ipam.ranges import Range
from ipam.stores import apiserver as stores_api
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict
from ipam.stores.apiserver.resources import BINDINGS, RIGHTS
from ipam.stores.base import Claimed, Taken, Unreachable
from ipam.stores.ippool import KubernetesStore, locks
from ipam.stores.ippool.objects import LIMIT
from tests.each import quick
from tests.node import ROOT
from tests.stores import kubernetes_api, kubernetes_proxy
from tests.stores.claims import AnyAddress
from tests.stores.kinds import owner
from tests.stores.kubernetes_api import DROP_AFTER, DROP_BEFORE, ApiServer, Refusal
from tests.stores.places import called

POOLS, RESERVATIONS = "ippools", "overlappingrangeipreservations"
POOL = "10.0.0.0-24"
TEN = 10 << 24


class Cluster:
    """Nodes of one cluster: each has its records, and a kubeconfig."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.kubeconfig = server.kubeconfig(directory)

    def store(self, *pools: str, known: list[Lease] | None = None, seconds: float = 5) -> KubernetesStore:
        store_ref: dict[str, Any] = {"kind": "kubernetes", "kubeconfig": self.kubeconfig}
        if pools:
            store_ref["pools"] = list(pools)
        return KubernetesStore(store_ref, seconds, lambda: known or [])

    def call(self, verb: str, container: str = "c1", ipam: dict[str, Any] | None = None, **more: Any) -> list[str]:
        node = more.pop("node", "node-1")
        block = {"range": "10.0.0.0/24", "datastore": "kubernetes", "kubernetes": {"kubeconfig": self.kubeconfig}}
        block |= {"log_file": str(self.directory / "log"), "store_timeout": more.pop("seconds", 5)} | (ipam or {})
        args = f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={more.pop('pod', container)}{more.pop('args', '')}"
        environ = {"CNI_ARGS": args} | more.pop("environ", {})
        config = {"cniVersion": "1.1.0", "name": "rdma-net", "ipam": block, **more}
        return called(verb, container, config, self.directory / node, **environ)

    def recorded(self, node: str = "node-1") -> dict[str, list[str]]:
        return {a.container_id: d["addresses"] for a, _, d in Records(str(self.directory / node)).all()}

    def allocations(self, pool: str = POOL) -> dict[str, Any]:
        spec = self.server.spec(POOLS, pool)
        return spec["allocations"] if spec else {}

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def asked(self) -> list[str]:
        """The requests since the last call, without their bodies."""
        seen = [f"{method} {path}" for method, path, _ in self.server.seen]
        self.server.seen.clear()
        return seen


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path, free_paths: None, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "run"))
    return Cluster(server, tmp_path)


def divided(cluster: Cluster, *nodes: str, name: str = "rdma-net") -> None:
    """The NodeSlicePool that the node-slice-controller makes of 10.0.0.0/24 with node_slice_size /26."""
    slices = [{"nodeName": node, "sliceRange": f"10.0.0.{64 * i}/26"} for i, node in enumerate((*nodes, *[""] * 4)[:4])]
    spec = {"range": "10.0.0.0/24", "sliceSize": "/26"}
    cluster.server.put("nodeslicepools", "kube-system", name, spec, status={"allocations": slices})


def want(value: int, pool: str = POOL, scope: str | None = "", family: int = 4) -> Want:
    return Want(pool, family, value, scope)


# --- the locks of the node ---


@pytest.mark.parametrize("mode", [0, 0o1777, 0o770], ids=["there is none", "a tmpfs without a mode", "its group's"])
def test_a_directory_of_locks_that_others_can_write_is_taken_back(cluster: Cluster, tmp_path: Path, mode: int) -> None:
    run = tmp_path / "run"
    if mode:
        run.mkdir()
        run.chmod(mode)
    assert cluster.call("ADD", pod="a") == ["10.0.0.1/24"]
    assert run.stat().st_mode & 0o7777 == 0o700
    assert [path.name.partition("-")[0] for path in run.iterdir()] == ["pool"]


@pytest.mark.parametrize("planted", ["another user's file", "a file for all", "a link", "a FIFO"])
def test_a_lock_that_somebody_has_planted_is_replaced(cluster: Cluster, tmp_path: Path, planted: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    cluster.call("ADD", pod="a")
    (lock,) = run.iterdir()
    lock.unlink()
    run.chmod(0o1777)
    if planted == "a link":
        lock.symlink_to(elsewhere)
    elif planted == "a FIFO":
        os.mkfifo(lock)
    else:
        lock.touch()
        lock.chmod(0o666 if planted == "a file for all" else 0o600)
        os.chown(lock, *((-1, -1) if planted == "a file for all" else (4321, 4321)))
    assert cluster.call("ADD", "c2", pod="b") == ["10.0.0.2/24"]
    status = lock.lstat()
    assert (status.st_uid, oct(status.st_mode)) == (os.geteuid(), "0o100600")
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("another user's", "its owner is user 4321.*chown it to root"),
        ("a file", "Not a directory.*must be a local directory of root with mode 700"),
        ("a link", "it is no directory.*remove it"),
    ],
)
def test_no_add_goes_without_the_nodes_locks_in_silence(cluster: Cluster, tmp_path: Path, how: str, said: str) -> None:
    cluster.call("ADD", pod="a")
    run = tmp_path / "run"
    run.rename(tmp_path / "aside")
    if how == "a file":
        run.touch()
    elif how == "a link":
        run.symlink_to("aside")
    else:
        run.mkdir()
        os.chown(run, 4321, 4321)
    with pytest.raises(IoFailure, match=f"the node's locks cannot be kept in {run}: {said}"):
        cluster.call("ADD", "c2", pod="b")
    cluster.call("DEL", pod="a")  # goes on; what it could not release is pending
    run.rename(tmp_path / "away")
    cluster.call("GC", **{"cni.dev/valid-attachments": []})
    assert cluster.allocations() == {}
    assert cluster.call("ADD", "c2", pod="b") == ["10.0.0.1/24"]


def test_where_there_can_be_no_locks_the_log_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(locks, "DIRECTORY", "/proc/self/none")  # the kernel refuses to make it
    monkeypatch.setattr(files, "take_directory", refuse)
    assert cluster.call("ADD", pod="a") == ["10.0.0.1/24"]
    assert "the node's locks cannot be kept in /proc/self/none: Read-only file system" in capfd.readouterr().err


# --- what stands in the cluster ---


@pytest.mark.parametrize(
    ("block", "cidr", "pool", "reservation"),
    [
        ({}, "10.0.0.0/24", POOL, "10.0.0.1"),
        ({"range": "fd00:1::/64"}, "fd00:1::/64", "fd00-1---64", "fd00-1--1"),
        ({"range": "10.9.8.7/16", "network_name": "blue"}, "10.9.0.0/16", "blue-10.9.0.0-16", "blue-10.9.0.1"),
        ({"range": "fd00:1::/64", "network_name": "blue"}, "fd00:1::/64", "blue-fd00-1---64", "blue-fd00-1--1"),
    ],
)
def test_an_add_writes_what_whereabouts_writes(
    cluster: Cluster, block: dict[str, Any], cidr: str, pool: str, reservation: str
) -> None:
    cluster.call("ADD", ipam=block, pod="a")
    entry = {"id": "c1", "podref": "ns/a", "ifname": "net1"}
    assert cluster.server.names(POOLS) == [pool]
    assert cluster.server.spec(POOLS, pool) == {"range": cidr, "allocations": {"1": entry}}
    assert cluster.server.names(RESERVATIONS) == [reservation]
    assert cluster.server.spec(RESERVATIONS, reservation) == {"podref": "ns/a", "ifname": "net1", "containerid": "c1"}
    cluster.call("DEL", ipam=block, pod="a")
    assert cluster.allocations(pool) == cluster.recorded() == {}
    assert cluster.server.names(RESERVATIONS) == []


def test_offsets_count_from_the_address_as_it_stands_in_the_range(cluster: Cluster) -> None:
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.8/24", "allocations": {}})
    assert cluster.call("ADD", ipam={"range_start": "10.0.0.10"}) == ["10.0.0.10/24"]
    assert list(cluster.allocations()) == ["2"]


def test_stray_keys_huge_offsets_and_unknown_members_are_kept(cluster: Cluster) -> None:
    """whereabouts #403: an allocation at an offset near 2^64. Go drops others, and a newer version has other members."""
    newer = {"id": "go", "podref": "ns/vm", "ifname": "net1", "ipamclaimref": "ns/claim", "newer": {"a": ["b"]}}
    keys = ("nonsense", "-3", "1.5", "007", "18446463705355360228", str(1 << 130), "1")
    before = dict.fromkeys(keys, newer)
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": before, "later": "x"})
    block = {"ipRanges": [{"range": "10.1.0.0/24"}]}
    cluster.call("ADD", ipam=block)  # a claim, then one in place of another, one that is undone, a retry
    cluster.call("ADD", "c2", block, pod="c1")
    cluster.call("ADD", "c2", block, pod="c1")
    reserved_by_another(cluster)
    with pytest.raises(TryAgainLater):
        cluster.call("ADD", "c3", block, args=";IP=10.0.0.9,10.1.0.5")
    assert {key: entry for key, entry in cluster.allocations().items() if key in before} == before
    for container in ("c1", "c2", "c3"):
        cluster.call("DEL", container, block)
    cluster.call("GC", "", block, **{"cni.dev/valid-attachments": []})
    cluster.store(POOL, known=[Lease(want(TEN + 200), owner())]).settle(owner().attachment, 1)
    assert cluster.server.spec(POOLS, POOL) == {"range": "10.0.0.0/24", "allocations": before, "later": "x"}


def test_a_lease_whose_entry_bears_more_than_ours_keeps_it_when_it_moves(cluster: Cluster) -> None:
    entry = {"id": "go", "podref": "ns/vm", "ifname": "net1", "ipamclaimref": "ns/claim"}
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": {"5": entry}})
    assert cluster.call("ADD", "new", pod="vm") == ["10.0.0.5/24"]
    assert cluster.allocations() == {"5": {**entry, "id": "new"}}


def test_a_reservation_keeps_what_others_noted_on_it_when_it_moves(cluster: Cluster) -> None:
    """Labels and annotations: of whoever uses them."""
    cluster.call("ADD", "old", pod="a")
    cluster.server.note(RESERVATIONS, "10.0.0.1", {"team": "x"})
    cluster.call("ADD", "new", pod="a")
    metadata = cluster.server.metadata(RESERVATIONS, "10.0.0.1")
    assert metadata["labels"]["team"] == metadata["annotations"]["team"] == "x"
    assert cluster.server.spec(RESERVATIONS, "10.0.0.1") == {"podref": "ns/a", "ifname": "net1", "containerid": "new"}


def test_an_offset_that_go_would_drop_is_not_given(cluster: Cluster) -> None:
    with pytest.raises(InvalidConfig, match=r"2\^63"):
        cluster.call("ADD", ipam={"range": "fd00::/48", "range_start": "fd00::8000:0:0:0"})
    assert cluster.recorded() == {}


# --- how many requests ---


@pytest.mark.well("it counts the requests of a well server")
def test_add_is_three_requests_a_range_in_the_steady_state_and_delete_four_and_they_list_nothing(
    cluster: Cluster,
) -> None:
    cluster.call("ADD", "first")
    cluster.asked()
    cluster.call("ADD")
    assert cluster.asked() == [f"GET {POOLS}/{POOL}", f"PATCH {POOLS}/{POOL}", f"POST {RESERVATIONS}"]
    cluster.call("ADD")
    assert cluster.asked() == [f"GET {POOLS}/{POOL}", f"GET {RESERVATIONS}/10.0.0.2"]
    cluster.call("DEL")
    reservation, pool = f"{RESERVATIONS}/10.0.0.2", f"{POOLS}/{POOL}"
    assert cluster.asked() == [f"GET {reservation}", f"DELETE {reservation}", f"GET {pool}", f"PATCH {pool}"]
    two = {"ipRanges": [{"range": "10.1.0.0/24"}]}
    cluster.call("ADD", "c2", two)
    for verb, count in (("ADD", 6), ("DEL", 8)):
        cluster.asked()
        cluster.call(verb, ipam=two)
        assert len(cluster.asked()) == count
    unreserved = {"enable_overlapping_ranges": False}
    assert cluster.call("ADD", "c3", unreserved) == ["10.0.0.3/24"]
    assert cluster.asked() == [f"GET {POOLS}/{POOL}", f"PATCH {POOLS}/{POOL}"]


def test_a_pool_is_told_to_note_no_writers(cluster: Cluster) -> None:
    """What the server notes of every member of a pool takes most of the time of a patch, and a third of the object."""
    for container in ("c1", "c2"):
        cluster.call("ADD", container)
    assert "managedFields" not in cluster.server.metadata(POOLS, POOL)
    cluster.call("DEL")
    assert "managedFields" not in cluster.server.metadata(POOLS, POOL)


@pytest.mark.well("it counts the requests of a well server")
def test_a_turn_lasts_from_the_reading_of_a_pool_to_its_patch(cluster: Cluster) -> None:
    """Meanwhile no other process of the node reads it. What is done of reservations keeps no other process waiting."""
    cluster.call("ADD", "first")
    (lock,) = (cluster.directory / "run").iterdir()
    seen: list[str] = []

    def look(method: str, resource: str, number: int) -> None:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen.append(f"{method} {resource} free")
            except BlockingIOError:
                seen.append(f"{method} {resource} held")

    cluster.server.faults = look
    cluster.call("ADD")
    assert seen == [f"GET {POOLS} held", f"PATCH {POOLS} held", f"POST {RESERVATIONS} free"]
    seen.clear()
    cluster.call("DEL")
    assert seen[:2] == [f"GET {RESERVATIONS} free", f"DELETE {RESERVATIONS} free"]
    assert seen[2:] == [f"GET {POOLS} held", f"PATCH {POOLS} held"]


@pytest.mark.well("a second attempt waits for another turn, for which the call has no time")
@pytest.mark.parametrize(("verb", "container", "left"), [("ADD", "c2", ["1", "2"]), ("DEL", "c1", [])])
def test_a_turn_that_does_not_come_delays_a_call_and_does_not_fail_it(
    cluster: Cluster, verb: str, container: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_SECONDS", 0.5)
    cluster.call("ADD", "c1")
    (lock,) = (cluster.directory / "run").iterdir()
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cluster.call(verb, container, seconds=1)
    assert list(cluster.allocations()) == left


@pytest.mark.well("a second attempt waits for another turn, for which the call has no time")
def test_a_lock_is_waited_for_as_long_as_others_release_it(cluster: Cluster) -> None:
    """On many nodes whose claims forestall one another a turn takes seconds; without the lock there would be more of them."""
    cluster.call("ADD", "c1")
    (lock,) = (cluster.directory / "run").iterdir()
    others = threading.Barrier(2)

    def take_turns() -> None:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            others.wait()
            for _ in range(12):
                time.sleep(0.2)
                os.utime(lock)
            cluster.asked()

    thread = threading.Thread(target=take_turns)
    thread.start()
    others.wait()
    cluster.call("ADD", "c2", seconds=1)
    thread.join()
    assert f"PATCH {POOLS}/{POOL}" in cluster.asked(), "the call went on without the lock"


# --- lease rules with Go's leases ---


def go_lease(cluster: Cluster, container: str = "go", pod: str = "ns/a", offset: str = "5") -> None:
    allocations = {**cluster.allocations(), offset: {"id": container, "podref": pod, "ifname": "net1"}}
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": allocations})
    reservation = {"podref": pod, "ifname": "net1"}
    cluster.server.put(RESERVATIONS, "kube-system", f"10.0.0.{offset}", reservation)


FORMER = pytest.mark.skipif(bool(kubernetes_proxy.path()), reason="a real server sets the times of objects itself")


@pytest.mark.parametrize(
    ("pod", "uid", "moves"),
    [
        ("living", "", True),
        ("living", "its own", True),
        ("living", "of another", False),  # of a pod that is gone
        ("none", "u1", True),
        ("forbidden", "u1", True),
        ("static", "of its kubelet", True),  # in an annotation: the pod in the API is its mirror, and has another
        pytest.param(
            "a later one", "its own", False, marks=FORMER
        ),  # the former may run on a node that does not answer
    ],
)
def test_a_lease_of_go_moves_to_the_living_pod_of_its_name_and_to_no_other(
    cluster: Cluster, pod: str, uid: str, moves: bool
) -> None:
    """Go notes no uid, so the pod is read; and the reservation of a former pod of the name is older than the pod."""
    go_lease(cluster)
    if pod != "none":
        living = cluster.server.add_pod("ns", "a", node="node-1", static_uid=uid if pod == "static" else "")
    if pod == "a later one":
        cluster.server.core.objects["pods", "ns", "a"]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    cluster.server.forbidden = {("get", "pods")} if pod == "forbidden" else set()
    args = f";K8S_POD_UID={living if uid == 'its own' else uid}" if uid else ""
    given = "10.0.0.5/24" if moves else "10.0.0.1/24"
    assert cluster.call("ADD", "new", pod="a", args=args) == [given]
    assert cluster.allocations()["5"] == {"id": "new" if moves else "go", "podref": "ns/a", "ifname": "net1"}
    if pod == "forbidden":
        assert "conf/kubernetes/rbac.yaml" in cluster.log()
    if moves:
        reservation = {"podref": "ns/a", "ifname": "net1", "containerid": "new"}
        assert cluster.server.spec(RESERVATIONS, "10.0.0.5") == reservation
        cluster.call("DEL", "go", pod="a")
        assert list(cluster.allocations()) == ["5"]
        cluster.call("CHECK", "new", pod="a", prevResult={"cniVersion": "1.1.0", "ips": [{"address": given}]})


@pytest.mark.parametrize("lives", [True, False])
def test_an_exhausted_pool_takes_no_lease_of_go_away(cluster: Cluster, lives: bool) -> None:
    """Whether its pod lives or not: that it is seen dead once is not enough."""
    for offset in ("1", "2"):
        go_lease(cluster, f"go{offset}", f"ns/p{offset}", offset)
        if lives:
            cluster.server.add_pod("ns", f"p{offset}")
    before = cluster.allocations()
    for _ in range(2):
        assert "exhausted" in message(cluster, ipam={"range_end": "10.0.0.2"})
    assert cluster.allocations() == before


def test_what_an_undo_left_in_a_pool_hides_no_holder_in_another_range(cluster: Cluster) -> None:
    cluster.call("ADD", "holding", {"range": "10.0.0.0/28"})
    spec = {"range": "10.0.0.0/24", "allocations": {"1": {"id": "c1", "podref": "ns/c1", "ifname": "net1"}}}
    cluster.server.put(POOLS, "kube-system", POOL, spec)
    (left,) = cluster.store().leases(POOL)
    assert [cluster.store().holder(x).container_id for x in (left, want(TEN + 1))] == ["c1", "holding"]  # type: ignore[union-attr]
    cluster.asked()
    with pytest.raises(TryAgainLater, match=r"10\.0\.0\.1 \(pool 10\.0\.0\.0-28\) is held by pod ns/holding,"):
        cluster.call("ADD", "c1", args=";IP=10.0.0.1")
    assert [line for line in cluster.asked() if not line.startswith("GET ")] == []
    assert cluster.call("ADD", "c1") == ["10.0.0.2/24"]
    assert set(cluster.allocations()) == {"2"}
    assert cluster.server.names(RESERVATIONS) == ["10.0.0.1", "10.0.0.2"]


def test_a_lost_reservation_is_made_again_by_a_retry(cluster: Cluster) -> None:
    cluster.call("ADD")
    cluster.server.remove(RESERVATIONS, "10.0.0.1")
    assert cluster.call("ADD") == ["10.0.0.1/24"]
    assert cluster.server.names(RESERVATIONS) == ["10.0.0.1"]


# --- conflicts and lost replies ---


@pytest.mark.well("it scripts the answer to each request")
@pytest.mark.parametrize(("when", "left"), [(DROP_BEFORE, {"c1": ["10.0.0.1"]}), (DROP_AFTER, {})])
def test_a_delete_whose_replies_are_lost_is_finished_by_itself_or_later(
    cluster: Cluster, when: str, left: dict[str, list[str]]
) -> None:
    cluster.call("ADD")
    cluster.server.faults = lambda method, resource, number: when if method in ("PATCH", "DELETE") else None
    cluster.call("DEL", store_timeout=1)
    assert cluster.recorded() == left
    cluster.server.faults = lambda *_: None
    cluster.call("DEL")
    assert cluster.recorded() == cluster.allocations() == {}
    assert cluster.server.names(RESERVATIONS) == []


@pytest.mark.well("it counts the requests of a well server")
@pytest.mark.parametrize(
    "answer",
    [
        (429, Refusal(429, "TooManyRequests", "Too many requests", retryAfterSeconds=9).document),
        (429, "Too many requests, please try again later.\n", ("Retry-After", "9")),  # API Priority and Fairness
    ],
    ids=["in its Status", "in a header"],
)
def test_a_server_that_asks_for_more_time_than_there_is_ends_the_wait_at_once(cluster: Cluster, answer: Any) -> None:
    cluster.server.faults = lambda *_: answer
    said = message(cluster)
    assert said.startswith("11 ") and "Too many requests" in said
    assert len(cluster.asked()) == 1


@pytest.mark.well("it scripts the answer to each request")
@pytest.mark.parametrize("asked", ["0", "-1", "soon", "1" * 40, "\u0663", "3600"])
def test_a_retry_after_that_tells_no_seconds_is_none_and_one_of_an_hour_is_cut(
    cluster: Cluster, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_api, "_RETRY_AFTER_LIMIT", 0.1)
    refusals = iter([(429, "busy\n", ("Retry-After", asked.encode().decode("latin-1")))])
    cluster.server.faults = lambda *_: next(refusals, None)
    assert cluster.call("ADD", seconds=2) == ["10.0.0.1/24"]


def test_a_delete_frees_a_reservation_whose_allocation_another_has_removed(cluster: Cluster) -> None:
    cluster.call("ADD")
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": {}})
    cluster.call("DEL")
    assert cluster.server.names(RESERVATIONS) == []
    assert cluster.recorded() == {}


# --- errors ---


def message(cluster: Cluster, verb: str = "ADD", seconds: float = 1, **more: Any) -> str:
    with pytest.raises(CniError) as caught:
        cluster.call(verb, seconds=seconds, **more)
    return f"{caught.value.code} {caught.value.msg}"[:250]  # runtimes cut the rest


@pytest.mark.skipif(bool(kubernetes_proxy.path()), reason="a real server has the definitions of conf/kubernetes")
def test_a_definition_without_ifname_is_named_by_status_and_its_leases_are_released(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of an older whereabouts: the server drops the member, and says nothing."""
    cluster.call("STATUS", "")
    kubernetes_api.outdate(monkeypatch)
    with pytest.raises(NotAvailable, match=r"ippools\.whereabouts\.cni\.cncf\.io is too old: it has no ifname"):
        cluster.call("STATUS", "")
    assert cluster.call("ADD") == ["10.0.0.1/24"]
    assert cluster.call("ADD", "c2") == ["10.0.0.2/24"]
    for container in ("c1", "c2"):
        cluster.call("DEL", container)
    assert cluster.allocations() == {}
    assert cluster.server.names(RESERVATIONS) == []


def test_no_definition_of_whereabouts_objects_is_narrower_than_a_newer_one_of_whereabouts() -> None:
    def levels(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Every object whose members are named."""
        if "properties" in schema:
            yield schema
        inner = [schema.get("items"), schema.get("additionalProperties"), *schema.get("properties", {}).values()]
        for found in filter(None, inner):
            yield from levels(found)

    for resource in (POOLS, RESERVATIONS, "nodeslicepools"):
        for schema in (kubernetes_api.SPECS[resource], kubernetes_api.STATUS):
            assert all(level.get(kubernetes_api.KEEPS) is True for level in levels(schema)), resource


def test_the_role_grants_each_right_that_is_used_and_no_other(cluster: Cluster) -> None:
    documents = list(yaml.safe_load_all((ROOT / "conf/kubernetes/rbac.yaml").read_text()))
    roles = [d for d in documents if d["kind"] in ("Role", "ClusterRole")]
    rules = [(resource, rule) for role in roles for rule in role["rules"] for resource in rule["resources"]]
    granted = {
        resource: {verb for to, rule in rules if to == resource for verb in rule["verbs"]} for resource, _ in rules
    }
    assert granted.pop(BINDINGS) == {"get"}  # of `railcni doctor`
    assert granted == {resource: set(verbs.split()) for resource, verbs in RIGHTS.items()}
    cluster.call("ADD", "narrow", {"range": "10.0.0.0/28"})
    cluster.call("ADD", "wide")
    cluster.call("ADD", "wide-2", pod="wide")
    cluster.call("DEL", "narrow", {"range": "10.0.0.0/28"})
    divided(cluster, "")
    cluster.call("ADD", "sliced", {"node_slice_size": "/26"})
    go_lease(cluster, "go", "ns/b", "99")
    cluster.call("ADD", "new", pod="b", args=";K8S_POD_UID=u1")
    cluster.store().pools()
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    used: dict[str, set[str]] = {}
    for asked in cluster.asked():
        method, _, place = asked.partition(" ")
        resource, _, name = place.partition("/")
        used.setdefault(resource, set()).add(verbs.get(method, "get" if name else "list"))
    assert used.pop(kubernetes_api.ADDRESSES) == {"list"}  # before a pool is made
    del granted[kubernetes_api.ADDRESSES]  # tests/stores/test_addresslease_store.py
    used[RESERVATIONS].add("list")  # `railcni ipam` on a node, which has the plugins' kubeconfig
    assert used == granted


@pytest.mark.well("it scripts the answer to each request")
@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [(409, "Conflict", pytest.raises(Unreachable)), (404, "NotFound", contextlib.nullcontext())],
)
def test_a_fence_that_the_pool_refuses_leaves_the_release_pending_and_one_that_is_gone_needs_none(
    cluster: Cluster, status: int, reason: str, outcome: Any
) -> None:
    cluster.call("ADD")
    said = Refusal(status, reason, "no", name=POOL).document
    cluster.server.faults = lambda method, *_: (status, said) if method == "PATCH" else None
    with outcome:
        cluster.store(POOL).settle(Attachment("rdma-net", "c1", "net1"), 1)


def test_a_pool_without_a_range_is_named_by_what_reads_it(cluster: Cluster) -> None:
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "none", "allocations": {}})
    store = cluster.store()
    for read in (store.pools, lambda: store.leases(POOL), lambda: store.find(owner().attachment)):
        with pytest.raises(InvalidConfig, match=f"spec.range of IPPool {POOL}"):
            read()


FAULTS: dict[str, tuple[Callable[[ApiServer], object], list[str]]] = {  # what is wrong, and words of the error
    "a missing right": (
        lambda server: server.forbidden.update({("patch", POOLS), ("create", POOLS)}),
        ["7 ", "create", POOLS, "kube-system", "whereabouts.cni.cncf.io"],
    ),
    "missing resources": (lambda server: server.resources.clear(), ["apply conf/kubernetes/crds"]),
    "a missing namespace": (
        lambda server: server.absent.add("kube-system"),
        ["7 ", "namespace kube-system", "create it"],
    ),
    "a namespace that is being deleted": (
        lambda server: server.ending.add("kube-system"),
        ["11 ", "namespace kube-system", "deleted", "create it again"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_cluster_lacks_is_named_with_its_remedy_and_status_says_so(cluster: Cluster, fault: str) -> None:
    if "deleted" in fault:
        cluster.call("ADD")  # the pool can be read and changed: only what is new is refused
    make, words = FAULTS[fault]
    make(cluster.server)
    said = message(cluster, container="c2", seconds=10)
    assert all(word in said for word in (cluster.server.url, *words)), said
    if "namespace" in fault:
        with pytest.raises(NotAvailable, match="namespace kube-system"):
            cluster.call("STATUS", "")


@pytest.mark.well("it scripts the answer to each request")
def test_a_port_that_wants_tls_is_told_with_what_to_write_and_a_refusal_without_a_reason_has_no_gap(
    cluster: Cluster,
) -> None:
    cluster.server.faults = lambda *request: (400, "Client sent an HTTP request to an HTTPS server.\n")
    said = message(cluster)
    assert said.startswith("7 ") and f"Write https:// in kubeconfig {cluster.kubeconfig}" in said
    cluster.server.faults = lambda *request: (400, "no")
    assert "(400): no" in message(cluster)


def test_a_name_that_no_object_can_have_is_said_of_the_network(cluster: Cluster) -> None:
    assert "ipam.network_name" in message(cluster, ipam={"network_name": "My_Net"})
    assert cluster.recorded() == {}


def test_status_makes_nothing_in_the_cluster(cluster: Cluster) -> None:
    cluster.call("STATUS", "")
    assert cluster.server.names(POOLS) == cluster.server.names(RESERVATIONS) == []


def test_a_kubeconfig_that_has_gone_is_named_and_no_pod_hangs_on_it(cluster: Cluster) -> None:
    cluster.call("ADD")
    path = Path(cluster.kubeconfig)
    path.rename(path.with_suffix(".gone"))
    assert message(cluster, container="c2").startswith(f"7 kubeconfig {path} cannot be read")
    cluster.call("DEL")
    assert cluster.recorded().keys() == {"c1"}
    path.with_suffix(".gone").rename(path)
    cluster.call("DEL")
    assert cluster.allocations() == cluster.recorded() == {}


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_a_pool_of_the_largest_size_of_an_object_takes_no_more_leases(cluster: Cluster) -> None:
    def claim(size: int, offset: int) -> object:
        """In a pool of that size."""
        entry = {"id": "c" * 64, "podref": "ns/" + "p" * 60, "ifname": "net1"}
        allocations = {str(i): entry for i in range(10, 10 + size // (len(json.dumps(entry)) + 12))}
        cluster.server.put(POOLS, "kube-system", "10.0.0.0-16", {"range": "10.0.0.0/16", "allocations": allocations})
        return cluster.store().claim([want(TEN + offset, "10.0.0.0-16")], owner(f"c{offset}"))

    assert isinstance(claim(int(LIMIT * 0.85), 1), Claimed)
    with pytest.raises(TryAgainLater) as caught:
        claim(LIMIT, 2)
    told = caught.value.msg[:250]
    assert all(word in told for word in ("10.0.0.0-16", "1536", "Split", "network_name", "node_slice_size", "etcd"))
    assert "PATCH" not in cluster.asked()[-1]


# --- many nodes ---


@pytest.mark.well("the store says how many leases a release has freed, which no attempt after a lost reply can know")
def test_nodes_that_claim_at_once_get_an_address_each_and_leave_none(cluster: Cluster) -> None:
    """whereabouts #110, #393: duplicates when many pods start at once. Threads take no turns, as nodes take none of one another."""
    nodes, each = 8, 6
    given: list[int] = []
    faults: list[BaseException] = []
    need = rules.Need(Range(4, TEN, 24), POOL, "")

    def work(node: int) -> None:
        store = cluster.store(POOL, seconds=20)
        try:
            for i in range(each):
                who = owner(f"c{node}-{i}", time.time_ns(), pod=("ns", f"p{node}-{i}", ""), node=f"node-{node}")
                given.extend(acquire.acquire(store, [need], who, AnyAddress()))
            for i in range(0, each, 2):
                found = store.find(owner(f"c{node}-{i}").attachment)
                assert store.release(found) == 1
        except BaseException as fault:
            faults.append(fault)
        finally:
            store.close()

    threads = [threading.Thread(target=work, args=(node,)) for node in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    held = cluster.allocations()
    assert sorted(entry["id"] for entry in held.values()) == sorted(
        f"c{n}-{i}" for n in range(nodes) for i in (1, 3, 5)
    )
    assert sorted(cluster.server.names(RESERVATIONS)) == sorted(f"10.0.0.{offset}" for offset in held)
    assert len(given) == nodes * each


# --- what is undone, and what comes late ---

ELSEWHERE = Want("10.1.0.0-24", 4, TEN + (1 << 16) + 5, "")


def reserved_by_another(cluster: Cluster) -> None:
    """The address of ELSEWHERE, for a pool of another range."""
    spec = {"podref": "ns/other", "ifname": "net1", "containerid": "other"}
    cluster.server.put(RESERVATIONS, "kube-system", "10.1.0.5", spec)


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_a_claim_whose_second_reservation_is_taken_leaves_nothing_of_the_first(cluster: Cluster) -> None:
    reserved_by_another(cluster)
    answer = cluster.store().claim([want(TEN + 9), ELSEWHERE], owner())
    assert isinstance(answer, Taken)
    assert [w.value for w in answer.wants] == [ELSEWHERE.value]
    assert cluster.server.names(RESERVATIONS) == ["10.1.0.5"]
    assert cluster.allocations() == cluster.allocations("10.1.0.0-24") == {}


def test_a_pool_that_is_made_too_late_claims_nothing(cluster: Cluster) -> None:
    cluster.call("ADD")
    made = next(body for method, path, body in cluster.server.seen if method == "POST" and POOLS in path)
    assert made["spec"] == {"range": "10.0.0.0/24", "allocations": {}}


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_a_takeover_that_fails_gives_back_what_it_had_taken(cluster: Cluster) -> None:
    reserved_by_another(cluster)
    first = cluster.store().claim([want(TEN + 9)], owner("old", 1, pod=("ns", "a", "u")))
    assert isinstance(first, Claimed)
    before = cluster.allocations(), cluster.server.spec(RESERVATIONS, "10.0.0.9")
    answer = cluster.store().claim([want(TEN + 9), ELSEWHERE], owner("new", 2, pod=("ns", "a", "u")), first.leases)
    assert isinstance(answer, Taken)
    assert (cluster.allocations(), cluster.server.spec(RESERVATIONS, "10.0.0.9")) == before
    found = cluster.store().survey(owner("x", pod=("ns", "a", "")), [], False).pods
    assert [lease.container_id for lease in found] == ["old"]


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_a_release_spares_a_reservation_that_has_become_another_s(cluster: Cluster) -> None:
    answer = cluster.store().claim([want(TEN + 9)], owner())
    assert isinstance(answer, Claimed)
    spec = {"podref": "ns/other", "ifname": "net1", "containerid": "other"}
    cluster.server.put(RESERVATIONS, "kube-system", "10.0.0.9", spec)
    assert cluster.store().release(answer.leases) == 1
    assert cluster.server.spec(RESERVATIONS, "10.0.0.9") == spec


@pytest.mark.parametrize("is_left", [False, True], ids=["first", "after a killed one"])
def test_a_reservation_that_was_made_too_late_is_taken_over_by_the_next_claim(cluster: Cluster, is_left: bool) -> None:
    cluster.call("ADD", "c1")
    made = next(body for method, path, body in cluster.server.seen if method == "POST" and RESERVATIONS in path)
    cluster.call("DEL", "c1")
    Api(cluster.kubeconfig, 5).create(RESERVATIONS, made)
    if is_left:
        allocations = {"1": {"id": "c2", "podref": "ns/c2", "ifname": "net1"}}
        cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": allocations})
    assert cluster.call("ADD", "c2") == ["10.0.0.1/24"]
    found = cluster.server.spec(RESERVATIONS, "10.0.0.1")
    assert found and found["containerid"] == "c2"
    cluster.call("DEL", "c2")
    assert cluster.server.names(RESERVATIONS) == []


@pytest.mark.well("it scripts the answer to each request")
def test_a_reservation_that_changes_while_it_is_deleted_is_deleted_all_the_same(cluster: Cluster) -> None:
    cluster.call("ADD")
    refusals = [Refusal(409, "Conflict", "the object has been modified").document] * 2
    cluster.server.faults = lambda method, *_: (409, refusals.pop()) if method == "DELETE" and refusals else None
    cluster.call("DEL")
    assert (refusals, cluster.allocations(), cluster.server.names(RESERVATIONS)) == ([], {}, [])


@pytest.mark.well("it scripts the answer to each request")
def test_a_late_delete_takes_no_reservation_that_has_moved_to_the_pod_s_new_sandbox(cluster: Cluster) -> None:
    cluster.call("ADD", "c1", pod="a")
    api = Api(cluster.kubeconfig, 5)
    former = api.get(RESERVATIONS, "10.0.0.1")[0]["metadata"]
    assert cluster.call("ADD", "c2", pod="a") == ["10.0.0.1/24"]
    with pytest.raises(Conflict):
        api.delete(RESERVATIONS, "10.0.0.1", former["uid"], former["resourceVersion"])
    cluster.call("DEL", "c2", pod="a")
    options = next(body for method, _, body in reversed(cluster.server.seen) if method == "DELETE")
    assert set(options["preconditions"]) == {"uid", "resourceVersion"}


@pytest.mark.well("it scripts the answer to each request")
def test_an_add_after_a_pending_delete_gets_an_address_that_the_late_release_cannot_free(cluster: Cluster) -> None:
    assert cluster.call("ADD") == ["10.0.0.1/24"]
    cluster.server.faults = lambda method, resource, number: (
        DROP_BEFORE if (method, resource) == ("PATCH", POOLS) else None
    )
    cluster.call("DEL", seconds=1)
    release = next(body for method, _, body in reversed(cluster.server.seen) if method == "PATCH")
    cluster.server.faults = lambda method, resource, number: None
    assert cluster.call("ADD") == ["10.0.0.2/24"]
    with pytest.raises(Conflict):
        Api(cluster.kubeconfig, 5).patch(POOLS, POOL, release)
    assert list(cluster.allocations()) == ["2"]
    cluster.call("DEL")
    assert (cluster.allocations(), cluster.server.names(RESERVATIONS)) == ({}, [])


@pytest.mark.well("it calls the store itself, which leaves an open outcome to its caller")
def test_what_others_note_on_a_pool_while_it_is_fenced_stays(cluster: Cluster) -> None:
    """Such as which addresses cool."""
    cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": {}})

    def note(method: str, resource: str, number: int) -> Any:
        return (lambda: cluster.server.note(POOLS, POOL, {"railcni.io/noted": "x"})) if method == "PATCH" else None

    cluster.server.faults = note
    cluster.store(POOL).settle(owner().attachment, 1)
    assert cluster.server.metadata(POOLS, POOL)["annotations"]["railcni.io/noted"] == "x"


@pytest.mark.well("it is killed at each of the requests that a well server gets")
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
@pytest.mark.parametrize("when", [DROP_BEFORE, None], ids=["before", "after"])
@pytest.mark.parametrize("request_number", quick([3, 4, 5, 6], 3, 6))
def test_what_a_kill_leaves_is_cleared_by_delete_and_completed_by_a_retry(
    cluster: Cluster, verb: str, when: str | None, request_number: int
) -> None:
    """Killed when its first, second, ... request reaches the server, which serves it nevertheless, or not."""
    block = {"ipRanges": [{"range": "10.1.0.0/24"}]}
    for last in ("ADD", "DEL"):
        if verb == "DEL":
            cluster.call("ADD", ipam=block)
        cluster.asked()
        child = os.fork()
        if child == 0:
            try:
                time.sleep(0.02)  # until the parent has named its victim
                cluster.call(verb, ipam=block)
            finally:
                os._exit(0)

        def kill(method: str, resource: str, number: int, child: int = child) -> Any:
            def act() -> str | None:
                os.kill(child, signal.SIGKILL)
                return when

            return act if number == request_number else None

        cluster.server.faults = kill
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        time.sleep(0.02)  # what was sent is being served
        cluster.server.faults = lambda method, resource, number: None
        if last == "ADD":
            assert len(cluster.call("ADD", ipam=block)) == 2
            assert len(cluster.allocations()) == len(cluster.allocations("10.1.0.0-24")) == 1
            assert len(cluster.server.names(RESERVATIONS)) == 2
        cluster.call("DEL", ipam=block)
        assert cluster.allocations() == cluster.allocations("10.1.0.0-24") == {}
        assert cluster.server.names(RESERVATIONS) == []
        assert cluster.recorded() == {}
