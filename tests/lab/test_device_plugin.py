"""`railcni device-plugin` on devices of a real kernel, at a kubelet made for tests."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.device_plugin.scene import SHARED, Scene
from tests.lab.machine import Machine, command

MACHINES = ("roce",)


def offered(scene: Scene, number: int, name: str) -> bool:
    return scene.kubelet.until(lambda: scene.kubelet.allocatable(name) == number)


def nodes(given: Any) -> list[str]:
    """The device nodes that a container gets: they are there."""
    paths = [device.host_path for device in given.devices]
    assert all(stat.S_ISCHR(Path(path).stat().st_mode) for path in paths)
    return paths


def started(scene: Scene, document: object) -> None:
    scene.configure(document)
    scene.kubelet.start()
    scene.start_plugin()


def test_soft_roce_is_offered_while_its_port_is_active(machine: Machine, say: Callable[[str], None]) -> None:
    for module in ("rdma_ucm", "ib_umad"):
        command("modprobe", module)
    machine.dummy()
    machine.soft_roce()
    with Scene(real=True) as scene:
        started(scene, {"configList": [scene.share("ens2f0", most=1000)]})
        room = len([*Path("/sys/class/infiniband/mlx5_0/ports/1/gids").iterdir()])
        assert scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED)), scene.lines
        number = scene.kubelet.allocatable(SHARED)
        say(f"{number} devices of soft-RoCE, whose GID table has {room} entries")
        assert number == (room - 1) // 2
        assert nodes(scene.kubelet.allocate("pod/one", SHARED)) == [
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/rdma_cm",
        ]
        command("ip", "link", "set", "ens2f0", "down")
        assert offered(scene, 0, SHARED), scene.lines
        assert scene.said("mlx5_0 port 1 is DOWN")
        command("ip", "link", "set", "ens2f0", "up")
        assert offered(scene, number, SHARED)
        scene.configure({"configList": [scene.share("ens2f0", most=10, umad=True)]})
        assert offered(scene, 10, SHARED)
        assert {Path(path).name for path in nodes(scene.kubelet.allocate("pod/two", SHARED))} == {
            "uverbs0", "umad0", "issm0", "rdma_cm",
        }  # fmt: skip
