"""cni/cluster/audit/cluster.py: a cluster as the command reads it, and what it does when a server is busy.

How a server is reached and verified is in test_kubeconfig.py: the client is the plugin's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.cluster.audit import cluster as clusters
from cni.cluster.audit.cluster import Cluster, read_all
from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.stores import apiserver
from ipam.stores.apiserver import kubeconfig
from ipam.stores.base import OutcomeUnknown
from tests.stores.cluster_api import ClusterServer
from tests.stores.kubernetes_api import DROP_BEFORE, ApiServer, Refusal
from tests.stores.test_kubeconfig import Start, pki, start, write  # noqa: F401

pytestmark = pytest.mark.well("it scripts the answer to each request, and reads alone")

opened: list[Cluster] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes what a test has opened."""
    yield
    while opened:
        opened.pop().api.close()


def connect(path: str = "", namespace: str = "", seconds: float = 2) -> Cluster:
    opened.append(Cluster(path, namespace, seconds))
    return opened[-1]


def cluster(tmp_path: Path, server: ApiServer, seconds: float = 2) -> Cluster:
    return connect(write(tmp_path / "k", None, {"server": server.url}), "", seconds)


def works(one: Cluster) -> bool:
    return one.pool("none") is None


@pytest.fixture
def server(start: Start) -> ApiServer:  # noqa: F811
    return start(tls=False)


def test_in_a_pod_the_service_account_is_used_and_its_namespace(
    tmp_path: Path,
    start: Start,  # noqa: F811
    pki: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start()
    server.tokens = {"token-1"}
    for name, text in (("token", "token-1"), ("namespace", "networks"), ("ca.crt", (pki / "ca.pem").read_text())):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", str(tmp_path))
    environ = {b"KUBERNETES_SERVICE_HOST": b"127.0.0.1", b"KUBERNETES_SERVICE_PORT": str(server.port).encode()}
    monkeypatch.setattr(os, "environb", environ)
    one = connect()
    assert one.api.access.namespace == "networks"
    assert works(one)
    server.tokens = {"token-2"}
    (tmp_path / "token").write_text("token-2")  # kubelet renews it
    assert works(one)


def test_the_namespace_is_the_contexts_unless_another_is_given(tmp_path: Path, server: ApiServer) -> None:
    assert cluster(tmp_path, server).api.access.namespace == "kube-system"
    path = write(tmp_path / "k", None, {"server": server.url}, {"namespace": "networks"})
    assert connect(path).api.access.namespace == "networks"
    assert connect(path, "own").api.access.namespace == "own"


def busy(code: int) -> tuple[int, dict[str, Any]]:
    return code, Refusal(code, "TooManyRequests", "busy").document


def test_a_read_is_repeated_while_the_server_is_busy_or_drops_it(tmp_path: Path, server: ApiServer) -> None:
    answers: list[Any] = [busy(429), DROP_BEFORE, busy(503), busy(500)]
    server.faults = lambda method, resource, number: answers.pop(0) if answers else None
    assert works(cluster(tmp_path, server, seconds=5))
    assert len(server.seen) == 5
    server.faults = lambda method, resource, number: busy(429)
    with pytest.raises(TryAgainLater, match=r"does not serve now \(429\)"):
        works(cluster(tmp_path, server, seconds=0.2))


@pytest.mark.parametrize("code", [500, 503])
def test_a_change_is_not_repeated(tmp_path: Path, server: ApiServer, code: int) -> None:
    server.faults = lambda method, resource, number: busy(code)
    with pytest.raises(OutcomeUnknown, match=str(code)):
        cluster(tmp_path, server).api.create("ippools", {"metadata": {"name": "a"}, "spec": {}})
    assert len(server.seen) == 1


def test_a_change_is_repeated_when_the_server_has_refused_it_and_asks_to_retry_later(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apiserver, "_RETRY_AFTER_LIMIT", 0.1)
    answers = [(503, Refusal(503, "ServiceUnavailable", "overloaded", retryAfterSeconds=1).document)]
    server.faults = lambda *_: answers.pop() if answers else None
    made = cluster(tmp_path, server).api.create(
        "ippools", {"metadata": {"name": "a"}, "spec": {"range": "10.0.0.0/24", "allocations": {}}}
    )
    assert made["metadata"]["name"] == "a" and len(server.seen) == 2


def test_a_list_whose_pages_expire_is_read_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_PAGE", 2)
    server = ClusterServer()
    try:
        for n in range(5):
            server.run_pod(f"p{n}")
        gone = 410, Refusal(410, "Expired", "busy").document
        server.faults = lambda method, resource, number: gone if number == 2 else None
        one = connect(server.kubeconfig(tmp_path))
        assert [pod.name for pod in read_all(one.pods)] == [f"p{n}" for n in range(5)]
        assert list(one.pods("node-2")) == [[]]
        assert len(server.seen) > 4
    finally:
        server.close()


def test_what_is_no_api_server_is_told(tmp_path: Path, server: ApiServer) -> None:
    server.faults = lambda method, resource, number: (403, "<html>no</html>")  # type: ignore[return-value]
    with pytest.raises(InvalidConfig, match="an API server's URL"):
        works(cluster(tmp_path, server))
