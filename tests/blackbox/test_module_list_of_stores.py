"""Of the standard library's modules in Python, an ADD over etcd or Kubernetes loads those of http.client, and no other store.

http.client costs the first call after a pause some 20 ms; in its place we would maintain an HTTP client of our own. A call over
the file store loads none of it (test_module_list). As there, the calls are those of the checkout's launchers, which are scripts.
"""

import subprocess
import sys
from typing import Any

import pytest

from tests.blackbox import test_etcd, test_kubernetes
from tests.blackbox.test_kubernetes import ARGS
from tests.blackbox.test_module_list import FILE_STORE, UNLOADED_BY_PLUGIN, UNLOADED_BY_VERB, costly, loaded, of
from tests.node import Node

member, api = test_etcd.member, test_kubernetes.server

UNLOADED = (*UNLOADED_BY_PLUGIN["macvlan"], *UNLOADED_BY_VERB["ADD"], *FILE_STORE)


@pytest.fixture(scope="module")
def of_client() -> set[str]:
    """The modules that http.client loads."""
    script = "import http.client, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-IS", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


OF_KUBERNETES = ("ipam.stores.ippool*", "ipam.stores.apiserver*")


@pytest.mark.parametrize(
    ("server", "network", "others"),
    [("member", test_etcd.network, OF_KUBERNETES), ("api", test_kubernetes.network, ("ipam.stores.etcd*",))],
    ids=["etcd", "kubernetes"],
)
def test_a_call_over_a_server_loads_of_pythons_modules_the_http_client_alone(
    request: pytest.FixtureRequest, node: Node, of_client: set[str], server: str, network: Any, others: tuple[str, ...]
) -> None:
    request.getfixturevalue(server)
    pod, args = node.pod(), ARGS.format("a")
    node.cni("macvlan", "ADD", network(), container_id="c0", ifname="net0", netns=pod, args=args).succeeded()
    found = loaded(node, node.executables / "macvlan", "ADD", network(), pod)
    assert set(costly(found)) <= of_client
    assert of(found, (*UNLOADED, *others, "ipam.stores.addresslease*")) == []
