"""Start a supervisor after the reply of a call that found no workers.

The supervisor keeps the namespaces, the control group and some environment variables (_SETTINGS) of the caller. It does
not keep the caller's session, signal handlers, working directory, other variables, and descriptors (a runtime would
wait for the end of its pipes). A failure of the start is ignored. No supervisor is started if the caller's resource
limits or seccomp filter would hinder later calls of other callers.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from collections.abc import Callable

from cni.shared import policy
from cni.shared.kernel import files, locks
from cni.shared.spec.errors import CniError
from cni.warm import protocol

_LEAST_FILES = 256
# the settings: variables of the resolver and of OpenSSL with these prefixes, as in launcher.c
_SETTINGS = (b"HOSTALIASES", b"LOCALDOMAIN", b"RES_OPTIONS", b"RESOLV_", b"OPENSSL_", b"SSL_CERT_DIR", b"SSL_CERT_FILE")


def supervisor(script: str, identity: str) -> None:
    """Start a supervisor (Python with `script`) for callers with `identity`, unless one runs already. The function
    returns only in the calling process: the forked process ends, or becomes the supervisor."""
    try:
        if not all(policy.current().warm) or not _raise_limits() or _is_filtered():
            return
        lock = _lock(identity)
        if lock < 0 or os.fork():
            return
    except (CniError, OSError):
        return
    try:
        _leave_caller(lock)
        settings = {name: value for name, value in os.environb.items() if name.startswith(_SETTINGS)}
        os.execve(sys.executable, [sys.executable, "-IS", script, identity, str(lock)], settings)  # noqa: S606  # without a shell
    finally:
        os._exit(1)


def _lock(identity: str) -> int:
    """Take the lock that the supervisor for `identity` holds. Returns its descriptor; -1 when the lock is not free."""
    files.take_directory(protocol.PARENT)
    files.take_directory(protocol.DIRECTORY)
    name = protocol.name_of(identity) + protocol.LOCK
    opened = files.open_private(protocol.DIRECTORY, name)
    fd = fcntl.fcntl(
        opened, fcntl.F_DUPFD_CLOEXEC, 3
    )  # above stdin, stdout and stderr, which the caller may have closed
    os.close(opened)
    if locks.try_lock_file(fd):
        status, now = os.fstat(fd), os.stat(f"{protocol.DIRECTORY}/{name}", follow_symlinks=False)
        if (status.st_dev, status.st_ino) == (now.st_dev, now.st_ino):  # a supervisor removes the file when it ends
            return fd
    os.close(fd)
    return -1


def _raise_limits() -> bool:
    """Raise the soft resource limits to the hard limits, and return whether the hard limits suffice for workers."""
    unlimited = resource.RLIM_INFINITY
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        _, most = resource.getrlimit(limit)
        resource.setrlimit(limit, (most, most))
        if most != unlimited:
            return False
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most >= _LEAST_FILES


def _is_filtered() -> bool:
    """Whether a seccomp filter restricts this process. No process can remove its filter."""
    return b"\nSeccomp:\t2" in files.read_whole("/proc/self/status")


def _leave_caller(lock: int) -> None:
    import signal  # takes 3 ms

    os.setsid()
    resets: tuple[Callable[[], object], ...] = (
        lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
        lambda: os.setpriority(os.PRIO_PROCESS, 0, 0),
        lambda: os.sched_setaffinity(0, os.sched_getaffinity(1)),  # process 1's, which an administrator sets
        lambda: files.write("/proc/self/oom_score_adj", "0"),
    )
    for reset in resets:
        try:
            reset()
        except OSError:
            pass  # no right in this container: the workers keep the caller's value
    os.chdir("/")
    os.umask(0o077)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.set_inheritable(lock, True)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != lock:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # a signal that the C library uses
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
