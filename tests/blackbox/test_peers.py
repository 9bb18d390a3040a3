"""What runtimes that nobody here wrote send to a plugin, recorded, and sent again to ours.

Each file in fixtures/peers is a scenario of the runtime named in it. It has the CNI variables and the configurations
that its calls share, and the calls in order, each with the variables and members of stdin that it alone had; a prevResult
of several calls stands in `results` under a name. Of what was recorded, these differ from run to run and are replaced:
CNI_PATH, and in prevResult the MAC address of a link that is there.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.node import GO_PLUGINS, ROOT, Call, Node, Pod, Reply

FIXTURES = Path(__file__).parents[1] / "fixtures" / "peers"
FLAT = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
SCENARIOS = {path.stem: json.loads(path.read_text()) for path in FIXTURES.glob("*.json")}
FIRST, SECOND = ["192.168.111.1/24"], ["192.168.111.2/24"]
NO_NETDEV = 'pciBusID "0000:3b:00.2" names no netdev'
# What each call is answered: an ADD with addresses, or a refusal with these words. All others succeed.
ANSWERS: dict[str, list[list[str] | str]] = {
    "cnitool-macvlan": [FIRST],
    "cnitool-capabilities": [["192.168.111.40/24"]],  # without the capabilities and the pod in the DEL
    "multus-delegates": [FIRST, ["192.168.112.1/24"]],
    "multus-gc": [FIRST, SECOND],
    "multus-nad-nvidia": [["192.168.2.225/28"], []],  # the second network has "ipam": {}
    # The pod's own keys arrive twice, in CNI_ARGS (whose other entries Multus repeats) and in runtimeConfig; its cni-args
    # in args.cni. The shared RDMA device "0" arrives as deviceID and pciBusID, and means nothing to a macvlan.
    "multus-nad-requests": [["192.168.120.66/24"], ["192.168.120.77/24"]],
    "multus-nad-host-device": [NO_NETDEV],
}


class Replay:
    """The calls of one scenario, sent one after the other."""

    def __init__(self, node: Node, scenario: str) -> None:
        self._node = node
        self._scenario = SCENARIOS[scenario]
        self.left = list(self._scenario["calls"])

    def send(self, verb: str, *, netns: str | None = None) -> Reply:
        """Send the next call, which is a `verb`; `netns` replaces its CNI_NETNS."""
        sent = self.left.pop(0)
        assert sent["verb"] == verb, sent
        stdin = copy.deepcopy(self._scenario["networks"][sent["network"]] | sent.get("stdin", {}))
        environ = self._scenario["environ"] | {"CNI_COMMAND": verb} | sent.get("environ", {})
        environ["CNI_PATH"] = f"{self._node.executables}:{GO_PLUGINS}"
        if netns is not None:
            environ["CNI_NETNS"] = netns
        if isinstance(stdin.get("prevResult"), str):
            stdin["prevResult"] = copy.deepcopy(self._scenario["results"][stdin["prevResult"]])
        for interface in (stdin.get("prevResult") or {}).get("interfaces", []):
            interface["mac"] = self._mac(interface) or interface["mac"]
        plugin = self._scenario.get("plugin") or stdin["type"]
        process = self._node.start([self._node.executables / plugin], env=environ)
        reply = Call(process, json.dumps(stdin).encode()).finish()
        if verb == "ADD" and not reply.status:
            self._is_there(environ["CNI_NETNS"], environ["CNI_IFNAME"], reply, stdin.get("runtimeConfig", {}))
        return reply

    def _is_there(self, netns: str, name: str, reply: Reply, asked: dict[str, Any]) -> None:
        (pod,) = (p for p in self._node.pods.values() if p.path == netns)
        link = pod.view.link(name)
        assert link.texts == [a["address"] for a in reply.document.get("ips", [])]
        assert link.mac == asked.get("mac", reply.document["interfaces"][0]["mac"])

    def _mac(self, interface: dict[str, Any]) -> str:
        for pod in self._node.pods.values():
            if pod.path == interface["sandbox"] and interface["name"] in pod.view.names():
                return pod.view.link(interface["name"]).mac
        return ""


@pytest.fixture
def pods(node: Node) -> list[Pod]:
    """Those of the recordings, and an /etc with the flat file of a cluster that chose the file store."""
    node.own_etc()
    node.write(FLAT, (ROOT / "conf/whereabouts.d/file-store.conf").read_text())
    for master in ("ens2f0", "ens3f0"):
        node.master(master)
    return [node.pod(name) for name in ("pod1", "pod2", "pod3")]


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("scenario", sorted(SCENARIOS.keys() - {"multus-restart"}))
def test_the_calls_of_a_runtime_are_served_and_leave_nothing(node: Node, scenario: str) -> None:
    replay = Replay(node, scenario)
    answers = list(ANSWERS[scenario])
    while replay.left:
        verb = replay.left[0]["verb"]
        reply = replay.send(verb)
        answer = answers.pop(0) if verb == "ADD" else None
        if isinstance(answer, str):
            reply.refused(7, answer)
        else:
            document = reply.succeeded() or {}
            assert answer is None or [a["address"] for a in document.get("ips", [])] == answer
        if scenario == "multus-gc" and verb == "GC":  # which names the first pod alone
            assert node.leases() == ["192.168.111.1"]
            assert [pod.view.names() for pod in node.pods.values()] == [["eth0"], [], []]
    assert node.leftovers() == []


@pytest.mark.parametrize("new", [1, 0], ids=["another path", "the same path"])
def test_a_restarted_sandbox_keeps_its_address_when_the_old_one_is_deleted_late(
    node: Node, pods: Any, new: int
) -> None:
    replay = Replay(node, "multus-restart")
    assert replay.send("ADD").addresses == FIRST
    node.delete_pod(pods[0])
    second = pods[1] if new else node.pod(pods[0].name)
    assert replay.send("ADD", netns=second.path).addresses == FIRST
    replay.send("DEL").succeeded()  # of the first, with an empty CNI_NETNS: its sandbox is gone
    assert (second.view.link("net1").texts, node.leases()) == (FIRST, ["192.168.111.1"])
    replay.send("DEL", netns=second.path).succeeded()
    assert node.leftovers() == []
