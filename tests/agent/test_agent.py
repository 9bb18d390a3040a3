"""`railcni agent` as a process: the files that it keeps, releases that it finishes, how it is elected, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cni.cli import main as command
from cni.cluster.agent import nodefiles
from cni.node.inventory.counters import ERRORS
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.stores.addresslease import objects as addresses
from ipam.stores.ippool.objects import entry_of, reservation
from tests.agent.rig import Rig, owner
from tests.node import INTERPRETER, ROOT, until
from tests.stores import kubernetes_proxy
from tests.stores.kubernetes_core import LEASES
from tests.sysfs import Tree

FOLDER = "/etc/cni/net.d/whereabouts.d"


def folder(rig: Rig, node: str = "n1") -> Path:
    return rig.host(node) / FOLDER[1:]


# --- kubeconfig and flat file ---


def test_it_writes_what_the_plugins_read_for_root_alone(rig: Rig) -> None:
    agent = rig.agent("n1")
    assert agent.says("whereabouts.conf")
    assert until(lambda: len(os.listdir(folder(rig))) == 3)
    assert {name: oct((folder(rig) / name).stat().st_mode) for name in os.listdir(folder(rig))} == dict.fromkeys(
        ("whereabouts.kubeconfig", "whereabouts.conf", "nodename"), "0o100600"
    )
    assert (folder(rig) / "nodename").read_text() == "n1"
    assert json.loads((folder(rig) / "whereabouts.conf").read_text()) == {
        "datastore": "kubernetes",
        "configuration_path": FOLDER,
        "kubernetes": {"kubeconfig": f"{FOLDER}/whereabouts.kubeconfig"},
    }
    text = (folder(rig) / "whereabouts.kubeconfig").read_text()
    written = json.loads(text)
    assert written["clusters"][0]["cluster"] == {"server": rig.server.url}
    assert written["users"][0]["user"] == {"token": "token.number.1"}
    assert written["contexts"][0]["context"]["namespace"] == "kube-system"
    (folder(rig) / "whereabouts.kubeconfig").write_text("another installer was here")
    (folder(rig) / "nodename").unlink()
    assert until(lambda: (folder(rig) / "whereabouts.kubeconfig").read_text() == text)
    assert until((folder(rig) / "nodename").exists)
    assert agent.says("another program also writes this file")


def call(rig: Rig, verb: str, container: str) -> Any:
    """The reply of the plugin itself, with the kubeconfig that the agent has written, and records in the test's folder."""
    block = {"range": "10.0.0.0/24", "datastore": "kubernetes", "store_timeout": 5}
    block["kubernetes"] = {"kubeconfig": str(folder(rig) / "whereabouts.kubeconfig")}
    state = str(rig.directory / "plugin")
    program = (
        "import sys, json; from cni.shared import policy; from cni.shared.log import Log; from cni.shared.spec import request; from cni.link.plugins import whereabouts\n"
        "from ipam.stores.ippool import locks\n"
        "policy._current = policy.Policy({k: ['/'] for k in ('dataRoots', 'logRoots', 'configRoots')})\n"
        f"locks.DIRECTORY = {state + '/run'!r}\n"
        "import os; parsed = request.parse(dict(os.environ), sys.stdin.buffer.read())\n"
        f"result = whereabouts.call(parsed, Log(), {state!r})\n"
        "print(json.dumps([a.address for a in result.ips]) if result else '[]')"
    )
    args = f"K8S_POD_NAMESPACE=team;K8S_POD_NAME={container}"
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_IFNAME": "net1", "CNI_ARGS": args}
    environ |= {"CNI_NETNS": "/run/netns/none", "CNI_PATH": "/opt/cni/bin", "PYTHONPATH": str(ROOT)}
    config = json.dumps({"cniVersion": "1.1.0", "name": "rdma-net", "type": "whereabouts", "ipam": block})
    done = subprocess.run([INTERPRETER, "-c", program], input=config, env=environ, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_a_token_that_rotates_reaches_the_kubeconfig_and_the_plugin_goes_on(rig: Rig) -> None:
    """whereabouts #401, #459: the token in the kubeconfig expires, and nothing writes the next one."""
    rig.server.tokens = {"token.number.1"}
    agent = rig.agent("n1", "--no-collect")
    assert agent.says("whereabouts.conf")
    assert call(rig, "ADD", "p1") == ["10.0.0.1/24"]
    rig.server.tokens = {"token.number.2"}
    assert "does not accept the credentials" in call(rig, "ADD", "p2")
    new = rig.account / "new"
    new.write_text("token.number.2\n")
    new.rename(rig.account / "token")
    assert until(lambda: "token.number.2" in (folder(rig) / "whereabouts.kubeconfig").read_text(), 10)
    assert call(rig, "ADD", "p2") == ["10.0.0.2/24"]
    assert call(rig, "DEL", "p1") == []
    assert rig.offsets() == ["2"]


def test_the_agent_itself_goes_on_with_the_new_token_and_a_new_authority(rig: Rig) -> None:
    rig.server.tokens = {"token.number.1"}
    rig.hold("kubernetes", 2, owner("c2", "team/gone"))
    rig.hold("kubernetes", 3, owner("c3", "team/gone"))
    rig.server.add_pod("team", "gone", node="n1")
    agent = rig.agent("n1")
    agent.passes()
    rig.server.tokens = {"token.number.2"}
    assert agent.says("does not accept the credentials"), agent.log
    (rig.account / "token").write_text("token.number.2")
    (rig.account / "ca.crt").write_text("another authority")
    rig.server.remove_pod("team", "gone")
    assert until(lambda: rig.offsets() == [], 20), agent.log
    assert until(lambda: "certificate-authority-data" in (folder(rig) / "whereabouts.kubeconfig").read_text())


def test_a_token_of_the_plugins_own_account_is_requested_and_outlives_the_agent(rig: Rig) -> None:
    agent = rig.agent("n1", "--plugin-account=kube-system/railcni", "--no-collect")
    assert agent.says("whereabouts.conf"), agent.log
    text = (folder(rig) / "whereabouts.kubeconfig").read_text()
    ((request, issued),) = rig.server.core.tokens
    assert f'"token": "{issued}"' in text
    assert request["spec"]["expirationSeconds"] == 24 * 3600
    assert request["spec"]["boundObjectRef"] == {"kind": "Node", "apiVersion": "v1", "name": "n1"}
    time.sleep(2.2)  # two looks at the files
    assert len(rig.server.core.tokens) == 1
    (rig.account / "token").write_text("token.number.2")
    (folder(rig) / "whereabouts.kubeconfig").unlink()
    assert until((folder(rig) / "whereabouts.kubeconfig").exists)
    assert (folder(rig) / "whereabouts.kubeconfig").read_text() == text
    assert "token.number" not in "".join(p.read_text() for p in folder(rig).iterdir())


LOG_LEVEL = '{"log_level": "error"}'  # in a flat file that chooses no store
CHOICE = ("configmaps", "kube-system", "railcni-datastore")


def store_of(rig: Rig, node: str, *options: str, flat: str = "") -> str:
    """The store in the flat file of a node, which had `flat` before, when its agent has written it."""
    if flat:
        folder(rig, node).mkdir(parents=True)
        (folder(rig, node) / "whereabouts.conf").write_text(flat)
    agent = rig.agent(node, "--no-collect", "--once", *options)
    agent.process.wait(20)
    return str(json.loads((folder(rig, node) / "whereabouts.conf").read_text())["datastore"])


POOL_OF_ANOTHER = {"range": "10.99.0.0/24", "allocations": {}}


@pytest.mark.parametrize(("first", "stands", "flat", "option"), [
    ("kubernetes", "addresslease", "", "addresslease"),
    ("kubernetes", "addresslease", LOG_LEVEL, "kubernetes"),
    ("addresslease", "kubernetes", "", "kubernetes"),
    ("addresslease", "kubernetes", LOG_LEVEL, "kubernetes"),
    ("addresslease", "both", LOG_LEVEL, "addresslease"),
])  # fmt: skip
def test_a_node_that_joins_uses_the_store_of_the_rest_whatever_stands_in_the_cluster(
    rig: Rig, first: str, stands: str, flat: str, option: str
) -> None:
    assert store_of(rig, "n1", f"--datastore={first}") == first
    if stands in ("kubernetes", "both"):
        rig.server.put("ippools", "kube-system", "10.99.0.0-24", POOL_OF_ANOTHER)
    if stands in ("addresslease", "both"):
        rig.lease(1, owner("c1", "team/a"), True)
    assert store_of(rig, "n2", f"--datastore={option}", flat=flat) == first
    (folder(rig) / "whereabouts.conf").unlink()
    assert store_of(rig, "n1", f"--datastore={option}") == first


@pytest.mark.parametrize(
    ("pools", "leases", "option", "flat", "store"),
    [
        (False, True, "kubernetes", "", "addresslease"),
        (False, False, "addresslease", "", "addresslease"),
        (False, False, "addresslease", LOG_LEVEL, "kubernetes"),  # whereabouts has written it
        (False, True, "kubernetes", LOG_LEVEL, "addresslease"),
        (True, False, "addresslease", "", "kubernetes"),
        (True, True, "addresslease", "", "addresslease"),
        (True, True, "kubernetes", "", "kubernetes"),
        (True, True, "addresslease", '{"datastore": "kubernetes"}', "kubernetes"),
        (True, False, "kubernetes", '{"datastore": "addresslease"}', "addresslease"),
    ],
)
def test_the_first_agent_chooses_the_store_that_its_flat_file_or_the_leases_name(
    rig: Rig, pools: bool, leases: bool, option: str, flat: str, store: str
) -> None:
    """A cluster of a version that kept no choice."""
    if pools:
        rig.server.put("ippools", "kube-system", "10.99.0.0-24", POOL_OF_ANOTHER)
    if leases:
        rig.lease(1, owner("c1", "team/a"), True)
    assert store_of(rig, "n1", f"--datastore={option}", flat=flat) == store
    assert rig.server.core.get(CHOICE)["data"] == {"datastore": store}


def test_a_flat_file_of_another_store_than_the_clusters_is_left_and_named(rig: Rig) -> None:
    assert store_of(rig, "n1", "--datastore=addresslease") == "addresslease"
    folder(rig, "n2").mkdir()
    (folder(rig, "n2") / "whereabouts.conf").write_text('{"datastore": "kubernetes"}')
    agent = rig.agent("n2", "--no-collect")
    assert agent.says("but the cluster's nodes use"), agent.log
    assert json.loads((folder(rig, "n2") / "whereabouts.conf").read_text())["datastore"] == "kubernetes"
    time.sleep(1.2)  # the files are looked at each second
    assert agent.log.count("but the cluster's nodes use") == 1


@pytest.mark.parametrize("data", [{}, {"datastore": "etcd"}, None])
def test_a_choice_that_cannot_be_read_is_named_and_no_store_is_guessed(rig: Rig, data: Any) -> None:
    if data is None:
        rig.server.forbidden.add(("get", "configmaps"))
    else:
        rig.server.core.create("configmaps", "kube-system", {"metadata": {"name": CHOICE[2]}, "data": data})
    agent = rig.agent("n1", "--no-collect")
    said = "configmaps" if data is None else "data.datastore of ConfigMap kube-system/railcni-datastore is"
    assert agent.says(said), agent.log
    assert not (folder(rig) / "whereabouts.conf").exists()


def flat_file(present: bytes) -> bytes:
    return nodefiles.flat_file(present, FOLDER, "kubernetes", lambda wanted: wanted)


def test_a_flat_file_keeps_what_it_says() -> None:
    present = (
        b'{"Datastore": "etcd", "etcd_host": "h", "kubernetes": {"kubeconfig": "/mine", "x": 1}, "log_level": "debug"}'
    )
    filled = json.loads(flat_file(present))
    assert filled == {**json.loads(present), "configuration_path": FOLDER}
    assert flat_file(json.dumps(filled).encode()) == json.dumps(filled).encode()
    whole = json.loads(flat_file(b'{"reconciler_cron_expression": "30 4 * * *", "kubernetes": {"x": 1}}'))
    assert whole["kubernetes"] == {"x": 1, "kubeconfig": f"{FOLDER}/whereabouts.kubeconfig"}
    assert whole["reconciler_cron_expression"] == "30 4 * * *"
    for other in ({"ETCD_HOST": "10.0.0.1:2379", "kubernetes": {"x": 1}}, {"datastore": "file"}):
        chosen = json.loads(flat_file(json.dumps(other).encode()))
        assert chosen == {**other, "configuration_path": FOLDER}, "it chooses another store"
    for text in (b"{", b"[]"):
        with pytest.raises(InvalidConfig, match="left as it is"):
            flat_file(text)


def test_a_token_that_the_server_refuses_is_replaced_and_told_of(rig: Rig) -> None:
    """The plugins' account was deleted and made again, or the server's key is another."""
    agent = rig.agent("n1", "--plugin-account=kube-system/railcni", "--no-collect")
    written = folder(rig) / "whereabouts.kubeconfig"
    assert until(written.exists, 20), agent.log
    ((_, refused),) = rig.server.core.tokens
    rig.server.refused.add(refused)
    assert agent.says("the token of kube-system/railcni is refused; another is requested"), agent.log
    assert until(lambda: refused not in written.read_text(), 20), agent.log
    (_, (_, issued)) = rig.server.core.tokens
    assert issued in written.read_text()


def test_what_cannot_be_written_is_said_and_tried_again(rig: Rig) -> None:
    agent = rig.agent("n1", "--no-collect", "--conf-dir=/etc/other")
    assert agent.says("See that"), agent.log
    assert "whereabouts.d/whereabouts.kubeconfig: No such file or directory" in agent.log
    (rig.host("n1") / "etc/other").mkdir()
    assert until((rig.host("n1") / "etc/other/whereabouts.d/whereabouts.conf").exists, 10)
    assert agent.log.count("No such file or directory") == 1, "a fault that lasts is told once"


@pytest.mark.parametrize(("folder", "is_told"), [("/etc/other", True), ("/etc/kubernetes/cni/net.d", False)])
def test_a_folder_in_which_no_plugin_looks_for_the_flat_file_is_told_once(rig: Rig, folder: str, is_told: bool) -> None:
    (rig.host("n1") / folder[1:]).mkdir(parents=True)
    agent = rig.agent("n1", "--no-collect", f"--conf-dir={folder}")
    assert agent.says(f"{folder}/whereabouts.d/whereabouts.conf")
    time.sleep(1.2)  # the files are looked at each second
    assert agent.log.count("no plugin looks there, but for") == is_told, agent.log


# --- releases that were left ---


def test_a_pending_release_is_made_when_the_server_is_there_again(rig: Rig) -> None:
    whose = owner("c1", "team/live")
    rig.server.add_pod("team", "live", node="n1")
    rig.hold("kubernetes", 1, whose)
    rig.record("n1", 1, whose, pending=True)
    away: dict[str, Any] = {"kind": "Status", "status": "Failure", "code": 503, "message": "away", "metadata": {}}
    rig.server.faults = lambda method, resource, number: (503, away)
    agent = rig.agent("n1", "--no-collect")
    assert agent.says("1 releases of this node are still to be made", 20), agent.log
    assert agent.metric("railcni_pending_releases") == 1
    rig.server.faults = lambda method, resource, number: None
    assert until(lambda: rig.offsets() == [], 20), agent.log
    assert until(lambda: rig.reservations() == [])
    assert until(lambda: agent.metric("railcni_pending_releases") == 0)
    assert rig.records("n1").all() == []


# --- the Leases of the election and of nodes ---

ELECTION = ("leases", "railcni-node-leases", "railcni-agent")


def holder(rig: Rig) -> str:
    lease = rig.server.core.find(ELECTION)
    return str(lease["spec"]["holderIdentity"]).partition("_")[0] if lease else ""


def test_one_of_all_is_elected_and_another_follows_when_it_ends_or_is_killed(rig: Rig) -> None:
    first = rig.agent("n1")
    assert until(lambda: holder(rig) == "n1", 15)
    second = rig.agent("n2")
    second.passes()
    assert (first.metric("railcni_agent_leader"), second.metric("railcni_agent_leader")) == (1, 0)
    second.process.send_signal(signal.SIGSTOP)
    first.end()
    assert holder(rig) == "", "who ends gives it back"
    second.process.send_signal(signal.SIGCONT)
    assert until(lambda: holder(rig) == "n2", 15), second.log
    third = rig.agent("n1")
    third.passes()
    second.end(signal.SIGKILL)
    assert until(lambda: holder(rig) == "n1", 20), third.log


def test_who_loses_the_lease_looks_after_no_others_node_at_once(rig: Rig) -> None:
    rig.hold("kubernetes", 1, owner("c1", "team/gone", node="deleted"))
    agent = rig.agent("n1", "--grace=1.5")
    assert agent.says("it is freed if this is still so"), agent.log
    lease = rig.server.core.get(ELECTION)
    taken = {"holderIdentity": "n9_other", "renewTime": "2099-01-01T00:00:00.000000Z", "leaseDurationSeconds": 600}
    lease["spec"] |= taken
    rig.server.core.replace(ELECTION, lease)
    assert agent.says("no longer elected"), agent.log
    agent.passes(20)
    assert rig.offsets() == ["1"]
    assert agent.metric("ipam_allocations_gc_candidates") is None
    assert agent.metric("ipam_allocations_in_use") is None


@pytest.mark.parametrize("how", ["in a container", "on the host", "without the collector"])
def test_each_agent_renews_a_lease_of_its_nodes_name(rig: Rig, how: str) -> None:
    start = rig.agent_on_the_host if how == "on the host" else rig.agent
    options = ["--no-collect"] if how == "without the collector" else []
    agent = start("n1", *(options or ["--lease-seconds=0.1"]))
    own = ("leases", "railcni-node-leases", "node-n1")
    assert until(lambda: rig.server.core.find(own), 15), agent.log
    spec = rig.server.core.get(own)["spec"]
    assert spec["holderIdentity"] == "n1"
    if not options:
        assert until(lambda: rig.server.core.get(own)["spec"]["renewTime"] > spec["renewTime"], 15), agent.log
    assert {namespace for _, group, _, namespace in rig.server.asked if group == LEASES} <= {"railcni-node-leases"}


def test_an_agent_with_the_rights_of_a_former_version_says_so_once_and_frees_no_lost_nodes_leases(rig: Rig) -> None:
    rig.hold("kubernetes", 1, owner("c1", "team/gone", node="deleted"))
    rig.server.forbidden |= {(verb, "leases") for verb in ("get", "list", "create", "patch")}
    agent = rig.agent("n1", "--lease-seconds=0.1")
    assert agent.says('task="Lease of this node"'), agent.log
    agent.passes(10)
    assert agent.log.count('task="Lease of this node"') == 1, agent.log
    assert rig.offsets() == ["1"]


def node_lease(rig: Rig, node: str, seconds: int) -> None:
    """The Lease of the agent of `node`, as its last renewal has left it."""
    spec = {"renewTime": "1999-01-01T00:00:00.000000Z", "leaseDurationSeconds": seconds}
    rig.server.core.create("leases", "railcni-node-leases", {"metadata": {"name": f"node-{node}"}, "spec": spec})


def node_leases(rig: Rig) -> set[str]:
    return {lease["metadata"]["name"] for lease in rig.server.core.named("leases")}


def test_the_lease_of_a_deleted_nodes_silent_agent_goes_when_no_lease_is_of_the_node(rig: Rig) -> None:
    rig.server.add_pod("team", "live", node="n1")
    holders = {"kubernetes": "pools", "addresslease": "objects"}  # the node with a lease in each store
    for number, (kind, node) in enumerate(holders.items(), start=1):
        rig.hold(kind, number, owner(f"c{number}", "team/live", node=node))
        node_lease(rig, node, 1)
    rig.server.core.add_node("n2", ready=False)
    for node, seconds in (("gone", 1), ("lives", 600), ("n2", 1)):
        node_lease(rig, node, seconds)
    agent = rig.agent("n1")
    assert until(lambda: "node-gone" not in node_leases(rig), 30), agent.log
    agent.passes(25)
    kept = {f"node-{name}" for name in ("lives", "n1", "n2", *holders.values())}
    assert node_leases(rig) == {"railcni-agent", *kept}, agent.log


def test_a_node_with_the_name_of_the_election_has_a_lease_of_its_own(rig: Rig) -> None:
    agent = rig.agent("railcni-agent", "--lease-seconds=0.1")
    assert until(lambda: holder(rig) == "railcni-agent", 15), agent.log
    assert until(lambda: "node-railcni-agent" in node_leases(rig), 15), agent.log
    assert rig.server.core.get(ELECTION)["spec"]["holderIdentity"].startswith("railcni-agent_")


def test_an_agent_that_may_delete_no_lease_says_so_and_goes_on(rig: Rig) -> None:
    rig.server.forbidden.add(("delete", "leases"))
    node_lease(rig, "gone", 1)
    agent = rig.agent("n1")
    assert agent.says("Leases of agents that are gone stay"), agent.log
    agent.passes(3)
    assert 'result="failed"' not in agent.get("/metrics")[1]


@pytest.mark.parametrize("kind", ["kubernetes", "addresslease"])
def test_a_node_whose_node_object_is_deleted_keeps_its_leases_while_its_agent_renews(rig: Rig, kind: str) -> None:
    rig.hold(kind, 1, owner("c1", "team/gone", node="n9"))
    rig.hold(kind, 2, owner("c2", "team/gone", node="lost"))
    node_lease(rig, "n9", 600)
    agent = rig.agent("n1")
    assert agent.settles(lambda: rig.held(kind), [1], 10), agent.log
    assert until(lambda: any("n9, which has no Node object, renews" in text for *_, text in rig.events())), agent.log


# --- its life ---


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_ends_it_at_once_even_when_the_server_hangs(rig: Rig, number: int) -> None:
    agent = rig.agent("n1")
    agent.passes()
    hung = []

    def hangs(method: str, resource: str, count: int) -> None:
        hung.append(count)
        time.sleep(8)

    rig.server.faults = hangs
    assert until(lambda: bool(hung), 10)
    assert agent.get("/healthz")[0] == 503  # no plugins are installed there
    assert agent.get("/nothing") == (404, "want /healthz, /readyz, /metrics\n")
    took = agent.end(number)
    assert agent.process.returncode == 0, agent.log
    assert took < 6, "it waits for no answer; giving up the election takes 0.8 s at most"
    assert agent.lines[-1].endswith('msg="ended by a signal"')


def test_once_does_it_all_with_both_sightings_and_ends(rig: Rig) -> None:
    rig.allocate(a1=("c1", "team/gone"), a2=("c2", "team/live"))
    rig.reserve(1, owner("c1", "team/gone", node="deleted"))
    rig.server.add_pod("team", "live", node="n2")
    agent = rig.agent("n1", "--once")
    assert agent.process.wait(timeout=30) == 0, agent.log
    assert rig.offsets() == ["2"]
    assert (folder(rig) / "whereabouts.conf").exists()
    assert holder(rig) == ""
    rig.server.forbidden = {("list", "pods")}
    agent = rig.agent("n1", "--once")
    assert agent.process.wait(timeout=30) == 1
    assert agent.says("forbids to list pods in all namespaces"), agent.log


def test_without_token_and_kubeconfig_it_serves_probes_and_says_what_is_missing(rig: Rig) -> None:
    (rig.account / "token").unlink()
    agent = rig.agent("n1")
    assert agent.says("there is no access to an API server: no token in"), agent.log
    assert agent.get("/readyz")[0] == 503
    assert not folder(rig).exists()


def test_a_kubeconfig_that_is_not_there_is_named_with_its_option(rig: Rig) -> None:
    agent = rig.agent("n1", "--kubeconfig=/no/such/file", "--once")
    assert agent.process.wait(timeout=30) == 1
    assert agent.says(r'msg="--kubeconfig \"/no/such/file\": there is no such file"'), agent.log
    assert "kubernetes.kubeconfig" not in agent.log


def test_the_metrics_are_what_prometheus_reads(rig: Rig) -> None:
    rig.allocate(a1=("c1", 'team/a"b'), a2=("c2", "team/live"))
    rig.reserve(1, owner("c1", 'team/a"b', node="deleted"))
    rig.server.add_pod("team", "live", node="n2")
    agent = rig.agent("n1")
    assert until(lambda: rig.offsets() == ["2"], 20), agent.log
    agent.passes(8)
    text = agent.get("/metrics")[1]
    label = r'[a-zA-Z_]+="(\\.|[^"\\\n])*"'
    sample = re.compile(rf"[a-zA-Z_:]+(\{{{label}(,{label})*\}})? (-?[0-9.e+-]+|\+Inf)")
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            assert sample.fullmatch(line), line
            name = re.sub(r"_(bucket|sum|count)$", "", line.partition("{")[0].partition(" ")[0])
            assert name in kinds or line.partition(" ")[0].partition("{")[0] in kinds, line
    calico = {"ipam_allocations_in_use", "ipam_ippool_size", "ipam_allocations_gc_reclamations"}
    assert calico <= set(kinds)
    assert kinds["railcni_api_request_duration_seconds"] == "histogram"
    buckets = [line for line in text.splitlines() if line.startswith("railcni_api_request_duration_seconds_bucket")]
    of_pods = [int(line.split()[-1]) for line in buckets if 'verb="list",resource="pods"' in line]
    assert of_pods == sorted(of_pods)
    assert of_pods[-1] >= 8


def test_the_metrics_have_the_errors_of_each_rdma_port_as_doctor_judges_them(rig: Rig) -> None:
    tree = Tree(rig.host("n1") / "sys")
    for number, device in enumerate(("mlx5_0", "mlx5_1")):
        netdev = tree.netdev(f"ens{number}f0", pci=(pci := f"0000:3{number}:00.0"))
        port = tree.verbs(device, pci=pci, netdev=netdev.name, size=4) / "ports/1"
        for i, counter in enumerate(ERRORS):
            folder = netdev if counter.place.startswith("netdev/") else port
            tree.put(folder, {counter.place.removeprefix("netdev/"): number * 1000 + i})
    tree.put(port, {ERRORS[0].place: "N/A (no PMA)"})
    page = rig.agent("n1").get("/metrics")[1].splitlines()
    told = [line for line in page if line.startswith("railcni_rdma_errors")]
    of_nics = [line.partition("{")[0] for line in page if line.startswith(("railcni_rdma_rate", "railcni_rdma_device"))]
    assert of_nics == ["railcni_rdma_rate_bytes_per_second"] * 2 + ["railcni_rdma_device_info"] * 2
    wanted = [
        f'railcni_rdma_errors_total{{device="mlx5_{number}",port="1",counter="{counter.name}"}} {number * 1000 + i}'
        for number in (0, 1)
        for i, counter in enumerate(ERRORS)
    ]
    wanted.remove('railcni_rdma_errors_total{device="mlx5_1",port="1",counter="link_downed"} 1000')
    assert sorted(told) == sorted(wanted)


def test_a_wrong_value_of_an_option_is_told_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command._parser()
    for wrong in (["--grace", "0"], ["--every", "soon"], ["--plugin-account", "railcni"], ["--listen", "nowhere"]):
        with pytest.raises(SystemExit):
            parser.parse_args(["agent", *wrong])
        assert "want " in capsys.readouterr().err


def test_the_election_is_renewed_between_the_pages_of_a_long_reading(rig: Rig) -> None:
    rig.server.core.page = 1
    rig.server.core.add_node("silent", ready=False)
    for number in range(20):
        rig.server.add_pod("team", f"p{number}", node="n2")
    rig.hold("kubernetes", 1, owner("c1", "team/gone", node="elsewhere"))
    rig.server.faults = lambda method, resource, number: time.sleep(0.15) if resource == "pods" else None
    agent = rig.agent("n1")  # elected for 1.3 s at each renewal; the pods take 3 s
    agent.passes(3)
    assert agent.log.count('msg="elected to free the leases') == 1, "it was elected all the time"
    assert "no longer elected" not in agent.log


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kubernetes", "addresslease"])
def test_the_elected_agent_has_room_for_49000_leases_in_the_memory_that_the_daemonset_gives_it(
    rig: Rig, kind: str
) -> None:
    if kubernetes_proxy.path():
        pytest.skip("it would fill a real server with 49,000 objects: runs without RAILCNI_TEST_KUBECONFIG")
    allocations: dict[str, dict[str, Any]] = {}
    for number in range(49_000):
        pool, offset = f"10.{number // 7000}.0.0-19", number % 7000 + 1
        pod = ("team", f"a-pod-of-a-deployment-{number}", f"{number:08x}-0000-4000-8000-000000000000")
        attachment = Attachment("rdma-net", f"{number:064x}", "net1")
        whose = Owner(attachment, pod, f"n{2 + number % 40}", "b" * 36, f"/run/netns/cni-{number:036x}", number + 1)
        lease = Lease(Want(pool, 4, (10 << 24) + (number // 7000 << 16) + offset, ""), whose)
        if kind == "addresslease":
            resource, document = "addressleases", addresses.document(lease)
        else:
            resource, document = "overlappingrangeipreservations", reservation(lease)
            allocations.setdefault(pool, {})[str(offset)] = entry_of(whose)
        metadata = document["metadata"]
        rig.server.put(resource, "kube-system", metadata.pop("name"), document["spec"], **metadata)
    for number in range(2, 42):
        rig.server.core.add_node(f"n{number}")
    for pool, entries in allocations.items():
        cidr = pool.replace("-", "/")
        rig.server.put("ippools", "kube-system", pool, {"range": cidr, "allocations": entries})
    agent = rig.agent("n1", "--grace=60", "--every=1", "--lease-seconds=30")
    assert until(lambda: agent.metric("ipam_allocations_in_use") == 49_000, 100), agent.log
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{agent.process.pid}/status").read_text())
    assert int(peak) < 256 << 10
