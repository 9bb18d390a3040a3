"""Chains: ours in the first, a middle and the last place, beside the plugins of Debian's containernetworking-plugins."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests.each import each_and
from tests.node import GO_PLUGINS, Node, Pod, Reply

pytestmark = pytest.mark.forked

OURS = ("macvlan", "host-device", "sriov", "rdma")
MAC = "02:00:00:00:00:99"
SELF = "ours"  # stands for the plugin under test in a chain
LEASES = {
    "type": "whereabouts", "range": "192.168.111.0/24", "ipRanges": [{"range": "fd00:111::/64"}],
    "gateway": "192.168.111.254", "routes": [{"dst": "10.20.0.0/16"}], "datastore": "file",
}  # fmt: skip
VRF_TABLE = 1  # the first that vrf takes
PORTS = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]

SELECTED = {"macvlan": {"master": "ens2f0"}, "host-device": {"device": "ens2f0"}}  # and sriov in the lab

# What may stand in a chain. bandwidth and portmap do nothing without limits and ports.
MEMBERS: dict[str, dict[str, Any]] = {
    "loopback": {"type": "loopback"},
    "tuning": {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}},
    "tuning-mtu": {"type": "tuning", "mtu": 1400},
    "tuning-mac": {"type": "tuning", "mac": MAC, "promisc": True},
    "sbr": {"type": "sbr"},
    "bandwidth": {"type": "bandwidth"},
    "portmap": {"type": "portmap"},
    "portmap-8080": {"type": "portmap", "runtimeConfig": {"portMappings": PORTS}},
    "vrf": {"type": "vrf", "vrfname": "red"},
    "rdma": {"type": "rdma"},
}
UNCHECKED = ("bandwidth", "portmap-8080")  # their CHECK refuses links that are no veth, and IPv6 rules that are right

# loopback makes an interface of its own, so that another plugin can stand before ours.
CHAINS = (
    (SELF,), (SELF, "tuning"), (SELF, "tuning-mac"), (SELF, "tuning-mtu"), (SELF, "sbr"), (SELF, "portmap-8080"),
    (SELF, "vrf"), (SELF, "tuning-mac", "sbr", "bandwidth", "portmap"), ("loopback", SELF), ("loopback", "tuning", SELF),
    ("loopback", SELF, "tuning-mac"), ("loopback", SELF, "sbr"), ("loopback", SELF, "portmap-8080"),
    ("loopback", SELF, "vrf"), ("loopback", "tuning", "bandwidth", "portmap", SELF, "sbr", "bandwidth", "portmap"),
)  # fmt: skip

LINKS = ("macvlan", "host-device")
each_plugin = pytest.mark.parametrize("plugin", LINKS)
needs_go = pytest.mark.skipif(
    not (GO_PLUGINS / "tuning").exists(), reason="needs Debian's package containernetworking-plugins"
)


class Chain:
    """A network of several plugins in one version, and the calls of a runtime; `result` is that of the last ADD."""

    def __init__(self, node: Node, pod: Pod, version: str, plugins: Sequence[dict[str, Any]]) -> None:
        self._node = node
        self._pod = pod
        self._version = version
        self.plugins = [{"cniVersion": version, "name": "chained", **plugin} for plugin in plugins]
        self.result: Any = None
        self.results: list[Any] = []

    def call(self, verb: str, config: dict[str, Any], previous: Any) -> Reply:
        kind = config["type"]
        executable = kind if kind in OURS else GO_PLUGINS / kind
        stdin = config if previous is None else {**config, "prevResult": previous}
        how: dict[str, Any] = {"more": {"PATH": "/usr/sbin:/usr/bin"}} if kind == "portmap" else {}
        return self._node.cni(
            executable, verb, stdin, netns=self._pod, path=[self._node.executables, GO_PLUGINS], **how
        )

    def add(self) -> Any:
        """ADD of each plugin with the result of the one before; the result of the last."""
        self.result, self.results = None, []
        for config in self.plugins:
            self.result = self.call("ADD", config, self.result).succeeded()
            assert self.result["cniVersion"] == self._version
            self.results.append(self.result)
        return self.result

    def check(self) -> None:
        """CHECK of each plugin with the result of the last, where the version has that verb."""
        for config in self.plugins if self._version >= "0.4.0" else []:
            if not any(MEMBERS[name].items() <= config.items() for name in UNCHECKED):
                self.call("CHECK", config, self.result).succeeded()

    def delete(self) -> None:
        """DEL from the end; the result of the last comes with it where the version has that."""
        for config in reversed(self.plugins):
            self.call("DEL", config, self.result if self._version >= "0.4.0" else None).succeeded()


def spoken(kind: str) -> list[str]:
    """The versions that a plugin of Debian's package speaks."""
    said = subprocess.run([GO_PLUGINS / kind], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=True).stdout
    versions: list[str] = json.loads(said)["supportedVersions"]
    return versions


def unversioned(result: Any) -> list[Any]:
    """The addresses of a result without their `version`, which loopback leaves out of its own."""
    return [{key: value for key, value in address.items() if key != "version"} for address in result["ips"]]


def member(name: str, plugin: str, **more: Any) -> dict[str, Any]:
    return {"type": plugin, **SELECTED[plugin], "ipam": LEASES, **more} if name == SELF else MEMBERS[name]


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    made = node.pod()
    node.remember()
    return made


def needs_of(chain: Sequence[str], node: Node) -> None:
    """Skip what this kernel or machine cannot do."""
    with node.host.rtnl() as ipr:
        if "vrf" in chain:
            try:
                ipr.link("add", ifname="vrf-try", kind="vrf", vrf_table=7)
            except Exception as fault:  # pyroute2's own error class differs by version
                pytest.skip(f"this kernel makes no vrf link ({fault}): load the module vrf")
            node.host.delete("vrf-try")
    if "portmap-8080" in chain:
        listed = node.run(["/usr/sbin/iptables", "-t", "nat", "-S"])
        if listed.returncode:
            pytest.skip(f"iptables has no table nat here: load the module nf_nat; {listed.stderr.decode()[:100]}")


def covering() -> list[Any]:
    """Each chain with one of the plugins, in one of two versions; `make long` runs it with all pairs of these."""
    pairs = [("macvlan", "0.3.1"), ("host-device", "1.0.0"), ("macvlan", "1.0.0"), ("host-device", "0.3.1")]
    pairs += [("macvlan", "0.3.0"), ("macvlan", "0.4.0")]
    return [
        pytest.param(*pair, chain, marks=() if pair == pairs[n % 4] else pytest.mark.long, id=f"{' '.join(chain)}-{'-'.join(pair)}")
        for n, chain in enumerate(CHAINS)
        for pair in pairs
    ]  # fmt: skip


@needs_go
@pytest.mark.parametrize(("plugin", "version", "chain"), covering())
def test_a_chain_attaches_checks_and_detaches(
    node: Node, pod: Pod, chain: tuple[str, ...], plugin: str, version: str
) -> None:
    needs_of(chain, node)
    for name in chain:
        if name != SELF and version not in spoken(MEMBERS[name]["type"]):
            pytest.skip(f"{name} of this package does not speak {version}")
    calls = Chain(node, pod, version, [member(name, plugin) for name in chain])
    result = calls.add()
    place = chain.index(SELF)
    before = calls.results[place - 1] if place else {"interfaces": [], "ips": []}
    assert calls.results[place]["interfaces"][:-1] == before["interfaces"]
    assert unversioned(calls.results[place])[:-2] == unversioned(before)
    link = pod.view.link("net1")
    mac = MAC if "tuning-mac" in chain else calls.results[place]["interfaces"][-1]["mac"]
    assert result["interfaces"][-1] == {"name": "net1", "mac": mac, "sandbox": pod.path}
    assert link.mac == mac
    own = [a["address"] for a in result["ips"] if a["interface"] == len(before["interfaces"])]
    assert own == link.texts == ["192.168.111.1/24", "fd00:111::1/64"]
    assert result["routes"] == LEASES["routes"]
    if "vrf" in chain and not link.route("10.20.0.0/16"):  # the kernel drops it, and Debian's vrf sets it no more
        calls.call("CHECK", calls.plugins[place], result).refused(100, "route 10.20.0.0/16", "is not on net1")
        pod.view.add_route("net1", "10.20.0.0/16", gateway="192.168.111.254", table=VRF_TABLE)  # as later ones do
    calls.check()
    calls.delete()
    if "sbr" not in chain:  # its DEL refuses where there is no link
        calls.delete()
    assert node.leftovers() == []


@each_plugin
def test_a_second_plugin_that_makes_the_interface_is_refused_and_the_delete_ends_both(
    node: Node, pod: Pod, plugin: str
) -> None:
    calls = Chain(node, pod, "1.0.0", [member(SELF, plugin), {"type": "macvlan", "master": "ens2f0"}])
    with pytest.raises(AssertionError, match="exists already"):
        calls.add()
    assert pod.view.names() == ["net1"]
    calls.delete()
    assert node.leftovers() == []


# --- what came before ---

EARLIER: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "interfaces": [
        {"name": "br0", "mac": "02:00:00:00:00:01"},
        {"name": "eth0", "mac": "02:00:00:00:00:02", "mtu": 1400, "sandbox": "/run/netns/pod1"},
    ],
    "ips": [{"interface": 1, "address": "10.44.0.7/16", "gateway": "10.44.0.1"}],
    "routes": [{"dst": "10.45.0.0/16", "gw": "10.44.0.1", "priority": 7}],
    "dns": {"nameservers": ["10.44.0.2"]},
}


def configuration(plugin: str, version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    return {"cniVersion": version, "name": "chained", **member(SELF, plugin, **more)}


@each_plugin
def test_what_earlier_plugins_made_stands_before_ours_in_the_result(node: Node, pod: Pod, plugin: str) -> None:
    chain = Chain(node, pod, "1.1.0", [])
    result = chain.call("ADD", configuration(plugin), EARLIER).succeeded()
    link = pod.view.link("net1")
    own = {"name": "net1", "mac": link.mac, "mtu": link.mtu, "sandbox": pod.path}
    first = {"interface": 2, "address": "192.168.111.1/24", "gateway": "192.168.111.254"}
    assert result == {
        "cniVersion": "1.1.0",
        "interfaces": [*EARLIER["interfaces"], own],
        "ips": [*EARLIER["ips"], first, {"interface": 2, "address": "fd00:111::1/64"}],
        "routes": [*EARLIER["routes"], *LEASES["routes"]],
        "dns": EARLIER["dns"],
    }
    assert link.texts == ["192.168.111.1/24", "fd00:111::1/64"]
    named = configuration(plugin, dns={"nameservers": ["192.0.2.1"]})  # those of the network count before earlier ones
    assert chain.call("ADD", named, EARLIER).succeeded()["dns"] == {"nameservers": ["192.0.2.1"]}


@each_and("previous", [[], 7, {"cniVersion": "9.9.9"}, {"ips": [{"address": "nonsense"}]}], ids=str, plugins=LINKS)
def test_an_earlier_result_that_is_none_is_refused(node: Node, pod: Pod, plugin: str, previous: Any) -> None:
    Chain(node, pod, "1.1.0", []).call("ADD", configuration(plugin), previous).refused(6, "prevResult")
    assert node.leftovers() == []


@each_and("version", ["0.1.0", "0.2.0"], plugins=LINKS)
def test_a_version_without_chains_is_answered_with_ours_alone(node: Node, pod: Pod, plugin: str, version: str) -> None:
    previous = {"cniVersion": version, "ip4": {"ip": "10.44.0.7/16"}}
    reply = Chain(node, pod, version, []).call("ADD", configuration(plugin, version), previous)
    assert reply.succeeded()["ip4"]["ip"] == "192.168.111.1/24"


@each_plugin
def test_check_looks_for_the_routes_of_earlier_plugins_on_their_links(node: Node, pod: Pod, plugin: str) -> None:
    pod.view.add_veth("eth0", "far")
    pod.view.add_address("eth0", "10.44.0.7/16")
    pod.view.add_route("eth0", "10.45.0.0/16", gateway="10.44.0.1", priority=7)
    chain, config = Chain(node, pod, "1.1.0", []), configuration(plugin)
    result = chain.call("ADD", config, EARLIER).succeeded()
    chain.call("CHECK", config, result).succeeded()
    pod.view.delete_route("net1", "10.20.0.0/16")
    chain.call("CHECK", config, result).refused(100, "route 10.20.0.0/16")
