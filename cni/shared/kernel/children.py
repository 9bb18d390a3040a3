"""Run a program as a child process, with bytes on its stdin, and read its stdout."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from time import monotonic
from typing import Any

_MOST_BYTES = 1 << 20  # of the output of a program with a deadline

_NAMES = (
    b"PATH",  # for programs that the program starts
    b"HOME",  # for the program's own files, such as the cache of a cloud's command
    b"TZ",  # for the times in the program's log
    b"NODENAME",  # this node, for Go's whereabouts
    *(b"HTTP_PROXY", b"HTTPS_PROXY", b"NO_PROXY"),  # for servers behind a proxy; in lower case too
)
_BEGINNINGS = (
    b"CNI_",  # the parameters of the call
    b"LD_",  # the libraries that a runtime gives its plugins, as containerd does
    b"KUBERNETES_SERVICE_",  # the address of the API server, in a container
    b"SSL_CERT_",  # the trusted certificate authorities
)


def environment(variables: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The environment for a child program: only the `variables` that the program may need, since others may be secrets
    of the runtime. Without CNI_COMMAND, the caller is no runtime, and all `variables` are returned."""
    if b"CNI_COMMAND" not in variables:
        return dict(variables)
    return {k: v for k, v in variables.items() if k.upper() in _NAMES or k.startswith(_BEGINNINGS)}


def run(
    argv: list[str], environ: Mapping[bytes, bytes], stdin: bytes = b"", deadline: float | None = None
) -> tuple[bytes, int]:
    """Run the program `argv`, found in PATH. Returns its stdout and its exit code, or -N if signal N ended it.

    The program inherits stderr. At the `deadline` (time.monotonic), or after more than a MiB of output, the program is
    killed with its process group, and TimeoutError is raised. Without a deadline, time and output have no limit. Raises
    OSError when the program cannot be run.
    """
    held = os.memfd_create("stdin", os.MFD_CLOEXEC)  # a pipe could fill while the program writes its answer
    while stdin:
        stdin = stdin[os.write(held, stdin) :]
    os.lseek(held, 0, 0)
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, held, 0), (os.POSIX_SPAWN_DUP2, writing, 1)]
    own_group: dict[str, Any] = {} if deadline is None else {"setpgroup": 0}
    _keep_status()
    try:
        pid = os.posix_spawnp(argv[0], argv, environ, file_actions=actions, **own_group)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        os.close(held)
    output = None
    try:
        output = _read(reading, deadline)
    except TimeoutError:
        try:
            os.kill(-pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the program has just ended
    finally:
        os.close(reading)
    status = os.waitpid(pid, 0)[1]
    if output is None:
        raise TimeoutError
    return output, os.waitstatus_to_exitcode(status)


def _read(fd: int, deadline: float | None) -> bytes:
    """Read `fd` to its end. With a `deadline`, raises TimeoutError when it has passed, or after more than a MiB."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    output = b""
    while True:
        if deadline is not None:
            wait = deadline - monotonic()
            if wait <= 0 or len(output) > _MOST_BYTES or not poll.poll(wait * 1000):
                raise TimeoutError
        part = os.read(fd, 1 << 16)
        if not part:
            return output
        output += part


def _keep_status() -> None:
    """Ensure that waitpid(2) returns the exit status of the children that this process starts from now on.

    If the program that started this process ignores SIGCHLD, this process ignores the signal too. The kernel then drops
    the status of each child, and waitpid fails with ECHILD after the last child has ended (wait(2), notes). Python can
    set signals in the main thread only. In another thread this function does nothing: a program with threads sets its
    signals itself.
    """
    try:
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError:
        pass
