"""kubelet and the device plugin restarted and killed at random: all devices are there again, and no container loses its.

`python -m tests.device_plugin.test_restarts` prints how long a resource was not whole, and what 8 NICs cost.
"""

import random
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.device_plugin.kubelet import Other
from tests.device_plugin.scene import SHARED, Scene

NICS, EACH = 2, 10


def kubelet_restarts(scene: Scene) -> None:
    scene.kubelet.restart()


def kubelet_is_killed(scene: Scene) -> None:
    scene.kubelet.restart(killed=True)
    assert scene.kubelet.allocatable(SHARED) == 0


def kubelet_restarts_twice(scene: Scene) -> None:
    scene.kubelet.restart()
    scene.kubelet.restart()


def plugin_restarts(scene: Scene) -> None:
    scene.end_plugin()
    scene.start_plugin()


def plugin_is_killed(scene: Scene) -> None:
    scene.end_plugin(signal.SIGKILL)
    scene.start_plugin()


def both_are_killed(scene: Scene) -> None:
    scene.end_plugin(signal.SIGKILL)
    scene.kubelet.restart(killed=True)
    scene.start_plugin()


def plugin_is_killed_while_kubelet_is_away(scene: Scene) -> None:
    scene.kubelet.stop(killed=True)
    scene.end_plugin(signal.SIGKILL)
    scene.start_plugin()
    scene.kubelet.start()


OF_KUBELET = (kubelet_restarts, kubelet_is_killed, both_are_killed, plugin_is_killed_while_kubelet_is_away)
OF_PLUGIN = (plugin_restarts, plugin_is_killed, both_are_killed, plugin_is_killed_while_kubelet_is_away)


def restarts(scene: Scene, events: list[Callable[[Scene], None]]) -> list[float]:
    """Do all of it; after each event every device is healthy and those of containers are still theirs. The seconds it
    took each time, from when both processes were up."""
    for number in range(NICS):
        scene.machine.nic(number)
    scene.configure({"configList": [scene.share(*(f"ens{n}f0" for n in range(NICS)), most=NICS * EACH)]})
    scene.kubelet.start()
    scene.start_plugin()
    took = []
    expected: dict[str, list[str]] = {}
    for number, event in enumerate([None, *events]):
        if event is not None:
            event(scene)
        assert scene.is_up()
        began = time.monotonic()
        whole = scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED) == NICS * EACH)
        took.append(time.monotonic() - began)
        assert whole, (number, event, scene.lines[-20:])
        assert {c: devices[SHARED] for c, devices in scene.kubelet.pod_devices.items()} == expected
        assert {one for ids in expected.values() for one in ids} <= scene.kubelet.resources[SHARED].healthy
        if number % 5 == 0 and len(expected) < NICS * EACH:
            scene.kubelet.allocate(f"pod/{number}", SHARED)
            expected[f"pod/{number}"] = scene.kubelet.pod_devices[f"pod/{number}"][SHARED]
    return took[1:]


def drawn(seed: int, each: int) -> list[Callable[[Scene], None]]:
    """Events that end kubelet `each` times at least, and the plugin as often."""
    dice = random.Random(seed)
    events: list[Callable[[Scene], None]] = [dice.choice(OF_KUBELET) for _ in range(each)]
    events += [dice.choice(OF_PLUGIN) for _ in range(each)]
    dice.shuffle(events)
    return events


LONG = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("by_path", "each"), [
    (True, 0), pytest.param(True, 50, marks=LONG), pytest.param(False, 50, marks=LONG),
], ids=["kubelet", "kubelet fifty times", "older kubelet fifty times"])  # fmt: skip
def test_kubelet_and_plugin_are_killed_and_restarted(by_path: bool, each: int) -> None:
    seed = random.randrange(1 << 32)
    events = [both_are_killed, kubelet_is_killed, kubelet_restarts_twice, plugin_is_killed_while_kubelet_is_away]
    with Scene(by_path) as scene:
        took = restarts(scene, [*events, plugin_restarts, *drawn(seed, each)])
    print(f"seed {seed}: {report(took)}")


@pytest.mark.parametrize(
    "by_path", [True, pytest.param(False, marks=pytest.mark.long)], ids=["kubelet", "older kubelet"]
)
def test_a_plugin_that_registers_the_resource_later_at_a_new_kubelet_keeps_it_until_it_has_gone(by_path: bool) -> None:
    with Scene(by_path) as scene:
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0", most=10)]})
        scene.kubelet.start()
        scene.start_plugin()
        assert scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED) == 10)
        scene.kubelet.restart()
        assert scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED) == 10)
        with Other(scene.kubelet, SHARED, ["0", "1"]):
            assert scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED) == 2)
            assert scene.said(f"another device plugin serves {SHARED}, with 2 devices")
            lists = scene.kubelet.resources[SHARED].lists
            scene.machine.port("mlx5_0", "1: DOWN")  # a change that is not sent now
            assert not scene.kubelet.until(lambda: scene.kubelet.resources[SHARED].lists > lists, 3)
            scene.machine.port("mlx5_0", "4: ACTIVE")
        assert scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED) == 10), scene.lines


def report(took: list[float]) -> str:
    return f"{len(took)} events; whole again after {statistics.median(took):.1f} s (median), {max(took):.1f} s (worst) with both up"


def memory(pid: int) -> list[float]:
    """The RSS and the PSS of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return [int(line.split()[1]) / 1024 for line in lines if line.startswith(("Rss:", "Pss:"))]


def bench(nics: int = 8, each: int = 1000) -> str:
    """From the start of the plugin's process, and from that of kubelet, until all devices are known; the memory."""
    with Scene() as scene:
        for number in range(nics):
            scene.machine.nic(number)
        names = [f"hca_{n}" for n in range(nics)]
        shared = [scene.share(f"ens{n}f0", most=each, name=name, gidsPerDevice=0) for n, name in enumerate(names)]
        scene.configure({"configList": shared})

        def whole() -> bool:
            return all(scene.kubelet.allocatable(f"rdma/{name}") == each for name in names)

        scene.kubelet.start()
        began = time.monotonic()
        plugin = scene.start_plugin()
        assert scene.kubelet.until(whole), scene.lines
        first = time.monotonic() - began
        began = time.monotonic()
        scene.kubelet.restart()
        assert scene.kubelet.until(whole), scene.lines
        again = time.monotonic() - began
        rss, pss = memory(plugin.pid)
    return (
        f"{each} devices of each of {nics} NICs: known {first:.2f} s after the start of the plugin's process, {again:.2f} s after"
        f" a restart of kubelet; memory {rss:.0f} MB RSS, {pss:.0f} MB PSS"
    )


def test_a_thousand_devices_of_each_of_eight_nics_are_registered(capsys: pytest.CaptureFixture[str]) -> None:
    text = bench()
    with capsys.disabled():
        print(f"\n{text}")


if __name__ == "__main__":
    print(bench())
    with Scene() as alone:
        print(report(restarts(alone, drawn(random.randrange(1 << 32), 5))))
