"""An ADD over etcd and over Kubernetes loads none of json, ssl and http, which cost 6 to 23 ms, and no other store.

As in test_module_list, of the checkout's launchers, which are scripts.
"""

from __future__ import annotations

from tests.blackbox import test_etcd, test_kubernetes
from tests.blackbox.test_etcd import Etcd
from tests.blackbox.test_kubernetes import ARGS, Server
from tests.blackbox.test_module_list import FILE_STORE, UNLOADED_BY_PLUGIN, UNLOADED_BY_VERB, costly, loaded, of
from tests.node import Node

member, server = test_etcd.member, test_kubernetes.server

UNLOADED = (*UNLOADED_BY_PLUGIN["macvlan"], *UNLOADED_BY_VERB["ADD"], *FILE_STORE)


def test_an_etcd_call_loads_neither_the_json_nor_the_ssl_nor_the_http_package(node: Node, member: Etcd) -> None:
    pod = node.pod()
    config = test_etcd.network()
    node.cni("macvlan", "ADD", config, container_id="c0", ifname="net0", netns=pod).succeeded()
    found = loaded(node, node.executables / "macvlan", "ADD", config, pod)
    assert costly(found) == []
    assert of(found, (*UNLOADED, "ipam.stores.kube*", "ipam.stores.addresslease*", "ipam.stores.apiserver*")) == []


def test_a_kubernetes_call_loads_neither_the_json_nor_the_ssl_nor_the_http_package(node: Node, server: Server) -> None:
    pod = node.pod()
    config = test_kubernetes.network()
    node.cni("macvlan", "ADD", config, container_id="c0", ifname="net0", netns=pod, args=ARGS.format("a")).succeeded()
    found = loaded(node, node.executables / "macvlan", "ADD", config, pod)
    assert costly(found) == []
    assert of(found, (*UNLOADED, "ipam.stores.etcd*", "ipam.stores.addresslease*")) == []
