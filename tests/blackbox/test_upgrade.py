"""This version and the one before handle each other's attachments: an upgrade, and going back, with live pods."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from cni.shared.records import FORMAT
from tests.faults import trace
from tests.faults.inject import KILL, STOP, Command, Injector, begin, end, unavailable
from tests.node import CHROOT, STATE, Node, Pod
from tests.unit.test_attachment import make_newer
from tests.upgrade import Network, build_previous
from tests.view import Link

pytestmark = pytest.mark.skipif(bool(CHROOT), reason="the version before needs Python: unset RAILCNI_CHROOT")
EVERY = bool(os.environ.get("EVERY"))  # every point at which a call can be killed, not some at random


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_previous(tmp_path_factory.mktemp("previous"))
    except LookupError as why:
        pytest.skip(str(why))


@pytest.fixture(params=["upgrade", "downgrade"])
def versions(request: pytest.FixtureRequest, executables: Path, previous: Path) -> tuple[Path, Path]:
    """The version that attaches, and the one that goes on."""
    return (previous, executables) if request.param == "upgrade" else (executables, previous)


@pytest.fixture(params=["macvlan", "host-device"])
def network(request: pytest.FixtureRequest, node: Node) -> Network:
    return on(node, request.param)


LONG = (("macvlan", "downgrade"), ("host-device", "upgrade"))
WAYS = [
    ("macvlan", "upgrade"),
    ("host-device", "downgrade"),
    *(pytest.param(*way, marks=pytest.mark.long) for way in LONG),
]
each_way = pytest.mark.parametrize(("network", "versions"), WAYS, indirect=True)


def on(node: Node, plugin: str) -> Network:
    if plugin == "macvlan":
        node.master()
    else:
        for number in (8, 9):
            node.host.add_veth(f"ens{number}", f"peer{number}", mtu=4200)
            node.host.add_address(f"ens{number}", f"10.8{number}.0.1/24")
        node.remember()
    return Network(node, plugin)


def addresses(pod: Pod) -> list[str]:
    return sorted(t for t in pod.view.link("net1").texts if not t.startswith("fe80"))


@each_way
def test_what_one_has_attached_the_other_checks_and_detaches(network: Network, versions: tuple[Path, Path]) -> None:
    one, other = versions
    pod = network.node.pod()
    result = network.call(one, "ADD", pod).succeeded()
    assert addresses(pod) == ["10.9.0.1/24", "fd00:9::1/64"]
    network.call(other, "CHECK", pod, prevResult=result).succeeded()
    network.call(other, "DEL", pod).succeeded()
    network.call(one, "DEL", pod).succeeded()
    assert network.node.leftovers() == []


@each_way
def test_a_pod_that_lives_keeps_its_addresses_others_get_others(network: Network, versions: tuple[Path, Path]) -> None:
    one, other = versions
    pod, second = network.node.pod(), network.node.pod("pod2")
    network.call(one, "ADD", pod).succeeded()
    network.device = "ens8"
    network.call(other, "ADD", second, "c2").succeeded()
    assert (addresses(pod)[0], addresses(second)[0]) == ("10.9.0.1/24", "10.9.0.2/24")
    network.collect(other, "c1", "c2").succeeded()
    network.collect(one, "c1", "c2").succeeded()
    assert (addresses(pod)[0], addresses(second)[0]) == ("10.9.0.1/24", "10.9.0.2/24")
    if network.plugin == "host-device":  # the other knows who has a device
        network.device = "ens9"
        network.call(other, "ADD", second, "c3").refused(11, "ens9")
    network.collect(other, "c2").succeeded()
    assert network.node.leases() == ["10.9.0.2", "fd00:9::2"]
    network.collect(one).succeeded()
    assert network.node.leftovers() == []


def test_a_device_has_its_addresses_and_routes_again(node: Node, versions: tuple[Path, Path]) -> None:
    one, other = versions
    network = on(node, "host-device")
    node.host.add_address("ens9", "fd00:89::1/64")
    node.host.add_route("ens9", "10.99.0.0/16", gateway="10.89.0.254", priority=50)
    node.host.add_route("ens9", "fd00:99::/64", gateway="fd00:89::fe")
    before = node.host.link("ens9")
    pod = node.pod()
    network.call(one, "ADD", pod).succeeded()
    network.call(other, "DEL", pod).succeeded()
    after = node.host.link("ens9")
    assert (after.texts, after.up, after.mtu) == (before.texts, before.up, before.mtu)
    assert (lasting_routes(after), node.leftovers()) == (lasting_routes(before), [])


def lasting_routes(link: Link) -> list[str]:
    return sorted(r.dst for r in link.routes if not r.dst.startswith("fe80:"))  # which the kernel sets a moment later


@each_way
def test_an_add_that_is_repeated_by_the_other_gives_the_same(network: Network, versions: tuple[Path, Path]) -> None:
    one, other = versions
    pod, again = network.node.pod(), network.node.pod("pod1.new")
    given = network.call(one, "ADD", pod).succeeded()["ips"]
    assert network.call(other, "ADD", pod).succeeded()["ips"] == given
    if network.plugin == "macvlan":  # the pod gets a new sandbox, and the DEL of the old one comes late
        assert network.call(one, "ADD", again, "c2").succeeded()["ips"] == given
        network.call(other, "DEL", pod).succeeded()
        assert addresses(again) == ["10.9.0.1/24", "fd00:9::1/64"]
        network.call(other, "DEL", again, "c2").succeeded()
    network.call(one, "DEL", pod).succeeded()
    assert network.node.leftovers() == []


def test_a_sandbox_that_died_is_cleared_by_the_other(node: Node, versions: tuple[Path, Path]) -> None:
    one, other = versions
    network = on(node, "macvlan")
    pod = node.pod()
    network.call(one, "ADD", pod).succeeded()
    node.delete_pod(pod)
    network.call(other, "DEL", pod).succeeded()
    assert node.leftovers(settle=5) == []


def points(injector: Injector, network: Network, version: Path) -> list[str]:
    """Where an ADD of `version` changes something that outlives it; not the first on a node, which makes directories."""
    pod = network.node.pod("traced")
    network.call(version, "ADD", pod, "traced").succeeded()
    network.call(version, "DEL", pod, "traced").succeeded()
    outcome, text = injector.record(command(network, version, pod, "traced"))
    assert outcome.reply is not None
    outcome.reply.succeeded()
    network.call(version, "DEL", pod, "traced").succeeded()
    network.node.delete_pod(pod)
    return [c.point for c in trace.parse(text) if trace.changes(c)]


def command(network: Network, version: Path, pod: Pod, container: str) -> Command:
    environ = network.environ(version, "ADD", pod, container)
    return Command(version / network.plugin, environ, json.dumps(network.config).encode())


@each_way
def test_an_add_that_was_killed_is_gone_on_with_by_the_other(network: Network, versions: tuple[Path, Path]) -> None:
    if why := unavailable():
        pytest.skip(why)
    one, other = versions
    node = network.node
    with Injector(node) as injector:
        found, killed = points(injector, network, one), 0
        for number, point in enumerate(found if EVERY else random.sample(found, 3)):
            pod, container = node.pod(f"pod{number}"), f"c{number}"
            outcome = injector.strike(command(network, one, pod, container), KILL, point)
            killed += outcome.killed  # a call that met no contention may have a system call less
            how = number % 3
            if how == 0:
                given = network.call(other, "ADD", pod, container).succeeded()
                assert [a["address"] for a in given["ips"]] == ["10.9.0.1/24", "fd00:9::1/64"] == addresses(pod), point
            if how == 1:
                network.collect(other).succeeded()
            else:
                network.call(other, "DEL", pod, container).succeeded()
            assert node.leftovers(settle=2) == [], (point, how)
            node.delete_pod(pod)
        assert killed


def test_a_del_waits_for_an_add_of_the_other(node: Node, versions: tuple[Path, Path]) -> None:
    """Both hold the same lock: else the DEL would find nothing, and the ADD would make a link for nobody."""
    if why := unavailable():
        pytest.skip(why)
    one, other = versions
    network = on(node, "macvlan")
    pod = node.pod()
    with Injector(node) as injector:
        found = points(injector, network, one)
        point = found[len(found) * 2 // 3]
        add = injector.start(command(network, one, pod, "c1"), STOP, point)
        begin(add)
        pid = injector.stopped(point, add)
        assert pid
        delete = network.start(other, "DEL", pod)
        begin(delete)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                delete.process.wait(0.5)
        finally:
            end(pid, signal.SIGCONT)
        add._stdin = delete._stdin = None  # type: ignore[assignment]
        add.finish()
        delete.finish().succeeded()
    assert node.leftovers(settle=2) == []


def test_what_a_version_to_come_has_recorded_is_refused_and_left_for_it(network: Network, executables: Path) -> None:
    node = network.node
    pod = node.pod()
    result = network.call(executables, "ADD", pod).succeeded()
    records = list(node.path(STATE).joinpath("attachments").iterdir())
    kept = {record: record.read_bytes() for record in records}
    for record in records:
        make_newer(record)
    before = node.leftovers()
    words = f"format {FORMAT + 1}, and this railcni knows {FORMAT}"
    network.call(executables, "ADD", pod).refused(5, words)
    network.call(executables, "DEL", pod, prevResult=result).refused(5, words)
    second = node.pod("pod2")
    network.device = "ens8"
    network.call(executables, "ADD", second, "c2").succeeded()  # nobody else is hindered
    assert "10.9.0.1/24" not in addresses(second)
    network.call(executables, "DEL", second, "c2").succeeded()
    network.device = "ens9"
    network.collect(executables).refused(5, words)
    assert (node.leftovers(), addresses(pod)) == (before, ["10.9.0.1/24", "fd00:9::1/64"])
    for record, data in kept.items():
        record.write_bytes(data)
    network.call(executables, "DEL", pod).succeeded()
    assert node.leftovers() == []
