"""rdma, the chained plugin, where there is no RDMA: what it refuses, and that it ends whatever is there to be ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.node import Node, Pod

pytestmark = pytest.mark.forked

CACHE = "/var/lib/cni/rdma"
RESULT = {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "/run/netns/pod1"}], "ips": []}

HAS_RDMA = "this kernel has RDMA: tests/lab/test_rdma_chain.py shows what comes of that"
without_rdma = pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason=HAS_RDMA)


def network(version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    base = {"cniVersion": version, "name": "vfs", "type": "rdma", "prevResult": {**RESULT, "cniVersion": version}}
    return {key: value for key, value in {**base, **more}.items() if value is not None}


@pytest.fixture
def pod(node: Node) -> Pod:
    made = node.pod()
    node.remember()
    return made


@without_rdma
@pytest.mark.parametrize("version", ("0.3.0", "1.1.0"))
def test_a_kernel_without_rdma_is_said_so_with_what_to_load(node: Node, pod: Pod, version: str) -> None:
    reply = node.cni("rdma", "ADD", network(version), netns=pod)
    reply.refused(101, "no RDMA", "ib_core", "chain")
    assert (reply.document["cniVersion"], node.leftovers()) == (version, [])
    if version == "1.1.0":
        node.cni("rdma", "STATUS", network()).refused(50, "no RDMA", "ib_core")
    if version >= "0.4.0":
        node.cni("rdma", "CHECK", network(version), netns=pod).refused(100, "no RDMA")


def test_the_first_plugin_of_a_chain_cannot_be_rdma(node: Node, pod: Pod) -> None:
    node.cni("rdma", "ADD", network(prevResult=None), netns=pod).refused(7, "prevResult", "after sriov", "plugins")
    node.cni("rdma", "ADD", network(prevResult=[]), netns=pod).refused(6, "prevResult")
    assert node.leftovers() == []


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"deviceID": 7}, ["deviceID 7", "string"]),
    ({"deviceID": "../x"}, ["deviceID", "without /"]),
    ({"verbsDevice": "a/b"}, ["verbsDevice", "without /"]),
    ({"runtimeConfig": {"deviceID": ["x"]}}, ["runtimeConfig.deviceID", "string"]),
]


@pytest.mark.parametrize(("config", "words"), WRONG, ids=json.dumps)
def test_a_key_that_is_wrong_is_named(node: Node, pod: Pod, config: dict[str, Any], words: list[str]) -> None:
    node.cni("rdma", "ADD", network(**config), netns=pod).refused(7, *words)
    node.cni("rdma", "STATUS", network(**config)).refused(7, *words)
    node.ended("rdma", network(**config), netns=pod)


@pytest.mark.parametrize(("version", "netns"), [("0.1.0", None), ("1.1.0", "/run/netns/gone")])
def test_a_delete_of_what_was_never_added_ends_well(node: Node, pod: Pod, version: str, netns: str | None) -> None:
    for _ in range(2):
        node.ended("rdma", network(version, prevResult=None), netns=netns)


def test_gc_takes_a_list_of_what_stays_and_nothing_else(node: Node, pod: Pod) -> None:
    node.cni("rdma", "GC", network(**{"cni.dev/valid-attachments": {}})).refused(7, "cni.dev/valid-attachments")
    assert node.cni("rdma", "GC", network(**{"cni.dev/valid-attachments": []})).succeeded() is None


def test_what_gos_plugin_has_kept_goes_with_its_attachment(node: Node, pod: Pod) -> None:
    kept = {"version": "1.0", "deviceID": "0000:3b:00.2", "containerRdmaDevName": "mlx5_3"}
    path = node.write(f"{CACHE}/vfs-c1-net1", kept)
    path.parent.chmod(0o700)
    node.ended("rdma", network(), netns="/run/netns/gone")
    path.write_text("{}")
    node.cni("rdma", "DEL", network(), netns=pod).refused(5, f"{CACHE}/vfs-c1-net1", "Go's rdma-cni")
