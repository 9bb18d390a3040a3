"""The exact modules that an ADD over etcd and over Kubernetes loads: none of json, ssl and http, which cost 6 to 23 ms.

As in test_module_list, of the checkout's launchers, which are scripts.
"""

from __future__ import annotations

from tests.blackbox import test_etcd, test_kubernetes
from tests.blackbox.test_etcd import Etcd
from tests.blackbox.test_kubernetes import ARGS, Server
from tests.node import Node
from tests.unit.test_module_list import expected, loaded

member, server = test_etcd.member, test_kubernetes.server


def test_an_etcd_call_loads_neither_the_json_nor_the_ssl_nor_the_http_package(node: Node, member: Etcd) -> None:
    pod = node.pod()
    config = test_etcd.network()
    node.cni("macvlan", "ADD", config, container_id="c0", ifname="net0", netns=pod).succeeded()
    found = loaded(node, node.executables / "macvlan", "ADD", config, pod)
    store = {f"ipam.stores.{m}" for m in ("etcd", "etcd_gateway", "etcd_keys", "etcd_search", "etcd_txn", "http")}
    assert found - {"binascii", "select"} == expected("macvlan", "ADD", store)


def test_a_kubernetes_call_loads_neither_the_json_nor_the_ssl_nor_the_http_package(node: Node, server: Server) -> None:
    pod = node.pod()
    config = test_kubernetes.network()
    node.cni("macvlan", "ADD", config, container_id="c0", ifname="net0", netns=pod, args=ARGS.format("a")).succeeded()
    found = loaded(node, node.executables / "macvlan", "ADD", config, pod)
    modules = (
        "http",
        "kubeconfig",
        "kubernetes",
        "kubernetes_api",
        "kubernetes_change",
        "kubernetes_claim",
        "kubernetes_objects",
        "kubernetes_reservations",
        "kubernetes_size",
    )
    store = {f"ipam.stores.{m}" for m in (*modules, "kubernetes_turns", "kubernetes_view", "yaml")}
    assert found - {"select"} == expected("macvlan", "ADD", store)
