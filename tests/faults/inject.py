"""One call of a plugin under strace, with a fault at a point of it, or none to see the points.

With warm workers strace is attached to the only worker, which has served one call that changed nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import warm
from tests.faults import trace
from tests.faults.trace import Call
from tests.node import STATE, Node, Reply, until, unusable
from tests.node import Call as Started

KILL, STOP = "KILL", "STOP"
ERRORS = ("ENOSPC", "EIO", "EINTR", "EBUSY", "EAGAIN")
NONE_OF_OURS = 999  # cni.shared.spec.errors.Internal: a cause that nobody has thought of
_DETACH_SECONDS = 10.0


def unavailable() -> str:
    """Why no fault can be injected here, and what would make it possible; "" when it can."""
    return unusable() or ("" if shutil.which("strace") else "needs strace: install the package of that name")


@dataclass
class Outcome:
    """What came of a call: its answer, or that it was killed; the call that was hit, and `pages` as that has them, or all of
    a call that came to no such point; what was wrong about it."""

    reply: Reply | None = None
    killed: bool = False
    hit: Call | None = None
    pages: int = 0
    faults: list[str] = field(default_factory=list)

    def met_a_lock(self) -> bool:
        """Whether the call was told that another holds a lock, by the error that says so."""
        return self.hit is not None and trace.locks(self.hit) and "EAGAIN" in self.hit.result


@dataclass(frozen=True)
class Command:
    """How a plugin is called: the executable, its environment and its stdin."""

    executable: Path
    environ: Mapping[str, str]
    stdin: bytes


class Injector:
    """Calls plugins in `node`; a folder of its own is removed at the end of `with Injector(node)`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._tracer: subprocess.Popen[bytes] | None = None  # at the warm worker

    def __enter__(self) -> Injector:
        self._folder = tempfile.TemporaryDirectory(prefix="faults-")
        self._file = Path(self._folder.name) / "trace"
        return self

    def __exit__(self, *_: object) -> None:
        self._detach()
        self._folder.cleanup()

    def record(self, command: Command, *options: str) -> tuple[Outcome, str]:
        """Call without a fault; the answer, and what strace wrote with `options`."""
        outcome = self._finish(self._start(command, "-y", *options))
        return outcome, self._file.read_text()

    def strike(self, command: Command, fault: str, point: str) -> Outcome:
        """Call with `fault` (KILL or the name of an error) at `point`."""
        outcome = finished(self.start(command, fault, point))
        if (
            self._tracer and fault == KILL
        ):  # the call was served cold, and strace may not have said yet that the worker died
            with suppress(subprocess.TimeoutExpired):
                self._tracer.wait(_DETACH_SECONDS)
        self._detach()
        calls = trace.parse(self._file.read_text())
        outcome.hit = next((c for c in calls if c.point == point), None)
        outcome.pages = outcome.hit.pages if outcome.hit else sum(trace.is_of_mounts(c) for c in calls)
        was_killed = "+++ killed by SIGKILL" in self._file.read_text() if self._node.is_warm else outcome.killed
        done = was_killed if fault == KILL else outcome.hit and "INJECTED" in outcome.hit.result
        if not done:
            outcome.faults.append(f"{fault} had no effect at {point}: {outcome.hit}, {outcome.reply}")
        return outcome

    def start(self, command: Command, fault: str, point: str) -> Started:
        """As `strike`, but only start it."""
        name, _, ordinal = point.partition(":")
        what = f"signal={fault}" if fault in (KILL, STOP) else f"error={fault}"
        self._file.unlink(missing_ok=True)
        is_quick = fault not in (KILL, STOP) and not self._node.is_warm  # with it strace 6.1 loses the signal
        quick = ["--seccomp-bpf"] if is_quick else []
        options = [*quick, "-e", f"trace={name}", "-e", f"inject={name}:{what}:when={ordinal}"]
        return self._start(command, "-y", *options)

    def stopped(self, point: str, process: Started) -> int:
        """The process that was stopped at `point`, once it is; 0 when it ended without that."""
        found: list[str] = []

        def seen() -> bool:
            if self._file.exists():
                found[:] = re.findall(r"^(\d+) +--- stopped by SIGSTOP", self._file.read_text(), re.MULTILINE)
            return bool(found) or process.process.poll() is not None

        until(seen)
        return int(found[0]) if found else 0

    def _start(self, command: Command, *options: str) -> Started:
        strace = [shutil.which("strace") or "strace", "-f", "-qq", "-o", str(self._file), *options]
        if self._node.is_warm:
            self._attach([*strace, "-p", str(self._new_worker(command))])
            strace = []
        return Started(self._node.start([*strace, command.executable], env=command.environ), command.stdin)

    def _finish(self, call: Started) -> Outcome:
        outcome = finished(call)
        self._detach()
        return outcome

    def _new_worker(self, command: Command) -> int:
        """The process of the only worker. Where there is a state already, it has looked into it for an attachment that
        there never was, and keeps the lease file or the connection open."""
        worker = warm.only_worker(self._node)
        if self._node.path(STATE).exists():
            nobody = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "nobody", "CNI_IFNAME": "none0", "CNI_NETNS": ""}
            environ = {**command.environ, **nobody, "CNI_ARGS": ""}
            Started(self._node.start([command.executable], env=environ), command.stdin).finish().succeeded()
            assert until(lambda: warm.waits(worker)), "the worker has ended after a call that changes nothing"
        return worker

    def _attach(self, strace: list[str]) -> None:
        self._file.unlink(missing_ok=True)
        self._tracer = subprocess.Popen(strace, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        worker = strace[-1]
        assert until(lambda: b"TracerPid:\t0\n" not in Path(f"/proc/{worker}/status").read_bytes(), 30)

    def _detach(self) -> None:
        if self._tracer:
            self._tracer.terminate()
            try:
                self._tracer.wait(_DETACH_SECONDS)
            except subprocess.TimeoutExpired:  # it waits for a worker that ends just now, and the worker for it
                self._tracer.kill()
                self._tracer.wait()
        self._tracer = None


def begin(call: Started) -> None:
    """Give a started call its stdin, so that it runs while the caller does something else."""
    stdin = call.process.stdin
    assert stdin is not None
    stdin.write(call._stdin)
    stdin.close()
    call.process.stdin = None


def finished(call: Started) -> Outcome:
    """The outcome of a started call, once it has ended."""
    outcome = Outcome()
    try:
        outcome.reply = call.finish()
    except AssertionError as fault:
        outcome.killed = call.process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if not outcome.killed and not _is_mute(fault):
            outcome.faults.append(f"no valid answer: {fault}")
    if outcome.reply and outcome.reply.code == NONE_OF_OURS:
        outcome.faults.append(f"code {NONE_OF_OURS} for a cause that can be known: {outcome.reply.document}")
    return outcome


def _is_mute(fault: AssertionError) -> bool:
    """Whether a plugin said on stderr, and by its exit code, that stdout takes nothing: all that it can do."""
    said = str(fault)
    return "exit 1, stdout b''" in said and "reply cannot be written" in said and "Traceback" not in said


def end(pid: int, number: int) -> None:
    """Send a signal to a process that was stopped here."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
