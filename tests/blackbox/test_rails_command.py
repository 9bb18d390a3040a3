"""railcni rails: what it renders attaches, what is attached passes its check, and what is broken does not."""

import json
from typing import Any

import pytest

from tests.fabric import Fabric
from tests.node import Node, Pod

pytestmark = pytest.mark.forked

FILE = """
group: gpu
count: 2
master: eth_r{rail}
mtu: 4200
subnet: ["192.168.{rail}.0/24", "fd00:{rail}::/64"]
addressing: same-index
base: 5
"""


def rails(node: Node, *argv: str, code: int = 0, stdin: bytes = b"") -> Any:
    done = node.railcni("rails", *argv, stdin=stdin)
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout) if "json" in argv else (done.stdout + done.stderr).decode()


def attach(node: Node, pod: Pod, networks: list[dict[str, Any]]) -> None:
    for index, network in enumerate(networks):
        config = {**network, "ipam": {**network["ipam"], "datastore": "file"}}
        args = f"K8S_POD_NAMESPACE=team;K8S_POD_NAME={pod.name}"
        how: dict[str, Any] = {"container_id": f"id-{pod.name}", "ifname": f"rail{index}", "args": args}
        node.cni("macvlan", "ADD", config, netns=pod, **how).succeeded()


def test_what_is_rendered_attaches_and_passes_its_check_and_a_broken_rail_does_not(node: Node) -> None:
    Fabric(node, 2)
    items = rails(node, "render", "-", "-o", "json", stdin=FILE.encode())["items"]
    networks = [json.loads(item["spec"]["config"]) for item in items if item["kind"] == "NetworkAttachmentDefinition"]
    for network in networks:  # other ways to write the same ranges
        (first, _), (second, _) = network["rail"]["ranges"]
        first["range"], second["range"] = "192.168.0.9/24", "192.168.1.0-192.168.1.99/24"
    one, two = node.pod("pod1"), node.pod("pod2")
    attach(node, one, networks)
    attach(node, two, networks)
    for peer in ("team/pod2", "192.168.1.6"):
        found = rails(node, "check", "team/pod1", "--peer", peer, "-o", "json")
        seen = [(r["rail"], r["index"], r["table"], r["mtu"], r["faults"]) for r in found]
        assert seen == [(n, 5, 7000 + n, 4200, []) for n in (0, 1)]
        assert [len(r["pings"]) for r in found] == [2, 2]
    shown = [(nic["netdev"], sorted(r["pod"] for r in nic["rails"])) for nic in rails(node, "show", "-o", "json")]
    assert shown == [(f"eth_r{n}", ["team/pod1", "team/pod2"]) for n in (0, 1)]

    one.view.set_sysctl("net/ipv4/conf/rail1/arp_announce", 0)
    one.view.set("rail0", mtu=1400)
    one.view.delete_address("rail0", "192.168.0.5/24")
    one.view.add_address("rail0", "192.168.0.77/24")
    one.view.delete_address("rail0", "fd00:0::5/64")
    with one.view.rtnl() as ipr:
        ipr.flush_rules(table=7001)
    two.view.set("rail1", state="down")
    found = rails(node, "check", one.path, "--peer", "6", "-o", "json", code=1)
    faults = [" ".join(r["faults"]) for r in found]
    for rail, words in (
        (0, "MTU of rail0 is 1400, and 4200 is wanted"),
        (0, "192.168.0.77/24 is index 77, and other rails of gpu have 5"),
        (0, "rail0 has no address of fd00::/64"),
        (1, "arp_announce of rail1 is 0, was 2"),
        (1, "the rule from 192.168.1.5 to table 7001 is gone"),
        (1, "ping 192.168.1.6 from 192.168.1.5: no answer"),
    ):
        assert words in faults[rail], faults


def test_what_has_no_rail_is_told(node: Node) -> None:
    pod = node.pod()
    assert "has no rail: no record" in rails(node, "check", pod.path, code=1)
