"""railcni ipam pools, show, audit and reclaim over the store addresslease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.spec.request import Attachment
from ipam.ranges import parse_address
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.base import Claimed, Owner, Want
from tests.blackbox.command import run
from tests.stores.cluster_api import ClusterServer

POOL = "192.168.111.0-24"


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
        self.store = AddressLeaseStore({"kind": "addresslease", "kubeconfig": kubeconfig}, 5)

    def close(self) -> None:
        self.store.close()
        self.server.close()

    def lease(self, n: int, uid: str = "", sequence: int = 1000) -> None:
        """The address N, of team/pN in container cN."""
        owner = Owner(Attachment("rdma-net", f"c{n}", "net1"), ("team", f"p{n}", uid), "node-1", "boot", "/x", sequence)
        assert isinstance(self.store.claim([Want(POOL, *parse_address(address(n)), "")], owner), Claimed)

    def audit(self) -> list[tuple[str, str, str]]:
        document = run("audit", "--report", self.report, *self.options, code=None, data=True)
        return sorted((f["kind"], f["action"], f["address"]) for f in document["findings"])

    def reclaim(self) -> list[tuple[str, str]]:
        done: Any = run("reclaim", "--from-report", self.report, "--grace", "0", *self.options, data=True)
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
