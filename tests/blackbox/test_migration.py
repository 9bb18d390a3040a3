"""What docs/migration.md promises of the leases that both programs use: each test's docstring begins with the heading of its
step. tests/docs runs the commands of the page in their order.

Where whereabouts acts, the Go executable does if RAILCNI_TEST_WHEREABOUTS names it and RAILCNI_TEST_KUBECONFIG a real API
server; else `Go` below writes what it writes. The server is the one for tests unless a real one is given.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.shared import policy
from cni.shared.kernel import netns_users
from cni.shared.spec.errors import CniError
from ipam.stores.ippool import locks
from tests.blackbox.command import run
from tests.node import ROOT
from tests.stores import kubernetes_proxy
from tests.stores.kubernetes_api import ApiServer
from tests.stores.test_kubernetes_store import POOL, POOLS, RESERVATIONS, Cluster

DOCUMENT = (ROOT / "docs/migration.md").read_text()
DAEMONSET = (ROOT / "conf/kubernetes/daemonset.yaml").read_text()
GO = os.environ.get("RAILCNI_TEST_WHEREABOUTS", "")
Patch = pytest.MonkeyPatch
NODE = "n1"  # of ours


class Go:
    """whereabouts v0.9.4 on the node n2: the executable itself, or what it writes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.real = bool(GO and kubernetes_proxy.path())

    def call(self, verb: str, container: str, pod: str = "", **ipam: Any) -> str:
        """Serve `verb` for a pod of the namespace ns, which is called as its container unless said otherwise."""
        if self.real:
            return self._run(verb, container, pod or container, ipam)
        return self._add(container, pod or container) if verb == "ADD" else self._delete(container)

    def _run(self, verb: str, container: str, pod: str, ipam: dict[str, Any]) -> str:
        api, folder = self.cluster.server, self.cluster.directory
        api.spec(POOLS, POOL)  # makes the namespace
        kubeconfig = yaml.safe_load(Path(kubernetes_proxy.path()).read_text())
        for context in kubeconfig["contexts"]:
            context["context"]["namespace"] = api._namespaces["kube-system"]  # type: ignore[attr-defined]
        (folder / "go.kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        (folder / "go.conf").write_text(json.dumps({"datastore": "kubernetes", "kubernetes": {"kubeconfig": str(folder / "go.kubeconfig")}}))  # fmt: skip
        block = {"type": "whereabouts", "range": "10.0.0.0/24", "configuration_path": str(folder / "go.conf"), **ipam}
        config = {"cniVersion": "1.0.0", "name": "rdma-net", "type": "macvlan", "ipam": block}
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container}"
        environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NODENAME": "n2", "CNI_COMMAND": verb, "CNI_CONTAINERID": container,
            "CNI_IFNAME": "net1", "CNI_NETNS": "/run/netns/none", "CNI_PATH": str(Path(GO).parent), "CNI_ARGS": args,
        }  # fmt: skip
        done = subprocess.run([GO], input=json.dumps(config), env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout
        return str(json.loads(done.stdout)["ips"][0]["address"]) if verb == "ADD" else ""

    def _add(self, container: str, pod: str) -> str:
        held = self.cluster.allocations()
        entry = {"id": container, "podref": f"ns/{pod}", "ifname": "net1"}
        same = [offset for offset, other in held.items() if (other["podref"], other["ifname"]) == (f"ns/{pod}", "net1")]
        offset = same[0] if same else next(str(n) for n in range(1, 255) if str(n) not in held)
        spec = {"range": "10.0.0.0/24", "allocations": {**held, offset: entry}}
        self.cluster.server.put(POOLS, "kube-system", POOL, spec)
        if not same:
            reservation = {"podref": f"ns/{pod}", "ifname": "net1"}
            self.cluster.server.put(RESERVATIONS, "kube-system", f"10.0.0.{offset}", reservation)
        return f"10.0.0.{offset}/24"

    def _delete(self, container: str) -> str:
        held = self.cluster.allocations()
        for offset in [offset for offset, entry in held.items() if entry["id"] == container]:
            del held[offset]
            if f"10.0.0.{offset}" in self.cluster.server.names(RESERVATIONS):
                self.cluster.server.remove(RESERVATIONS, f"10.0.0.{offset}")  # by its name, whoever has it
        self.cluster.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": held})
        return ""


class Site:
    """A cluster with the nodes n1 and n2, ours, and whereabouts'."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.server = server
        self.cluster = Cluster(server, directory)
        self.go = Go(self.cluster)

    def ours(self, verb: str, container: str, pod: str = "", ipam: dict[str, Any] | None = None, **more: Any) -> Any:
        return self.cluster.call(
            verb, container, ipam, pod=pod or container, environ={"NODENAME": NODE}, node=NODE, **more
        )

    def audit(self, code: int) -> list[tuple[str, str, str]]:
        report = str(self.cluster.directory / "report.json")
        more = ("--report", report, "--kubeconfig", self.cluster.kubeconfig)
        found = run("audit", *more, code=code, data=True)["findings"]
        return [(f["kind"], f["action"], f.get("address", "")) for f in found]

    def lives(self, pod: str, address: str) -> None:
        """Have a pod that runs, and shows its address."""
        shown = [{"name": "ns/rdma-net", "interface": "net1", "ips": [address.partition("/")[0]]}]
        self.server.add_pod("ns", pod, node="n2", status=json.dumps(shown))

    def held(self) -> dict[str, str]:
        """The containers by their addresses."""
        return {f"10.0.0.{offset}": entry["id"] for offset, entry in self.cluster.allocations().items()}

    def reserved(self) -> list[str]:
        return self.server.names(RESERVATIONS)


@pytest.fixture
def site(tmp_path: Path, free_paths: None, monkeypatch: Patch) -> Iterator[Site]:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(netns_users, "sees_node", lambda: True)
    api = kubernetes_proxy.start()
    api.core.add_node(NODE)
    api.core.add_node("n2")
    yield Site(api, tmp_path)
    api.close()


def test_every_test_is_of_a_step_of_the_document_in_its_order() -> None:
    headings = re.findall(r"^## (\d+\. .+)$", DOCUMENT, re.M)
    taken = [
        (function.__doc__ or "").partition("\n")[0].removesuffix(".")
        for name, function in globals().items()
        if re.match(r"test_\d+_", name)
    ]
    assert list(dict.fromkeys(taken)) == [heading for heading in headings if heading in taken]
    assert len(taken) > 5


def test_1_a_cluster_that_is_wholly_gos_is_audited_and_cleared(site: Site) -> None:
    """1. Look at the cluster, and change nothing."""
    address = site.go.call("ADD", "go1", "web-0")
    site.lives("web-0", address)
    dead = site.go.call("ADD", "go2", "gone").partition("/")[0]
    site.server.seen.clear()
    assert site.audit(1) == [("lease-without-pod", "reclaim", dead)]
    assert {method for method, _, _ in site.server.seen} == {"GET"}
    report = ("--from-report", str(site.cluster.directory / "report.json"), "--kubeconfig", site.cluster.kubeconfig)
    run("reclaim", "--force", *report, "--grace", "0")
    assert site.audit(0) == []
    assert list(site.held().values()) == ["go1"]


def test_3_the_account_of_the_shared_kubeconfig_gets_whereabouts_rights_before_the_agent_writes_it() -> None:
    """3. Install railcni beside whereabouts."""
    (binding,) = set(re.findall(r"^kubectl create clusterrolebinding .*[^\\\n]$", DOCUMENT, re.M))
    rbac = yaml.safe_load_all((ROOT / "conf/kubernetes/rbac.yaml").read_text())
    (account,) = [d["metadata"] for d in rbac if d["kind"] == "ServiceAccount"]
    assert binding.endswith(f" --serviceaccount={account['namespace']}:{account['name']}")
    assert f"--plugin-account={account['namespace']}/{account['name']}" in DAEMONSET
    assert DOCUMENT.index(binding) < DOCUMENT.index("kubectl apply -k conf/kubernetes")


def test_3_nodes_of_both_kinds_give_from_one_pool(site: Site) -> None:
    """3. Install railcni beside whereabouts."""
    given = [site.go.call("ADD", "g1"), *site.ours("ADD", "r1"), site.go.call("ADD", "g2"), *site.ours("ADD", "r2")]
    assert sorted(given) == [f"10.0.0.{n}/24" for n in range(1, 5)]
    assert sorted(site.held().values()) == ["g1", "g2", "r1", "r2"]
    assert site.reserved() == [f"10.0.0.{n}" for n in range(1, 5)]


REFUSED_BY_OURS: dict[str, dict[str, Any]] = {
    "a first address outside of the range": {"range_start": "10.9.0.7"},
    "an order that is reversed": {"range_start": "10.0.0.9", "range_end": "10.0.0.7"},
    "a static address twice": {"addresses": [{"address": "10.5.0.7/24"}, {"address": "10.5.0.7/24"}]},
    "a gateway of another family": {"gateway": "fd00::1"},
}


@pytest.mark.parametrize("kind", REFUSED_BY_OURS)
def test_7_a_lease_of_go_is_freed_also_where_ours_refuses_the_keys(site: Site, kind: str, monkeypatch: Patch) -> None:
    """7. Leave the pods that run."""
    monkeypatch.setattr(policy, "_current", policy.Policy({"configRoots": ["/"]}))
    block = {"log_file": "", **REFUSED_BY_OURS[kind]}
    site.go.call("ADD", "go1", "web-0")
    kept = site.go.call("ADD", "go2", "web-1").partition("/")[0]
    with pytest.raises(CniError) as refused:
        site.ours("ADD", "new", "web-0", block)
    assert refused.value.code == 7
    site.ours("DEL", "go1", "web-0", block)
    site.ours("DEL", "go1", "web-0", block)
    assert (site.held(), site.reserved(), site.cluster.recorded(NODE)) == ({kept: "go2"}, [kept], {})


def test_7_a_server_that_is_away_stops_no_refused_pods_end(site: Site, tmp_path: Path, monkeypatch: Patch) -> None:
    """7. Leave the pods that run."""
    monkeypatch.setattr(policy, "_current", policy.Policy({"configRoots": ["/"]}))
    address = site.go.call("ADD", "go1", "web-0").partition("/")[0]
    known = yaml.safe_load(Path(site.cluster.kubeconfig).read_text())
    away = tmp_path / "away.kubeconfig"
    away.write_text(yaml.safe_dump({**known, "clusters": [{**known["clusters"][0], "cluster": {"server": "http://127.0.0.1:1"}}]}))  # fmt: skip
    block = {"log_file": "", "range_start": "10.9.0.7", "kubernetes": {"kubeconfig": str(away)}}
    site.ours("DEL", "go1", "web-0", block)
    assert (site.held(), list(site.cluster.recorded(NODE))) == ({address: "go1"}, ["go1"])
    away.write_text(yaml.safe_dump(known))
    site.ours("DEL", "go1", "web-0", block)
    assert (site.held(), site.cluster.recorded(NODE)) == ({}, {})


def test_7_a_kubeconfig_that_the_node_does_not_allow_is_not_read_for_it(site: Site, monkeypatch: Patch) -> None:
    """7. Leave the pods that run."""
    address = site.go.call("ADD", "go1", "web-0").partition("/")[0]
    monkeypatch.setattr(policy, "_current", policy.Policy({"configRoots": ["/etc/cni"]}))
    site.ours("DEL", "go1", "web-0", {"log_file": ""})
    assert site.held() == {address: "go1"}


def test_12_go_takes_our_entries_over_and_what_is_left_of_ours_frees_nothing(site: Site) -> None:
    """12. To go back: start whereabouts again."""
    (first,) = site.ours("ADD", "c1", "web-0")
    (second,) = site.ours("ADD", "c2", "web-1")
    assert site.go.call("ADD", "new", "web-0") == first  # a new sandbox: whereabouts knows the pod and the interface
    site.go.call("DEL", "c2", "web-1")
    assert site.held() == {first.partition("/")[0]: "new"}
    assert site.go.call("ADD", "g3", "other") == second
    site.ours("DEL", "c1", "web-0")  # their records are on the node still
    site.ours("DEL", "c2", "web-1")
    assert site.held() == {first.partition("/")[0]: "new", second.partition("/")[0]: "g3"}
    assert site.reserved() == sorted(site.held())
    site.go.call("DEL", "new", "web-0")
    site.go.call("DEL", "g3", "other")
    assert site.held() == {}
