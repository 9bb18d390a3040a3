"""A DEL that comes while an ADD has been stopped at some point and may go on at any time, or be killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from cni.attachment import WAIT_SECONDS
from tests.faults.inject import STOP, Command, Injector, begin, end, finished
from tests.faults.scene import Scene

_LOOK_SECONDS = 0.08  # a DEL that does not wait is over in a third of this
_BOUND_SECONDS = 10.0


def goes_on(scene: Scene, injector: Injector, command: Command, point: str) -> list[str]:
    """The ADD is stopped, DEL is called, the ADD goes on: the DEL waits for it, and nothing is left of either."""
    return _during(scene, injector, command, point, signal.SIGCONT)


def is_killed(scene: Scene, injector: Injector, command: Command, point: str) -> list[str]:
    """The same, but the ADD is killed while the DEL waits."""
    return _during(scene, injector, command, point, signal.SIGKILL)


def _during(scene: Scene, injector: Injector, command: Command, point: str, number: int) -> list[str]:
    add = injector.start(command, STOP, point)
    begin(add)
    pid = injector.stopped(point, add)
    if not pid:
        return [f"the ADD was not stopped at {point}"]
    victim = scene.victim
    guarded = scene.state().of(victim.container) + [n for n in victim.sandbox.view.names() if n]
    delete = scene.start("DEL", victim)
    begin(delete)
    faults = []
    time.sleep(_LOOK_SECONDS)
    waited = delete.process.poll() is None
    if guarded and not waited:
        faults.append(f"DEL did not wait for an ADD that has {guarded}")
    end(pid, number)
    began = time.monotonic()
    after = finished(delete)
    if time.monotonic() - began > _BOUND_SECONDS:
        faults.append(f"DEL took {time.monotonic() - began:.1f} s more after the ADD had ended")
    before = finished(add)
    faults += after.faults + before.faults
    if after.reply is None or after.reply.status:
        faults.append(f"DEL failed: {after.reply}")
    elif guarded:
        faults += [f"after DEL: {what}" for what in scene.standing(victim)]
    elif before.reply and before.reply.status == 0 and scene.standing(victim):  # the DEL came first
        faults += scene.attached(victim, before.reply)
    scene.call("DEL", victim).succeeded()
    return faults + scene.clean()


def stays(scene: Scene, injector: Injector, command: Command, point: str) -> list[str]:
    """The ADD never goes on: the DEL gives up within the bound, and says what to do; it works once the ADD is gone."""
    add = injector.start(command, STOP, point)
    begin(add)
    pid = injector.stopped(point, add)
    began = time.monotonic()
    reply = scene.start("DEL", scene.victim).finish(timeout=2 * WAIT_SECONDS)
    took = time.monotonic() - began
    end(pid, signal.SIGKILL)
    finished(add)
    faults = [] if reply.code == 11 and "retry" in reply.msg else [f"DEL answered {reply.document}"]
    if not 0.9 * WAIT_SECONDS < took < WAIT_SECONDS + 5:
        faults.append(f"DEL took {took:.0f} s")
    scene.call("DEL", scene.victim).succeeded()
    return faults + scene.clean()


WAYS: dict[str, Callable[[Scene, Injector, Command, str], list[str]]] = {
    "goes-on": goes_on,
    "is-killed": is_killed,
}
PATIENT: dict[str, Callable[[Scene, Injector, Command, str], list[str]]] = {"stays": stays}  # takes a minute
