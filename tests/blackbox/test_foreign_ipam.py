"""IPAM plugins of others: the link is there and up when theirs runs, and is still there when they give addresses back."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.test_macvlan import gratuitous_arp, hears, listen, unsolicited_neighbour_advertisement
from tests.each import each_and, one_link
from tests.node import GO_PLUGINS, Node, Pod, Reply, until
from tests.tools import needs_ip
from tests.view import View

pytestmark = [needs_ip, pytest.mark.forked]

MASTER = "ens2f0"  # macvlan's master, and host-device's device
ROOT = "/run/ipam"
SOCKET = "/run/cni/dhcp.sock"
SERVER_LEASES = "/run/dnsmasq.leases"
DNSMASQ = "/usr/sbin/dnsmasq"
BOTH = {
    "cniVersion": "1.1.0",
    "ips": [{"address": "10.5.0.7/24", "gateway": "10.5.0.1"}, {"address": "fd00:5::7/64"}],
    "routes": [{"dst": "10.99.0.0/16"}],
}
HOST_LOCAL = {"type": "host-local", "ranges": [[{"subnet": "10.6.0.0/24"}]], "dataDir": "/var/lib/cni/its-own"}
SELECTED = {"macvlan": {"master": MASTER}, "host-device": {"device": MASTER}}  # and sriov in the lab
STATIC = {"type": "static", "addresses": [{"address": "10.7.0.9/24"}]}

# It speaks before it reads. It notes what it was given, and the link as it was: "up" or "down", then its global addresses.
STAND_IN = f"""#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd {ROOT}
[ "$CNI_COMMAND" = VERSION ] && {{ cat reply.VERSION 2>/dev/null; exit 0; }}
echo "a line of the IPAM plugin for $CNI_COMMAND" >&2
cat reply.$CNI_COMMAND 2>/dev/null
cat > stdin.$CNI_COMMAND
env | sort > all.$CNI_COMMAND
grep ^CNI_ all.$CNI_COMMAND > env.$CNI_COMMAND
if [ -e "$CNI_NETNS" ] && nsenter --net="$CNI_NETNS" ip link show "$CNI_IFNAME" > link 2>/dev/null; then
    state=down
    grep -q '[<,]UP[,>]' link && state=up
    found=$(nsenter --net="$CNI_NETNS" ip addr show "$CNI_IFNAME" | sed -n 's/^ *inet6* \\([^ ]*\\).*scope global.*/\\1/p')
    echo $CNI_COMMAND $state $found >> calls
else
    echo $CNI_COMMAND gone >> calls
fi
while [ -e slow.$CNI_COMMAND ]; do touch waiting.$CNI_COMMAND; sleep 0.02; done
[ -e signal.$CNI_COMMAND ] && kill -9 $$
exit $(cat status.$CNI_COMMAND 2>/dev/null || echo 0)
"""

LINKS = ("macvlan", "host-device")
each_plugin = pytest.mark.parametrize("plugin", LINKS)
needs_go = pytest.mark.skipif(
    not (GO_PLUGINS / "dhcp").exists(), reason="needs Debian's package containernetworking-plugins"
)
needs_dnsmasq = pytest.mark.skipif(not Path(DNSMASQ).exists(), reason="needs Debian's package dnsmasq-base")


class Ipam:
    """The stand-in, as `recorder`."""

    def __init__(self, node: Node) -> None:
        self.folder = node.path(ROOT)
        self.folder.mkdir()
        self.install()
        self.replies("ADD", BOTH)

    def install(self, name: str = "recorder") -> None:
        (self.folder / name).write_text(STAND_IN)
        (self.folder / name).chmod(0o755)
        self.speaks("1.1.0")

    def speaks(self, *versions: str) -> None:
        self.replies("VERSION", {"cniVersion": versions[-1], "supportedVersions": list(versions)})

    def replies(self, verb: str, document: Any, status: int = 0) -> None:
        """Answer with a document, or with a text that may be none."""
        text = document if isinstance(document, str) else "" if document is None else json.dumps(document)
        (self.folder / f"reply.{verb}").write_text(text)
        (self.folder / f"status.{verb}").write_text(str(status))

    def fails(self, verb: str, code: int, msg: str, details: str = "") -> None:
        self.replies(verb, {"cniVersion": "1.1.0", "code": code, "msg": msg, "details": details}, 1)

    @property
    def calls(self) -> list[str]:
        """The verbs, each with what it found of the link."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def verbs(self) -> list[str]:
        return [call.split()[0] for call in self.calls]

    def heard(self, what: str, verb: str) -> bytes:
        return (self.folder / f"{what}.{verb}").read_bytes()


@pytest.fixture
def wire(node: Node) -> View:
    return node.master(MASTER)


@pytest.fixture
def pod(node: Node, wire: View) -> Pod:
    made = node.pod()
    node.remember()
    return made


@pytest.fixture
def ipam(node: Node) -> Ipam:
    return Ipam(node)


def network(plugin: str, version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    base = {"cniVersion": version, "name": "n", "type": plugin, "ipam": {"type": "recorder"}}
    return {**base, **SELECTED[plugin], **more}


def call(node: Node, verb: str, config: dict[str, Any], pod: Pod | str | None, **how: Any) -> Reply:
    return node.cni(config["type"], verb, config, netns=pod, path=[ROOT, GO_PLUGINS], **how)


def ended(node: Node, config: dict[str, Any], pod: Pod) -> None:
    node.ended(config["type"], config, netns=pod, path=[ROOT, GO_PLUGINS])


# --- in what order ---


@each_plugin
def test_the_link_is_up_without_addresses_while_the_ipam_plugin_gives_and_takes_them(
    node: Node, pod: Pod, ipam: Ipam, plugin: str
) -> None:
    result = call(node, "ADD", network(plugin), pod).succeeded()
    link = pod.view.link("net1")
    assert (link.up, link.texts, link.gateway("10.99.0.0/16")) == (True, ["10.5.0.7/24", "fd00:5::7/64"], "10.5.0.1")
    assert [(a["address"], a["interface"]) for a in result["ips"]] == [("10.5.0.7/24", 0), ("fd00:5::7/64", 0)]
    assert (result["ips"][0]["gateway"], result["routes"]) == ("10.5.0.1", [{"dst": "10.99.0.0/16"}])
    assert result["interfaces"][0]["mac"] == link.mac
    call(node, "DEL", network(plugin), pod).succeeded()
    assert ipam.calls == ["ADD up", "DEL up"]
    assert node.leftovers() == []


@each_plugin
def test_an_add_that_fails_takes_its_link_with_it_after_the_ipam_plugins_delete(
    node: Node, pod: Pod, ipam: Ipam, plugin: str
) -> None:
    ipam.fails("ADD", 11, "no address today", "and why")
    reply = call(node, "ADD", network(plugin), pod)
    reply.refused(11, "no address today")
    assert "and why" in reply.document["details"]
    assert ipam.calls == ["ADD up", "DEL up"]
    assert node.leftovers() == []


@each_plugin
def test_an_add_that_fails_after_its_addresses_are_set_takes_them_off_before_they_are_free(
    node: Node, pod: Pod, ipam: Ipam, plugin: str
) -> None:
    ipam.replies("ADD", {**BOTH, "routes": [{"dst": "10.99.0.0/16", "gw": "203.0.113.1"}]})
    call(node, "ADD", network(plugin), pod).refused(101, "10.99.0.0/16")
    assert ipam.calls == ["ADD up", "DEL up"]
    assert node.leftovers() == []


@each_and("after", ["DEL", "GC", "ADD"], plugins=LINKS)
def test_what_an_add_left_that_was_killed_at_the_ipam_plugin_is_given_back_by_the_link(
    node: Node, pod: Pod, ipam: Ipam, plugin: str, after: str
) -> None:
    (ipam.folder / "slow.ADD").touch()
    adding = node.start_cni(plugin, "ADD", network(plugin), netns=pod, path=[ROOT])
    with contextlib.suppress(subprocess.TimeoutExpired):
        adding.finish(timeout=0.1)
    assert until((ipam.folder / "waiting.ADD").exists)
    adding.process.kill()
    (ipam.folder / "slow.ADD").unlink()
    adding.process.communicate()  # it ends when the IPAM plugin has, which has its stderr
    assert pod.view.link("net1").up
    config = network(plugin)
    call(node, after, config | {"cni.dev/valid-attachments": []}, None if after == "GC" else pod).succeeded()
    again = {"DEL": [], "GC": ["GC gone"], "ADD": ["ADD up"]}[after]
    assert ipam.calls == ["ADD up", "DEL up", *again]
    ended(node, config, pod)


@each_plugin
def test_a_delete_finds_the_link_that_the_pod_renamed(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    call(node, "ADD", network(plugin), pod).succeeded()
    pod.view.set("net1", state="down")
    pod.view.set("net1", ifname="other")
    ended(node, network(plugin), pod)


@each_plugin
def test_a_link_of_the_pod_keeps_its_addresses(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    call(node, "ADD", network(plugin), pod).succeeded()
    pod.view.set("net1", state="down")
    pod.view.set("net1", ifname="other")
    pod.view.add_veth("net1", "far")
    pod.view.add_address("net1", "10.8.0.1/24")
    call(node, "DEL", network(plugin), pod).succeeded()
    assert (pod.view.link("net1").texts, pod.view.names()) == (["10.8.0.1/24"], ["far", "net1"])


@each_plugin
def test_addresses_are_given_back_when_the_sandbox_is_gone(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    call(node, "ADD", network(plugin), pod).succeeded()
    pod.view.set("net1", state="down")
    if plugin == "host-device":  # the kernel would give a physical device back
        pod.view.move("net1", node.host)
    node.delete_pod(pod)
    call(node, "DEL", network(plugin), pod.path).succeeded()
    assert ipam.calls == ["ADD up", "DEL gone"]
    assert node.leftovers(settle=2) == []


@each_and("is_there", [True, False], plugins=LINKS)
def test_an_attachment_without_a_record_ends(node: Node, pod: Pod, ipam: Ipam, plugin: str, is_there: bool) -> None:
    """As Go's plugins have made it: what its IPAM plugin gave is known to nobody here, so one DEL says so."""
    call(node, "ADD", network(plugin), pod).succeeded()
    for name in node.files():
        if "/attachments/" in name:
            node.path(f"/var/lib/cni/{name}").unlink()
    if not is_there:
        is_nowhere(ipam)
        call(node, "DEL", network(plugin), pod).refused(7, "recorder", "install that plugin there")
    call(node, "DEL", network(plugin), pod).succeeded()
    assert (ipam.calls, pod.view.names()) == (["ADD up", "DEL up"] if is_there else ["ADD up"], [])


# --- that neighbours hear of it ---


@each_and("dad", [False, True], plugins=LINKS)
def test_addresses_that_come_after_the_link_is_up_are_announced(
    node: Node, pod: Pod, wire: View, ipam: Ipam, plugin: str, dad: bool
) -> None:
    with listen(wire) as listener:
        mac = call(node, "ADD", network(plugin, dad=dad), pod).succeeded()["interfaces"][0]["mac"]
        assert hears(listener, gratuitous_arp(mac, "10.5.0.7"), unsolicited_neighbour_advertisement("fd00:5::7"))


# --- what it speaks ---


@one_link
def test_interfaces_of_an_ipam_plugin_count_for_nothing(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    ipam.replies("ADD", {"cniVersion": "1.1.0", "ips": [{"address": "10.5.0.7/24", "interface": 2}]})
    assert call(node, "ADD", network(plugin), pod).succeeded()["ips"] == [{"address": "10.5.0.7/24", "interface": 0}]


@one_link
def test_an_ipam_plugin_of_an_older_version(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    """It is not asked for a verb that it does not know; STATUS says that it does not speak the network's version."""
    call(node, "ADD", network(plugin, "1.0.0"), pod).succeeded()
    ipam.speaks("0.4.0", "1.0.0")
    for verb in ("GC", "STATUS"):
        ipam.fails(verb, 4, f"unknown CNI_COMMAND: {verb}")
    call(node, "GC", network(plugin) | {"cni.dev/valid-attachments": []}, None).succeeded()
    assert node.leftovers() == []
    call(node, "STATUS", network(plugin), None).refused(50, "recorder", "cniVersion 1.1.0", "1.0.0")
    ipam.replies("VERSION", None)  # it may serve ADD all the same
    call(node, "STATUS", network(plugin), None).succeeded()
    assert ipam.calls == ["ADD up", "DEL up"]


@needs_go
@one_link
def test_an_add_names_the_version_that_the_ipam_plugin_does_not_speak(node: Node, pod: Pod, plugin: str) -> None:
    config = network(plugin, ipam=HOST_LOCAL)
    call(node, "ADD", config, pod).refused(1, "host-local", "cniVersion 1.1.0", "1.0.0")
    assert node.leftovers() == []
    call(node, "DEL", config, pod).succeeded()  # it would fail for ever, and the pod would not end


# --- whose DEL fails ---


def is_nowhere(ipam: Ipam) -> None:
    (ipam.folder / "recorder").unlink()


def lost_its_interpreter(ipam: Ipam) -> None:
    (ipam.folder / "recorder").write_text("#!/nonexistent\n")


def speaks_another_version(ipam: Ipam) -> None:
    ipam.speaks("1.0.0")
    ipam.fails("DEL", 1, "incompatible CNI versions")


def refuses(ipam: Ipam) -> None:
    ipam.fails("DEL", 11, "the server is away")


@each_and(
    "why, way, told",
    [
        (is_nowhere, "DEL", "in none of the directories"),
        (is_nowhere, "flush", "in none of the directories"),
        (lost_its_interpreter, "DEL", "cannot be run"),
        (speaks_another_version, "DEL", "cniVersion 1.1.0"),
        (refuses, "DEL", "the server is away"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
    plugins=LINKS,
)
def test_an_ipam_plugin_whose_delete_fails_fails_one_of_ours_and_is_asked_again_later(
    node: Node, pod: Pod, ipam: Ipam, plugin: str, why: Callable[[Ipam], None], way: str, told: str
) -> None:
    """A pod whose DEL failed for ever would never end; and no address is lost."""
    call(node, "ADD", network(plugin), pod).succeeded()
    why(ipam)
    reply = call(node, "DEL", network(plugin), pod)
    assert reply.status == 1 and "recorder" in reply.msg and told in reply.msg, reply.document
    assert "until the link is gone" not in reply.msg
    assert pod.view.names() == []
    for _ in range(2):
        call(node, "DEL", network(plugin), pod).succeeded()
    ipam.install()
    ipam.replies("DEL", None)
    called = len(ipam.calls)
    if way == "DEL":
        call(node, "DEL", network(plugin), pod).succeeded()
    else:
        assert node.railcni("ipam", "flush").returncode == 0
    assert (ipam.calls[called:], node.leftovers()) == (["DEL gone"], [])


@pytest.mark.parametrize(
    ("plugin", "block", "code"),
    [
        ("host-device", {"type": "recorder"}, 7),
        ("macvlan", {"type": "macvlan"}, 7),
        ("host-device", {"type": "railcni-sriov"}, 7),
        ("macvlan", {"type": "../recorder"}, 7),
        pytest.param("host-device", {"type": "host-local"}, 999, marks=needs_go),
        pytest.param("macvlan", {"type": "dhcp"}, 999, marks=needs_go),
        pytest.param("host-device", {"type": "static"}, 102, marks=needs_go),
    ],
    ids=str,
)
def test_a_delete_ends_what_an_add_could_not_begin(
    node: Node, pod: Pod, plugin: str, block: dict[str, Any], code: int
) -> None:
    """An IPAM plugin that fails at DEL as at ADD has given nothing: there is no such one, no range, no daemon."""
    config = network(plugin, "1.0.0", ipam=block)
    reply = node.cni(plugin, "ADD", config, netns=pod, path=[ROOT, GO_PLUGINS, node.executables])
    reply.refused(code, block["type"][:8])
    for _ in range(2):
        node.ended(plugin, config, netns=pod, path=[ROOT, GO_PLUGINS, node.executables])


@each_plugin
def test_an_add_whose_ipam_plugin_fails_and_then_cannot_give_back_is_given_back_later(
    node: Node, pod: Pod, ipam: Ipam, plugin: str
) -> None:
    ipam.fails("ADD", 11, "half of the addresses are there")
    ipam.fails("DEL", 11, "the server is away")
    reply = call(node, "ADD", network(plugin), pod)
    reply.refused(11, "half of the addresses are there")
    assert "the server is away" in reply.document["details"]
    call(node, "DEL", network(plugin), pod).refused(11, "the server is away")
    call(node, "DEL", network(plugin), pod).succeeded()
    ipam.replies("DEL", None)
    call(node, "DEL", network(plugin), pod).succeeded()
    assert ipam.calls == ["ADD up", "DEL up", *["DEL gone"] * 3]
    assert node.leftovers() == []


# --- plugins of others ---


@needs_go
@one_link
@pytest.mark.parametrize("ipam", [HOST_LOCAL, STATIC], ids=["host-local", "static"])
@pytest.mark.parametrize("version", ["0.2.0", "1.0.0"])
def test_gos_address_plugins_serve_each_verb(node: Node, pod: Pod, plugin: str, ipam: Any, version: str) -> None:
    config = network(plugin, version, ipam=ipam)
    call(node, "ADD", config, pod).succeeded()
    again = call(node, "ADD", config, pod)  # host-local itself refuses a repeated ADD
    assert again.succeeded()["cniVersion"] == version
    assert again.addresses == pod.view.link("net1").texts
    if version >= "0.4.0":
        call(node, "CHECK", {**config, "prevResult": again.document}, pod).succeeded()
    for _ in range(2):
        ended(node, config, pod)


# --- dhcp ---


class Dhcp:
    """A server on the wire and the plugin's daemon on the node; `leased` is what the server has given."""

    def __init__(self, node: Node, wire: View) -> None:
        self._node = node
        self._wire = Pod("wire", wire.path.removeprefix(node.root), wire)
        wire.add_address("peer", "10.6.0.1/24")

    def serve(self) -> None:
        words = (
            "--conf-file=/dev/null --keep-in-foreground --user=root --port=0 --interface=peer --bind-interfaces --no-ping --pid-file= "
            "--dhcp-authoritative --dhcp-range=10.6.0.50,10.6.0.59,255.255.255.0,1h --dhcp-option=3,10.6.0.1 "
            f"--dhcp-leasefile={SERVER_LEASES}"
        )
        self._node.start([DNSMASQ, *words.split()], pod=self._wire)
        assert until(self._node.path(SERVER_LEASES).exists)

    def start_daemon(self, timeout: str = "5s") -> subprocess.Popen[bytes]:
        self._node.path(SOCKET).unlink(missing_ok=True)
        daemon = self._node.start([GO_PLUGINS / "dhcp", "daemon", "-timeout", timeout, "-resendmax", "1s"])
        assert until(self._node.path(SOCKET).exists)
        return daemon

    @property
    def leased(self) -> list[str]:
        return [line.split()[2] for line in self._node.path(SERVER_LEASES).read_text().splitlines()]


@pytest.fixture
def dhcp(node: Node, wire: View) -> Iterator[Dhcp]:
    yield Dhcp(node, wire)


def of_dhcp(plugin: str, version: str = "1.0.0") -> dict[str, Any]:
    return network(plugin, version, ipam={"type": "dhcp"})


@needs_go
@needs_dnsmasq
@each_and("version, end", [("0.2.0", "DEL"), ("0.3.1", "DEL"), ("1.0.0", "GC"), ("1.0.0", "DEL")], plugins=LINKS)
def test_a_dhcp_server_gives_the_address_and_gets_it_back(
    node: Node, pod: Pod, dhcp: Dhcp, plugin: str, version: str, end: str
) -> None:
    dhcp.serve()
    dhcp.start_daemon()
    config = of_dhcp(plugin, version)
    for _ in range(2):
        reply = call(node, "ADD", config, pod)
        assert reply.succeeded()["cniVersion"] == version
        assert [a.split("/")[0] for a in reply.addresses] == dhcp.leased != []
    link = pod.view.link("net1")
    assert (link.texts, link.gateway("0.0.0.0/0")) == (reply.addresses, "10.6.0.1")
    if version >= "0.4.0":
        call(node, "CHECK", {**config, "prevResult": reply.document}, pod).succeeded()
    if end == "GC":
        call(node, "GC", of_dhcp(plugin, "1.1.0") | {"cni.dev/valid-attachments": []}, None).succeeded()
    else:
        call(node, "DEL", config, pod).succeeded()
    assert until(lambda: dhcp.leased == [])
    ended(node, config, pod)


@needs_go
@needs_dnsmasq
@each_plugin
def test_without_dhcps_daemon_the_link_goes_and_the_delete_is_made_again(
    node: Node, pod: Pod, dhcp: Dhcp, plugin: str
) -> None:
    call(node, "ADD", of_dhcp(plugin), pod).refused(999, "dhcp", SOCKET)
    assert node.leftovers() == []
    dhcp.serve()
    daemon = dhcp.start_daemon()
    call(node, "ADD", of_dhcp(plugin), pod).succeeded()
    daemon.kill()
    daemon.communicate()
    call(node, "DEL", of_dhcp(plugin), pod).refused(999, "dhcp", SOCKET)
    assert pod.view.names() == []
    dhcp.start_daemon()
    call(node, "DEL", of_dhcp(plugin), pod).succeeded()
    assert len(dhcp.leased) == 1  # it ends by itself: nobody has told the server
    assert node.leftovers() == []


@needs_go
@needs_dnsmasq
@each_plugin
def test_a_dhcp_attachment_ends_when_its_sandbox_is_gone(node: Node, pod: Pod, dhcp: Dhcp, plugin: str) -> None:
    dhcp.serve()
    dhcp.start_daemon()
    call(node, "ADD", of_dhcp(plugin), pod).succeeded()
    if plugin == "host-device":  # the kernel would give a physical device back
        pod.view.move("net1", node.host, state="down")
    node.delete_pod(pod)
    call(node, "DEL", of_dhcp(plugin), pod.path).succeeded()
    assert node.leftovers(settle=2) == []
    if plugin == "macvlan":  # the daemon kept the sandbox, and the link in it
        assert until(lambda: dhcp.leased == [])
