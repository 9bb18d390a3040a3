"""The etcd store's own promises: what it costs, what the network and the cluster may do to it, and what it says of it."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
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
from ipam.stores.base import Claimed, Unreachable
from ipam.stores.etcd import EtcdStore, client
from ipam.stores.etcd.client import EtcdClient, endpoint
from tests import etcd
from tests.etcd import Cluster, Member
from tests.node import until
from tests.stores.claims import AnyAddress
from tests.stores.kinds import EtcdKind, PatientEtcdStore, description, owner, want
from tests.stores.kubernetes_api import ApiServer
from tests.stores.places import Place
from tests.stores.test_etcd_calls import failure, raw, serving
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


def test_names_with_separators_stay_apart(store: EtcdStore) -> None:
    for i, (pool, network) in enumerate([("a/b", "n"), ("a", "b/n"), ("a%2Fb", "n"), ("", "n")]):
        answer = store.claim([Want(pool, 4, TEN + i, None)], owner("c", i, network=network))
        assert isinstance(answer, Claimed)
    assert [(pool.name, pool.used) for pool in store.pools()] == [("", 1), ("a", 1), ("a%2Fb", 1), ("a/b", 1)]
    assert [lease.value - TEN for lease in store.find(owner("c", network="b/n").attachment)] == [1]


def test_a_name_that_is_no_text_is_refused(store: EtcdStore) -> None:
    with pytest.raises(InvalidConfig, match="want another name"):
        store.find(owner("c", network="\udc80").attachment)


@pytest.mark.parametrize(
    "key", ["lease/pool/0a00000z", "lease/pool/0a0000010", "lease/pool/0a0000_1", "reserved//0a00000z"]
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


def test_dead_endpoints_cost_a_moment_each_and_one_that_never_answers_is_left_for_the_next(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EtcdClient, "attempt_seconds", 1.0)
    (closed,) = etcd.free_ports(1)
    with ExitStack() as stack:
        full, mute = (stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0)) for _ in range(2))
        for _ in range(4):  # a full queue: further connections are not answered
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        dead = [f"http://127.0.0.1:{port}" for port in (closed, full.getsockname()[1], mute.getsockname()[1])]
        own = EtcdStore({**store.record(), "endpoints": [*dead, *store.record()["endpoints"]], "password": ""})
        began = time.monotonic()
        assert own.find(owner().attachment) == []
        assert time.monotonic() - began < 2


def test_a_store_out_of_reach_is_an_error_in_bounded_time_that_names_every_endpoint() -> None:
    ports = etcd.free_ports(2)
    began = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        store_at(*ports, seconds=0.3).find(owner().attachment)
    assert time.monotonic() - began < 30
    assert caught.value.code == 11
    assert all(f"127.0.0.1:{port}: Connection refused" in caught.value.msg[:250] for port in ports)
    assert "etcd_host" in caught.value.msg


def store_at(*ports: int, seconds: float) -> EtcdStore:
    return EtcdStore(description([f"http://127.0.0.1:{port}" for port in ports]), seconds)


# What etcd's gateway may say beside these, and what is no HTTP at all, is in test_etcd_calls.py.
KEY, ELSEWHERE = (base64.b64encode(key).decode() for key in (b"/railcni/v1/attachment/rdma-net/c1/net1/x", b"/else"))
DOCUMENTS: list[object] = [
    *(None, [], {}, {"succeeded": True}),
    *({"succeeded": True, "responses": one} for one in (None, 1, [], [{}], [1], [{"response_range": 1}], [{}, {}])),
]
RANGES: list[dict[str, object]] = [
    *({"count": count} for count in ("x", {}, "9" * 5000)),
    *({"kvs": kvs} for kvs in (1, {"a": 1}, [1], [{}], [{"key": 1}], [{"key": "\u00e9"}], [{"key": KEY, "value": 1}])),
    {"kvs": [{"key": ELSEWHERE}]},
    {"kvs": [{"key": KEY, "value": "e30="}]},
]
REPLIES = [
    *map(json.dumps, DOCUMENTS),
    *(json.dumps({"responses": [{"response_range": one}], "succeeded": True}) for one in RANGES),
    "[" * 100_000,
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply[-40:])
def test_a_server_that_is_no_etcd_is_an_error_of_ours(reply: str) -> None:
    with serving(*[raw(reply.encode())] * 100) as (server, _), pytest.raises(CniError) as caught:
        store_at(server.port, seconds=0.2).find(owner().attachment)
    assert type(caught.value) is (StateDamaged if "e30=" in reply else Unreachable)


def test_the_error_tells_the_cause_and_not_that_the_last_attempt_had_no_time_left() -> None:
    plays: tuple[Any, Any] = (failure(503, 14, "etcdserver: no leader"), [])
    with serving(*plays) as (server, _), pytest.raises(Unreachable, match="no leader"):
        store_at(server.port, seconds=0.4).find(owner().attachment)


GOOD_ENDPOINTS = {
    "e": "http://e:2379",
    "10.0.0.1:1": "http://10.0.0.1:1",
    " https://e/ ": "https://e:2379",
    "fd00::1": "http://[fd00::1]:2379",
    "[fd00::1]:7": "http://[fd00::1]:7",
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
        assert acquire.acquire(own, [need()], who, AnyAddress()) == [TEN + 1 + i]
        if i == 20:
            leader = three.leader()
            leader.kill()
    leases = own.leases("pool")
    first = next(leases)
    alive = next(member for member in three.members if member is not leader)
    (status,) = json.loads(_ctl(alive, "endpoint", "status", "-w", "json"))
    _ctl(alive, "compact", str(status["Status"]["header"]["revision"]))
    assert [lease.value for lease in (first, *leases)] == list(range(TEN + 1, TEN + 41))
    assert offsets(own) == list(range(1, 41))


def _ctl(member: Member, *arguments: str) -> str:
    argv = ["etcdctl", f"--endpoints={member.url}", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- certificates, users, limits ---


@contextmanager
def tls_cluster(pki: Path, name: str = "server", *flags: str) -> Iterator[Cluster]:
    tls = ["--cert-file", f"{pki}/{name}.pem", "--key-file", f"{pki}/{name}.key", *flags]
    with Cluster(1, tls, "https") as cluster:
        assert until(lambda: answers(cluster.members[0].port), 20)
        yield cluster


def answers(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_tls_verifies_both_sides_and_names_what_is_wrong(pki: Path) -> None:
    def store_of(ca: str = "", cert: str = "", key: str = "", seconds: float = 5) -> EtcdStore:
        files = {name: f"{pki}/{file}" for name, file in (("ca", ca), ("cert", cert), ("key", key)) if file}
        return EtcdStore(description(cluster.endpoints, **files), seconds)

    with tls_cluster(pki, "server", "--client-cert-auth", "--trusted-ca-file", f"{pki}/ca.pem") as cluster:
        own = store_of("ca.pem", "client.pem", "client.key", 20)
        for i in range(4):
            claim(own, *range(25 * i, 25 * i + 25), container=f"c{i}")
        assert offsets(own) == list(range(100))
        for files, words in (
            (("other-ca.pem", "client.pem", "client.key"), ("not trusted", "other-ca.pem", "etcd_ca_cert_file")),
            (("ca.pem",), ("client certificate", "there is none", "etcd_cert_file")),
            (("ca.pem", "stranger.pem", "stranger.key"), ("client certificate", "stranger.pem")),
            (("missing.pem",), ("cannot be used", "No such file")),
            (("ca.pem", "client.pem", "server.key"), ("cannot be used", "client.pem", "server.key")),
        ):
            with pytest.raises(InvalidConfig) as caught:
                store_of(*files).find(owner().attachment)
            assert all(word in caught.value.msg[:250] for word in words), caught.value.msg
        cluster.members[0].url = cluster.members[0].url.replace("https", "http")
        with pytest.raises(Unreachable, match="https://"):
            store_of(seconds=0.3).find(owner().attachment)


def files_of(pki: Path, client: str) -> dict[str, str]:
    return {"ca": f"{pki}/ca.pem", "cert": f"{pki}/{client}.pem", "key": f"{pki}/{client}.key"}


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_beside_users_a_client_certificate_has_no_common_name_and_is_not_enough(pki: Path) -> None:
    def find(name: str, **more: str) -> None:
        EtcdStore(description(cluster.endpoints, **files_of(pki, name), **more), seconds=20).find(owner().attachment)

    with tls_cluster(pki, "server", "--client-cert-auth", "--trusted-ca-file", f"{pki}/ca.pem") as cluster:
        find("client")
        flags = [f"--cacert={pki}/ca.pem", f"--cert={pki}/client.pem", f"--key={pki}/client.key"]
        ctl = partial(cluster.ctl, flags=flags)
        run(ctl, "user add root:x", "user add client:x", "role add r", "user grant-role client r")
        run(
            ctl, "role grant-permission r --prefix=true readwrite /railcni/", "user grant-role root root", "auth enable"
        )
        user = {"user": "client", "password": "x"}
        for more in ({}, user):
            with pytest.raises(InvalidConfig) as caught:
                find("client", **more)
            words = ("etcd_username and etcd_password", "CommonName", "etcd_cert_file")
            assert all(word in caught.value.msg for word in words), caught.value.msg
        with pytest.raises(InvalidConfig, match="asks for authentication: set etcd_username and etcd_password"):
            find("nameless")
        assert claim(EtcdStore(description(cluster.endpoints, **files_of(pki, "nameless"), **user)), 1)
        with pytest.raises(InvalidConfig, match="denies"):
            find("nameless", prefix="/elsewhere", **user)


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_a_member_whose_own_certificate_is_not_for_clients_is_told_that_its_gateway_needs_one(pki: Path) -> None:
    with tls_cluster(pki, "server-only", "--client-cert-auth", "--trusted-ca-file", f"{pki}/ca.pem") as cluster:
        with pytest.raises(Unreachable) as caught:
            EtcdStore(description(cluster.endpoints, **files_of(pki, "client")), seconds=3).find(owner().attachment)
        assert all(word in caught.value.msg for word in ("gateway", "clientAuth", "--cert-file")), caught.value.msg


@pytest.mark.well("the unwell server has another host and port than etcd lists")
def test_a_host_that_etcd_does_not_list_is_an_error_that_names_the_flag() -> None:
    with Cluster(1, ["--host-whitelist=127.0.0.1"]) as cluster:
        port = cluster.members[0].port
        with pytest.raises(InvalidConfig, match="--host-whitelist"):
            EtcdStore(description([f"http://localhost:{port}"]), seconds=5).find(owner().attachment)


@pytest.mark.well("it is about certificates, and the unwell server has none")
def test_a_certificate_for_another_host_and_a_server_without_tls_are_told_apart(
    pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_cluster(pki, "elsewhere") as cluster, pytest.raises(InvalidConfig, match=r"127\.0\.0\.1.*host") as caught:
        EtcdStore(description(cluster.endpoints, ca=f"{pki}/ca.pem"), seconds=5).find(owner().attachment)
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
        run(cluster.ctl, "user add root:secret", "user add railcni:s3cret", "role add leases")
        run(cluster.ctl, "role grant-permission leases --prefix=true readwrite /railcni/")
        run(cluster.ctl, "user grant-role railcni leases", "user grant-role root root", "auth enable")
        yield cluster


def run(ctl: Callable[..., str], *commands: str) -> None:
    for command in commands:
        ctl(*command.split())


def test_a_user_has_a_password_and_the_rights_that_it_was_granted(
    guarded: Cluster, reached: Callable[..., EtcdStore]
) -> None:
    good = {"user": "railcni", "password": "s3cret"}
    own = reached(guarded, **good)
    assert claim(own, 1, 2)
    assert own.release(own.find(owner().attachment)) == 2
    own.settle(owner().attachment, 1)
    for other, words in (
        ({"password": "wrong"}, ("railcni", "etcd_password")),
        ({"user": "nobody"}, ("nobody", "etcd_username")),
        ({"user": ""}, ("asks for authentication", "etcd_username")),
        ({"prefix": "/elsewhere"}, ("denies", "railcni", "grant-permission", "etcd_prefix")),
    ):
        with pytest.raises(InvalidConfig) as caught:
            reached(guarded, **good | other).find(owner().attachment)
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

    run(ctl, f"user add {name}:x", f"role add {name}", f"user grant-role {name} {name}")
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
