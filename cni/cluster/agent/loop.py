"""The agent's loop, which runs the due tasks in turn, one step of each at a time. A task is a generator. A step makes
one or two requests, so a task delays other tasks only as long as these requests take. A signal interrupts any step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from time import monotonic
from typing import NoReturn

from cni.node.service.log import AgentLog
from cni.shared.spec.errors import CniError

SECONDS = 3.0  # the limit for a request to the API server, since a request delays all tasks

Steps = Callable[[], Iterator[object]]


class Ended(BaseException):
    """SIGTERM or SIGINT has interrupted the running task. The next run of the agent completes the task."""


def _end(number: int, frame: object) -> NoReturn:
    for known in (signal.SIGTERM, signal.SIGINT):
        signal.signal(known, signal.SIG_IGN)  # one signal is enough
    raise Ended


def end_on_signals() -> None:
    """Make SIGTERM and SIGINT raise Ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


class Task:
    """A task that is run every `every` seconds. A run takes all steps of the generator `begin()`. After a failure, the
    next run begins in 1 s. This wait doubles with each failure, up to `longest` seconds (0 means `every`)."""

    def __init__(self, name: str, every: float, begin: Steps, longest: float = 0.0) -> None:
        self.name = name
        self.every = every
        self.due = 0.0  # monotonic seconds
        self.failed = False
        self._begin = begin
        self._retry = self._pause = min(1.0, every)
        self._longest = longest or every
        self.steps: Iterator[object] | None = None

    def advance(self, log: AgentLog) -> bool:
        """Run a step. Returns whether the task's run has ended, with success or with a failure."""
        if self.steps is None:
            self.steps = self._begin()
        try:
            next(self.steps)
            return False
        except StopIteration:
            self.failed, self._pause, self.due = False, self._retry, monotonic() + self.every
            log.state(self.name, "")
        except CniError as fault:
            self._fail(log, fault.msg)
        except Exception as fault:  # the other tasks continue
            self._fail(log, f"a fault of railcni itself: {type(fault).__name__}: {fault}")
        self.steps = None
        return True

    def _fail(self, log: AgentLog, text: str) -> None:
        self.failed, self.due = True, monotonic() + self._pause
        self._pause = min(2 * self._pause, self._longest)
        log.state(self.name, text, task=self.name)


def run(tasks: list[Task], log: AgentLog) -> NoReturn:
    """Run the tasks until a signal raises Ended."""
    while True:
        now = monotonic()
        ready = [task for task in tasks if task.steps is not None or task.due <= now]
        for task in ready:
            task.advance(log)
        if not ready:
            time.sleep(max(0.0, min(task.due for task in tasks) - monotonic()))


def run_once(task: Task, log: AgentLog) -> bool:
    """Run all steps of a task once. Returns whether the task succeeded."""
    while not task.advance(log):
        pass
    return not task.failed
