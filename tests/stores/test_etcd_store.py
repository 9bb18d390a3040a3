"""The etcd store's own promises: what it costs, what the network and the cluster may do to it, and what it says of it."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import CniError, InvalidConfig, StateDamaged, TryAgainLater
from ipam import acquire, upkeep
from ipam.leases import Lease, Want
from ipam.ranges import Range
from ipam.rules import Need
from ipam.search import lowest_free
from ipam.stores import base, http
from ipam.stores.base import Claimed, Taken, Unknown, Unreachable
from ipam.stores.etcd import EtcdStore, client
from ipam.stores.etcd.client import EtcdClient, endpoint
from tests import etcd
from tests.etcd import Cluster, Member
from tests.proxy import Proxy
from tests.stores import certificates, etcd_dump
from tests.stores.claims import AnyAddress
from tests.stores.kinds import EtcdKind, PatientEtcdStore, description, owner, want
from tests.stores.kubernetes_api import ApiServer
from tests.stores.places import Place
from tests.stores.unwell import Hurry, ailing

ROOT = Path(__file__).resolve().parents[2]
TEN = 10 << 24  # 10.0.0.0

pytestmark = pytest.mark.skipif(bool(etcd.unusable()), reason=etcd.unusable())


def claim(store: EtcdStore, *offsets: int, container: str = "c1", sequence: int = 1, pool: str = "pool") -> list[Lease]:
    answer = store.claim([want(TEN + offset, pool) for offset in offsets], owner(container, sequence))
    assert isinstance(answer, Claimed), answer
    return answer.leases


def offsets(store: EtcdStore, pool: str = "pool") -> list[int]:
    return [lease.value - TEN for lease in store.leases(pool)]


def need(cidr: str = "10.0.0.0/16", pool: str = "pool") -> Need:
    return Need(Range(4, TEN, int(cidr.partition("/")[2])), pool, "")


@pytest.fixture(params=["well", "unwell"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdStore]:
    monkeypatch.setattr(base, "time", Hurry)
    open_store, remove = EtcdKind(request.param == "unwell").make(whole=False)
    yield open_store()  # type: ignore[misc]
    remove()


def keys_of(store: EtcdStore) -> list[str]:
    """The keys of the store, without those that forbid claims with a lost reply."""
    return keys_below(store.record()["prefix"], etcd.shared(etcd.LARGE).ctl)


def keys_below(prefix: str, ctl: Callable[..., str]) -> list[str]:
    listed = ctl("get", "--prefix", prefix, "--keys-only").split()
    return [key for key in listed if "/v1/void/" not in key]


@pytest.fixture(params=["well", "unwell"])
def reached(request: pytest.FixtureRequest) -> Iterator[Callable[..., EtcdStore]]:
    """Opens a store of a cluster, each member of which an unwell server stands before, or none."""
    with ExitStack() as stack:

        def opened(cluster: Cluster, seconds: float = 20, **more: str) -> EtcdStore:
            if request.param == "well":
                return EtcdStore(description(cluster.endpoints, **more), seconds)
            ports = [stack.enter_context(ailing(member.port, is_etcd=True)).port for member in cluster.members]
            return PatientEtcdStore(description([f"http://127.0.0.1:{port}" for port in ports], **more), seconds)

        yield opened


class Requests:
    """Counts the requests that are made, and their bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        real = http.Connection.request

        def request(connection: http.Connection, *arguments: Any) -> tuple[int, bytes]:
            status, reply = real(connection, *arguments)
            self.sizes.append(len(reply))
            return status, reply

        monkeypatch.setattr(http.Connection, "request", request)

    def taken(self) -> tuple[int, int]:
        """(requests, the largest reply in bytes) since the last call."""
        sizes, self.sizes = self.sizes, []
        return len(sizes), max(sizes, default=0)


# --- what is kept ---


def test_an_etcd_client_that_is_not_ours_reads_what_was_claimed(store: EtcdStore) -> None:
    who = owner("c1", 7, pod=("ns", "web/0", "uid-1"))
    claimed = store.claim([Want("10.0.0.0-24", 4, TEN + 1, "blue")], who)
    assert isinstance(claimed, Claimed)
    prefix = store.record()["prefix"]
    listed = keys_of(store)
    assert listed == [
        f"{prefix}/v1/attachment/rdma-net/c1/net1/10.0.0.0-24/0a000001/{claimed.leases[0].sequence:016x}",
        f"{prefix}/v1/lease/10.0.0.0-24/0a000001",
        f"{prefix}/v1/node/node-1/10.0.0.0-24/0a000001",
        f"{prefix}/v1/pod/ns/web%2F0/net1/10.0.0.0-24/0a000001",
        f"{prefix}/v1/reserved/blue/0a000001",
    ]
    value = json.loads(etcd.shared(etcd.LARGE).ctl("get", "--print-value-only", listed[1]))
    assert (value["address"], value["containerID"], value["pod"]) == ("10.0.0.1", "c1", ["ns", "web/0", "uid-1"])


def test_a_release_leaves_no_key(store: EtcdStore) -> None:
    leases = claim(store, *range(70))  # more than a block
    assert lowest_free(store, need()) == TEN + 70
    store.release(leases)
    assert keys_of(store) == []


def test_names_with_separators_stay_apart(store: EtcdStore) -> None:
    for i, (pool, network) in enumerate([("a/b", "n"), ("a", "b/n"), ("a%2Fb", "n"), ("", "n")]):
        answer = store.claim([Want(pool, 4, TEN + i, None)], owner("c", i, network=network))
        assert isinstance(answer, Claimed)
    assert [(pool.name, pool.used) for pool in store.pools()] == [("", 1), ("a", 1), ("a%2Fb", 1), ("a/b", 1)]
    assert [lease.value - TEN for lease in store.find(owner("c", network="b/n").attachment)] == [1]


def test_a_name_that_is_no_text_is_refused(store: EtcdStore) -> None:
    with pytest.raises(InvalidConfig, match="want another name"):
        store.find(owner("c", network="\udc80").attachment)


@pytest.mark.parametrize("value", ["", "nonsense", "{}", '{"pool": 1}', "[]"])
def test_a_value_that_another_wrote_is_an_error_that_names_the_key(store: EtcdStore, value: str) -> None:
    key = f"{store.record()['prefix']}/v1/lease/pool/0a000001"
    etcd.shared(etcd.LARGE).ctl("put", key, "--", value)
    with pytest.raises(StateDamaged, match=f"etcdctl del {key}"):
        list(store.leases("pool"))
    answer = store.claim([want(TEN + 1)], owner())
    assert isinstance(answer, Taken)


@pytest.mark.parametrize(
    "key",
    ["lease/pool/0a00000z", "lease/pool/0a0000010", "lease/pool/0a0000_1", "reserved//0a00000z", "reserved//0a0000010"],
)
def test_a_key_that_another_wrote_is_an_error_that_names_it(store: EtcdStore, key: str) -> None:
    root = f"{store.record()['prefix']}/v1/"
    etcd.shared(etcd.LARGE).ctl("put", root + key, "--", "x")
    with pytest.raises(StateDamaged, match=f"etcdctl del {root}{key}"):
        store.occupied("pool", "", 4, TEN & -256, TEN | 255)


@pytest.mark.parametrize("value", ["", "nonsense", "0a00000z", "0a0000010", "-a000001", "0a_00001"])
def test_a_memory_that_another_wrote_is_passed_over(store: EtcdStore, value: str) -> None:
    pod = ("default", "web-0", "uid")
    etcd.shared(etcd.LARGE).ctl("put", f"{store.record()['prefix']}/v1/former/default/web-0/net1/pool", "--", value)
    assert store.survey(owner(pod=pod), (), True).former == []


# --- what it costs ---


def test_the_lowest_free_address_of_a_pool_of_thousands_costs_few_requests(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, prefix = etcd.shared(etcd.LARGE).endpoints[0], store.record()["prefix"]
    (lease,) = claim(store, 4999)
    for start in range(0, 9000, 1000):  # what a search looks at, and no more
        keys = [f"{prefix}/v1/lease/pool/{TEN + start + i:08x}" for i in range(1000) if start + i != 4999]
        puts = [{"request_put": {"key": base64.b64encode(key.encode()).decode(), "value": ""}} for key in keys]
        etcd.post(url, "kv/txn", {"success": puts})
    wide = Need(Range(4, TEN, 16), "pool", None)
    count = Requests(monkeypatch)
    assert lowest_free(store, wide) == TEN + 9000
    requests, largest = count.taken()
    assert requests <= 5
    assert largest < 20_000
    store.release([lease])
    assert lowest_free(store, wide) == TEN + 4999
    claim(store, 4999, container="again")
    count.taken()
    assert lowest_free(store, wide) == TEN + 9000
    assert count.taken()[0] <= 5


def test_an_address_that_is_given_up_in_a_full_block_is_found_again(store: EtcdStore) -> None:
    leases = claim(store, *range(192))
    assert lowest_free(store, need()) == TEN + 192
    moved = store.claim([want(TEN + 300)], owner("c2", 2), leases[70:71])
    assert isinstance(moved, Claimed)
    assert lowest_free(store, need()) == TEN + 70


def test_a_search_skips_what_another_pool_of_the_scope_has_filled(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(store, *range(1280), pool="wide")
    assert lowest_free(store, need(pool="wide")) == TEN + 1280
    count = Requests(monkeypatch)
    assert lowest_free(store, need(pool="narrow")) == TEN + 1280
    assert count.taken()[0] <= 5


def test_an_address_without_reservation_is_occupied_beside_those_that_have_one(store: EtcdStore) -> None:
    for offset, scope in ((1, ""), (2, None), (3, "other")):
        assert isinstance(store.claim([want(TEN + offset, scope=scope)], owner(f"c{offset}")), Claimed)
    claim(store, 4, container="c4", pool="beside")
    assert store.occupied("pool", "", 4, TEN, TEN + 63) == 0b11110


def test_thirty_ranges_fit_into_one_claim_of_an_etcd_with_default_limits_also_when_they_move(
    reached: Callable[..., EtcdStore], request: pytest.FixtureRequest
) -> None:
    store = reached(etcd.shared(), prefix=f"/{request.node.name}")
    ranges = [Want(f"pool{i}", 4, TEN + (i << 8), "") for i in range(30)]
    old = store.claim(ranges, owner("old", 1, pod=("ns", "a", "")))
    assert isinstance(old, Claimed)
    moved = [Want(w.pool, 4, w.value + 1, "") for w in ranges]
    assert isinstance(store.claim(moved, owner("new", 2, pod=("ns", "a", "")), old.leases), Claimed)
    assert len(store.find(owner("new").attachment)) == 30
    assert store.find(owner("old").attachment) == []
    with pytest.raises(InvalidConfig, match="max-txn-ops"):
        store.claim([Want(f"many{i}", 4, TEN + (i << 8), None) for i in range(200)], owner("many", 3))


# --- the network ---


class Once:
    """The fault, for the first claim that passes."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, data: bytes) -> str:
        if etcd.is_claim(data):
            fault, self.fault = self.fault, ""
            return fault
        return ""


def through(proxy: Proxy, store: EtcdStore, *others: str) -> EtcdStore:
    return type(store)({**store.record(), "endpoints": [f"http://127.0.0.1:{proxy.port}", *others], "password": ""})


def port_of(store: EtcdStore) -> int:
    """The port of its server, or of the unwell one before that."""
    return endpoint(store.record()["endpoints"][0], False).port


@pytest.mark.well("it breaks one request, and tells its outcome")
def test_a_claim_that_was_lost_on_the_way_is_unknown_and_can_be_made_again(store: EtcdStore) -> None:
    with Proxy(port_of(store), Once("request")) as proxy:
        own = through(proxy, store)
        answer = own.claim([want(TEN + 1)], owner("c1", 1))
        assert isinstance(answer, Unknown)
        assert "has not answered" in answer.reason.msg
        assert own.find(owner("c1").attachment) == []
        assert isinstance(own.claim([want(TEN + 1)], owner("c1", 2)), Claimed)


def test_after_a_restore_from_an_older_backup_claims_as_recorded_put_back_what_was_lost_and_nothing_else(
    tmp_path: Path, reached: Callable[..., EtcdStore]
) -> None:
    with Cluster() as former:
        own = reached(former)
        claim(own, 1, container="kept", sequence=1)
        claim(own, 2, container="gone", sequence=2)
        former.ctl("snapshot", "save", str(tmp_path / "backup"))
        (lost,) = claim(own, 3, container="lost", sequence=3)
        (moved,) = claim(own, 4, container="moved", sequence=4)
        own.release(own.find(owner("gone").attachment))
    with restored(tmp_path / "backup", tmp_path / "data") as cluster:
        own = reached(cluster)
        claim(own, 4, container="new", sequence=5)  # an ADD before an agent has looked
        again = [own.claim([want(lease.value)], owner(lease.container_id, lease.sequence)) for lease in (lost, moved)]
        back, taken = again
        assert isinstance(back, Claimed)
        assert isinstance(taken, Taken)
        held = {lease.value - TEN: lease.container_id for lease in own.leases("pool")}
        assert held == {1: "kept", 2: "gone", 3: "lost", 4: "new"}  # `gone` is its node's to release
        assert etcd_dump.faults(etcd_dump.dump(cluster.endpoints[0])) == []
        assert own.release(back.leases) == 1


@contextmanager
def restored(backup: Path, data: Path) -> Iterator[Cluster]:
    """A cluster of one member that begins with a backup."""
    cluster = Cluster(flags=("--data-dir", str(data)))
    (member,) = cluster.members
    peers = ("--initial-cluster", f"{member.name}={member.peer}", "--initial-advertise-peer-urls", member.peer)
    cluster.ctl("snapshot", "restore", str(backup), "--name", member.name, "--data-dir", str(data), *peers)
    with cluster:
        yield cluster


def test_a_release_whose_reply_is_lost_is_made(store: EtcdStore) -> None:
    leases = claim(store, 1)
    lost = iter(["reply"])
    with Proxy(port_of(store), lambda data: next(lost, "") if b"/node/" in data else "") as proxy:
        through(proxy, store).release(leases)
    assert offsets(store) == []


def test_dead_endpoints_cost_a_moment_each(store: EtcdStore) -> None:
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    fillers = [socket.socket() for _ in range(4)]
    try:
        for s in fillers:  # a full queue: further connections are not answered
            s.setblocking(False)
            s.connect_ex(silent.getsockname())
        (closed,) = etcd.free_ports(1)
        dead = [f"http://127.0.0.1:{port}" for port in (closed, silent.getsockname()[1])]
        own = type(store)({**store.record(), "endpoints": [*dead, *store.record()["endpoints"]], "password": ""})
        began = time.monotonic()
        claim(own, 1)
        assert time.monotonic() - began < EtcdClient.attempt_seconds
    finally:
        for s in (*fillers, silent):
            s.close()


def test_an_endpoint_that_accepts_and_never_answers_is_left_for_the_next(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EtcdClient, "attempt_seconds", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        first = f"http://127.0.0.1:{mute.getsockname()[1]}"
        own = EtcdStore({**store.record(), "endpoints": [first, *store.record()["endpoints"]], "password": ""})
        assert own.find(owner().attachment) == []


def test_a_store_out_of_reach_is_an_error_in_bounded_time_that_names_every_endpoint() -> None:
    ports = etcd.free_ports(2)
    own = EtcdStore(description([f"http://127.0.0.1:{port}" for port in ports]), seconds=0.3)
    began = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        own.find(owner().attachment)
    assert time.monotonic() - began < 30
    assert caught.value.code == 11
    assert all(f"127.0.0.1:{port}: Connection refused" in caught.value.msg[:250] for port in ports)
    assert "etcd_host" in caught.value.msg


def reply_of(status: int, body: object) -> bytes:
    """A reply of HTTP; `body` as it is, or as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data


def failure(status: int, code: int, said: str) -> bytes:
    """A failed call, as etcd's gateway answers it."""
    return reply_of(status, {"error": said, "code": code, "message": said})


def found(**answer: object) -> bytes:
    """The reply to one read."""
    return reply_of(200, {"responses": [{"response_range": answer}], "succeeded": True})


# What etcd's gateway may say beside these is in test_etcd_calls.py.
KEY = base64.b64encode(b"/railcni/v1/attachment/rdma-net/c1/net1/x").decode()
REPLIES = {
    b"": Unreachable,
    b"X" * 200_000: Unreachable,
    b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{}": Unreachable,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}": Unreachable,
    reply_of(404, {"code": 5, "message": "Not Found", "details": []}): InvalidConfig,
    reply_of(204, b""): Unreachable,
    reply_of(200, b"[" * 100_000): Unreachable,
    reply_of(200, b"\xff"): Unreachable,
    **{reply_of(200, document): Unreachable for document in (None, [], 1, "x", {}, {"succeeded": True})},
    **{
        reply_of(200, {"succeeded": True, "responses": responses}): Unreachable
        for responses in (None, 1, "x", [], {}, [{}], [1], [{"response_put": {}}], [{"response_range": 1}], [{}, {}])
    },
    found(count="x"): Unreachable,
    found(count={}): Unreachable,
    found(count="9" * 5000): Unreachable,
    **{
        found(kvs=entries): Unreachable
        for entries in (1, "x", {"a": 1}, [1], [{}], [{"key": 1}], [{"key": "\u00e9"}], [{"key": KEY, "value": 1}])
    },
    found(kvs=[{"key": base64.b64encode(b"/elsewhere").decode()}]): Unreachable,
    found(kvs=[{"key": KEY, "value": "e30="}]): StateDamaged,
    reply_of(503, {"code": []}): Unreachable,
    reply_of(503, {"code": {}, "message": []}): Unreachable,
}


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: repr(reply[-40:]))
def test_a_server_that_is_no_etcd_is_an_error_of_ours(reply: bytes) -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(1 << 16)
                    try:
                        client.sendall(reply)
                    except OSError:
                        pass  # it has seen enough

        threading.Thread(target=serve, daemon=True).start()
        own = EtcdStore(description([f"http://127.0.0.1:{server.getsockname()[1]}"]), seconds=0.2)
        with pytest.raises(CniError) as caught:
            own.find(owner().attachment)
        assert type(caught.value) is REPLIES[reply]
        server.shutdown(socket.SHUT_RDWR)


def test_the_error_tells_the_cause_and_not_that_the_last_attempt_had_no_time_left() -> None:
    reply = failure(503, 14, "etcdserver: no leader")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(reply)
            client, _ = server.accept()
            with client:
                while client.recv(1 << 16):
                    pass  # and no answer

        threading.Thread(target=serve, daemon=True).start()
        own = EtcdStore(description([f"http://127.0.0.1:{server.getsockname()[1]}"]), seconds=0.4)
        with pytest.raises(Unreachable, match="no leader"):
            own.find(owner().attachment)


GOOD_ENDPOINTS = {
    "e": "http://e:2379",
    "10.0.0.1:1": "http://10.0.0.1:1",
    " https://e/ ": "https://e:2379",
    "fd00::1": "http://[fd00::1]:2379",
    "[fd00::1]:7": "http://[fd00::1]:7",
    "http://[::1]": "http://[::1]:2379",
}


@pytest.mark.parametrize("text", GOOD_ENDPOINTS)
def test_an_endpoint_is_read_in_each_of_its_forms(text: str) -> None:
    assert str(endpoint(text, False)) == GOOD_ENDPOINTS[text]
    assert str(endpoint("e", True)) == "https://e:2379"


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:70000", "ftp://a", "[::1", "[::1]x", "u@h", "a/b", "a?b"])
def test_a_malformed_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want"):
        endpoint(text, False)


# --- the cluster ---


@pytest.fixture
def three() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


def test_claims_go_on_when_the_leader_dies_and_when_history_is_compacted(
    three: Cluster, reached: Callable[..., EtcdStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EtcdStore, "page", 10)
    own = reached(three)
    for i in range(40):
        who = owner(f"c{i}", time.time_ns())
        values = acquire.acquire(own, [need()], who, AnyAddress())
        assert values == [TEN + 1 + i]
        if i == 20:
            leader = three.leader()
            leader.kill()
    leases = own.leases("pool")
    first = next(leases)
    revision = json.loads(_ctl_alive(three, leader, "endpoint", "status", "-w", "json"))[0]["Status"]["header"][
        "revision"
    ]
    _ctl_alive(three, leader, "compact", str(revision))
    assert [lease.value for lease in (first, *leases)] == list(range(TEN + 1, TEN + 41))
    assert offsets(own) == list(range(1, 41))


def _ctl_alive(cluster: Cluster, dead: Member, *arguments: str) -> str:
    alive = [m for m in cluster.members if m is not dead]
    argv = ["etcdctl", f"--endpoints={alive[0].url}", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.well("most of its members are killed")
def test_a_cluster_without_a_majority_is_an_error_to_retry(three: Cluster) -> None:
    for member in three.members[1:]:
        member.kill()
    own = EtcdStore(description(three.endpoints), seconds=0.4)
    answer = own.claim([want(TEN + 1)], owner())
    assert isinstance(answer, Unknown)
    assert answer.reason.code == 11
    with pytest.raises(Unreachable):
        own.find(owner().attachment)


_WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from ipam import acquire
from ipam.rules import Need
from ipam.search import lowest_free
from ipam.ranges import Range
from ipam.leases import Owner
from ipam.stores.base import Unreachable
from ipam.stores.etcd import EtcdStore
from cni.shared.spec.request import Attachment
from tests.stores.claims import AnyAddress
import json
store_ref, node, count = json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = EtcdStore(store_ref, seconds=20)
need = Need(Range(4, 10 << 24, 16), "pool", "")
for i in range(count):
    who = Owner(Attachment("rdma-net", f"{node}-{i}", "net1"), node=node, sequence=time.time_ns())
    (value,) = acquire.acquire(store, [need], who, AnyAddress())
    print("+", value, f"{node}-{i}", flush=True)
    if i % 3 == 0:
        store.release(store.find(who.attachment))
        assert store.find(who.attachment) == []
        print("-", value, f"{node}-{i}", flush=True)
"""


def run_workers(store_ref: dict[str, Any], count: int, each: int, meanwhile: Callable[[], None]) -> dict[int, str]:
    """What `count` processes hold in the end, as they were told: container by address. No address may be held twice."""
    argv = [sys.executable, "-IS", "-c", _WORKER, str(ROOT), json.dumps(store_ref)]
    running = [
        subprocess.Popen([*argv, f"n{i}", str(each)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(count)
    ]
    try:
        meanwhile()
        told = [process.communicate(timeout=100) for process in running]
    finally:
        for process in running:
            process.kill()
    held: dict[int, str] = {}
    for process, (out, err) in zip(running, told, strict=True):
        assert process.returncode == 0, err[-2000:]
        own: dict[int, str] = {}
        for line in out.splitlines():
            sign, value, container = line.split()
            if sign == "+":
                own[int(value)] = container
            else:
                del own[int(value)]
        assert not held.keys() & own.keys()
        held |= own
    return held


def test_six_processes_claim_from_one_pool_without_a_duplicate(store: EtcdStore) -> None:
    held = run_workers({**store.record(), "password": ""}, 6, 4, lambda: None)
    assert {lease.value: lease.container_id for lease in store.leases("pool")} == held
    assert len(held) == 6 * 2


@pytest.mark.long
@pytest.mark.well("its members are stopped in turn")
def test_many_processes_claim_while_leaders_die_and_return(three: Cluster) -> None:
    def disturb() -> None:
        for _ in range(3):
            time.sleep(1)
            leader = three.leader()
            leader.signal(19)  # SIGSTOP: what it was sent is served later
            time.sleep(1.5)
            leader.signal(18)

    store_ref = description(three.endpoints)
    held = run_workers(store_ref, 12, 60, disturb)
    own = EtcdStore(store_ref)
    assert {lease.value: lease.container_id for lease in own.leases("pool")} == held


# --- certificates, users, limits ---


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pems")
    certificates.make(directory)
    return directory


@contextmanager
def tls_cluster(pems: Path, name: str = "server", *flags: str) -> Iterator[Cluster]:
    tls = ["--cert-file", f"{pems}/{name}.pem", "--key-file", f"{pems}/{name}.key", *flags]
    with Cluster(1, tls, "https") as cluster:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", cluster.members[0].port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield cluster


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_tls_verifies_both_sides_and_names_what_is_wrong(pems: Path) -> None:
    def find(seconds: float = 5, **more: str) -> None:
        more = {key: f"{pems}/{name}" for key, name in more.items()}
        EtcdStore(description(cluster.endpoints, **more), seconds=seconds).find(owner().attachment)

    def refused(*words: str, **more: str) -> None:
        with pytest.raises(InvalidConfig) as caught:
            find(**more)
        assert all(word in caught.value.msg[:250] for word in words), caught.value.msg

    with tls_cluster(pems, "server", "--client-cert-auth", "--trusted-ca-file", f"{pems}/ca.pem") as cluster:
        good = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
        find(20, **good)
        own = EtcdStore(description(cluster.endpoints, **{k: f"{pems}/{v}" for k, v in good.items()}))
        for i in range(4):
            claim(own, *range(25 * i, 25 * i + 25), container=f"c{i}")
        assert offsets(own) == list(range(100))
        refused(
            "not trusted", "other-ca.pem", "etcd_ca_cert_file", ca="other-ca.pem", cert="client.pem", key="client.key"
        )
        refused("client certificate", "there is none", "etcd_cert_file", ca="ca.pem")
        refused("client certificate", "stranger.pem", ca="ca.pem", cert="stranger.pem", key="stranger.key")
        refused("cannot be used", "No such file", ca="missing.pem")
        refused("cannot be used", "client.pem", "server.key", ca="ca.pem", cert="client.pem", key="server.key")
        cluster.members[0].url = cluster.members[0].url.replace("https", "http")
        with pytest.raises(Unreachable, match="https://"):
            find(0.3)


def files_of(pems: Path, client: str) -> dict[str, str]:
    return {"ca": f"{pems}/ca.pem", "cert": f"{pems}/{client}.pem", "key": f"{pems}/{client}.key"}


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_beside_users_a_client_certificate_has_no_common_name_and_is_not_enough(pems: Path) -> None:
    def find(name: str, **more: str) -> None:
        EtcdStore(description(cluster.endpoints, **files_of(pems, name), **more), seconds=20).find(owner().attachment)

    with tls_cluster(pems, "server", "--client-cert-auth", "--trusted-ca-file", f"{pems}/ca.pem") as cluster:
        find("client")
        flags = [f"--cacert={pems}/ca.pem", f"--cert={pems}/client.pem", f"--key={pems}/client.key"]
        for words in ("user add root:x", "user add client:x", "role add r", "user grant-role client r"):
            cluster.ctl(*words.split(), flags=flags)
        cluster.ctl("role", "grant-permission", "r", "--prefix=true", "readwrite", "/railcni/", flags=flags)
        cluster.ctl("user", "grant-role", "root", "root", flags=flags)
        cluster.ctl("auth", "enable", flags=flags)
        user = {"user": "client", "password": "x"}
        for more in ({}, user):
            with pytest.raises(InvalidConfig) as caught:
                find("client", **more)
            words = ("etcd_username and etcd_password", "CommonName", "etcd_cert_file")
            assert all(word in caught.value.msg for word in words), caught.value.msg
        with pytest.raises(InvalidConfig, match="asks for authentication: set etcd_username and etcd_password"):
            find("nameless")
        assert claim(EtcdStore(description(cluster.endpoints, **files_of(pems, "nameless"), **user)), 1)
        with pytest.raises(InvalidConfig, match="denies"):
            find("nameless", prefix="/elsewhere", **user)


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_a_member_whose_own_certificate_is_not_for_clients_is_told_that_its_gateway_needs_one(pems: Path) -> None:
    with tls_cluster(pems, "server-only", "--client-cert-auth", "--trusted-ca-file", f"{pems}/ca.pem") as cluster:
        with pytest.raises(Unreachable) as caught:
            EtcdStore(description(cluster.endpoints, **files_of(pems, "client")), seconds=3).find(owner().attachment)
        assert all(word in caught.value.msg for word in ("gateway", "clientAuth", "--cert-file")), caught.value.msg


@pytest.mark.well("the unwell server has another host and port than etcd lists")
def test_a_host_that_etcd_does_not_list_is_an_error_that_names_the_flag() -> None:
    with Cluster(1, ["--host-whitelist=127.0.0.1"]) as cluster:
        port = cluster.members[0].port
        with pytest.raises(InvalidConfig, match="--host-whitelist"):
            EtcdStore(description([f"http://localhost:{port}"]), seconds=5).find(owner().attachment)


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_a_certificate_for_another_host_and_a_server_without_tls_are_told_apart(
    pems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_cluster(pems, "elsewhere") as cluster, pytest.raises(InvalidConfig, match=r"127\.0\.0\.1.*host") as caught:
        EtcdStore(description(cluster.endpoints, ca=f"{pems}/ca.pem"), seconds=5).find(owner().attachment)
    assert "mismatch" in caught.value.msg
    plain = etcd.shared().endpoints[0].replace("http:", "https:")
    monkeypatch.setattr(client, "_FIRST_PAUSE", 60)  # one attempt, which the end of the time does not cut off
    with pytest.raises(Unreachable, match="does it speak TLS"):
        EtcdStore(description([plain]), seconds=5).find(owner().attachment)


@pytest.fixture(autouse=True)
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are kept below a directory of the test."""
    monkeypatch.setattr(client, "TOKENS", str(tmp_path / "tokens"))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A cluster with users: root, and railcni, which may read and write below /railcni/."""
    with Cluster(1, ["--bcrypt-cost=4"]) as cluster:
        cluster.ctl("user", "add", "root:secret")
        cluster.ctl("user", "add", "railcni:s3cret")
        cluster.ctl("role", "add", "leases")
        cluster.ctl("role", "grant-permission", "leases", "--prefix=true", "readwrite", "/railcni/")
        cluster.ctl("user", "grant-role", "railcni", "leases")
        cluster.ctl("user", "grant-role", "root", "root")
        cluster.ctl("auth", "enable")
        yield cluster


def test_a_user_has_a_password_and_the_rights_that_it_was_granted(
    guarded: Cluster, reached: Callable[..., EtcdStore]
) -> None:
    def store_of(user: str = "railcni", password: str = "s3cret", **more: str) -> EtcdStore:
        return reached(guarded, user=user, password=password, **more)

    own = store_of()
    assert claim(own, 1, 2)
    assert own.release(own.find(owner().attachment)) == 2
    own.settle(owner().attachment, 1)
    for refused, words in (
        (store_of(password="wrong"), ("railcni", "etcd_password")),
        (store_of(user="nobody"), ("nobody", "etcd_username")),
        (store_of(user=""), ("asks for authentication", "etcd_username")),
        (store_of(prefix="/elsewhere"), ("denies", "railcni", "grant-permission", "etcd_prefix")),
    ):
        with pytest.raises(InvalidConfig) as caught:
            refused.find(owner().attachment)
        assert all(word in caught.value.msg[:250] for word in words), caught.value.msg
        assert "s3cret" not in str(caught.value.document("1.1.0"))


@pytest.mark.parametrize("right", ["none", "read", "write"])
def test_without_its_rights_no_verb_waits_and_with_them_again_nothing_is_left(
    guarded: Cluster, tmp_path: Path, free_paths: None, reached: Callable[..., EtcdStore], right: str
) -> None:
    ctl = partial(guarded.ctl, flags=["--user=root:secret"])
    prefix, name = f"/railcni-{tmp_path.name}", tmp_path.name
    endpoints = reached(guarded).record()["endpoints"]
    server = ApiServer()
    place = Place(tmp_path, {"datastore": "etcd", "etcd_host": ",".join(endpoints)}, None, server)
    place.block |= {"etcd_prefix": prefix, "etcd_username": name, "etcd_password": "x", "store_timeout": 60}

    def grant(*rights: str) -> None:
        for granted in rights:
            ctl("role", "grant-permission", name, "--prefix=true", granted, f"{prefix}/")

    def refused(verb: str, container: str, **more: Any) -> int:
        with pytest.raises(CniError, match="denies user .*grant-permission") as caught:
            place.call(verb, container, **more)
        return caught.value.code

    for words in (f"user add {name}:x", f"role add {name}", f"user grant-role {name} {name}"):
        ctl(*words.split())
    grant("readwrite")
    for container in ("c1", "c2"):
        place.add(container)
    ctl("role", "revoke-permission", name, "--prefix=true", f"{prefix}/")
    grant(*{right} - {"none"})
    began = time.monotonic()
    assert refused("ADD", "new") == 7
    assert refused("STATUS", "") in (7, 50)
    previous = {"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.1/24"}]}}
    assert right == "read" or refused("CHECK", "c1", config=previous) == 7
    with suppress(InvalidConfig):
        place.collect("c2")
    for container in ("new", "c2"):
        place.delete(container)
    left = {attachment.container_id: record for attachment, _, record in place.records().all("ipam")}
    assert all("grant-permission" in record["reason"] for record in left.values())
    # the inner transactions of a release pass, in an etcd that compares no rights with them
    assert {key.split("/")[5] for key in keys_below(prefix, ctl) if "/attachment/" in key} == left.keys()
    assert upkeep.flush(place.records(), None, 60) == len(left)
    assert time.monotonic() - began < 5
    grant("readwrite")
    for record in left.values():
        upkeep.flush(place.records(), {**record["store"], "password": "x"}, 20)
    assert place.records().all() == []
    assert keys_below(prefix, ctl) == []
    server.close()


@pytest.mark.well("it counts the logins")
def test_a_token_serves_the_next_call_and_is_replaced_when_it_has_expired(
    guarded: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = http.Connection.request

    def observed(connection: http.Connection, method: str, target: str, *rest: Any) -> tuple[int, bytes]:
        asked.append(target)
        return real(connection, method, target, *rest)

    monkeypatch.setattr(http.Connection, "request", observed)

    def call(container: str, offset: int, password: str = "s3cret") -> int:
        asked.clear()
        claim(EtcdStore(description(guarded.endpoints, user="railcni", password=password)), offset, container=container)
        return asked.count("/v3/auth/authenticate")

    call("c10", 10)
    (kept,) = Path(client.TOKENS).iterdir()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert call("c11", 11) == 0
    with pytest.raises(InvalidConfig):
        call("c12", 12, "wrong")
    kept.write_text(kept.read_text()[:-1] + "~")
    assert call("c13", 13) == 1
    assert call("c14", 14) == 0
    kept.chmod(0o666)
    assert call("c15", 15) == 1
    kept.parent.chmod(0o1777)  # a tmpfs that was mounted without a mode
    assert call("c16", 16) == 1
    assert kept.parent.stat().st_mode & 0o7777 == 0o700
    assert call("c17", 17) == 0


def test_a_full_etcd_says_what_to_do_and_still_releases(reached: Callable[..., EtcdStore]) -> None:
    with Cluster(1, ["--quota-backend-bytes=200000"]) as cluster:
        own = reached(cluster)
        leases = claim(own, 1)
        with pytest.raises(TryAgainLater, match="NOSPACE") as caught:
            for i in range(2000):
                claim(own, *range(100 + 10 * i, 110 + 10 * i), container=f"c{i}")
        assert "quota-backend-bytes" in caught.value.msg[:250]
        assert not isinstance(caught.value, Unreachable)
        with pytest.raises(TryAgainLater, match="NOSPACE"):
            own.ready([want(TEN)])
        assert own.release(leases) == 1
