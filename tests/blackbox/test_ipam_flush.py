"""railcni ipam flush: the releases that a DEL could not make, in files and in Kubernetes; test_etcd.py has those in etcd."""

from __future__ import annotations

from tests.blackbox.test_kubernetes import Server, network, pod, server  # noqa: F401
from tests.node import Node, Pod


def flush(node: Node) -> tuple[int, bytes]:
    done = node.railcni("ipam", "flush")
    assert b"Traceback" not in done.stderr
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
