"""A store that a network may not name: no call opens it, but what was attached to it before is checked and deleted."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni.shared import policy
from cni.shared.spec.errors import InvalidConfig
from ipam import source
from tests import etcd
from tests.etcd import Cluster
from tests.stores import kubernetes_proxy
from tests.stores.test_ipam_verbs import Host
from tests.stores.unwell import ailing

ATTACHED = ("c1", "c2", "c3")
ROOTS = {"logRoots": ["/"], "configRoots": ["/"], "storeHosts": ["*"]}


@dataclass
class Place:
    """A store, and the ways to its flat file: the block with which it was attached, and that by which nothing new is."""

    host: Host
    block: dict[str, Any]
    keys: Callable[[], list[str]]  # of the leases that are there
    narrow: Callable[[], object]  # from now on the network may not name the store
    previous: dict[str, list[str]] = field(default_factory=dict)

    def attach(self) -> None:
        self.previous = {container: self.host.add(container, self.block) for container in ATTACHED}
        self.narrow()

    def check(self, container: str) -> None:
        ips = [{"address": address} for address in self.previous[container]]
        self.host.call("CHECK", container, self.block, prevResult={"cniVersion": "1.1.0", "ips": ips})


Reached = Callable[[int, bool], int]


@contextlib.contextmanager
def cluster_of(*flags: str) -> Iterator[tuple[Cluster, Callable[..., str]]]:
    """An etcd, with the user root if it has flags, and what runs etcdctl there."""
    if etcd.unusable():
        pytest.skip(etcd.unusable())
    with Cluster(1, flags) as cluster:
        for words in ("user add root:s3cret", "user grant-role root root", "auth enable") if flags else ():
            cluster.ctl(*words.split())
        yield cluster, partial(cluster.ctl, flags=["--user=root:s3cret"] if flags else [])


def keys_below(ctl: Callable[..., str], prefix: str) -> list[str]:
    return sorted(key for key in ctl("get", "--prefix", prefix, "--keys-only").split() if "/void/" not in key)


def of_etcd(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Reached) -> Iterator[Place]:
    """A prefix beside that of the flat file, by the flat file's user and password."""
    with cluster_of("--bcrypt-cost=4") as (cluster, ctl):
        flat = tmp_path / "whereabouts.conf"
        port = reached(cluster.members[0].port, True)
        own = {"etcd_host": f"127.0.0.1:{port}", "etcd_username": "root", "etcd_password": "s3cret"}
        monkeypatch.setattr(source, "PATHS", (str(flat),))
        flat.write_text(json.dumps({**own, "etcd_prefix": "/registry"}))
        block = {"datastore": "etcd", "etcd_prefix": "/registry"}
        yield Place(host, block, lambda: keys_below(ctl, "/registry"), lambda: flat.write_text(json.dumps(own)))


def of_kubeconfig(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Reached) -> Iterator[Place]:
    """A kubeconfig that networks could name, and cannot any more."""
    server = kubernetes_proxy.start()
    path = server.kubeconfig(tmp_path, "borrowed")
    Path(path).write_text(Path(path).read_text().replace(f":{server.port}", f":{reached(server.port, False)}"))
    block = {"datastore": "addresslease", "kubernetes": {"kubeconfig": path}}

    def keys() -> list[str]:
        found = {name: server.spec("addressleases", name, "borrowed") or {} for name in server.names("addressleases")}
        return sorted(name for name, spec in found.items() if spec["state"] == "held")

    yield Place(host, block, keys, partial(narrow, tmp_path, monkeypatch))
    server.close()


def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the node's policy allow networks no store but files."""
    monkeypatch.setattr(policy, "_current", policy.Policy({"logRoots": ["/"], "dataRoots": [str(tmp_path)]}))


def of_host(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Reached) -> Iterator[Place]:
    """A host of etcd that networks could name, and cannot any more."""
    with cluster_of() as (cluster, ctl):
        block = {"datastore": "etcd", "etcd_host": f"127.0.0.1:{reached(cluster.members[0].port, True)}"}
        yield Place(host, block, lambda: keys_below(ctl, "/railcni"), partial(narrow, tmp_path, monkeypatch))


@pytest.fixture(params=["well", "unwell"])
def reached(request: pytest.FixtureRequest) -> Iterator[Reached]:
    """The port at which a store's server is reached, by its own port and whether it is etcd: there, or an unwell one's."""
    if request.param == "unwell" and kubernetes_proxy.path():
        pytest.skip("a real server is well")
    with contextlib.ExitStack() as stack:
        yield lambda port, is_etcd: (
            port if request.param == "well" else stack.enter_context(ailing(port, is_etcd)).port
        )


@pytest.fixture(params=[of_etcd, of_kubeconfig, of_host], ids=lambda make: make.__name__)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, free_paths: None, monkeypatch: pytest.MonkeyPatch, reached: Reached
) -> Iterator[Place]:
    yield from request.param(Host(tmp_path), tmp_path, monkeypatch, reached)


def test_what_was_attached_is_checked_collected_and_deleted_and_nothing_new_is_attached(place: Place) -> None:
    place.attach()
    assert len(place.host.recorded()) == len(ATTACHED)
    for verb in ("ADD", "STATUS"):
        with pytest.raises(InvalidConfig) as refused:
            place.host.call(verb, "new", place.block)
        assert refused.value.code == 7
    place.check("c1")
    place.host.gc("c1", "c2", ipam=place.block)
    assert sorted(place.host.recorded()) == ["c1", "c2"]
    place.check("c2")
    for container in ("c1", "c2"):
        place.host.delete(container, place.block)
    assert (place.keys(), place.host.recorded()) == ([], {})


def test_no_verb_opens_the_store_for_what_is_not_recorded(place: Place) -> None:
    place.attach()
    before = place.keys()
    place.host.delete("new", place.block)
    with pytest.raises(InvalidConfig):
        place.host.call("CHECK", "new", place.block, prevResult={"cniVersion": "1.1.0", "ips": []})
    place.host.gc(*ATTACHED, ipam=place.block)
    assert place.keys() == before
    assert sorted(place.host.recorded()) == sorted(ATTACHED)


@pytest.mark.well("it is about which server a call asks, not about the answers")
def test_a_password_of_the_flat_file_reaches_no_server_that_only_a_network_has_named(
    tmp_path: Path, free_paths: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network's author may take the password out of the block after the ADD."""
    host, flat = Host(tmp_path), tmp_path / "whereabouts.conf"
    monkeypatch.setattr(source, "PATHS", (str(flat),))
    flat.write_text("{}")
    with cluster_of("--bcrypt-cost=4") as (cluster, _):
        block = {"datastore": "etcd", "etcd_host": ",".join(cluster.endpoints), "etcd_username": "root"}
        host.add("c1", {**block, "etcd_password": "s3cret"})
        flat.write_text(json.dumps({"etcd_host": "10.0.0.1", "etcd_username": "root", "etcd_password": "s3cret"}))
        host.delete("c1", block)
        assert list(host.recorded()) == ["c1"]  # pending: without the password it cannot be released


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server on a host that the node lets no network name."""
    narrow(tmp_path, monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def is_reached(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("verb", ["ADD", "STATUS", "CHECK", "DEL", "GC"])
def test_no_verb_without_a_record_connects_to_a_host_that_the_node_lets_no_network_name(
    tmp_path: Path, listener: socket.socket, verb: str
) -> None:
    block = {"etcd_host": f"127.0.0.1:{listener.getsockname()[1]}", "datastore": "etcd", "store_timeout": 1}
    more = {"cni.dev/valid-attachments": []} if verb == "GC" else {}
    if verb == "CHECK":
        more = {"prevResult": {"cniVersion": "1.1.0", "ips": []}}
    expected = contextlib.nullcontext() if verb in ("DEL", "GC") else pytest.raises(InvalidConfig, match="storeHosts")
    with expected:
        Host(tmp_path).call(verb, "c1", block, **more)
    assert not is_reached(listener)


@pytest.mark.well("it is about which server a call asks, not about the answers")
def test_a_host_that_a_network_adds_to_that_of_a_record_is_not_connected_to(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block names the recorded endpoint too, which does not serve now."""
    host = Host(tmp_path)
    with cluster_of() as (cluster, _), monkeypatch.context() as patch:
        patch.setattr(policy, "_current", policy.Policy({**ROOTS, "dataRoots": [str(tmp_path)]}))
        own = ",".join(cluster.endpoints)
        block = {"datastore": "etcd", "etcd_host": own, "store_timeout": 1}
        host.add("c1", block)
    host.delete("c1", {**block, "etcd_host": f"127.0.0.1:{listener.getsockname()[1]},{own}"})
    assert not is_reached(listener)
    assert list(host.recorded()) == ["c1"]  # pending
