"""Driver and kubelet are restarted and killed at random: each time the node is right again within 5 s, and no file is left.
A start publishes the devices at once."""

import asyncio
import random
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from cni.node.service.log import AgentLog
from cni.resources.dra import driver
from tests.device_plugin.kubelet import SECONDS
from tests.device_plugin.scene import Scene
from tests.device_plugin.test_restarts import memory, report
from tests.dra.kubelet import Refused, result
from tests.dra.scene import NODE, RIGHT_SECONDS, DraScene
from tests.dra.test_slices import SHARED, VF, VFS, share
from tests.node import until

DEVICES = sorted([SHARED, "rdma-a-0000-31-00-0", VF, VF[:-1] + "2"])
Claim = tuple[str, str, str]


def prepared(scene: DraScene, claim: Claim) -> Any:
    """The answer of the driver; None when it does not answer, or refuses."""
    try:
        return scene.dra.prepare(claim)
    except (grpc.RpcError, Refused, ValueError):  # a closed channel, or no driver any more
        return None


def is_right(scene: DraScene, held: dict[Claim, Any], registered: int) -> bool:
    """Whether kubelet has registered the driver again, all devices are published, and the claims `held` alone have files
    and answers: the same as before, if there were any."""
    if len(scene.dra.registered) == registered or sorted(scene.published()) != DEVICES:
        return False
    answers = {claim: prepared(scene, claim) for claim in held}
    is_answered = all(answers[claim] and before in (None, answers[claim]) for claim, before in held.items())
    files = [name for name in scene.left() if not name.startswith("intel.com")]
    if is_answered and len(files) == 2 * len(held):
        held.update(answers)
        return True
    return False


def restart(scene: DraScene, dice: random.Random, which: Sequence[int]) -> None:
    """End driver (0), kubelet (1) or both in the order `which`, and start them again in any order."""
    ends = (lambda: scene.end_plugin(dice.choice((signal.SIGKILL, signal.SIGTERM))), scene.dra.stop)
    starts = (scene.start_plugin, scene.dra.start)
    for number in which:
        ends[number]()
    for number in dice.sample(which, len(which)):
        starts[number]()


def restarts(scene: DraScene, dice: random.Random, count: int) -> list[float]:
    """Restart `count` times, each time while a claim is prepared, and end some claims between. The seconds until the node
    was right, from when both processes were started."""
    held: dict[Claim, Any] = {}
    took = []
    for number in range(count):
        for claim in [claim for claim in held if dice.random() < 0.5]:
            scene.dra.unprepare(claim)
            del scene.api.core.objects["resourceclaims", claim[1], claim[2]], held[claim]
        results = [result(SHARED), *([result(VF)] if not any("vf" in claim[2] for claim in held) else [])]
        name = f"{'vf' if results[1:] else 'nic'}-{number}"
        new = scene.api.core.add_claim("team", name, *results), "team", name
        registered = len(scene.dra.registered)
        asking = threading.Thread(target=prepared, args=(scene, new))
        asking.start()
        restart(scene, dice, ([0], [1], [0, 1], [1, 0])[number % 4])
        began = time.monotonic()
        held[new] = None
        is_whole = until(partial(is_right, scene, held, registered), RIGHT_SECONDS)
        took.append(time.monotonic() - began)
        asking.join()
        state = f"after {took[-1]:.1f} s: {sorted(scene.published())}, {scene.left()}"
        assert is_whole and took[-1] <= RIGHT_SECONDS, f"restart {number}, {state}\n" + "\n".join(scene.lines[-20:])
    scene.dra.unprepare(*held)
    assert scene.left() == []
    return took


@pytest.fixture
def scene() -> Iterator[DraScene]:
    with DraScene() as scene:
        scene.machine.nic(0)
        scene.machine.nic(1, vfs=2)
        scene.configure(share("a", "ens0f0", "ens1f0") | VFS)
        scene.dra.start()
        scene.start_plugin()
        yield scene


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_node_is_right_again_within_5_s_of_each_restart_of_driver_and_kubelet(
    scene: DraScene, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text = report(restarts(scene, random.Random(seed := random.randrange(1 << 32)), count))
    with capsys.disabled():
        print(f"\nseed {seed}: {text}")


@contextmanager
def in_a_thread(scene: DraScene) -> Iterator[None]:
    """The driver in this process."""
    options = Namespace(
        config=[str(scene.config)], root=str(scene.root), node=NODE, kubelet_root=str(scene.dra.folder),
        kubeconfig=str(scene.api.kubeconfig(scene.folder)),
    )  # fmt: skip
    ended = asyncio.Event()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(driver.Driver(options, AgentLog()).run(ended),))
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()


def eight_nics(scene: Scene) -> None:
    names = [f"ens{number}f0" for number in range(8) if scene.machine.nic(number)]
    scene.configure(share("rail", *names, most=8 * 63))


def test_eight_nics_with_63_shares_each_are_published_as_soon_as_kubelet_has_registered_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_TICK", 3600.0)
    with DraScene() as scene:
        eight_nics(scene)
        scene.dra.start()
        began, used = time.monotonic(), time.process_time()
        with in_a_thread(scene):
            assert until(scene.slices, SECONDS)
            took, used = time.monotonic() - began, time.process_time() - used
        (slice,) = scene.slices()
        values = [device["capacity"]["gids"]["value"] for device in slice["spec"]["devices"]]
        assert values == ["126"] * 8
    print(f"published after {took:.2f} s")
    assert used < 1, f"{used:.1f} s of processor time, which other programs' load does not change"


def test_a_kubelet_that_registers_the_driver_anew_gets_the_slices_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TICK", "_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(driver, name, 3600.0)
    with DraScene() as scene:
        eight_nics(scene)
        scene.dra.start()
        with in_a_thread(scene):
            assert until(scene.slices, SECONDS)
            scene.dra.restart()  # deletes the slices
            assert until(scene.slices, SECONDS)


def test_for_eight_nics_the_driver_has_at_most_10_mb_more_memory_than_the_device_plugin() -> None:
    with DraScene() as scene:
        eight_nics(scene)
        scene.dra.start()
        process = scene.start_plugin()
        assert scene.until(scene.slices), scene.lines
        ours, _ = memory(process.pid)
    with Scene() as other:
        eight_nics(other)
        other.kubelet.start()
        process = other.start_plugin()
        assert other.kubelet.until(lambda: other.kubelet.allocatable("rdma/rail") == 8 * 63), other.lines
        theirs, _ = memory(process.pid)
    assert ours <= theirs + 10
