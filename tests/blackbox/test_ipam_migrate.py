"""railcni ipam migrate: from every kind of store to every other, and from host-local's directories."""

import base64
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni.cli.ipam import migrate as ipam_migrate
from cni.cli.ipam import move as ipam_move
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment
from ipam.leases import PART, Lease, Owner, Want, recorded_document, recorded_leases
from ipam.ranges import format_address, parse_address
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.apiserver import Api
from ipam.stores.base import Claimed, Store
from ipam.stores.etcd import EtcdStore
from ipam.stores.file import FileStore
from ipam.stores.ippool import KubernetesStore, locks
from tests import etcd
from tests.blackbox.command import run
from tests.blackbox.test_etcd import Etcd, member, network  # noqa: F401
from tests.each import quick_of
from tests.node import Node
from tests.stores.cluster_api import ClusterServer
from tests.stores.kinds import description
from tests.stores.unwell import Unwell, ailing

POOL, WIDE = "192.168.111.0-24", "fd00-111---64"
NODE = "node-1"
Patch = pytest.MonkeyPatch
IPPOOLS, RESERVATIONS, ADDRESSES = "ippools", "overlappingrangeipreservations", "addressleases"
TRIES = 30
_prefixes = itertools.count()
needs_etcd = pytest.mark.skipif(bool(etcd.unusable()), reason=etcd.unusable())
KINDS = ("file", "kubernetes", "etcd", "addresslease")
PAIRS = [
    pytest.param(*pair, marks=needs_etcd if "etcd" in pair else ())
    for pair in itertools.permutations(KINDS, 2)
    if set(pair) != {"kubernetes", "addresslease"}  # from one to the other they move, below
]


class Site:
    """A store of every kind, empty, and the records of a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ClusterServer()
        self.server.add_network("rdma-net", ipRanges=[{"range": "fd00:111::/64"}])
        self.kubeconfig = self.server.kubeconfig(folder)
        self.records = Records(str(folder / "state"))
        self._etcd: EtcdStore | None = None
        # "api", "etcd": before the API server and the member that the command finds
        self.unwell: dict[str, Unwell] = {}

    def close(self) -> None:
        self.server.close()
        if self._etcd:
            self._etcd.close()

    def store(self, kind: str) -> Store:
        if kind == "file":
            return FileStore(str(self.folder / "leases"))
        if kind == "kubernetes":
            return KubernetesStore({"kind": "kubernetes", "kubeconfig": self.kubeconfig}, 20)
        if kind == "addresslease":
            return AddressLeaseStore({"kind": kind, "kubeconfig": self.kubeconfig}, 20)
        if self._etcd is None:
            prefix = f"/migrate-{os.getpid()}-{next(_prefixes)}"
            self._etcd = EtcdStore(description(etcd.shared().endpoints, prefix=prefix))
        return self._etcd

    def place(self, kind: str) -> str:
        """The store as the command names it."""
        if kind == "file":
            return f"file:{self.folder}/leases"
        if kind in ("kubernetes", "addresslease"):
            if "api" not in self.unwell:
                return f"{kind}:{self.kubeconfig}"
            path, ports = self.folder / "unwell.kubeconfig", (f":{self.server.port}", f":{self.unwell['api'].port}")
            path.write_text(Path(self.kubeconfig).read_text().replace(*ports))
            return f"{kind}:{path}"
        store_ref = self.store("etcd").record()
        flat = self.folder / "etcd.conf"
        own = self.unwell.get("etcd")
        host = f"http://127.0.0.1:{own.port}" if own else store_ref["endpoints"][0]
        flat.write_text(json.dumps({"etcd_host": host, "etcd_prefix": store_ref["prefix"]}))
        return f"config:{flat}"

    def lease(self, kind: str, n: int, container: str = "", pool: str = POOL) -> Lease:
        """The address N of a pool, of team/pN."""
        family, value = parse_address("192.168.111.0" if pool == POOL else "fd00:111::")
        who, where = Attachment("rdma-net", container or f"c{n}", "net1"), (NODE, "boot-1", f"/run/netns/p{n}")
        owner = Owner(who, ("team", f"p{n}", f"u{n}"), *where, 1000 + n)
        answer = self.store(kind).claim([Want(pool, family, value + n, "")], owner)
        assert isinstance(answer, Claimed)
        return answer.leases[0]

    def filled(self, kind: str) -> list[tuple[Any, ...]]:
        """Four leases in two pools of a store, and all that is known of them."""
        for n in (1, 2, 7):
            self.lease(kind, n)
        self.lease(kind, 3, pool=WIDE)
        return sorted(self.leases(kind))

    def leases(self, kind: str) -> list[tuple[Any, ...]]:
        """All that is known of each lease of a store."""
        store, found = self.store(kind), []
        with store.session():
            for pool in store.pools():
                for lease in store.leases(pool.name):
                    whole = store.find(lease.attachment) if lease.network else [_held(store, lease)]
                    found += [w for w in whole if w.value == lease.value and w.family == lease.family]
        return [
            (f.pool, format_address(f.family, f.value), f.container_id, f.ifname, f.pod, f.node, f.netns, f.sequence)
            for f in found
        ]

    def migrate(self, source: str, target: str, *argv: str, code: int | None = 0) -> dict[str, Any]:
        node = self.of_node(source, target)
        found: dict[str, Any] = run("migrate", "--from", source, "--to", target, *node, *argv, code=code, data=True)
        return found

    def of_node(self, source: str, target: str) -> tuple[str, ...]:
        of_one_node = source.startswith("host-local:") or (target == self.place("file") != source)
        return ("--node", NODE) if of_one_node else ()

    @contextmanager
    def ill(self, *kinds: str) -> Iterator[list[Unwell]]:
        """Let the command find the stores of `kinds` before whose servers there is an Unwell (tests/stores/unwell.py)."""
        self.server.lag()
        with ExitStack() as stack:
            if set(kinds) - {"file", "etcd"}:
                self.unwell["api"] = stack.enter_context(ailing(self.server.port))
            if "etcd" in kinds:
                self.unwell["etcd"] = stack.enter_context(ailing(etcd.shared().members[0].port, True))
            yield list(self.unwell.values())


def _held(store: Store, lease: Lease) -> Lease:
    found = store.holder(lease)
    assert found
    return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: Patch) -> Iterator[Site]:
    monkeypatch.setattr(ipam_migrate, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(ipam_migrate, "DIRECTORY", str(tmp_path / "cache"))
    monkeypatch.setattr(ipam_migrate, "SECONDS", 2.0)
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "run"))
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_leases_arrive_with_all_that_is_known_of_them(site: Site, source: str, target: str) -> None:
    before = site.filled(source)
    assert site.migrate(site.place(source), site.place(target), "--dry-run")["toCopy"] == 4
    assert target != "file" or not (site.folder / "leases").exists()
    assert site.leases(target) == []
    done = site.migrate(site.place(source), site.place(target))
    assert (done["copied"], done["there"], done["records"]) == (4, 0, 0)
    assert sorted(site.leases(target)) == sorted(site.leases(source)) == before
    again = site.migrate(site.place(source), site.place(target))
    assert (again["copied"], again["there"]) == (0, 4)
    assert site.migrate(site.place(source), site.place(target), "--remove-source")["removed"] == 4
    assert (site.leases(source), len(site.leases(target))) == ([], 4)


@pytest.mark.parametrize(("source", "target"), [pair for pair in PAIRS if pair.values[1] != "etcd"])
def test_leases_arrive_once_though_the_servers_are_ill(site: Site, source: str, target: str) -> None:
    """The command is called again until it succeeds. To etcd it does when the member has forgotten, after ten minutes, that a
    claim with an open outcome was forbidden."""
    before = site.filled(source)
    with site.ill(source, target) as unwell:
        places = site.place(source), site.place(target)
        argv = ("migrate", "--from", places[0], "--to", places[1], *site.of_node(*places), "--remove-source")
        for _ in range(TRIES):
            said = run(*argv, code=None)
            if not site.leases(source):
                break
    assert (site.leases(source), sorted(site.leases(target))) == ([], before), said
    assert all(one.met for one in unwell)


def test_nothing_is_written_when_an_address_is_anothers_and_both_are_named(site: Site) -> None:
    site.lease("file", 1)
    site.lease("file", 2)
    site.lease("kubernetes", 2, container="other")
    before = site.leases("kubernetes")
    said = run("migrate", "--from", site.place("file"), "--to", site.place("kubernetes"), code=1)
    assert "1 addresses are given to others" in said and "so nothing was copied" in said
    assert "192.168.111.2 of 192.168.111.0-24: here pod team/p2, container c2" in said
    assert "there pod team/p2, container other" in said
    assert site.leases("kubernetes") == before


def of_go(site: Site, **more: str) -> None:
    """A lease of Go whereabouts."""
    entry = {"id": "c5", "podref": "team/p5", "ifname": "net1", **more}
    site.server.put("ippools", "kube-system", POOL, {"range": "192.168.111.0/24", "allocations": {"5": entry}})


@needs_etcd
def test_leases_of_go_whereabouts_arrive_with_the_network_of_their_nad(site: Site) -> None:
    of_go(site)
    spec, told = {"podref": "team/p5", "ifname": "net1"}, {"node": NODE, "uid": "u5"}  # but neither boot nor namespace
    annotations = {"railcni.io/lease": json.dumps(told)}
    site.server.put(RESERVATIONS, "kube-system", "192.168.111.5", spec, annotations=annotations)
    (lease,) = run("leases", "--kubeconfig", site.kubeconfig, data=True)
    assert dict(lease)["network"] == ""
    site.migrate(site.place("kubernetes"), site.place("etcd"))
    (found,) = site.store("etcd").find(Attachment("rdma-net", "c5", "net1"))
    # without a node: else its node would reclaim it as a lease of an earlier boot
    assert (found.pod, found.scope, found.node) == (("team", "p5", "u5"), "", "")
    said = run("migrate", "--from", site.place("kubernetes"), "--to", f"file:{site.folder}/other", code=1)
    assert "a file store has the leases of one node" in said


def test_a_lease_whose_network_cannot_be_told_is_named(site: Site) -> None:
    site.server.add_network("other-net")
    of_go(site)
    argv = ("migrate", "--from", site.place("kubernetes"), "--to", "etcd:127.0.0.1:1")
    said = run(*argv, code=1)
    assert "the network of 192.168.111.5 of 192.168.111.0-24 (pod team/p5) is not known: 2 NADs name that pool" in said
    assert "could not be reached" in run(*argv, "--network", "rdma-net", code=1)


def test_claims_of_ipamclaims_are_left_where_they_are(site: Site) -> None:
    of_go(site, ipamclaimref="claim")
    said = run("migrate", "--from", site.place("kubernetes"), "--to", f"file:{site.folder}/x", code=1)
    assert "addresses of IPAMClaims cannot be kept elsewhere: 192.168.111.5" in said


def test_records_of_this_node_name_the_new_store_so_that_del_finds_it(site: Site) -> None:
    lease = recorded(site, "file", 1)
    foreign = Attachment("rdma-net", "c9", "net1")
    site.records.write(foreign, PART, recorded_document({"kind": "file", "path": "/elsewhere"}, [], Owner(foreign)))
    assert site.migrate(site.place("file"), site.place("kubernetes"))["records"] == 1
    record, untouched = (site.records.read(who, PART) or {} for who in (lease.attachment, foreign))
    assert record["store"] == {"kind": "kubernetes", "kubeconfig": site.kubeconfig, "pools": [POOL]}
    assert [each.key() for each in recorded_leases(lease.attachment, record)] == [lease.key()]
    assert untouched["store"]["path"] == "/elsewhere"


def test_what_a_del_takes_away_meanwhile_is_taken_back(site: Site, monkeypatch: Patch) -> None:
    leases = [site.lease("file", n) for n in (1, 2)]
    copy = ipam_migrate._Migration._copy

    def copy_slowly(self: Any, groups: Any) -> None:
        copy(self, groups)
        site.store("file").release(leases[:1])

    monkeypatch.setattr(ipam_migrate._Migration, "_copy", copy_slowly)
    assert site.migrate(site.place("file"), site.place("kubernetes"))["takenBack"] == 1
    assert [lease[1] for lease in site.leases("kubernetes")] == ["192.168.111.2"]


# --- between the two stores of one cluster ---


def recorded(site: Site, kind: str, n: int) -> Lease:
    """A lease as `Site.lease`, and the record of its node."""
    lease = site.lease(kind, n)
    owner = Owner(lease.attachment, lease.pod, NODE, "boot-1", lease.netns, lease.sequence)
    store = {**site.store(kind).record(), **({"pools": [lease.pool]} if kind == "kubernetes" else {})}
    want = Want(lease.pool, lease.family, lease.value, "")
    site.records.write(lease.attachment, PART, recorded_document(store, [want], owner))
    return lease


def stores_named(site: Site) -> set[str]:
    return {record["store"]["kind"] for _, _, record in site.records.all(PART)}


def test_the_pools_of_whereabouts_become_addressleases_and_pools_again(site: Site) -> None:
    for n in (1, 2, 7):
        recorded(site, "kubernetes", n)
    site.lease("kubernetes", 3, pool=WIDE)
    before = site.leases("kubernetes")
    pools = {name: site.server.spec(IPPOOLS, name) for name in site.server.names(IPPOOLS)}
    there = (site.place("kubernetes"), site.place("addresslease"))
    assert site.migrate(*there, "--dry-run")["toCopy"] == 4
    assert (site.server.names(ADDRESSES), stores_named(site)) == ([], {"kubernetes"})
    done = site.migrate(*there)
    assert (done["copied"], done["removed"], done["records"]) == (4, 4, 3)
    assert sorted(site.leases("addresslease")) == sorted(before)
    assert (stores_named(site), site.server.names(RESERVATIONS)) == ({"addresslease"}, [])
    for name, spec in pools.items():
        closed = site.server.spec(IPPOOLS, name)
        assert spec and closed == {"range": f"moved to addressleases.railcni.io: {spec['range']}", "allocations": {}}
    assert site.migrate(*reversed(there), "--dry-run")["toCopy"] == 4
    back = site.migrate(*reversed(there))
    assert (back["removed"], back["records"]) == (4, 3)
    assert (site.server.names(ADDRESSES), stores_named(site)) == ([], {"kubernetes"})
    assert sorted(site.leases("kubernetes")) == sorted(before)
    assert {name: site.server.spec(IPPOOLS, name) for name in site.server.names(IPPOOLS)} == pools


def test_an_add_that_comes_while_a_pool_is_moved_is_moved_too(site: Site, monkeypatch: Patch) -> None:
    site.lease("kubernetes", 1)
    close = ipam_move.Pools.close
    left = [2, 3]

    def late(self: Any, leases: list[Lease]) -> bool:
        if left:
            site.lease("kubernetes", left.pop())
        return close(self, leases)

    monkeypatch.setattr(ipam_move.Pools, "close", late)
    site.migrate(site.place("kubernetes"), site.place("addresslease"))
    assert [lease[1] for lease in site.leases("addresslease")] == ["192.168.111.1", "192.168.111.2", "192.168.111.3"]


class Killed(BaseException):
    pass


MANY = 60  # changes, more than a migration makes
TO, BACK = ("kubernetes", "addresslease"), ("addresslease", "kubernetes")


def gives(site: Site, kind: str, n: int) -> bool | None:
    """Whether the store of `kind` gives the address N; None when it names the store in which the range is."""
    owner = Owner(Attachment("rdma-net", f"{kind}-{n}", "net1"), ("team", "late", "u"))
    family, value = parse_address(f"192.168.111.{n}")
    try:
        return isinstance(site.store(kind).claim([Want(POOL, family, value, "")], owner), Claimed)
    except InvalidConfig as fault:
        assert "AddressLeases" in fault.msg[:250] and "IPPools" in fault.msg[:250], fault.msg
        return None


KILLED = {  # the way, whether no IPPool is there, and whether the migration goes the other way then
    "to AddressLeases, then back": (TO, False, True),
    "to AddressLeases, run again": (TO, False, False),
    "back to IPPools, run again": (BACK, False, False),
    "back to IPPools, then the other way": (BACK, False, True),
    "back without IPPools, then the other way": (BACK, True, True),
    "back without IPPools, run again": (BACK, True, False),
}


@pytest.mark.parametrize("case", quick_of(KILLED, *list(KILLED)[::2]))
def test_a_migration_that_is_killed_leaves_each_range_in_one_store(site: Site, monkeypatch: Patch, case: Any) -> None:
    """At any change. Without IPPools: the leases of a version that made none for AddressLeases."""
    way, unmarked, back = case
    source, target = way
    request = Api._request
    at = 0
    while True:
        at += 1
        left = [at]

        def dies(self: Api, method: str, *arguments: Any) -> bytes:
            if method != "GET":
                left[0] -= 1  # noqa: B023
                if left[0] == 0:  # noqa: B023
                    raise Killed
            return request(self, method, *arguments)

        for resource, namespace, name in list(site.server.objects):
            if resource in (ADDRESSES, IPPOOLS, RESERVATIONS):
                del site.server.objects[resource, namespace, name]
        site.lease(source, 1)
        site.lease(source, 1, pool=WIDE)
        if unmarked:
            for name in site.server.names(IPPOOLS):
                site.server.remove(IPPOOLS, name)
        with monkeypatch.context() as patch:
            patch.setattr(Api, "_request", dies)
            try:
                site.migrate(site.place(source), site.place(target))
                finished = True
            except Killed:
                finished = False
        given = [kind for kind in way if gives(site, kind, 7)]
        assert len(given) < 2, (at, given)
        assert not finished or given == [target]
        ends = (target, source) if back else (source, target)
        assert not any(gives(site, kind, 1) for kind in way), at
        site.migrate(site.place(ends[0]), site.place(ends[1]))
        assert [kind for kind in way if gives(site, kind, 8)] == [ends[1]], at
        assert {lease[1] for lease in site.leases(ends[1])} >= {"192.168.111.1", "fd00:111::1"}, at
        assert site.leases(ends[0]) == [], at
        if finished:
            break
    assert 3 < at < MANY


def test_another_nodes_records_are_switched_when_the_pools_have_moved(site: Site) -> None:
    lease = recorded(site, "kubernetes", 1)
    record = site.records.read(lease.attachment, PART)
    there = (site.place("kubernetes"), site.place("addresslease"))
    site.migrate(*there)
    assert record
    site.records.write(lease.attachment, PART, record)  # as on a node where the command has not run
    assert (site.migrate(*there)["records"], stores_named(site)) == (1, {"addresslease"})
    assert [found[1] for found in site.leases("addresslease")] == ["192.168.111.1"]


def test_node_slices_are_not_moved(site: Site) -> None:
    site.server.add_network("sliced", node_slice_size="/26")
    said = run("migrate", "--from", site.place("kubernetes"), "--to", site.place("addresslease"), code=1)
    assert "team/sliced cannot be moved: it has node_slice_size" in said


# --- host-local ---
def hold(site: Site, address: str, *lines: str) -> None:
    folder = site.folder / "networks" / "rdma-net"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / address).write_text("\r\n".join(lines))


def cached(site: Site, container: str, ifname: str, pod: str) -> None:
    folder = site.folder / "cache" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "kind": "cniCacheV1", "containerId": container, "config": base64.b64encode(b"{}").decode(), "ifName": ifname,
        "networkName": "rdma-net", "netns": f"/run/netns/{pod}", "result": {"cniVersion": "1.0.0", "ips": []},
        "cniArgs": [["K8S_POD_NAMESPACE", "team"], ["K8S_POD_NAME", pod], ["K8S_POD_UID", f"u-{pod}"]],
    }  # fmt: skip
    (folder / f"rdma-net-{container}-{ifname}").write_text(json.dumps(document))


def test_host_locals_files_become_leases_with_the_pods_that_libcni_knows(site: Site) -> None:
    for address in ("192.168.111.2", "fd00:111::2"):
        hold(site, address, "c1", "net1")
    for name, line in (("192.168.111.9", "c9"), ("last_reserved_ip.0", "192.168.111.9"), ("lock", "")):
        hold(site, name, line)
    cached(site, "c1", "net1", "web")
    argv = ("--range", "192.168.111.0/24", "--range", "fd00:111::/64")
    source = f"host-local:{site.folder}/networks/rdma-net"
    assert site.migrate(source, site.place("file"), *argv)["copied"] == 3
    found = site.store("file").find(Attachment("rdma-net", "c1", "net1"))
    known = (("team", "web", "u-web"), "/run/netns/web", NODE)
    assert [(f.pool, f.pod, f.netns, f.node) for f in found] == [(POOL, *known), (WIDE, *known)]
    (bare,) = site.store("file").find(Attachment("rdma-net", "c9", "eth0"))
    assert (bare.pod, bare.node) == (("", "", ""), "")
    assert site.migrate(source, site.place("file"), *argv, "--remove-source", "--dry-run")["toRemove"] == 3
    assert site.migrate(source, site.place("file"), *argv, "--remove-source")["removed"] == 3
    assert sorted(os.listdir(site.folder / "networks" / "rdma-net")) == ["last_reserved_ip.0", "lock"]


def test_host_locals_subnets_must_be_named(site: Site) -> None:
    hold(site, "192.168.111.2", "c1", "net1")
    source = f"host-local:{site.folder}/networks/rdma-net"
    said = run("migrate", "--from", source, "--to", site.place("file"), "--range", "10.0.0.0/8", code=1)
    assert "has leases of no range that is named: 192.168.111.2" in said


NAMES_NONE = "which names no container and interface"
FAULTY = [
    (b"", "is empty"), (b"\xff\xfe", NAMES_NONE), (b"c/1\r\neth0", f'says "c/1 eth0", {NAMES_NONE}'),
    (b"c1\r\na/b", f'says "c1 a/b", {NAMES_NONE}'),
]  # fmt: skip


@pytest.mark.parametrize(("content", "why"), FAULTY)
def test_a_file_of_host_local_that_names_no_container_is_told(site: Site, content: bytes, why: str) -> None:
    hold(site, "192.168.111.2", "c1")
    (site.folder / "networks/rdma-net/192.168.111.2").write_bytes(content)
    source = f"host-local:{site.folder}/networks/rdma-net"
    told = run("migrate", "--from", source, "--to", site.place("file"), "--range", "192.168.111.0/24", code=1)
    assert "/192.168.111.2 " in told and f"{why}: find out whose address it is, or remove it" in told
    assert site.leases("file") == []


def test_a_file_that_is_another_containers_by_now_is_not_removed(site: Site) -> None:
    hold(site, "192.168.111.2", "c2", "net1")
    owner = Owner(Attachment("rdma-net", "c1", "net1"))
    lease = Lease(Want(POOL, *parse_address("192.168.111.2"), ""), owner)
    assert ipam_migrate.remove_host_local(f"{site.folder}/networks/rdma-net", lease) is False
    assert (site.folder / "networks/rdma-net/192.168.111.2").exists()


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        *((place, "file:/leases", "names no store: want file:DIR") for place in ("foo", "file:", "etcd:", "config:")),
        ("file:/leases", "file:/leases", "are the same store"),
        ("file:/leases", "host-local:/d", '"host-local:/d": leases are copied from host-local, never to it'),
        ("host-local:/etc", "file:/leases", "name each with --range"),
    ],
)
def test_a_wrong_pair_of_stores_is_refused_with_its_fault(source: str, target: str, told: str) -> None:
    assert told in run("migrate", "--from", source, "--to", target, code=2)


# --- a node ---
def test_a_nodes_live_attachments_move_from_its_files_to_etcd(node: Node, member: Etcd) -> None:  # noqa: F811
    pod = node.pod()
    args = "K8S_POD_NAMESPACE=team;K8S_POD_NAME=web-0"
    here = network({"datastore": "file"})
    node.cni("macvlan", "ADD", here, netns=pod, args=args).succeeded()
    argv = ["ipam", "migrate", "--from", "file:/var/lib/cni/railcni", "--to", "etcd:127.0.0.1:2379"]
    done = node.railcni(*argv)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1 lease copied" in done.stdout and b"by 1 record of this node" in done.stdout
    assert list(member.leases()) == ["192.168.111.1"]
    other = node.cni("whereabouts", "ADD", network(), container_id="c2", netns="/dev/null", args=args.replace("0", "1"))
    assert other.addresses == ["192.168.111.2/24"]
    node.cni("macvlan", "DEL", here, netns=pod, args=args).succeeded()  # whatever its configuration says by now
    assert list(member.leases()) == ["192.168.111.2"]
