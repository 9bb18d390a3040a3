"""A DEL that comes while an ADD has been stopped at some point and may go on at any time, or be killed."""

import signal
import time
from collections.abc import Callable

from cni.shared.records import WAIT_SECONDS
from tests.faults.inject import STOP, Command, Injector, Outcome, begin, end, finished
from tests.faults.scene import Scene
from tests.node import Call

LOCK = "lock"  # the file whose bytes are the locks of attachments
_LOOK_SECONDS = 0.08  # a DEL that does not wait is over in a third of this
_BOUND_SECONDS = 10.0


def goes_on(scene: Scene, injector: Injector, command: Command, point: str) -> list[str]:
    """The ADD is stopped, DEL is called, the ADD goes on."""
    return _during(scene, injector, command, point, signal.SIGCONT)


def is_killed(scene: Scene, injector: Injector, command: Command, point: str) -> list[str]:
    """The same, but the ADD is killed then."""
    return _during(scene, injector, command, point, signal.SIGKILL)


def _during(scene: Scene, injector: Injector, command: Command, point: str, number: int) -> list[str]:
    """What must hold depends on what the stopped ADD has by then. Has it the attachment's lock, DEL waits for it, and
    leaves nothing of it. Has it neither that nor anything else, DEL cannot know of it and must not wait: it is over
    before the ADD goes on, which may then succeed; the next DEL clears it. It must have nothing without the lock."""
    add = injector.start(command, STOP, point)
    begin(add)
    pid = injector.stopped(point, add)
    if not pid:
        return [f"the ADD was not stopped at {point}"]
    victim = scene.victim
    held = [lock for lock in scene.locks() if lock.startswith(LOCK + ":")]
    has = scene.standing(victim)
    faults = [f"the ADD has {has} without a lock"] if has and not held else []
    delete = scene.start("DEL", victim)
    begin(delete)
    if held:
        time.sleep(_LOOK_SECONDS)
        if delete.process.poll() is not None:
            faults.append(f"DEL did not wait for an ADD that has {held} and {has}")
        after, before = _both(delete, add, pid, number, faults)
    else:
        after = finished(delete)
        end(pid, number)
        before = finished(add)
    faults += after.faults + before.faults
    if after.reply is None or after.reply.status:
        faults.append(f"DEL failed: {after.reply}")
    elif held:
        faults += [f"after DEL: {what}" for what in scene.standing(victim)]
    else:
        faults += scene.at_rest(before, "ADD")
    scene.call("DEL", victim).succeeded()
    return faults + scene.clean()


def _both(delete: Call, add: Call, pid: int, number: int, faults: list[str]) -> tuple[Outcome, Outcome]:
    """What comes of a DEL that waits and of the ADD that it waits for, once that gets the signal `number`."""
    end(pid, number)
    began = time.monotonic()
    after = finished(delete)
    took = time.monotonic() - began
    if took > _BOUND_SECONDS:
        faults.append(f"DEL took {took:.1f} s more after the ADD had ended")
    return after, finished(add)


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


WAYS: dict[str, Callable[[Scene, Injector, Command, str], list[str]]] = {"goes-on": goes_on, "is-killed": is_killed}
PATIENT: dict[str, Callable[[Scene, Injector, Command, str], list[str]]] = {"stays": stays}  # takes a minute
