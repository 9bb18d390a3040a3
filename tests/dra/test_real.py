"""Claims of a real API server, scheduler and kubelet with a real containerd: RAILCNI_TEST_KUBECONFIG names an administrator's
kubeconfig of a cluster that has scheduler and controller manager, RAILCNI_TEST_KUBELET an executable of kubelet; Kubernetes
1.36 is the first that has all that is used here. With RAILCNI_TEST_MULTUS, a Multus that reads claims, pods have networks too.
"""

import random
import signal
import time
from collections.abc import Iterator

import pytest

from cni.cli.doctor import pods
from tests.containerd import runtime as runtimes
from tests.containerd.runtime import SECONDS
from tests.device_plugin.test_restarts import report
from tests.dra.real import FIRST, RAILS, World, running
from tests.dra.scene import RIGHT_SECONDS
from tests.node import until

pytestmark = [pytest.mark.containerd, pytest.mark.timeout(900)]
if reason := runtimes.missing("RAILCNI_TEST_KUBELET", "RAILCNI_TEST_KUBECONFIG") or runtimes.without_cdi():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        yield world


def test_two_pods_share_a_nic_and_a_third_that_wants_more_than_is_left_waits(world: World) -> None:
    on_first = world.on("ens0f0")
    for name in ("one", "two"):
        world.claim(name, {"nic": on_first})
        world.pod(name)
    containers = [world.kubelet.runs(name) for name in ("one", "two")]
    assert world.allocated("one") == world.allocated("two") == [world.nics[0]]
    found = pods.read_claims(str(world.runtime.node.path("/var/lib/kubelet")))  # as doctor reads it
    assert sorted((one.name.partition("/")[2], len(one.pods)) for one in found) == [("one", 1), ("two", 1)]
    for container in containers:
        assert world.runtime.run_in(container, "ls", "/dev/infiniband").split() == ["rdma_cm", "uverbs0"]
        assert world.runtime.run_in(container, "sh", "-c", "echo opened > /dev/infiniband/uverbs0 && echo yes")
    world.claim("greedy", {"nic": on_first | {"capacity": {"requests": {"gids": "126"}}}})
    world.pod("greedy")
    assert world.kubelet.becomes(lambda: "cannot allocate all claims" in world.waits("greedy")), world.waits("greedy")
    world.end("one", "two", "greedy")


@pytest.mark.parametrize("root", ["pci0000:30", "pci0000:31"])
def test_the_nic_below_the_pcie_root_of_the_gpu_is_chosen(world: World, root: str) -> None:
    world.gpu(root)
    requests = {"gpu": {"deviceClassName": world.classes["gpu"]}, "nic": {"deviceClassName": world.classes["nic"]}}
    world.claim("pair", requests, same="resource.kubernetes.io/pcieRoot")
    world.pod("pair")
    number = int(root[-1])
    assert world.runtime.run_in(world.kubelet.runs("pair"), "ls", "/dev/infiniband").split() == [
        "rdma_cm",
        f"uverbs{number}",
    ]
    assert world.allocated("pair") == ["gpu-0", world.nics[number]]
    world.end("pair")


def test_a_pod_that_asks_for_the_resource_by_its_old_name_gets_a_device(world: World) -> None:
    world.pod("old", devices={world.resource: 1})
    assert "rdma_cm" in world.runtime.run_in(world.kubelet.runs("old"), "ls", "/dev/infiniband").split()
    world.end("old")


@pytest.mark.skipif(
    not RAILS, reason="RAILCNI_TEST_MULTUS is to name an executable of Multus that reads ResourceClaims"
)
def test_one_network_gives_a_pod_the_subnets_of_its_eight_rails_and_one_index(world: World) -> None:
    netdevs = [f"ens{FIRST + rail}f0" for rail in range(RAILS)]
    ranges = [f"10.20.{rail}.0/24" for rail in range(RAILS)]
    key = {"group": "gpu", "addressing": "same-index", "nics": netdevs, "ranges": ranges}
    ipam = {"type": "whereabouts", "datastore": "file"}
    network = {"cniVersion": "1.0.0", "name": "rail", "type": "macvlan", "mtu": 9000, "rail": key, "ipam": ipam}
    world.cluster.network(network, f"{world.resource}-rail")
    node = world.runtime.node
    masters = [node.host.link(netdev).index for netdev in netdevs]
    order = random.Random(1).sample(range(RAILS), RAILS)
    for index, name in enumerate(("first", "second"), 1):
        world.rails(name, order)
        pod = world.cluster.pod(name, *["rail"] * RAILS, template=name, scheduler=True)
        container = world.kubelet.runs(name)
        status = world.cluster.status(pod)
        status.pop("eth0")
        assert sorted(status.values()) == [[f"10.20.{rail}.{index}"] for rail in range(RAILS)]
        for link, (address,) in status.items():
            lower = world.runtime.run_in(container, "cat", f"/sys/class/net/{link}/iflink")
            assert int(lower) == masters[int(address.split(".")[2])], (link, address)
        print(name, status)
    world.end("first", "second")
    assert node.leftovers(settle=SECONDS) == []


def killed(world: World, dice: random.Random, count: int) -> str:
    """Kill driver, kubelet or both; within RIGHT_SECONDS the slices are whole each time, and a prepared claim stays so."""
    world.claim("lasting", {"nic": world.on("ens0f0")})
    world.pod("lasting")
    container, took = world.kubelet.runs("lasting"), []
    for number in range(count):
        one = dice.choice(("driver", "kubelet", "both"))
        world.driver.lines.clear()
        if one != "driver":
            world.kubelet.kill(dice.choice((signal.SIGKILL, signal.SIGTERM)))
        if one != "kubelet":
            world.driver.end_plugin(dice.choice((signal.SIGKILL, signal.SIGTERM)))
            world.driver.start_plugin()
        if one != "driver":
            world.kubelet.start()
        began = time.monotonic()
        assert world.driver.said("kubelet has registered"), world.driver.lines
        registered = time.monotonic()  # a real kubelet takes its own time to start
        is_right = until(lambda: world.published() == world.nics, RIGHT_SECONDS)
        took.append(time.monotonic() - began)
        after = f"{time.monotonic() - registered:.1f} s after kubelet has registered the driver"
        assert is_right, f"kill {number}, of {one}: {world.published()} {after}"
        # Not sooner: kubelet tries again only after a minute where it has found no driver.
        world.claim("later", {"nic": world.on("ens1f0")})
        world.pod("later")
        world.kubelet.runs("later")
        assert world.kubelet.runs("lasting") == container
        world.end("later", left=1)
    world.end("lasting")
    return report(took)


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_kills_of_driver_and_kubelet_take_no_device_from_a_pod(
    world: World, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1 << 32)
    text = killed(world, random.Random(seed), count)
    with capsys.disabled():
        print(f"\nseed {seed}: to a running pod with a claim\n{text}")
