"""railcni ipam on leases in etcd: keys beside their indexes, and leases beside the pods of a cluster."""

from __future__ import annotations

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
from ipam.stores.base import Claimed
from ipam.stores.etcd import EtcdStore
from tests import etcd
from tests.blackbox.command import run
from tests.stores.cluster_api import ClusterServer
from tests.stores.kinds import description

pytestmark = pytest.mark.skipif(bool(etcd.unusable()), reason=etcd.unusable())

POOL = "192.168.111.0-24"
IP = "192.168.111.{}".format
_prefixes = itertools.count()


class Site:
    """A store in etcd, the flat file that names it, and a cluster with pods."""

    def __init__(self, folder: Path) -> None:
        cluster = etcd.shared()
        self.url = cluster.endpoints[0]
        self.prefix = f"/audit-{os.getpid()}-{next(_prefixes)}"
        self.store = EtcdStore(description(cluster.endpoints, prefix=self.prefix))
        self.server = ClusterServer()
        self.server.add_network("rdma-net")
        self.report = str(folder / "report.json")
        flat = folder / "whereabouts.conf"
        flat.write_text(json.dumps({"etcd_host": ",".join(cluster.endpoints), "etcd_prefix": self.prefix}))
        self.options = ("--config", str(flat))
        self.kubeconfig = ("--kubeconfig", self.server.kubeconfig(folder))

    def close(self) -> None:
        self.store.close()
        self.server.close()

    def lease(self, n: int, uid: str = "") -> None:
        """The address N, of team/pN in container cN."""
        owner = Owner(Attachment("rdma-net", f"c{n}", "net1"), ("team", f"p{n}", uid), "node-1", "boot", "/x", 1000 + n)
        answer = self.store.claim([Want(POOL, *parse_address(IP(n)), "")], owner)
        assert isinstance(answer, Claimed)

    def delete(self, key: str) -> None:
        where = {"key": base64.b64encode(f"{self.prefix}/v1/{key}".encode()).decode()}
        assert etcd.post(self.url, "kv/deleterange", where).get("deleted") == "1"

    def put(self, key: str) -> None:
        etcd.post(self.url, "kv/put", {"key": base64.b64encode(f"{self.prefix}/v1/{key}".encode()).decode()})

    def audit(self, *argv: str) -> list[tuple[str, str, str]]:
        document = run("audit", "--report", self.report, *self.options, *argv, code=None, data=True)
        return [(f["kind"], f["action"], f.get("address", "")) for f in document["findings"]]

    def reclaim(self) -> list[tuple[str, str]]:
        done: Any = run(
            "reclaim",
            "--from-report",
            self.report,
            "--grace",
            "0",
            "--force",
            *self.options,
            *self.kubeconfig,
            data=True,
        )
        return [(result["result"], result["address"]) for result in done]

    def addresses(self) -> list[str]:
        return [lease["address"] for lease in run("leases", *self.options, data=True)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_pools_leases_and_their_holders_are_read(site: Site) -> None:
    for n in (1, 2):
        site.lease(n, "u1")
    (pool,) = run("pools", *site.options, data=True)
    assert (pool["pool"], pool["size"], pool["used"]) == (POOL, 254, 2)
    (shown,) = run("show", IP(2), *site.options, data=True)
    assert (shown["pod"], shown["podUID"], shown["node"]) == ("team/p2", "u1", "node-1")
    assert run("show", "team/p2", *site.options, data=True) == [shown]
    assert [lease["address"] for lease in run("leases", "--container", "team/p1", *site.options, data=True)] == [IP(1)]


def test_without_a_cluster_the_keys_are_compared_with_one_another(site: Site) -> None:
    for n in range(1, 4):
        site.lease(n)
    assert site.audit() == []
    site.delete("reserved//c0a86f01")
    site.delete(f"pod/team/p2/net1/{POOL}/c0a86f02")
    site.put(f"node/node-1/{POOL}/c0a86f09")
    assert sorted(site.audit()) == [
        ("index-differs", "look", ""),
        ("index-differs", "look", IP(1)),
        ("index-differs", "look", IP(2)),
    ]
    said = run("audit", *site.options, code=1)
    assert f"`etcdctl del {site.prefix}/v1/node/node-1/{POOL}/c0a86f09`" in said
    assert "not read: the pods: no kubeconfig is named" in said


def test_leases_are_compared_with_pods_and_the_dead_are_freed(site: Site) -> None:
    uid = site.server.run_pod("p1", IP(1))
    site.lease(1, uid)
    site.server.run_pod("p2", IP(9))
    site.lease(9)
    site.lease(2, "former")
    site.lease(3)
    site.server.run_pod("p4", phase="Pending")
    site.lease(4)
    assert sorted(site.audit(*site.kubeconfig)) == [
        ("lease-of-another-uid", "reclaim", IP(2)),
        ("lease-of-pending-pod", "keep", IP(4)),
        ("lease-without-pod", "look", IP(9)),
        ("lease-without-pod", "reclaim", IP(3)),
        ("pod-without-lease", "look", IP(9)),
    ]
    assert site.reclaim() == [("freed", IP(2)), ("freed", IP(3))]
    assert site.addresses() == [IP(1), IP(4), IP(9)]
    assert site.audit()[0:0] == []


def test_a_lease_that_was_given_anew_since_the_report_stays(site: Site) -> None:
    site.lease(1)
    assert site.audit(*site.kubeconfig) == [("lease-without-pod", "reclaim", IP(1))]
    (lease,) = site.store.leases(POOL)
    site.store.release([lease])
    owner = Owner(lease.attachment, lease.pod, lease.node, lease.boot_id, lease.netns, lease.sequence + 1)
    assert isinstance(site.store.claim([Want(POOL, lease.family, lease.value, "")], owner), Claimed)
    assert site.reclaim() == [("skipped", IP(1))]
    assert site.addresses() == [IP(1)]
