"""The executables with their leases in etcd: a real member in the node's own network namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import etcd
from tests.node import STATE, Node, Pod, until

pytestmark = [pytest.mark.skipif(bool(etcd.unusable()), reason=etcd.unusable()), pytest.mark.forked]

URL = "http://127.0.0.1:2379"
FLAT = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
POLICY = "/etc/cni/net.d/whereabouts.d/railcni.json"


class Etcd:
    """One member in `node`, at the usual port."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.allow(storeHosts=["127.0.0.1"])
        self.start()

    def start(self) -> None:
        argv = ["etcd", "--data-dir", "/run/etcd", "--logger=zap", "--log-level=error", "--unsafe-no-fsync"]
        argv += ["--listen-client-urls", URL, "--advertise-client-urls", URL]
        self.process = self.node.start([*argv, "--heartbeat-interval=20", "--election-timeout=200"])
        assert until(self.serves, 20)

    def serves(self) -> bool:
        try:
            with self.node.host.entered():
                etcd.post(URL, "kv/range", {"key": "YQ=="})
        except OSError:
            return False
        return True

    def ctl(self, *arguments: str) -> str:
        """What etcdctl says: the oracle that shares no code with ours."""
        environ = {"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}
        done = self.node.run(["etcdctl", "--endpoints", URL, *arguments], env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def leases(self) -> dict[str, str]:
        """Container by address, as etcdctl reads it."""
        prefix = "/railcni/v1/lease/"
        lines = self.ctl("get", "--prefix", prefix, "--print-value-only").splitlines()
        documents = [json.loads(line) for line in lines if line]
        return {d["address"]: d["containerID"] for d in documents}


def network(ipam: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    block = {"type": "whereabouts", "range": "192.168.111.0/24", "store_timeout": 1, **(ipam or {})}
    base = {"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0"}
    return base | {"ipam": block} | more


@pytest.fixture
def member(node: Node) -> Iterator[Etcd]:
    if etcd.unusable():  # other files use it, too
        pytest.skip(etcd.unusable())
    node.master()
    node.write(FLAT, {"etcd_host": "127.0.0.1:2379"})
    found = Etcd(node)
    node.remember()
    yield found


@pytest.fixture
def pod(node: Node, member: Etcd) -> Pod:
    return node.pod()


@pytest.mark.parametrize("plugin", ["macvlan", "whereabouts"])
def test_an_attachment_lives_with_its_lease_in_etcd(node: Node, pod: Pod, member: Etcd, plugin: str) -> None:
    config = network({"ipRanges": [{"range": "fd00:111::/64"}]})
    args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=team;K8S_POD_NAME=web-0"
    node.cni(plugin, "STATUS", config).succeeded()
    reply = node.cni(plugin, "ADD", config, netns=pod, args=args)
    result = reply.succeeded()
    assert reply.addresses == ["192.168.111.1/24", "fd00:111::1/64"]
    assert member.leases() == {"192.168.111.1": "c1", "fd00:111::1": "c1"}
    assert node.cni(plugin, "ADD", config, netns=pod, args=args).addresses == reply.addresses
    node.cni(plugin, "CHECK", config | {"prevResult": result}, netns=pod, args=args).succeeded()
    other = node.cni(plugin, "ADD", config, container_id="c2", ifname="net2", netns=pod)
    assert other.addresses == ["192.168.111.2/24", "fd00:111::2/64"]
    listed = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]}
    node.cni(plugin, "GC", config | listed).succeeded()
    if plugin == "macvlan":
        assert member.leases() == {"192.168.111.1": "c1", "fd00:111::1": "c1"}
    for container, ifname in (("c1", "net1"), ("c2", "net2")):
        node.cni(plugin, "DEL", config, container_id=container, ifname=ifname, netns=pod, args=args).succeeded()
    left = member.ctl("get", "--prefix", "/railcni/v1/", "--keys-only").split()
    assert [key for key in left if not key.startswith("/railcni/v1/former/team/web-0/net1/")] == []
    assert node.leases() == []
    node.cni(plugin, "CHECK", config | {"prevResult": result}, netns=pod, args=args).refused(100)


def test_a_password_is_in_no_record_and_no_message(node: Node, pod: Pod, member: Etcd) -> None:
    block = {"etcd_host": "127.0.0.1:2379", "etcd_username": "railcni", "etcd_password": "s3cret", "log_level": "debug"}
    assert "s3cret" not in node.cni("whereabouts", "ADD", network(block), netns=pod).stderr
    (record,) = node.path(f"{STATE}/attachments").iterdir()
    assert '"user": "railcni"' in record.read_text()
    assert "s3cret" not in record.read_text()
    node.cni("whereabouts", "DEL", network(block), netns=pod).succeeded()
    assert member.leases() == {}


def test_the_password_of_the_flat_file_goes_to_no_host_that_a_network_names(node: Node, pod: Pod, member: Etcd) -> None:
    flat = {"etcd_host": "127.0.0.1:2379", "etcd_username": "railcni", "etcd_password": "s3cret"}
    node.path(FLAT).write_text(json.dumps(flat))
    config = network({"etcd_host": "127.0.0.1:9"})
    node.cni("whereabouts", "ADD", config, netns=pod).refused(7, "ipam.etcd_host", FLAT)
    node.cni("whereabouts", "ADD", network(), netns=pod).succeeded()


HOSTS: list[tuple[list[str], str, str, int]] = [  # storeHosts, the flat file's endpoints, a network's own, the error
    ([], "127.0.0.1:2379", "127.0.0.1:1", 7),  # another port
    ([], "127.0.0.1:2379", "127.0.0.1:2379", 0),
    ([], "127.0.0.1:2379", "127.0.0.1:2379,10.9.9.9:22", 7),
    (["10.0.0.*"], "", "https://localhost:1", 7),
    (["LocalHost"], "", "http://localhost:1", 11),
    ([], "127.0.0.1:1", "", 11),
]


def test_a_network_learns_nothing_of_the_ports_of_hosts_that_the_node_does_not_allow(
    node: Node, pod: Pod, member: Etcd
) -> None:
    for allowed, flat, own, code in HOSTS:
        node.write(FLAT, {"etcd_host": flat})
        node.allow(storeHosts=allowed)
        config = network({"etcd_host": own} if own else {})
        for verb in ("ADD", "STATUS"):
            reply = node.cni("whereabouts", verb, config, netns=pod)
            if code == 7:
                reply.refused(7, "etcd_host", "storeHosts", POLICY)
                assert "refused" not in json.dumps(reply.document)
            elif code == 11:
                reply.refused(50 if verb == "STATUS" else 11, "Connection refused")
            else:
                reply.succeeded()
        node.cni("whereabouts", "DEL", config, netns=pod).succeeded()
