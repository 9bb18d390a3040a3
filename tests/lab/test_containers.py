"""RDMA between two containers of a real containerd: the device nodes are what `railcni device-plugin` or `railcni dra` has
answered, and eth0 is a macvlan of ours, by whose GIDs ib_write_bw goes.

Debian's containerd (1.6) reads no CDI files: the test gives it the nodes that the file of a claim names. Before Linux 7.2
soft-RoCE needs traffic.turned_round."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cni.resources.kubelet import device_plugin_v1beta1_pb2 as api
from tests.containerd import runtime as runtimes
from tests.containerd.runtime import Pod, Runtime, conflist
from tests.device_plugin.scene import SHARED, Scene
from tests.dra.kubelet import edits, result
from tests.dra.scene import DraScene
from tests.lab import traffic
from tests.lab.machine import Machine, command, gids
from tests.lab.test_device_plugin import nodes, started
from tests.node import until

MACHINES = ("roce",)
SUBNET, ADDRESSES = "192.168.111.0/24", ("192.168.111.1", "192.168.111.2")
HOSTS = ("/usr", "/lib", "/lib64", "/etc/libibverbs.d")  # that the containers see, read-only
_TRIES = 30


@pytest.fixture
def runtime(machine: Machine) -> Iterator[Runtime]:
    groups = Path("/sys/fs/cgroup")
    if not (groups / "cgroup.controllers").exists():
        command("mount", "-t", "cgroup2", "cgroup2", str(groups))
        controllers = (groups / "cgroup.controllers").read_text().split()
        (groups / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    if reason := runtimes.missing():
        pytest.skip(reason)
    for module in ("rdma_ucm", "rdma_rxe"):
        command("modprobe", module)
    machine.dummy("ens2f0", mtu=9000)
    machine.soft_roce("mlx5_0", "ens2f0")
    assert until(lambda: Path("/dev/infiniband/uverbs0").exists(), 30)
    machine.remember()
    with Runtime(machine, conflist()) as made:
        yield made


def allocated() -> list[Any]:
    """What two containers get of the soft-RoCE device by the device plugin."""
    with Scene(real=True) as scene:
        started(scene, {"configList": [scene.share("ens2f0")]})
        assert scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED), runtimes.SECONDS), scene.lines
        return [scene.kubelet.allocate(f"default/{name}/main", SHARED) for name in ("one", "two")]


def claimed() -> list[Any]:
    """What two containers get by a claim of each, whose allocation shares the soft-RoCE device."""
    with DraScene(real=True) as scene:
        scene.configure({"configList": [scene.share("ens2f0")]})
        scene.dra.start()
        scene.start_plugin()
        assert scene.is_up() and scene.until(scene.published), scene.lines
        (device,) = scene.published()
        given = []
        for name in ("one", "two"):
            uid = scene.api.core.add_claim("default", name, result(device, share=f"share-{name}"))
            (devices,) = scene.dra.prepare((uid, "default", name))
            paths = edits(scene.cdi, [one for device in devices for one in device.cdi_device_ids])["nodes"]
            nodes = [api.DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in paths]
            given.append(api.ContainerAllocateResponse(devices=nodes))
        return given


def between(runtime: Runtime, server: tuple[str, Sequence[str]], client: tuple[str, Sequence[str]]) -> str:
    """Run a program as server in one container and as client in another; what the client said."""
    listens = runtime.begin_in(server[0], *server[1])
    for _ in range(_TRIES):
        time.sleep(1)
        done = runtime.begin_in(client[0], *client[1]).result(600)
        said = (done.stdout + done.stderr).decode()
        if done.exit_code == 0 or "Couldn't connect" not in said:
            break
    assert done.exit_code == 0, f"client: {said}\nserver: {listens.result(300) if listens.done() else 'it runs'}"
    assert listens.result(300).exit_code == 0
    return said


@pytest.mark.parametrize("given_by", [allocated, claimed])
def test_ib_write_bw_between_two_containers_with_the_devices_that_kubelet_was_given(
    runtime: Runtime, say: Callable[[str], None], given_by: Callable[[], list[Any]]
) -> None:
    before = gids()
    given = given_by()
    assert [nodes(one) for one in given] == [["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]] * 2
    pods = [Pod("one"), Pod("two")]
    for pod in pods:
        runtime.run_pod(pod)
    with_devices = [
        runtime.container(pod, answer, mounts=HOSTS, capabilities=["IPC_LOCK"])
        for pod, answer in zip(pods, given, strict=True)
    ]
    without = runtime.container(pods[0], mounts=HOSTS)  # of the same pod
    assert "mlx5_0" in runtime.run_in(with_devices[0], "/usr/bin/ibv_devices")
    say(runtime.run_in(with_devices[0], "ls", "-l", "/dev/infiniband").rstrip())
    opened = runtime.begin_in(without, "/usr/bin/ibv_devinfo").result(300)
    assert opened.exit_code != 0, "a container that has no device has opened one"
    indexes = [
        next(n for n, (gid, kind, link) in gids().items() if gid.endswith(f"c0a8:6f0{host}") and link == "eth0")
        for host in (1, 2)
    ]
    words = [["/usr/bin/ib_write_bw", *traffic.WRITE_BW[1:], "-d", "mlx5_0", "-x", str(index)] for index in indexes]
    with traffic.turned_round("ens2f0", SUBNET, ADDRESSES):
        text = between(runtime, (with_devices[0], words[0]), (with_devices[1], [*words[1], ADDRESSES[0]]))
    say(traffic.shown(text))
    assert "GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:111:02" in text
    for pod in pods:
        runtime.end_pod(pod.id)
    assert until(lambda: gids() == before, 30)
    assert runtime.remains() == []
