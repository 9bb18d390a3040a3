"""What a call tells of a configuration beside its result: all faults in one message, and warnings in the log."""

from typing import Any

import pytest

from tests.node import Node

pytestmark = pytest.mark.forked

LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
RAIL = {"index": 0, "group": "gpu", "addressing": "same-index", "ranges": ["10.3.0.0/24", "10.4.0.0/24"]}


def network(plugin: str = "macvlan", **more: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "rdma-net", "type": plugin, "master": "ens2f0", "ipam": LEASES, **more}


@pytest.mark.parametrize(("plugin", "verb"), [("macvlan", "ADD"), ("host-device", "STATUS"), ("sriov", "ADD")])
def test_the_faults_of_both_plugins_are_in_one_message(node: Node, plugin: str, verb: str) -> None:
    pod = node.pod()
    faults: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({**LEASES, "range": "10.0.0.0/33", "gateway": "x"}, ("3 faults", "dad 1: ", "ipam.range", "ipam.gateway")),
        ({"type": "whereabots"}, ("2 faults", "dad 1: ", 'ipam.type "whereabots" is in none')),
        ({"type": "static", "range": 7}, ("dad 1: want",)),  # another suite's
    ]
    for ipam, told in faults:
        node.cni(plugin, verb, network(plugin, dad=1, ipam=ipam), netns=pod).refused(7, *told)
    assert node.leftovers() == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"mster": "ens2f0"}, 'no key mster, and it is ignored: write "master"'),
        ({"mut": 1500}, 'no key mut, and it is ignored: write "mtu"'),
        ({"ipam": {}, "ipma": LEASES}, 'no key ipma, and it is ignored: write "ipam"'),
        ({"ipam": {**LEASES, "gatewy": "192.168.111.1"}}, 'no key ipam.gatewy, and it is ignored: write "gateway"'),
        ({"ipam": {**LEASES, "addresses": [{"address": "10.0.0.9/24", "gatway": "10.0.0.1"}]}}, "ipam.addresses[0].gatway"),
        ({"ipam": {**LEASES, "ipRanges": [{"range": "10.1.0.0/24", "exlude": []}]}}, "ipam.ipRanges[0].exlude"),
        ({"rail": {"index": 0, "group": "gpu", "adressing": "plain", "ranges": ["192.168.111.0/24"]}}, "rail.adressing"),
        ({"ipam": {"range": "192.168.111.0/24"}}, '`ipam` has no `type`, and the link gets no addresses'),
        ({"MTU": 1500, "vendor": 1, "deviceID": "", "ipam": {}}, ""),
    ],
)  # fmt: skip
def test_a_key_that_is_a_slip_of_the_pen_is_told_in_the_log(node: Node, more: dict[str, Any], told: str) -> None:
    node.master()
    pod, config = node.pod(), network(**more)
    reply = node.cni("macvlan", "ADD", config, netns=pod)
    reply.succeeded()
    assert told in reply.stderr and bool(told) == ("[warning]" in reply.stderr)
    node.ended("macvlan", config, netns=pod)


@pytest.mark.parametrize("rail", [None, RAIL])
def test_no_store_is_told_in_one_line_once(node: Node, rail: dict[str, Any] | None) -> None:
    node.master()
    ipam = {"type": "whereabouts", "range": "10.3.0.0/24"}
    config = network(ipam=ipam, rail=rail)
    args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
    reply = node.cni("macvlan", "ADD", config, netns=node.pod(), args=args)
    reply.refused(7, "no store is named", "`railcni doctor`")
    assert len(reply.msg) <= 120 and '"file"' in reply.document["details"]
    assert reply.stderr == ""  # the undo has nothing to add
    assert node.leftovers() == []
