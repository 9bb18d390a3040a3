"""cni/cluster/audit/cluster.py: a cluster as the command reads it, and what it does when a server is busy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.cluster.audit import cluster as clusters
from cni.cluster.audit.cluster import Cluster, read_all
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores.apiserver import kubeconfig
from ipam.stores.base import Unreachable
from tests.stores.cluster_api import ClusterServer
from tests.stores.kubernetes_api import DROP_BEFORE, ApiServer
from tests.stores.test_kubeconfig import PRINT, Start, encoded, helper, pki, start, write  # noqa: F401

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


def cluster(tmp_path: Path, server: ApiServer, user: Any = None, seconds: float = 2, **more: Any) -> Cluster:
    return connect(write(tmp_path / "k", user, {"server": server.url, **more}), "", seconds)


def works(one: Cluster) -> bool:
    return one.pool("none") is None


def test_the_certificate_is_verified_as_the_plugin_verifies_it(tmp_path: Path, start: Start, pki: Path) -> None:  # noqa: F811
    server = start()
    assert works(cluster(tmp_path, server, **{"certificate-authority-data": encoded(pki / "ca.pem")}))
    assert works(cluster(tmp_path, server, **{"insecure-skip-tls-verify": True}))
    with pytest.raises(InvalidConfig, match="is not trusted: .*certificate-authority"):
        works(cluster(tmp_path, server, **{"certificate-authority": str(pki / "other-ca.pem")}))
    elsewhere, ca = start(certificate="elsewhere"), {"certificate-authority": str(pki / "ca.pem")}
    with pytest.raises(InvalidConfig, match="tls-server-name"):
        works(cluster(tmp_path, elsewhere, **ca))
    assert works(cluster(tmp_path, elsewhere, **ca, **{"tls-server-name": "elsewhere.example"}))


def test_a_client_certificate_is_shown(tmp_path: Path, start: Start, pki: Path) -> None:  # noqa: F811
    server, ca = start(client=True), {"certificate-authority": str(pki / "ca.pem")}
    data = {
        f"client-{key}-data": encoded(pki / f"client.{end}") for key, end in (("certificate", "pem"), ("key", "key"))
    }
    assert works(cluster(tmp_path, server, data, **ca))
    with pytest.raises(CniError):
        works(cluster(tmp_path, server, None, 0.3, **ca))


def test_a_token_file_is_read_at_each_request(tmp_path: Path, start: Start) -> None:  # noqa: F811
    server = start(tls=False)
    server.tokens = {"first"}
    (tmp_path / "token").write_text("first\n")
    one = cluster(tmp_path, server, {"tokenFile": "token"})
    assert works(one)
    server.tokens = {"second"}
    (tmp_path / "token").write_text("second\n")
    assert works(one)
    server.tokens = {"third"}
    with pytest.raises(InvalidConfig, match="does not accept the credentials"):
        works(one)


def test_an_exec_helper_is_run_again_when_its_token_is_refused(tmp_path: Path, start: Start) -> None:  # noqa: F811
    server = start(tls=False)
    server.tokens = {"a"}
    (tmp_path / "helper.token").write_text("a")
    one = cluster(tmp_path, server, helper(tmp_path, PRINT))
    assert works(one) and works(one)
    server.tokens = {"z"}
    (tmp_path / "helper.token").write_text("z")
    assert works(one)
    assert (tmp_path / "helper.runs").read_text() == "x\nx\n"


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


def test_the_namespace_is_the_contexts_unless_another_is_given(tmp_path: Path, start: Start) -> None:  # noqa: F811
    server = start(tls=False)
    assert cluster(tmp_path, server).api.access.namespace == "kube-system"
    path = write(tmp_path / "k", None, {"server": server.url}, {"namespace": "networks"})
    assert connect(path).api.access.namespace == "networks"
    assert connect(path, "own").api.access.namespace == "own"


BUSY = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "busy"}


def test_a_read_is_repeated_while_the_server_is_busy_or_drops_it(tmp_path: Path, start: Start) -> None:  # noqa: F811
    server = start(tls=False)
    answers: list[Any] = [(429, BUSY), DROP_BEFORE, (503, {**BUSY, "code": 503}), (500, {**BUSY, "code": 500})]
    server.faults = lambda method, resource, number: answers.pop(0) if answers else None
    assert works(cluster(tmp_path, server, seconds=5))
    assert len(server.seen) == 5
    server.faults = lambda method, resource, number: (429, BUSY)
    with pytest.raises(TryAgainLater, match=r"does not serve now \(429\)"):
        works(cluster(tmp_path, server, seconds=0.2))


def test_a_change_is_not_repeated(tmp_path: Path, start: Start) -> None:  # noqa: F811
    server = start(tls=False)
    server.faults = lambda method, resource, number: (500, {**BUSY, "code": 500})
    with pytest.raises(Unreachable, match="500"):
        cluster(tmp_path, server).api.create("ippools", {"metadata": {"name": "a"}, "spec": {}})
    assert len(server.seen) == 1


def test_a_list_whose_pages_expire_is_read_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_PAGE", 2)
    server = ClusterServer()
    try:
        for n in range(5):
            server.run_pod(f"p{n}")
        gone = {**BUSY, "code": 410, "reason": "Expired"}
        server.faults = lambda method, resource, number: (410, gone) if number == 2 else None
        one = connect(server.kubeconfig(tmp_path))
        assert [pod.name for pod in read_all(one.pods)] == [f"p{n}" for n in range(5)]
        assert list(one.pods("node-2")) == [[]]
        assert len(server.seen) > 4
    finally:
        server.close()


def test_nobody_at_the_address_is_unreachable_and_what_is_no_api_server_is_told(tmp_path: Path, start: Start) -> None:  # noqa: F811
    server = start(tls=False)
    server.faults = lambda method, resource, number: (403, "<html>no</html>")  # type: ignore[return-value]
    with pytest.raises(InvalidConfig, match="an API server's URL"):
        works(cluster(tmp_path, server))
    server.close()
    with pytest.raises(Unreachable, match=server.url):
        works(cluster(tmp_path, server, seconds=0.2))


def test_what_the_plugins_helper_cannot_do_is_told(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_text(json.dumps({"clusters": []}))
    with pytest.raises(InvalidConfig, match="current-context"):
        connect(str(path)).pool("none")
