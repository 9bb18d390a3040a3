"""The executables and the agent on one node: files that it writes are what they use, and what they leave it clears."""

from __future__ import annotations

import json
import os
import socket as sockets
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.test_kubernetes import ARGS, DIRECTORY, PORT, Server, network
from tests.node import Node, until
from tests.view import View

ACCOUNT = "/run/service-account"


def agent(node: Node, *options: str) -> tuple[int, str]:
    """Run it once; its exit code and log."""
    access = [f"--api-server=http://127.0.0.1:{PORT}", f"--service-account={ACCOUNT}", "--node=n1"]
    done = node.railcni("agent", "--once", "--plugin-dir=/opt/cni/bin", "--grace=0.1", *access, *options)
    return done.returncode, done.stderr.decode()


def rail(index: int) -> dict[str, Any]:
    """The network of a rail of two."""
    ranges = ["192.168.112.0/24", "192.168.113.0/24"]
    key = {"index": index, "group": "gpu", "addressing": "same-index", "ranges": ranges}
    return {**network(range=ranges[index]), "name": f"rail-{index}", "rail": key}


def installed(node: Node, *options: str) -> Server:
    """A node with a master on which the agent has written its files; the API server."""
    node.master()
    node.path("/etc/cni/net.d").mkdir(parents=True)
    node.write(f"{ACCOUNT}/token", "a.b.c")
    server = Server(node)
    code, log = agent(node, *options)
    assert code == 0, log
    return server


def test_what_a_delete_could_not_end_is_ended_by_an_agent_of_the_node(node: Node) -> None:
    server = installed(node)
    pod = node.pod()
    own = {"netns": pod.path, "args": ARGS.format("gone")}
    node.cni("macvlan", "ADD", network(), **own).succeeded()
    with pod.view.entered():
        keeper = sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM)
    with keeper:
        node.delete_pod(pod)
        node.cni("macvlan", "DEL", network(), **own).refused(11, "repeat the DEL")
        agent(node)
        assert len(server.allocations()) == 1, "the link answers still"
    assert until(lambda: agent(node)[0] == 0 and server.allocations() == {})
    assert node.files() == ["railcni/agent.kubeconfig"]


def test_what_a_pod_without_a_del_leaves_is_freed_when_its_namespace_is_gone(node: Node) -> None:
    """A lease of its own, and that of a group of rails of which one is attached still."""
    server = installed(node)
    written: dict[str, Any] = json.loads(node.path(f"{DIRECTORY}/whereabouts.conf").read_text())
    assert written["kubernetes"]["kubeconfig"] == f"{DIRECTORY}/whereabouts.kubeconfig"

    pod = node.pod()
    own = {"netns": pod, "args": ARGS.format("gone")}
    node.cni("macvlan", "ADD", network(), **own).succeeded()
    for index in (0, 1):
        node.cni("macvlan", "ADD", rail(index), ifname=f"rail{index}", **own).succeeded()
    node.cni("macvlan", "DEL", rail(0), ifname="rail0", **own).succeeded()
    assert server.reservations() == ["192.168.111.1", "192.168.112.1", "192.168.113.1"]

    code, log = agent(node)
    assert code == 0, log
    assert "its pod does not exist" in log
    assert len(server.allocations()) == 3, "the namespace is there: the addresses may be in use"

    process = node.start(["nsenter", f"--net={pod.path}", "sleep", "60"])
    assert until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    node.delete_pod(pod)
    code, log = agent(node)
    assert code == 0, log
    assert len(server.allocations()) == 3, "a process is in the namespace: the links answer still"

    with View(f"/proc/{process.pid}/ns/net").entered():
        descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        socket = sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM).detach()
    process.kill()
    process.communicate()
    for keeper in (descriptor, socket):
        code, log = agent(node)
        assert code == 0, log
        assert len(server.allocations()) == 3, "the namespace is kept: the links answer still"
        os.close(keeper)

    def freed() -> bool:
        nonlocal code, log
        code, log = agent(node)
        return not server.allocations()

    assert until(freed), log  # the kernel clears the links out of the namespace a moment after its end
    assert code == 0, log
    assert server.reservations() == []
    assert "is not freed" not in log
    for config, ifname in ((network(), "net1"), (rail(1), "rail1")):
        late = {"ifname": ifname, "netns": pod.path, "args": ARGS.format("gone")}
        node.cni("macvlan", "DEL", config, **late).succeeded()


@pytest.mark.parametrize(("datastore", "recorded"), [("kubernetes", True), ("addresslease", False)])
def test_a_lease_of_another_link_plugin_stays_while_something_keeps_its_namespace(
    node: Node, datastore: str, recorded: bool
) -> None:
    """Go's macvlan, or a DRA driver, has called whereabouts: no record of ours tells of the link."""
    installed(node, f"--datastore={datastore}")
    pod = node.pod(f"{datastore}-{recorded}")  # nodes of other tests have a pod1 with this address too
    own = {"netns": pod, "args": ARGS.format("gone")}
    node.cni("whereabouts", "ADD", network(), **own).succeeded()
    pod.view.add_veth("net1", "peer")
    pod.view.add_address("net1", "192.168.111.1/24")
    if not recorded:
        node.run(["sh", "-c", "rm -rf /var/lib/cni/railcni/attachments"]).check_returncode()
    with pod.view.entered():
        descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    node.delete_pod(pod)
    report = "/run/report.json"
    code, log = agent(node)
    assert code == 0, log
    assert leases(node) == ["192.168.111.1"], log
    cluster = ["--kubeconfig", f"{DIRECTORY}/whereabouts.kubeconfig", "--config", f"{DIRECTORY}/whereabouts.conf"]
    node.railcni("ipam", "audit", "--report", report, *cluster)
    reclaim = ["ipam", "reclaim", "--from-report", report, "--grace", "0", "-o", "json", *cluster]
    (done,) = json.loads(node.railcni(*reclaim).stdout)
    assert (done["result"], done["why"]) == ("skipped", "it is in use on this node, or may be")
    os.close(descriptor)
    assert until(lambda: agent(node)[0] == 0 and leases(node) == [])


@pytest.mark.parametrize("datastore", ["kubernetes", "addresslease"])
def test_a_lease_that_names_no_path_of_a_namespace_stays_while_a_mounted_one_has_its_link(
    node: Node, datastore: str
) -> None:
    """DRANET's reference webhook passes /dev/null; the runtime has mounted the pod's namespace by a name of its own."""
    installed(node, f"--datastore={datastore}")
    pod = node.pod(f"{datastore}-null")
    node.cni("whereabouts", "ADD", network(), netns="/dev/null", args=ARGS.format("gone")).succeeded()
    pod.view.add_veth("net1", "peer")
    pod.view.add_address("net1", "192.168.111.1/24")
    code, log = agent(node)
    assert (code, leases(node)) == (0, ["192.168.111.1"]), log
    node.delete_pod(pod)
    assert until(lambda: agent(node)[0] == 0 and leases(node) == [])


def leases(node: Node) -> list[str]:
    return [lease["address"] for lease in json.loads(node.railcni("ipam", "leases", "-o", "json").stdout)]
