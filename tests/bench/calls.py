"""Start a plugin as a runtime does, and measure the process: its time, its processor time, its peak memory."""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.samples import Sample

_PR_SET_CHILD_SUBREAPER = 36
# In the background, so that the shell has nobody's memory but its own when it forks, and nobody waits for the plugin:
# it becomes a child of this process. Until then it waits for the gate, since the shell takes note of the end of a process
# that is quick. The shell gives background processes no stdin of their own.
_ORPHAN = '(read _ <&5; exec "$0" "$@" <&4 3>&- 4<&- 5<&-) & echo $! >&3'


class Failed(Exception):
    """A call that should have succeeded did not: there is nothing to measure."""


@dataclass(frozen=True)
class Call:
    """A call of a plugin, with the variables of the specification and those of its `caller` in its environment.

    `args` is CNI_ARGS, and `node` the name of the node that it poses as; neither is set when it is "". A `cold` call has
    RAILCNI_COLD: no warm worker serves it.
    """

    argv: Sequence[str | Path]
    verb: str
    stdin: bytes
    container: str
    netns: str
    path: str
    args: str = ""
    node: str = ""
    ifname: str = "net1"
    cold: bool = False
    caller: Mapping[str, str] = field(default_factory=dict)

    def environ(self) -> dict[str, str]:
        named = {
            "CNI_COMMAND": self.verb, "CNI_CONTAINERID": self.container, "CNI_NETNS": self.netns,
            "CNI_IFNAME": self.ifname, "CNI_PATH": self.path,
        }  # fmt: skip
        if self.cold:
            named["RAILCNI_COLD"] = ""
        return {**self.caller, **named} | {
            name: value for name, value in (("CNI_ARGS", self.args), ("NODENAME", self.node)) if value
        }


class Running:
    """A process that has been started. Its stdin and stdout are files in memory, so nobody waits for a pipe. The `gate` is a
    descriptor that the `wrapper` has as 5."""

    def __init__(self, call: Call, wrapper: Sequence[str] = (), gate: int = -1) -> None:
        self.call = call
        given, self.said, self._aside = (os.memfd_create(name) for name in ("stdin", "stdout", "aside"))
        os.write(given, call.stdin)
        os.lseek(given, 0, os.SEEK_SET)
        actions = [
            (os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, self.said, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, self._aside, 3),
            (os.POSIX_SPAWN_DUP2, 0, 4), *([(os.POSIX_SPAWN_DUP2, gate, 5)] if gate >= 0 else []),
        ]  # fmt: skip
        argv = [*wrapper, *map(str, call.argv)]
        self.began = time.perf_counter()
        self.pid = os.posix_spawn(argv[0], argv, call.environ(), file_actions=actions)
        os.close(given)

    def finish(self) -> tuple[Sample, bytes, bytes]:
        """Wait for it: what it took, its stdout, and what it wrote to descriptor 3. Failed unless it succeeded."""
        _, status, usage = os.wait4(self.pid, 0)
        sample = Sample((time.perf_counter() - self.began) * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3)
        out, aside = (_whole(fd) for fd in (self.said, self._aside))
        if status:
            raise Failed(_failure(self.call, status, out))
        return sample, out, aside


def script_of(executable: Path) -> tuple[list[str], Path] | None:
    """The interpreter of an executable of ours with its options, and the script that it runs; None when it has none.

    bin/NAME of a checkout runs the script libexec/NAME. In a bundle bin/python3 runs libexec/NAME.pyc for it.
    """
    inside = executable.parent.parent / "libexec"
    for script in (inside / executable.name, executable):
        if script.exists() and (line := script.read_bytes().partition(b"\n")[0]).startswith(b"#!"):
            argv = line.decode(errors="replace").removeprefix("#!").split()
            return (argv, script) if "python" in Path(argv[0]).name else None
    python, script = executable.with_name("python3"), inside / f"{executable.name}.pyc"
    return ([str(python), "-IS"], script) if python.exists() and script.exists() else None


def timed(call: Call) -> tuple[Sample, bytes]:
    """What a call took, and its stdout."""
    sample, out, _ = Running(call).finish()
    return sample, out


def peak_kib(call: Call) -> int:
    """The peak of resident memory of a call, the largest of its processes, in KiB.

    ru_maxrss of a process begins with that of the one that it was before exec (setmax_mm_hiwater_rss, fs/exec.c): here
    that is a shell of a megabyte instead of this interpreter.
    """
    reading, opened = os.pipe()
    gate = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 10)  # beyond the numbers of the other descriptors
    os.close(reading)
    try:
        shell = Running(call, ("/bin/sh", "-c", _ORPHAN), gate)
        said = os.dup(shell.said)  # the shell ends before the plugin
        _, _, pid = shell.finish()
    finally:
        os.close(opened)
        os.close(gate)
    _, status, usage = os.wait4(int(pid), 0)
    out = _whole(said)
    if status:
        raise Failed(_failure(call, status, out))
    return usage.ru_maxrss


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind, which `peak_kib` needs."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _whole(fd: int) -> bytes:
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    return data


def _failure(call: Call, status: int, out: bytes) -> str:
    said = out.decode(errors="replace").strip() or f"wait status {status}"
    return f"{Path(call.argv[0]).name} {call.verb}: {said[:300]}"
