"""Private namespaces for a process that shall not touch the machine it runs on, as root or as anybody.

The kernel takes away what was made in them when their last process ends, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
from collections.abc import Callable

from cni.kernel import netns
from cni.spec.errors import IoFailure

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000  # include/uapi/linux/sched.h
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000  # include/uapi/linux/mount.h
_MNT_DETACH = 2  # include/linux/fs.h
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)
_COVERED = ("/etc", "/run", "/var/lib")
_HIDDEN = ("/etc/cni", "/run/netns", "/var/lib/cni")
_AS_ROOT = "run it where root may mount (CAP_SYS_ADMIN): on the machine itself, or in a privileged container"
_AS_USER = (
    "run it as root, or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns)"
)


def run_isolated(main: Callable[[], int]) -> int:
    """The exit code of `main`, run in a child with mount and network namespaces of its own; when this process is not
    root also in a user namespace, in which it is. IoFailure when the kernel allows none.

    The child sees /etc, /run and /var/lib as they are, less what CNI keeps there, and what it writes there is gone
    with it.
    """
    scratch = tempfile.mkdtemp(prefix="railcni-private-", dir="/tmp")  # none of the directories to be covered
    reader, writer = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            _run_child(main, scratch, writer)
        os.close(writer)
        with open(reader, encoding="utf-8") as pipe:
            refused = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.rmdir(scratch)  # what was in it was mounted for the child alone
    if refused:
        remedy = _AS_USER if os.geteuid() else _AS_ROOT
        raise IoFailure(f"no private namespaces can be had here: {refused}; {remedy}")
    return code if code >= 0 else 128 - code


def new_network_namespace(path: str) -> None:
    """Make a network namespace and keep it at `path`, as `ip netns add` does. OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "x"):
        pass
    own = netns.own()
    try:
        with own.entered():  # its end brings this thread back
            _call("unshare", _CLONE_NEWNET)
            _mount("/proc/thread-self/ns/net", path, "", _MS_BIND)
    finally:
        own.close()


def remove_network_namespace(path: str) -> None:
    """Give up the namespace kept at `path`; the kernel clears it when nothing else holds it. OSError."""
    _call("umount2", path.encode(), _MNT_DETACH)
    os.unlink(path)


def _run_child(main: Callable[[], int], scratch: str, refusals: int) -> None:
    """End this process with what `main` returns, or after a word to `refusals` about what the kernel refused."""
    code = 1
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            _isolate(scratch)
        except OSError as fault:
            os.write(refusals, str(fault.strerror).encode())
            return
        os.close(refusals)
        code = main()
    except Exception as fault:
        os.write(2, f"railcni: {type(fault).__name__}: {fault}\n".encode())
    finally:
        os._exit(code)


def _isolate(scratch: str) -> None:
    uid, gid = os.geteuid(), os.getegid()
    user = _CLONE_NEWUSER if uid else 0
    _call("unshare", user | _CLONE_NEWNS | _CLONE_NEWNET)
    if user:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", scratch, "tmpfs", 0)
    for directory in _COVERED:
        _cover(directory, os.path.join(scratch, directory.replace("/", "-")[1:]))


def _cover(directory: str, original: str) -> None:
    """Put memory over `directory`, with links to the things in it, which are at `original` from then on."""
    os.mkdir(original)
    _mount(directory, original, "", _MS_BIND | _MS_REC)
    _mount("tmpfs", directory, "tmpfs", 0)
    for name in os.listdir(original):
        if os.path.join(directory, name) not in _HIDDEN:
            os.symlink(os.path.join(original, name), os.path.join(directory, name))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        code = ctypes.get_errno()
        what = " ".join([name, *(a.decode() for a in arguments if isinstance(a, bytes) and a)])
        raise OSError(code, f"{what}: {os.strerror(code)}")
