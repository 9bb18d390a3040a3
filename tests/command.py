"""The command railcni and the plugins, as tests call them.

An exec of the command pays for its imports: 0.2 to 0.6 s, one of a plugin 0.03 to 0.06 s. `run` forks each call from a
process that has made them: it is a process with its own arguments, environment, streams and namespaces all the same.
Tests of what an exec may change (start-up, exit, a reader that has gone, every verb once:
tests/blackbox/test_launched.py) start `EXEC`, and so do the tests of plugins that are not marked `forked`; with
RAILCNI_BIN or RAILCNI_CHROOT (tests/node.py) everything does.
"""

import atexit
import ctypes
import gc
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

COMMAND, PLUGIN = "railcni", "plugin"
_LOADED = {  # a fork of more takes longer; the command imports rich when it prints
    COMMAND: ["cni.cli", "rich.console", "rich.table"],
    PLUGIN: ["cni.link", "cni.shared", "ipam"],
}
LOCKS = "RAILCNI_TEST_LOCKS"  # where the command keeps the locks of pools, in place of this machine's /run/railcni
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Process:
    """A forked command; as of subprocess.Popen, what is called alike."""

    def __init__(self, argv: Sequence[str], pid: int, ended: socket.socket) -> None:
        self.args = ["railcni", *argv]
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                said = self._ended.recv(64)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            assert said, "the process that forks has ended"
            self.returncode = int(said)
            self._ended.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    argv: Sequence[str | os.PathLike[str]],
    streams: Sequence[int],
    *,
    env: Mapping[str, str],
    namespaces: Sequence[str] = (),
    cwd: str = "/",
    program: str = COMMAND,
) -> Process:
    """Start `railcni ARGV`, or the plugin ARGV, in the `namespaces` at these paths, with exactly `env`; `streams` are its
    first three."""
    words = [os.fspath(a) for a in argv]
    request = {"argv": words, "env": dict(env), "namespaces": list(namespaces), "cwd": cwd}
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        socket.send_fds(_server(program), [json.dumps(request).encode()], [*streams, there.fileno()])
    return Process(words, int(here.recv(64)), here)


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    stdin: bytes = b"",
    namespaces: Sequence[str] = (),
    cwd: str = "/",
    timeout: float = 60,
    program: str = COMMAND,
) -> subprocess.CompletedProcess[bytes]:
    """As `start`, with `stdin`; what it said when it has ended."""
    streams = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    try:
        with open(streams[0], "wb", closefd=False) as file:
            file.write(stdin)
        os.lseek(streams[0], 0, os.SEEK_SET)
        process = start(argv, streams, env=env, namespaces=namespaces, cwd=cwd, program=program)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out, err = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in streams[1:])
        return subprocess.CompletedProcess(process.args, status, out, err)
    finally:
        for fd in streams:
            os.close(fd)


@cache
def _server(program: str) -> socket.socket:
    """The socket of the process that forks calls of `program`; it ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        argv = [sys.executable, "-IP", __file__, program, str(there.fileno())]
        process = subprocess.Popen(argv, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


def _serve(program: str, requests: socket.socket) -> None:
    for top in _LOADED[program]:
        package = import_module(top)
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{top}."):
            import_module(module.name)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background processes ignore it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this one
    gc.freeze()
    poll = selectors.DefaultSelector()
    poll.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in poll.select():
            if key.fileobj is requests:
                said, fds, _, _ = socket.recv_fds(requests, 1 << 20, 4)
                if not said:
                    return
                pid = os.fork()
                if not pid:
                    _child(program, json.loads(said), fds[:3])
                for fd in fds[:3]:
                    os.close(fd)
                reply = socket.socket(fileno=fds[3])
                reply.send(str(pid).encode())
                poll.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reply))
            else:
                pid, reply = key.data
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                poll.unregister(key.fileobj)
                os.close(key.fd)
                with reply:
                    try:
                        reply.send(str(status).encode())
                    except OSError:  # the test has given up
                        pass


def _child(program: str, request: dict[str, Any], streams: Sequence[int]) -> None:
    status = 1
    try:
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(3, 1024)
        libc = ctypes.CDLL(None, use_errno=True)
        for fd in [os.open(path, os.O_RDONLY) for path in request["namespaces"]]:
            if libc.setns(fd, 0):
                raise OSError(ctypes.get_errno(), "setns")
            os.close(fd)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        if program == PLUGIN:
            from cni import link as dispatcher

            gc.disable()
            status = dispatcher.main(request["argv"][0])
            return
        if folder := os.environ.pop(LOCKS, ""):
            from ipam.stores.ippool import locks

            locks.DIRECTORY = folder
        stdin = io.BufferedReader(io.FileIO(0, closefd=False))
        stdout, stderr = (io.BufferedWriter(io.FileIO(fd, "w", closefd=False)) for fd in (1, 2))
        sys.stdin = io.TextIOWrapper(stdin, "utf-8", "surrogateescape")
        sys.stdout = io.TextIOWrapper(stdout, "utf-8", "surrogateescape")
        sys.stderr = io.TextIOWrapper(stderr, "utf-8", "backslashreplace", line_buffering=True)
        sys.argv = ["railcni", *request["argv"]]
        status = _status()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        if sys.stderr:
            sys.stderr.flush()
        os._exit(status)


def _status() -> int:
    from cni.cli.main import main

    try:
        return main()
    except SystemExit as end:
        return int(end.code or 0)


if __name__ == "__main__":
    sys.path.insert(0, ROOT)
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
