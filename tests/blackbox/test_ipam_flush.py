"""railcni ipam flush: the releases that a DEL could not make, in files and in Kubernetes; test_etcd.py has those in etcd."""

from __future__ import annotations

import pytest

from tests.blackbox.test_kubernetes import DIRECTORY, Server, network, pod, prepared, server  # noqa: F401
from tests.node import Node, Pod


def flush(node: Node, *options: str) -> tuple[int, bytes]:
    done = node.railcni("ipam", "flush", *options)
    assert b"Traceback" not in done.stderr
    assert b"(cold)" not in done.stderr  # which is said of a plugin's call
    return done.returncode, done.stdout


def test_what_a_del_left_in_a_cluster_out_of_reach_is_released(node: Node, pod: Pod, server: Server) -> None:  # noqa: F811
    args = "K8S_POD_NAMESPACE=team;K8S_POD_NAME=web-0"
    config = network(store_timeout=1)
    node.cni("macvlan", "ADD", config, netns=pod, args=args).succeeded()
    node.host.set("lo", state="down")
    node.cni("macvlan", "DEL", config, netns=pod, args=args).succeeded()
    node.host.set("lo", state="up")
    assert len(server.allocations()) == 1
    assert flush(node) == (0, b"")
    assert (server.allocations(), server.reservations()) == ({}, [])


@pytest.mark.parametrize("datastore", ["kubernetes", "addresslease"])
def test_a_kubeconfig_alone_reaches_what_a_del_left_in_either_store(node: Node, datastore: str) -> None:
    """The node's own kubeconfig, which the record names, is of no use any more."""
    node.master()
    cluster, netns = prepared(node, datastore), node.pod()
    args = "K8S_POD_NAMESPACE=team;K8S_POD_NAME=web-0"
    config = network(store_timeout=1)
    node.cni("macvlan", "ADD", config, netns=netns, args=args).succeeded()
    own = node.path(DIRECTORY) / "whereabouts.kubeconfig"
    own.rename(node.path("/etc/cni/admin.kubeconfig"))
    node.cni("macvlan", "DEL", config, netns=netns, args=args)
    assert flush(node) == (1, b"1 pending\n")
    assert flush(node, "--kubeconfig", "/etc/cni/admin.kubeconfig") == (0, b"")
    assert (cluster.allocations(), cluster.reservations()) == ({}, [])
    assert node.railcni("ipam", "leases", "--kubeconfig", "/etc/cni/admin.kubeconfig").stdout == b""


def test_what_a_del_left_in_files_out_of_reach_is_released(node: Node) -> None:
    node.master()
    pod1 = node.pod()
    ipam = {
        "type": "whereabouts",
        "datastore": "file",
        "dataDir": "/var/lib/cni/railcni/stores/elsewhere",
        "range": "10.0.0.0/24",
    }
    config = {"cniVersion": "1.0.0", "name": "rail", "type": "macvlan", "master": "ens2f0", "ipam": ipam}
    node.cni("macvlan", "ADD", config, netns=pod1).succeeded()
    directory, away = node.path("/var/lib/cni/railcni/stores/elsewhere"), node.path("/var/lib/cni/railcni/stores/away")
    directory.rename(away)
    directory.write_text("no directory")
    assert node.cni("macvlan", "DEL", config, netns=pod1).code == 5
    assert flush(node) == (1, b"1 pending\n")
    directory.unlink()
    away.rename(directory)
    assert node.leases("/var/lib/cni/railcni/stores/elsewhere") == ["10.0.0.1"]
    assert flush(node) == (0, b"")
    assert node.leases("/var/lib/cni/railcni/stores/elsewhere") == []
