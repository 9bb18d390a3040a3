"""`railcni dranet-ipam`: DRANET's requests, over its socket, to our IPAM plugin in a node of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.cli.main import main
from cni.cluster.dranet import ifname_of
from cni.shared.spec.request import ifname_fault
from tests.blackbox.test_kubernetes import DIRECTORY, KUBECONFIG, PORT
from tests.node import BIN, COMMAND, Node, until, unusable
from tests.stores.cluster_api import ClusterServer

pytestmark = pytest.mark.skipif(bool(unusable()), reason=unusable())

SOCKET = "/run/railcni/dranet.sock"
CLAIM = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
DEVICE = {"name": "pci-0000-8a-00-0", "pci_address": "0000:8a:00.0", "mac_address": "02:00:00:00:00:01"}
RANGES = {"type": "whereabouts", "datastore": "file", "range": "192.168.77.0/29", "gateway": "192.168.77.1"}
ROUTES = [{"dst": "10.9.0.0/16"}, {"dst": "10.8.0.0/16", "gw": "192.168.77.3"}, {"dst": "fd00:9::/64"}]
PROFILES: dict[str, Any] = {
    "rails.conf": {"cniVersion": "0.3.0", "name": "rails", "ipam": {**RANGES, "routes": ROUTES}},
    "broken.json": {"name": "broken", "ipam": {**RANGES, "range": "192.168.77.0/33"}},
    "typed.conf": {"name": "typed", "type": "macvlan", "ipam": RANGES},
    "none.conf": {"name": "none", "ipam": {"type": "no-such-plugin"}},
    "path.conf": {"name": "path", "ipam": {"type": "../whereabouts"}},
}


class Webhook:
    """The process in the node, and DRANET's side of its socket."""

    def __init__(self, node: Node) -> None:
        self.node = node
        for name, document in {**PROFILES, "10-other.conf": "not JSON"}.items():
            node.write(f"/etc/cni/net.d/{name}", document)
        self.process = self.start()
        assert until(lambda: answers(self), 20)

    def start(self) -> subprocess.Popen[bytes]:
        return self.node.start([*COMMAND, "dranet-ipam", f"--cni-path={BIN}", "--grace=0.3"])

    @property
    def is_there(self) -> bool:
        return self.node.path(SOCKET).exists() and stat.S_ISSOCK(self.node.path(SOCKET).stat().st_mode)

    def ask(self, path: str, request: Any = None, size: int | None = None) -> tuple[int, str]:
        """GET, or POST of `request`; the status and what was answered."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        folder = os.open(self.node.path(SOCKET).parent, os.O_PATH)  # a socket's path may be 108 bytes long
        try:
            connection.sock.connect(f"/proc/self/fd/{folder}/dranet.sock")
            body = request if isinstance(request, bytes) else json.dumps(request).encode()
            headers = {"Content-Length": str(len(body) if size is None else size)}
            try:
                connection.request(
                    "GET" if request is None else "POST", path, None if request is None else body, headers
                )
            except BrokenPipeError:
                pass  # it has answered after the headers, and does not read the body
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()
            os.close(folder)

    def give(self, profile: str = "rails", claim: str = CLAIM, name: str = DEVICE["name"]) -> tuple[int, str]:
        return self.ask("/GetProfileConfig", request(profile, claim, name))

    def release(self, profile: str = "rails", claim: str = CLAIM, name: str = DEVICE["name"]) -> tuple[int, str]:
        return self.ask("/ReleaseProfileConfig", request(profile, claim, name))

    def leases(self) -> list[str]:
        return self.node.leases()


def request(profile: str, claim: str, name: str) -> dict[str, Any]:
    return {"device": {**DEVICE, "name": name}, "claim_uid": claim, "config": {"profile": profile, "interface": {}}}


@pytest.fixture
def webhook(node: Node) -> Iterator[Webhook]:
    found = Webhook(node)
    yield found
    found.process.terminate()
    if found.process.stdout and not found.process.stdout.closed:
        found.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def serving(executables: Path) -> Iterator[Webhook]:
    """A process for the tests that leave it running."""
    with Node(executables) as node:
        yield Webhook(node)


@pytest.fixture
def shared(serving: Webhook) -> Iterator[Webhook]:
    """That process; the test leaves no lease."""
    yield serving
    assert serving.leases() == []


def test_health_says_that_it_gives_addresses_and_knows_no_cloud(shared: Webhook) -> None:
    status, text = shared.ask("/health")
    assert (status, json.loads(text)) == (200, {"cloudProvider": False, "profileProvider": True})
    for path in ("/GetDeviceAttributes", "/GetDeviceConfig"):
        assert shared.ask(path, DEVICE) == (200, "{}")
    assert stat.S_IMODE(shared.node.path(SOCKET).stat().st_mode) == 0o600


def test_a_device_gets_an_address_keeps_it_when_asked_again_and_gives_it_back(shared: Webhook) -> None:
    status, text = shared.give()
    assert status == 200, text
    assert json.loads(text) == {
        "interface": {"addresses": ["192.168.77.2/29"]},
        "routes": [
            {"destination": "10.9.0.0/16", "gateway": "192.168.77.1"},
            {"destination": "10.8.0.0/16", "gateway": "192.168.77.3"},
            {"destination": "fd00:9::/64", "scope": 253},
        ],
    }
    assert shared.give() == (200, text)
    assert len(shared.leases()) == 1
    other = json.loads(shared.give(name="pci-0000-8a-00-1")[1])  # another device of the same claim
    assert other["interface"]["addresses"] == ["192.168.77.4/29"]  # .3 is a next hop
    assert shared.release() == shared.release() == (200, "{}")
    assert len(shared.leases()) == 1
    assert shared.release(name="pci-0000-8a-00-1") == (200, "{}")
    assert shared.leases() == []


@pytest.fixture
def cluster(node: Node) -> Iterator[ClusterServer]:
    with node.host.entered():
        server = ClusterServer(port=PORT)
    node.write(f"{DIRECTORY}/whereabouts.kubeconfig", KUBECONFIG)
    flat = {"datastore": "addresslease", "kubernetes": {"kubeconfig": f"{DIRECTORY}/whereabouts.kubeconfig"}}
    node.write(f"{DIRECTORY}/whereabouts.conf", flat)
    yield server
    server.close()


def test_the_leases_of_claims_that_are_gone_are_freed_and_no_others(cluster: ClusterServer, webhook: Webhook) -> None:
    """DRANET asks for a release once; here it never does."""
    lives, other = CLAIM, CLAIM.replace("0f1e", "1111")
    for claim in (lives, other):
        cluster.add("resourceclaims", "team", claim, metadata={"uid": claim})
        assert webhook.give(claim=claim)[0] == 200
    assert webhook.give(claim="sandbox-of-another-driver")[0] == 200
    held = webhook.leases()
    cluster.forbidden = {("list", "resourceclaims")}
    del cluster.core.objects["resourceclaims", "team", other]
    time.sleep(1)
    assert webhook.leases() == held
    cluster.forbidden = set()
    assert until(lambda: len(webhook.leases()) < len(held), 20)
    time.sleep(1)
    assert webhook.leases() == [held[0], held[2]]
    webhook.process.terminate()
    said = webhook.process.communicate(timeout=20)[1].decode()
    assert said.count("apply conf/examples/dranet-rbac.yaml") == 1
    assert said.count("its ResourceClaim is gone") == 1


# Refused requests: the request, the status that DRANET expects, and a part of the message.
REFUSED: dict[str, tuple[tuple[str, str, str], int, str]] = {
    "a profile that is not there": (("other", CLAIM, "eth1"), 404, 'there is no profile "other" in /etc/cni/net.d'),
    "no profile": (("", CLAIM, "eth1"), 404, 'there is no profile ""'),
    "a range with a prefix of 33 bits": (("broken", CLAIM, "eth1"), 400, "192.168.77.0/33"),
    "a network in place of a profile": (("typed", CLAIM, "eth1"), 400, "typed.conf: a profile has `name` and `ipam`"),
    "a plugin that is a path": (("path", CLAIM, "eth1"), 400, "path.conf"),
    "a plugin that is not there": (("none", CLAIM, "eth1"), 500, "there is no plugin no-such-plugin"),
    "an invalid claim": (("rails", "../x", "eth1"), 400, 'claim_uid "../x"'),
}


def test_what_cannot_be_given_is_refused_with_the_status_that_dranet_knows(shared: Webhook) -> None:
    for fault, ((profile, claim, name), status, text) in REFUSED.items():
        for ask in (shared.give, shared.release):
            if ask == shared.release and fault == "a range with a prefix of 33 bits":
                continue  # a release with a broken configuration is the plugin's to judge
            found, said = ask(profile, claim, name)
            assert (found, text in said) == (status, True), (fault, said)
    assert shared.leases() == []


def test_a_body_that_is_no_object_is_refused_and_the_next_request_is_served(shared: Webhook) -> None:
    assert [shared.ask("/GetProfileConfig", body)[0] for body in (b"", b"[]", b"{", b"null")] == [400] * 4
    assert shared.ask("/GetProfileConfig", b"{}", size=1 << 21)[0] == 400
    assert shared.ask("/nothing", {})[0] == shared.ask("/nothing")[0] == 404
    assert shared.ask("/health")[0] == 200


def test_a_full_range_is_a_fault_that_kubelet_tries_again(shared: Webhook) -> None:
    claims = [f"claim-{number}" for number in range(5)]  # of six addresses two are next hops
    assert [shared.give(claim=claim)[0] for claim in claims] == [200, 200, 200, 200, 500]
    assert "192.168.77.0/29" in shared.give(claim=claims[4])[1]
    assert shared.release(claim=claims[3])[0] == 200
    assert shared.give(claim=claims[4])[0] == 200
    assert {shared.release(claim=claim)[0] for claim in claims} == {200}


def test_a_second_process_is_refused_and_a_killed_ones_socket_is_taken(webhook: Webhook) -> None:
    second = webhook.start()
    _, said = second.communicate(timeout=20)
    assert second.returncode == 1
    assert b"another process listens on /run/railcni/dranet.sock" in said
    webhook.process.kill()
    webhook.process.communicate(timeout=20)
    assert webhook.is_there
    webhook.process = webhook.start()
    assert until(lambda: answers(webhook), 20)
    webhook.process.terminate()
    webhook.process.communicate(timeout=20)
    assert webhook.process.returncode == 0
    assert not webhook.node.path(SOCKET).exists()


def answers(webhook: Webhook) -> bool:
    try:
        return webhook.ask("/health")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize(
    ("path", "why"),
    [("/etc", "/etc is no socket"), ("/tmp/" + 150 * "x", "cannot listen on /tmp/xxx[x]*: AF_UNIX path too long")],
)
def test_a_path_that_can_be_no_socket_is_refused(node: Node, path: str, why: str) -> None:
    done = node.railcni("dranet-ipam", f"--socket={path}")
    assert done.returncode == 1
    assert re.search(f"{why}: name another file with --socket", done.stderr.decode())


def test_the_names_of_interfaces_are_those_of_the_example_for_whereabouts() -> None:
    assert ifname_of("eth1") == "eth1"
    assert ifname_of("pci-0000-27-00-2") == "0000-27-00-2"
    found = 2166136261  # the 32-bit FNV-1a hash, as draft-eastlake-fnv has it; of nothing it is this
    assert ifname_of("") == f"dra{found:08x}"
    for byte in b"pci-0000-27-00-2.verylong":
        found = ((found ^ byte) * 16777619) % 2**32
    assert ifname_of("pci-0000-27-00-2.verylong") == f"dra{found:08x}"
    names = [ifname_of(name) for name in ("a/b", "", "a b", "ñ" * 20, "x" * 40)]
    assert (len(set(names)), any(ifname_fault(name) for name in names)) == (5, False)


def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["railcni", "dranet-ipam", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "--webhook-url=unix://FILE" in capsys.readouterr().out
