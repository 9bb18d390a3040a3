"""The agent's one loop: tasks that are due, a step of each at a time, and between the steps whoever asks over HTTP.

A task is a generator; each of its steps makes a request or two, so that no task keeps another, or a probe, waiting for
longer than one request may take. There are no threads: a signal ends whatever is being done.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Callable, Iterator
from time import monotonic
from typing import NoReturn

from cni.cli.agent.log import AgentLog
from cni.spec.errors import CniError

Steps = Callable[[], Iterator[object]]
_LONGEST = 1.0  # seconds between two looks at silent clients


class Ended(BaseException):
    """A signal asks for the end. It comes out of whatever is being done; what that leaves, the next run clears."""


def _end(number: int, frame: object) -> NoReturn:
    for known in (signal.SIGTERM, signal.SIGINT):
        signal.signal(known, signal.SIG_IGN)  # one is enough
    raise Ended


def end_on_signals() -> None:
    """From now on SIGTERM and SIGINT raise Ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


class Task:
    """`begin` every `every` seconds. A failed one is begun again after `retry` seconds, doubled up to `longest`."""

    def __init__(self, name: str, every: float, begin: Steps, retry: float = 1.0, longest: float = 0.0) -> None:
        self.name = name
        self.every = every
        self.due = 0.0  # monotonic
        self.failed = False
        self._begin = begin
        self._retry = self._pause = min(retry, every)
        self._longest = longest or every
        self._steps: Iterator[object] | None = None

    def is_ready(self, now: float) -> bool:
        return self._steps is not None or self.due <= now

    def advance(self, log: AgentLog) -> bool:
        """Take a step; whether that was the last."""
        if self._steps is None:
            self._steps = self._begin()
        try:
            next(self._steps)
            return False
        except StopIteration:
            self.failed, self._pause, self.due = False, self._retry, monotonic() + self.every
            log.state(self.name, "")
        except CniError as fault:
            self._fail(log, fault.msg)
        except Exception as fault:  # one task's fault ends no other
            self._fail(log, f"a fault of railcni itself: {type(fault).__name__}: {fault}")
        self._steps = None
        return True

    def _fail(self, log: AgentLog, text: str) -> None:
        self.failed, self.due = True, monotonic() + self._pause
        self._pause = min(2 * self._pause, self._longest)
        log.state(self.name, text, task=self.name)


def run(tasks: list[Task], selector: selectors.BaseSelector, log: AgentLog, expire: Callable[[], None]) -> NoReturn:
    """Go on until Ended."""
    while True:
        now = monotonic()
        ready = [task for task in tasks if task.is_ready(now)]
        for task in ready:
            task.advance(log)
            serve(selector, 0)
        expire()
        if not ready:
            serve(selector, max(0.0, min(_LONGEST, min(task.due for task in tasks) - monotonic())))


def run_once(task: Task, log: AgentLog) -> bool:
    """Do a task from its beginning to its end; whether it was done well."""
    while not task.advance(log):
        pass
    return not task.failed


def serve(selector: selectors.BaseSelector, seconds: float) -> None:
    """Serve whoever is there, or comes within `seconds`."""
    for key, _ in selector.select(seconds):
        key.data()
