"""What runtimes that nobody here wrote send to a plugin, recorded, and sent again to ours.

Each file in fixtures/peers is a scenario of the runtime named in it. It has the CNI variables and the configurations
that its calls share, and the calls in order, each with the variables and members of stdin that it alone had; a prevResult
of several calls stands in `results` under a name. Of what was recorded, these differ from run to run and are replaced:
CNI_PATH, and in prevResult the MAC address of a link that is there.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.node import GO_PLUGINS, ROOT, Call, Node, Pod, Reply
from tests.view import View

FIXTURES = Path(__file__).parents[1] / "fixtures" / "peers"
FLAT = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
SCENARIOS = {path.stem: json.loads(path.read_text()) for path in FIXTURES.glob("*.json")}


class Replay:
    """The calls of one scenario, sent one after the other; `over` asserts that none is left."""

    def __init__(self, node: Node, scenario: str) -> None:
        self._node = node
        self._scenario = SCENARIOS[scenario]
        self._left = list(self._scenario["calls"])

    def send(self, verb: str, *, netns: str | None = None) -> Reply:
        """Send the next call, which is a `verb`; `netns` replaces its CNI_NETNS."""
        sent = self._left.pop(0)
        assert sent["verb"] == verb, sent
        configuration = self._scenario["networks"].get(sent.get("network"), {})
        stdin = copy.deepcopy(configuration | sent.get("stdin", {}))
        environ = self._scenario["environ"] | {"CNI_COMMAND": verb} | sent.get("environ", {})
        if netns is not None:
            environ["CNI_NETNS"] = netns
        if verb != "VERSION":
            environ["CNI_PATH"] = f"{self._node.executables}:{GO_PLUGINS}"
        if isinstance(stdin.get("prevResult"), str):
            stdin["prevResult"] = copy.deepcopy(self._scenario["results"][stdin["prevResult"]])
        for interface in (stdin.get("prevResult") or {}).get("interfaces", []):
            interface["mac"] = self._mac(interface) or interface["mac"]
        plugin = self._scenario.get("plugin") or stdin["type"]
        process = self._node.start([self._node.executables / plugin], env=environ)
        return Call(process, json.dumps(stdin).encode()).finish()

    def _mac(self, interface: dict[str, Any]) -> str:
        for pod in self._node.pods.values():
            if pod.path == interface["sandbox"] and interface["name"] in pod.view.names():
                return pod.view.link(interface["name"]).mac
        return ""

    def skip_to(self, verb: str) -> Replay:
        """Leave out the calls before the next `verb`."""
        while self._left[0]["verb"] != verb:
            del self._left[0]
        return self

    def over(self) -> None:
        assert not self._left


@pytest.fixture
def wire(node: Node) -> View:
    return node.master()


@pytest.fixture
def pod(node: Node, wire: View) -> Pod:
    return node.pod("pod1")


@pytest.fixture
def flat_file(node: Node) -> None:
    """An /etc of the node's own, with the flat file of a cluster that chose the file store."""
    node.run(["cp", "-a", "/etc", "/run/etc"]).check_returncode()
    node.run(["mount", "--bind", "/run/etc", "/etc"]).check_returncode()
    file = node.path(FLAT)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((ROOT / "conf/whereabouts.d/file-store.conf").read_text())


def test_every_call_that_was_recorded_is_sent_by_a_test() -> None:
    source = Path(__file__).read_text()
    assert SCENARIOS
    assert [s for s in sorted(SCENARIOS) if f'"{s}"' not in source] == []


# --- cnitool ---


def test_cnitool_attaches_checks_and_detaches(node: Node, pod: Pod) -> None:
    replay = Replay(node, "cnitool-macvlan")
    replay.send("STATUS").succeeded()
    result = replay.send("ADD").succeeded()
    link = pod.view.link("net1")
    assert result["interfaces"] == [{"name": "net1", "mac": link.mac, "mtu": 9000, "sandbox": pod.path}]
    assert link.texts == ["192.168.111.1/24"]
    replay.send("CHECK").succeeded()
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.send("DEL").succeeded()  # without prevResult: cnitool's cache has forgotten the attachment
    assert node.leftovers() == []


def test_gc_without_a_list_as_cnitool_sends_it_detaches_nothing(node: Node, pod: Pod) -> None:
    replay = Replay(node, "cnitool-macvlan")
    replay.skip_to("ADD").send("ADD").succeeded()
    replay.skip_to("GC").send("GC").succeeded()
    assert pod.view.link("net1").texts == ["192.168.111.1/24"]
    assert node.leases() == ["192.168.111.1"]
    replay.over()


def test_a_mac_and_an_address_from_the_capabilities_are_given(node: Node, pod: Pod) -> None:
    replay = Replay(node, "cnitool-capabilities")
    assert replay.send("ADD").addresses == ["192.168.111.40/24"]
    link = pod.view.link("net1")
    assert (link.mac, link.texts) == ("02:11:22:33:44:55", ["192.168.111.40/24"])
    replay.send("CHECK").succeeded()
    replay.send("DEL").succeeded()  # neither the capabilities nor the pod of the ADD are in it
    assert node.leftovers() == []
    replay.over()


def state(view: View, name: str) -> tuple[str, int, bool, str]:
    link = view.link(name)
    return link.mac, link.mtu, link.up, link.alias


def test_check_knows_the_mac_that_a_chained_plugin_gave_a_device(node: Node, pod: Pod) -> None:
    node.master("ens3f0")
    before = state(node.host, "ens3f0")
    replay = Replay(node, "cnitool-chain")
    replay.send("ADD").succeeded()
    pod.view.set("net1", address="02:00:00:00:00:99")  # as tuning did, next in the chain
    replay.send("CHECK").succeeded()  # prevResult is the result of the whole chain
    pod.view.set("net1", address=before[0])  # as tuning did, whose DEL comes first
    replay.send("DEL").succeeded()
    assert state(node.host, "ens3f0") == before
    assert node.leftovers() == []
    replay.over()


def test_a_device_comes_back_as_it_was_although_its_mac_was_changed_in_the_pod(node: Node, pod: Pod) -> None:
    node.master("ens3f0")
    before = state(node.host, "ens3f0")
    replay = Replay(node, "cnitool-chain")
    replay.send("ADD").succeeded()
    pod.view.set("net1", address="02:00:00:00:00:99")
    replay.skip_to("DEL").send("DEL").succeeded()
    assert state(node.host, "ens3f0") == before


# --- Multus, its configuration naming the delegates ---


def test_multus_attaches_two_networks_to_a_pod(node: Node, pod: Pod) -> None:
    node.master("ens3f0")
    replay = Replay(node, "multus-delegates")
    assert replay.send("ADD").addresses == ["192.168.111.1/24"]
    assert replay.send("ADD").addresses == ["192.168.112.1/24"]
    assert {name: link.texts for name, link in pod.view.links().items()} == {
        "net1": ["192.168.111.1/24"],
        "net2": ["192.168.112.1/24"],
    }
    replay.send("CHECK").succeeded()
    replay.send("CHECK").succeeded()
    replay.send("DEL").succeeded()
    assert pod.view.names() == ["net1"]
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


def test_an_empty_version_is_answered_in_the_oldest(node: Node, pod: Pod) -> None:
    replay = Replay(node, "multus-no-version")
    result = replay.send("ADD").succeeded()
    assert (result["cniVersion"], result["ip4"]) == ("0.1.0", {"ip": "192.168.111.1/24"})
    assert pod.view.link("net1").mtu == 9000
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


def test_multus_deletes_twice_what_could_not_be_added(node: Node, pod: Pod) -> None:
    replay = Replay(node, "multus-failed-add")
    replay.send("ADD").refused(7, "9001", "9000")
    assert node.leftovers() == []
    for _ in range(2):  # Multus by itself, then for the runtime
        replay.send("DEL").succeeded()
        assert node.leftovers() == []
    replay.over()


def test_a_restarted_sandbox_keeps_its_address_when_the_old_one_is_deleted_late(node: Node, pod: Pod) -> None:
    replay = Replay(node, "multus-restart")
    assert replay.send("ADD").addresses == ["192.168.111.1/24"]
    node.delete_pod(pod)
    second = node.pod("pod2")
    assert replay.send("ADD").addresses == ["192.168.111.1/24"]
    replay.send("DEL").succeeded()  # of the first, with an empty CNI_NETNS: its sandbox is gone
    assert second.view.link("net1").texts == ["192.168.111.1/24"]
    assert node.leases() == ["192.168.111.1"]
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


def test_a_late_delete_spares_the_sandbox_that_has_the_path_now(node: Node, pod: Pod) -> None:
    replay = Replay(node, "multus-restart")
    replay.send("ADD").succeeded()
    node.delete_pod(pod)
    second = node.pod(pod.name)
    replay.send("ADD", netns=second.path).succeeded()
    replay.send("DEL").succeeded()  # with an empty CNI_NETNS
    assert second.view.names() == ["net1"]


def test_gc_by_multus_detaches_what_its_cache_has_no_more(node: Node, wire: View) -> None:
    kept, lost = node.pod("pod1"), node.pod("pod2")
    replay = Replay(node, "multus-gc")
    replay.send("STATUS").succeeded()
    replay.send("ADD").succeeded()
    replay.send("ADD").succeeded()
    assert node.leases() == ["192.168.111.1", "192.168.111.2"]
    replay.send("GC").succeeded()
    assert (kept.view.names(), lost.view.names()) == (["eth0"], [])
    assert node.leases() == ["192.168.111.1"]
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


# --- Multus, the pod's annotation naming network attachment definitions ---


@pytest.mark.usefixtures("flat_file")
def test_multus_attaches_the_networks_of_nvidias_operator(node: Node, pod: Pod) -> None:
    replay = Replay(node, "multus-nad-nvidia")
    assert replay.send("ADD").addresses == ["192.168.2.225/28"]
    assert "ips" not in replay.send("ADD").succeeded()  # "ipam": {}
    links = pod.view.links()
    assert {name: (link.mtu, link.texts) for name, link in links.items()} == {
        "net1": (1500, ["192.168.2.225/28"]),
        "net2": (1500, []),
    }
    replay.send("DEL").succeeded()
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


@pytest.mark.usefixtures("flat_file")
def test_a_pod_of_multus_is_refused_when_no_store_was_chosen(node: Node, pod: Pod) -> None:
    node.path(FLAT).unlink()
    replay = Replay(node, "multus-nad-nvidia")
    replay.send("ADD").refused(7, "datastore", "railcni doctor")
    assert node.leftovers() == []


def test_what_a_pods_annotation_asks_for_is_given(node: Node, wire: View) -> None:
    """Its own keys arrive twice, in CNI_ARGS (whose other entries Multus repeats) and in runtimeConfig; its cni-args in
    args.cni. The shared RDMA device "0" arrives as deviceID and pciBusID, and means nothing to a macvlan."""
    pod = node.pod("pod2")
    replay = Replay(node, "multus-nad-requests")
    assert replay.send("ADD").addresses == ["192.168.120.66/24"]
    assert replay.send("ADD").addresses == ["192.168.120.77/24"]
    assert pod.view.link("rdma0").mac == "02:aa:bb:cc:dd:02"
    assert node.leases() == ["192.168.120.66", "192.168.120.77"]
    replay.send("DEL").succeeded()
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


@pytest.mark.usefixtures("flat_file")
def test_a_pci_address_that_multus_hands_on_selects_the_device(node: Node, wire: View) -> None:
    node.pod("pod3")
    replay = Replay(node, "multus-nad-host-device")
    replay.send("ADD").refused(7, 'pciBusID "0000:3b:00.2" names no netdev')  # none on this node
    for _ in range(2):
        replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


# --- podman, and Go's macvlan above our IPAM plugin ---


def test_podman_restarts_a_container_in_a_new_sandbox(node: Node, pod: Pod) -> None:
    """It asks for the version before its calls, with "dummy" for the variables; a restart keeps the containerID."""
    replay = Replay(node, "podman-restart")
    assert "1.0.0" in replay.send("VERSION").succeeded()["supportedVersions"]
    assert replay.send("ADD").addresses == ["192.168.111.40/24"]
    assert pod.view.link("eth0").mac == "02:11:22:33:44:66"
    replay.send("VERSION").succeeded()
    replay.send("DEL").succeeded()
    second = node.pod("pod2")
    assert replay.send("ADD").addresses == ["192.168.111.40/24"]
    assert second.view.link("eth0").mac == "02:11:22:33:44:66"
    replay.send("VERSION").succeeded()
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()


def test_whereabouts_serves_the_macvlan_of_the_go_plugins(node: Node, pod: Pod) -> None:
    replay = Replay(node, "go-macvlan")
    replay.send("STATUS").succeeded()
    assert replay.send("ADD").addresses == ["192.168.111.1/24"]
    replay.send("CHECK").succeeded()
    assert node.leases() == ["192.168.111.1"]
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.send("DEL").succeeded()
    assert node.leftovers() == []
    replay.over()
