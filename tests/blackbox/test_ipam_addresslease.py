"""railcni ipam pools, leases, show, audit and reclaim over the store addresslease, and over both stores of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.request import Attachment
from ipam.leases import Owner, Want
from ipam.ranges import parse_address
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.base import Claimed
from tests.blackbox.command import run
from tests.stores.cluster_api import ClusterServer

POOL, OTHER = "192.168.111.0-24", "192.168.222.0-24"


def address(n: int) -> str:
    return f"192.168.111.{n}"


class Site:
    """A cluster with pods, whose flat file names the store."""

    def __init__(self, folder: Path) -> None:
        self.server = ClusterServer()
        self.server.add_network("rdma-net")
        kubeconfig = self.server.kubeconfig(folder)
        self.report = str(folder / "report.json")
        flat = folder / "whereabouts.conf"
        flat.write_text(json.dumps({"datastore": "addresslease", "kubernetes": {"kubeconfig": kubeconfig}}))
        self.options = ("--config", str(flat))
        self.alone = ("--kubeconfig", kubeconfig)
        self.store = AddressLeaseStore({"kind": "addresslease", "kubeconfig": kubeconfig}, 5)

    def close(self) -> None:
        self.store.close()
        self.server.close()

    def entry(self, n: int) -> None:
        """The address N, of team/pN in container cN, in an IPPool."""
        entry = {"id": f"c{n}", "podref": f"team/p{n}", "ifname": "net1"}
        self.server.put("ippools", "kube-system", OTHER, {"range": "192.168.222.0/24", "allocations": {str(n): entry}})

    def lease(self, n: int, uid: str = "", sequence: int = 1000) -> None:
        """The address N, of team/pN in container cN."""
        owner = Owner(Attachment("rdma-net", f"c{n}", "net1"), ("team", f"p{n}", uid), "node-1", "boot", "/x", sequence)
        assert isinstance(self.store.claim([Want(POOL, *parse_address(address(n)), "")], owner), Claimed)

    def audit(self) -> list[tuple[str, str, str]]:
        document = run("audit", "--report", self.report, *self.options, code=None, data=True)
        return sorted((f["kind"], f["action"], f["address"]) for f in document["findings"])

    def reclaim(self) -> list[tuple[str, str]]:
        done: Any = run("reclaim", "--from-report", self.report, "--grace", "0", "--force", *self.options, data=True)
        return [(result["result"], result["address"]) for result in done]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_pools_and_holders_are_read(site: Site) -> None:
    for n in (1, 2):
        site.lease(n, "u1")
    (pool,) = run("pools", *site.options, data=True)
    assert (pool["pool"], pool["size"], pool["used"]) == (POOL, 254, 2)
    (shown,) = run("show", address(2), *site.options, data=True)
    assert (shown["pod"], shown["podUID"], shown["node"]) == ("team/p2", "u1", "node-1")


def test_leases_are_compared_with_pods_and_the_dead_are_freed(site: Site) -> None:
    site.lease(1, site.server.run_pod("p1", address(1)))
    site.server.run_pod("p2", address(9))
    for n, uid in ((2, "former"), (3, ""), (4, "")):
        site.lease(n, uid)
    site.server.run_pod("p4", phase="Pending")
    assert site.audit() == [
        ("lease-of-another-uid", "reclaim", address(2)),
        ("lease-of-pending-pod", "keep", address(4)),
        ("lease-without-pod", "reclaim", address(3)),
        ("pod-without-lease", "look", address(9)),
    ]
    assert site.reclaim() == [("freed", address(2)), ("freed", address(3))]
    assert site.server.names("addressleases") == [address(1), address(4)]


def test_a_lease_that_was_given_anew_since_the_report_stays(site: Site) -> None:
    site.lease(1)
    assert site.audit() == [("lease-without-pod", "reclaim", address(1))]
    site.store.release(site.store.leases(POOL))
    site.lease(1, sequence=1001)
    assert site.reclaim() == [("skipped", address(1))]
    assert site.server.names("addressleases") == [address(1)]


# Each verb with a kubeconfig alone, and the addresses that it tells where AddressLeases have .1 and IPPools .2
VERBS = {
    "pools": (("pools",), "pool", {POOL: address(1), OTHER: "192.168.222.2"}),
    "leases": (("leases",), "address", {}),
    "the leases of a node": (("leases", "--container", "c"), "address", {}),
    "show of an AddressLease": (("show", address(1)), "address", {}),
    "show of an IPPool's address": (("show", "192.168.222.2"), "address", {}),
    "show of a pod": (("show", "team/p1"), "address", {}),
    "audit": (("audit",), "address", {}),
}
HOLDS = {
    "AddressLeases": {address(1)},
    "IPPools": {"192.168.222.2"},
    "both": {address(1), "192.168.222.2"},
    "neither": set(),
}
ONE = {
    "show of an AddressLease": address(1),
    "show of an IPPool's address": "192.168.222.2",
    "show of a pod": address(1),
}


@pytest.mark.parametrize("held", HOLDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_kubeconfig_alone_shows_what_the_cluster_holds(site: Site, verb: str, held: str) -> None:
    if held in ("AddressLeases", "both"):
        site.lease(1)
    if held in ("IPPools", "both"):
        site.entry(2)
    argv, member, names = VERBS[verb]
    found: Any = run(*argv, *site.alone, code=None, data=True)
    told = {one[member] for one in (found["findings"] if verb == "audit" else found)}
    wanted = HOLDS[held] & ({ONE[verb]} if verb in ONE else HOLDS["both"])
    assert {names.get(one, one) for one in told} == wanted


def test_what_is_dead_in_either_store_is_freed_from_one_report(site: Site) -> None:
    site.lease(1)
    site.entry(2)
    site.server.run_pod("p3", address(3))
    site.lease(3)
    for name in ("p8", "p9"):
        site.server.run_pod(name, address(9))
    site.options = site.alone
    assert site.audit() == [
        ("duplicate-address", "look", address(9)),
        ("lease-without-pod", "reclaim", address(1)),
        ("lease-without-pod", "reclaim", "192.168.222.2"),
        ("pod-without-lease", "look", address(9)),
        ("pod-without-lease", "look", address(9)),
    ]
    assert sorted(site.reclaim()) == [("freed", address(1)), ("freed", "192.168.222.2")]
    assert site.server.names("addressleases") == [address(3)]
    assert (site.server.spec("ippools", OTHER) or {})["allocations"] == {}


def test_a_store_that_is_not_defined_or_not_to_be_read_is_left_out_or_named(site: Site) -> None:
    site.entry(2)
    site.server.forbidden = {("list", "addressleases")}
    said = run("leases", *site.alone)
    assert "192.168.222.2" in said
    assert "only IPPools in namespace kube-system" in said and "forbids to list addressleases" in said
    site.server.forbidden |= {("list", "ippools")}
    assert "forbids to list addressleases" in run("leases", *site.alone, code=1)
    site.server.forbidden, site.server.resources = set(), set()
    assert "knows neither AddressLeases nor IPPools" in run("leases", *site.alone, code=1)
