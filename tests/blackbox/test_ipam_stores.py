"""railcni ipam beside the pods of a cluster, on leases in etcd and in AddressLeases: in either store alike, and of each alone."""

import base64
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.request import Attachment
from ipam.leases import Owner, Want
from ipam.ranges import parse_address
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.base import Claimed
from ipam.stores.etcd import EtcdStore
from ipam.stores.etcd.keys import Keys
from tests import etcd
from tests.blackbox.command import run
from tests.stores.cluster_api import ClusterServer
from tests.stores.kinds import description

POOL, OTHER = "192.168.111.0-24", "192.168.222.0-24"
IP = "192.168.111.{}".format
_prefixes = itertools.count()


class Site:
    """A cluster with pods, a store, and the flat file that names it: `options`. `pods` are the options by which pods are read."""

    store: EtcdStore | AddressLeaseStore
    pods: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.server = ClusterServer()
        self.server.add_network("rdma-net")
        self.kubeconfig = self.server.kubeconfig(folder)
        self.report = str(folder / "report.json")
        flat = folder / "whereabouts.conf"
        flat.write_text(json.dumps(self.flat()))
        self.options: tuple[str, ...] = ("--config", str(flat))

    def flat(self) -> dict[str, Any]:
        """Open the store; what a flat file says of it."""
        raise NotImplementedError

    def close(self) -> None:
        self.store.close()
        self.server.close()

    def lease(self, n: int, uid: str = "", sequence: int = 1000) -> None:
        """The address N, of team/pN in container cN."""
        owner = Owner(Attachment("rdma-net", f"c{n}", "net1"), ("team", f"p{n}", uid), "node-1", "boot", "/x", sequence)
        assert isinstance(self.store.claim([Want(POOL, *parse_address(IP(n)), "")], owner), Claimed)

    def audit(self, *argv: str) -> list[tuple[str, str, str]]:
        document = run("audit", "--report", self.report, *self.options, *argv, code=None, data=True)
        return sorted((f["kind"], f["action"], f.get("address", "")) for f in document["findings"])

    def reclaim(self) -> list[tuple[str, str]]:
        argv = ("--from-report", self.report, "--grace", "0", "--force", *self.options, *self.pods)
        done: Any = run("reclaim", *argv, data=True)
        return sorted((result["result"], result["address"]) for result in done)

    def addresses(self) -> list[str]:
        return [lease["address"] for lease in run("leases", *self.options, data=True)]


class Etcd(Site):
    def flat(self) -> dict[str, Any]:
        if etcd.unusable():
            pytest.skip(etcd.unusable())
        shared = etcd.shared()
        self.url = shared.endpoints[0]
        self.prefix = f"/audit-{os.getpid()}-{next(_prefixes)}"
        self.store = EtcdStore(description(shared.endpoints, prefix=self.prefix))
        self.pods = ("--kubeconfig", self.kubeconfig)
        return {"etcd_host": ",".join(shared.endpoints), "etcd_prefix": self.prefix}

    def key(self, name: str) -> dict[str, str]:
        return {"key": base64.b64encode(f"{self.prefix}/v1/{name}".encode()).decode()}


class Cluster(Site):
    """AddressLeases, and entries of IPPools beside them. `alone`: a kubeconfig in place of a flat file."""

    def flat(self) -> dict[str, Any]:
        self.store = AddressLeaseStore({"kind": "addresslease", "kubeconfig": self.kubeconfig}, 5)
        self.alone = ("--kubeconfig", self.kubeconfig)
        return {"datastore": "addresslease", "kubernetes": {"kubeconfig": self.kubeconfig}}

    def entry(self, n: int) -> None:
        """The address N, of team/pN in container cN, in an IPPool."""
        entry = {"id": f"c{n}", "podref": f"team/p{n}", "ifname": "net1"}
        self.server.put("ippools", "kube-system", OTHER, {"range": "192.168.222.0/24", "allocations": {str(n): entry}})


@pytest.fixture(params=[Etcd, Cluster], ids=["etcd", "addresslease"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made: Site = request.param(tmp_path)
    yield made
    made.close()


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Etcd]:
    made = Etcd(tmp_path)
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_pools_leases_and_their_holders_are_read(site: Site) -> None:
    for n in (1, 2):
        site.lease(n, "u1")
    (pool,) = run("pools", *site.options, data=True)
    assert (pool["pool"], pool["size"], pool["used"]) == (POOL, 254, 2)
    (shown,) = run("show", IP(2), *site.options, data=True)
    assert (shown["pod"], shown["podUID"], shown["node"]) == ("team/p2", "u1", "node-1")
    assert run("show", "team/p2", *site.options, data=True) == [shown]
    assert [lease["address"] for lease in run("leases", "--container", "team/p1", *site.options, data=True)] == [IP(1)]


def test_leases_are_compared_with_pods_and_the_dead_are_freed(site: Site) -> None:
    site.lease(1, site.server.run_pod("p1", IP(1)))
    site.server.run_pod("p2", IP(9))
    for n, uid in ((9, ""), (2, "former"), (3, ""), (4, "")):
        site.lease(n, uid)
    site.server.run_pod("p4", phase="Pending")
    assert site.audit(*site.pods) == [
        ("lease-of-another-uid", "reclaim", IP(2)), ("lease-of-pending-pod", "keep", IP(4)),
        ("lease-without-pod", "look", IP(9)), ("lease-without-pod", "reclaim", IP(3)),
        ("pod-without-lease", "look", IP(9)),
    ]  # fmt: skip
    assert site.reclaim() == [("freed", IP(2)), ("freed", IP(3))]
    assert site.addresses() == [IP(1), IP(4), IP(9)]


def test_a_lease_that_was_given_anew_since_the_report_stays(site: Site) -> None:
    site.lease(1)
    assert site.audit(*site.pods) == [("lease-without-pod", "reclaim", IP(1))]
    site.store.release(list(site.store.leases(POOL)))
    site.lease(1, sequence=1001)
    assert (site.reclaim(), site.addresses()) == ([("skipped", IP(1))], [IP(1)])


def test_without_a_cluster_the_keys_of_etcd_are_compared_with_one_another(member: Etcd) -> None:
    for n in range(1, 4):
        member.lease(n)
    assert member.audit() == []
    for name in ("reserved//c0a86f01", f"pod/team/p2/net1/{POOL}/c0a86f02"):
        assert etcd.post(member.url, "kv/deleterange", member.key(name)).get("deleted") == "1"
    etcd.post(member.url, "kv/put", member.key(f"node/node-1/{POOL}/c0a86f09"))
    assert member.audit() == [("index-differs", "look", each) for each in ("", IP(1), IP(2))]
    said = run("audit", *member.options, code=1)
    assert f"`etcdctl del {member.prefix}/v1/node/node-1/{POOL}/c0a86f09`" in said
    assert "not read: the pods: no kubeconfig is named" in said


def test_a_lease_that_no_del_finds_in_etcd_is_told_with_the_command_that_frees_it(member: Etcd) -> None:
    member.lease(1)
    (lease,) = member.store.leases(POOL)
    identity = base64.b64encode(Keys(member.prefix).identity(lease)).decode()
    assert etcd.post(member.url, "kv/deleterange", {"key": identity}).get("deleted") == "1"
    assert f"`etcdctl del {member.prefix}/v1/lease/{POOL}/c0a86f01`" in run("audit", *member.options, code=1)


# Each verb with a kubeconfig alone, and the addresses that it tells where AddressLeases have .1 and IPPools .2
VERBS = {
    "pools": (("pools",), "pool", {POOL: IP(1), OTHER: "192.168.222.2"}),
    "leases": (("leases",), "address", {}),
    "the leases of a node": (("leases", "--container", "c"), "address", {}),
    "show of an AddressLease": (("show", IP(1)), "address", {}),
    "show of an IPPool's address": (("show", "192.168.222.2"), "address", {}),
    "show of a pod": (("show", "team/p1"), "address", {}),
    "audit": (("audit",), "address", {}),
}
HOLDS = {"AddressLeases": {IP(1)}, "IPPools": {"192.168.222.2"}, "both": {IP(1), "192.168.222.2"}, "neither": set()}
ONE = {"show of an AddressLease": IP(1), "show of an IPPool's address": "192.168.222.2", "show of a pod": IP(1)}


@pytest.mark.parametrize("held", HOLDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_kubeconfig_alone_shows_what_the_cluster_holds(cluster: Cluster, verb: str, held: str) -> None:
    if held in ("AddressLeases", "both"):
        cluster.lease(1)
    if held in ("IPPools", "both"):
        cluster.entry(2)
    argv, member, names = VERBS[verb]
    found: Any = run(*argv, *cluster.alone, code=None, data=True)
    told = {one[member] for one in (found["findings"] if verb == "audit" else found)}
    wanted = HOLDS[held] & ({ONE[verb]} if verb in ONE else HOLDS["both"])
    assert {names.get(one, one) for one in told} == wanted


def test_what_is_dead_in_either_store_is_freed_from_one_report(cluster: Cluster) -> None:
    cluster.lease(1)
    cluster.entry(2)
    cluster.server.run_pod("p3", IP(3))
    cluster.lease(3)
    for name in ("p8", "p9"):
        cluster.server.run_pod(name, IP(9))
    cluster.options = cluster.alone
    assert cluster.audit() == [
        ("duplicate-address", "look", IP(9)), ("lease-without-pod", "reclaim", IP(1)),
        ("lease-without-pod", "reclaim", "192.168.222.2"), ("pod-without-lease", "look", IP(9)),
        ("pod-without-lease", "look", IP(9)),
    ]  # fmt: skip
    assert cluster.reclaim() == [("freed", IP(1)), ("freed", "192.168.222.2")]
    assert cluster.server.names("addressleases") == [IP(3)]
    assert (cluster.server.spec("ippools", OTHER) or {})["allocations"] == {}


def test_a_store_that_is_not_defined_or_not_to_be_read_is_left_out_or_named(cluster: Cluster) -> None:
    cluster.entry(2)
    cluster.server.forbidden = {("list", "addressleases")}
    said = run("leases", *cluster.alone)
    assert "192.168.222.2" in said
    assert "only IPPools in namespace kube-system" in said and "forbids to list addressleases" in said
    cluster.server.forbidden |= {("list", "ippools")}
    assert "forbids to list addressleases" in run("leases", *cluster.alone, code=1)
    cluster.server.forbidden, cluster.server.resources = set(), set()
    assert "knows neither AddressLeases nor IPPools" in run("leases", *cluster.alone, code=1)
