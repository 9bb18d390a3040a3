"""Pods of a real API server on a node with a real kubelet: its devices come from our device plugin, and its networks from us by
Multus."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cni.cli.devices import FOLDER, PODS
from tests.containerd import runtime as runtimes
from tests.containerd.cluster import Cluster
from tests.containerd.kubelet import Kubelet
from tests.containerd.runtime import MULTUS, SECONDS, Pod, Runtime, conflist, multus
from tests.containerd.test_pods import ADDRESSES, RAIL, whole_mtu_crosses
from tests.device_plugin.scene import SHARED, Scene
from tests.device_plugin.test_restarts import report
from tests.node import Node, until

pytestmark = [pytest.mark.containerd, pytest.mark.timeout(900)]
if reason := runtimes.missing("RAILCNI_TEST_KUBELET", "RAILCNI_TEST_KUBECONFIG", "RAILCNI_TEST_MULTUS"):
    pytest.skip(reason, allow_module_level=True)

VF = "intel.com/vf"
NUMBERS = {SHARED: 4, VF: 2}  # of devices, of two plugins


@dataclass
class World:
    """The node, its kubelet, and the processes of two device plugins, each with a resource."""

    node: Node
    cluster: Cluster
    runtime: Runtime
    kubelet: Kubelet
    plugins: list[Scene]

    def pod(self, name: str, network: str = "", **devices: int) -> Pod:
        """A pod that asks for devices: `shared` and `vf`."""
        asked = {SHARED: devices.get("shared", 0), VF: devices.get("vf", 0)}
        asked = {resource: number for resource, number in asked.items() if number}
        return self.cluster.pod(name, *[network] * bool(network), devices=asked)

    def end(self, *names: str) -> None:
        """Delete the last pods, and see that nothing of ours is left."""
        self.kubelet.delete(*names)
        assert self.node.leftovers(settle=SECONDS) == []


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Node(is_warm=False) as node:
        for name in ("ens2f0", "ens3f0"):
            node.master(name, mtu=9000)
        node.remember()
        # The plugins see what a container of the DaemonSet sees: kubelet's folders at their places.
        inside = ["nsenter", f"--target={node.holder}", "--mount", "--net", "--", "setpriv", "--pdeathsig=KILL"]
        with Cluster(node) as cluster, Scene(inside=inside) as one, Scene(inside=inside) as two:
            network = multus(conflist(), kubeconfig=cluster.kubeconfig)
            with Runtime(node, network, more={"multus": Path(MULTUS)}) as runtime, Kubelet(runtime, cluster) as kubelet:
                cluster.network(conflist("ens3f0", "192.168.222.0/24", "rdma-net"), SHARED)
                one.machine.nic(0)
                one.configure({"configList": [one.share("ens0f0", most=4)]})
                two.machine.nic(1, vfs=2)
                two.configure({"resourceList": [{"resourceName": "vf", "selectors": [{"pfNames": ["ens1f0#0-1"]}]}]})
                for scene in (one, two):
                    scene.kubelet.folder, scene.kubelet.pods = Path(FOLDER), Path(PODS)
                    scene.start_plugin()
                assert kubelet.has(NUMBERS), (one.lines, two.lines, kubelet.log())
                yield World(node, cluster, runtime, kubelet, [one, two])
                cluster.delete_pods()
                # kubelet removes the sandboxes of pods that are gone once a minute.
                assert until(lambda: runtime.remains() == [], SECONDS), runtime.remains()


def test_pods_get_the_devices_of_two_plugins_and_net1_with_an_address_and_leave_nothing(world: World) -> None:
    pods = [world.pod("one", "rdma-net", shared=1)]
    containers = [world.kubelet.runs("one")]
    pods.append(world.pod("two", "rdma-net", shared=1, vf=1))
    containers.append(world.kubelet.runs("two"))
    assert world.node.leases() == ADDRESSES + RAIL
    for number, pod in enumerate(pods):
        assert world.cluster.status(pod) == {"eth0": [ADDRESSES[number]], "net1": [RAIL[number]]}
    given = [world.kubelet.devices(name) for name in ("one", "two")]
    assert [{resource: len(ids) for resource, ids in one.items()} for one in given] == [{SHARED: 1}, {SHARED: 1, VF: 1}]
    caches = [path.read_text() for path in world.node.path("/var/lib/cni/multus").iterdir() if path.is_file()]
    for one in given:  # Multus has asked kubelet for the device of the NAD's resource
        assert any(f'"deviceID":"{one[SHARED][0]}"' in text for text in caches), caches
    for container in containers:
        assert world.runtime.run_in(container, "ls", "/dev/infiniband").split() == ["rdma_cm", "uverbs0"]
        assert world.runtime.run_in(container, "sh", "-c", "echo opened > /dev/infiniband/uverbs0 && echo yes")
    variable = world.runtime.run_in(containers[1], "sh", "-c", "echo $PCIDEVICE_INTEL_COM_VF").strip()
    assert [variable] == given[1][VF]
    whole_mtu_crosses(world.runtime, containers[0])
    whole_mtu_crosses(world.runtime, containers[0], "net1", RAIL)
    assert world.kubelet.has(NUMBERS)
    world.end("one", "two")


def kubelet_is_killed(world: World) -> None:
    world.kubelet.kill()
    world.kubelet.start()


def kubelet_restarts(world: World) -> None:
    world.kubelet.kill(signal.SIGTERM)
    world.kubelet.start()


def plugins_are_killed(world: World) -> None:
    for scene in world.plugins:
        scene.end_plugin(signal.SIGKILL)
    start_plugins(world)


def plugins_restart(world: World) -> None:
    for scene in world.plugins:
        scene.end_plugin()
    start_plugins(world)


def all_are_killed(world: World) -> None:
    world.kubelet.kill()
    plugins_are_killed(world)
    world.kubelet.start()


def start_plugins(world: World) -> None:
    for scene in world.plugins:
        scene.start_plugin()
    for scene in world.plugins:
        assert scene.is_up(), scene.lines


Event = Callable[[World], None]
OF_KUBELET: tuple[Event, ...] = (kubelet_is_killed, kubelet_restarts, all_are_killed)
OF_PLUGINS: tuple[Event, ...] = (plugins_are_killed, plugins_restart, all_are_killed)


def survived(world: World, events: Sequence[Event]) -> str:
    """Do all of it; after each event all devices can be had, those of a container are still its own, and a new pod gets
    one. A report of the first of these: of how soon kubelet had all devices, and how soon the API server showed them, which
    takes kubelet's next report."""
    world.pod("lasting", "rdma-net", shared=1, vf=1)
    container = world.kubelet.runs("lasting")
    given = world.kubelet.devices("lasting")
    counted, shown = [], []
    for number, event in enumerate(events):
        event(world)
        began = time.monotonic()
        # The API server shows the former numbers until kubelet reports new ones, so kubelet is asked, too.
        whole = until(lambda: world.kubelet.numbers() == NUMBERS, SECONDS)
        counted.append(time.monotonic() - began)
        whole = whole and world.kubelet.has(NUMBERS)
        shown.append(time.monotonic() - began)
        assert whole, (number, event, world.kubelet.numbers(), [scene.lines[-20:] for scene in world.plugins])
        # A kubelet that has just started lists a pod once it has read it from the API server.
        assert world.kubelet.becomes(lambda: world.kubelet.devices("lasting") == given), world.kubelet.log()
        assert world.kubelet.runs("lasting") == container
        assert world.runtime.run_in(container, "sh", "-c", "echo opened > /dev/infiniband/uverbs0 && echo yes")
        world.pod("later", shared=1)
        world.kubelet.runs("later")
        world.kubelet.delete("later")
    world.end("lasting")
    return f"at kubelet: {report(counted)}\nat the API server: {report(shown)}"


@pytest.mark.parametrize("drawn", [0, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_restarts_and_kills_of_kubelet_and_plugins_take_no_device_from_a_container(
    world: World, drawn: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them once, and as many `drawn` of kubelet and of the plugins."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    events = [dice.choice(kind) for kind in (OF_KUBELET, OF_PLUGINS) for _ in range(drawn)]
    dice.shuffle(events)
    text = survived(world, list(dict.fromkeys((*OF_KUBELET, *OF_PLUGINS))) + events)
    with capsys.disabled():
        print(f"\nseed {seed}\n{text}")
