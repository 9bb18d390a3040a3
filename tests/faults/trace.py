"""What strace writes of one process, as calls; which are points, the n-th call of a name, at which a fault is worth while."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)$")
_RESULT = re.compile(r"^(.*?)\)? += (-?\d+|0x[0-9a-f]+|\?)(.*)$", re.DOTALL)
_UNFINISHED = " <unfinished ...>"  # something of another process stands between a call and its result
_RESUMED = re.compile(r"^(?:\d+ +)?<\.\.\. \w+ resumed>(.*)$")
_OPENED = re.compile(r'"([^"]*)"')
_DESCRIPTOR = re.compile(r"^(\d+|AT_FDCWD)<([^>]*)>")
_REPLY = re.compile(r'>, "[01h]["{]')  # of cni.warm.protocol
_NETLINK_TYPE = re.compile(r"nlmsg_type=(?:0x([0-9a-f]+)|(RTM_\w+))")

_CREATES = ("openat", "open", "creat", "openat2")
_CHANGES = (
    "write", "writev", "pwrite64", "pwritev", "fsync", "fdatasync", "sync_file_range", "fallocate", "pwritev2",
    "syncfs", "sync", "msync", "copy_file_range", "sendfile", "splice", "fchownat", "chown", "lchown", "setxattr",
    "fsetxattr", "mknod", "mknodat", "unshare", "mount", "umount2", "fchmodat2", "ftruncate", "truncate", "rename",
    "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat",
    "rmdir", "fchmod", "chmod", "fchmodat", "fchown", "setns", "flock", "utimensat",
)  # fmt: skip
# neither change anything that outlives the process nor tell it anything to decide by
_IDLE = {
    "accept4", "access", "arch_prctl", "bind", "brk", "capget", "chdir", "clock_gettime", "clock_nanosleep", "clone",
    "clone3", "close", "close_range", "connect", "dup", "dup2", "dup3", "epoll_create1", "epoll_ctl", "epoll_wait",
    "execve", "exit", "exit_group", "faccessat", "fchdir", "faccessat2", "fadvise64", "fstat", "fstatfs", "futex",
    "getcwd", "getegid", "geteuid", "getgid", "getpeername", "getpid", "getppid", "getrandom", "getrusage",
    "getsockname", "getsockopt", "gettid", "getuid", "ioctl", "kill", "lseek", "lstat", "madvise", "memfd_create",
    "mmap", "mprotect", "mremap", "munmap", "nanosleep", "newfstatat", "pipe", "pipe2", "poll", "ppoll", "prctl",
    "prlimit64", "pselect6", "readlink", "readlinkat", "readv", "restart_syscall", "rseq", "rt_sigaction",
    "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "sched_getaffinity", "sched_yield", "select",
    "set_robust_list", "set_tid_address", "setitimer", "setsockopt", "shutdown", "sigaltstack", "socket", "stat",
    "statfs", "statx", "sysinfo", "tgkill", "timer_create", "timer_delete", "timer_settime", "umask", "uname", "vfork",
    "wait4",
}  # fmt: skip
_OWN = ("/var/lib/cni", "/run/netns", "/proc/sys", "/proc/self", "/proc/thread-self")  # not the interpreter's
_CARRIES_DATA = (
    "read", "write", "writev", "pread64", "pwrite64", "pwritev", "sendto", "sendmsg", "recvfrom", "recvmsg", "connect",
)  # fmt: skip
_READS = ("read", "pread64", "getdents64")
_ANSWER = '"HTTP/1.'  # its first bytes
_STATE = "/var/lib/cni"


@dataclass(frozen=True)
class Call:
    """A system call: the `ordinal`-th of its `name`; `path` is that of its first descriptor, "" for none. `pages`: the reads
    of the list of mounts before it, whose number differs from run to run, and with it the ordinals of "read" behind it.
    """

    name: str
    ordinal: int
    text: str
    result: str
    path: str
    pages: int = 0

    @property
    def point(self) -> str:
        return f"{self.name}:{self.ordinal}"

    @property
    def opened(self) -> str:
        """The path that an open names."""
        found = _OPENED.search(self.text)
        return found[1] if found else ""

    @property
    def what(self) -> str:
        """The call for a person: one short line."""
        return f"{self.name}({self.text})"[:150]

    def alike(self) -> str:
        """What must be the same when the call is met again in another run: no numbers, and not the data."""
        data = self.name in _CARRIES_DATA
        return self.name + re.sub(r"[0-9]+", "N", f"({self.path} {'' if data else self.opened}")


def parse(text: str) -> list[Call]:
    """The calls in the output of strace for one process, in their order. What other processes did is left out."""
    calls: list[Call] = []
    counts: dict[str, int] = {}
    pages = 0
    first = text.partition(" ")[0]
    own = [line for line in text.splitlines() if not first.isdigit() or line.startswith(first + " ")]
    for line in _whole(own):
        found = _LINE.match(line)
        if not found:
            continue  # signals, exits
        name, rest = found[1], found[2]
        counts[name] = counts.get(name, 0) + 1
        ended = _RESULT.match(rest)
        inner, result = (ended[1], ended[2] + ended[3]) if ended else (rest, "?")
        descriptor = _DESCRIPTOR.match(inner)
        call = Call(name, counts[name], inner, result, descriptor[2] if descriptor else "", pages)
        pages += is_of_mounts(call)
        calls.append(call)
    return calls


def is_of_mounts(call: Call) -> bool:
    """Whether the call reads a page of the list of mounts."""
    return call.name == "read" and call.path.endswith("/mountinfo")


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """The lines of one process, those that were written in two parts as one."""
    begun = ""
    for line in lines:
        resumed = _RESUMED.match(line)
        if resumed:
            yield begun + resumed[1]
            begun = ""
            continue
        if begun:  # it has never come back
            yield begun
        begun = line.removesuffix(_UNFINISHED) if line.endswith(_UNFINISHED) else ""
        if not begun:
            yield line
    if begun:
        yield begun


def changes(call: Call) -> bool:
    """Whether the call changes something that outlives the process, or a lock or namespace that guards it; or asks a
    server to."""
    if call.name in _CREATES:
        return bool(re.search(r"O_CREAT|O_TRUNC", call.text)) and call.opened.startswith((_STATE, "."))
    if call.name in ("write", "writev"):
        return not call.text.startswith("2")  # the log
    if call.name == "fcntl":
        return "SETL" in call.text
    if call.name in ("sendto", "sendmsg"):
        return not _asks(call)
    return call.name in _CHANGES or _serves(call)


def may_fail(call: Call) -> bool:
    """Whether the call changes something, or reads what the plugin decides by: files of its own, the kernel's replies."""
    if call.name in _CREATES:
        return changes(call) or call.opened.startswith(_OWN)
    if call.name in _READS:
        return call.path.startswith(_OWN)
    return changes(call) or call.name in ("sendto", "sendmsg", "recvfrom", "recvmsg")


def _serves(call: Call) -> bool:
    """Whether the call is one with a server that keeps leases: a connection, or an answer, without which nobody knows
    what came of the request that was sent."""
    if call.name == "connect":
        return "AF_INET" in call.text
    return call.name == "recvfrom" and _ANSWER in call.text


def unknown(calls: Sequence[Call]) -> list[str]:
    """The names of calls of which nothing here says whether they are points."""
    known = {*_CREATES, *_CHANGES, *_READS, *_CARRIES_DATA, *_IDLE, "fcntl"}
    return sorted({call.name for call in calls} - known)


def locks(call: Call) -> bool:
    """Whether the call takes a lock, without waiting for it or with a signal to end the wait."""
    return call.name == "flock" or (call.name == "fcntl" and "SETLK" in call.text)


def answers(call: Call) -> bool:
    """Whether the call writes to stdout, or a warm worker's reply: what there was to do is done, and no lock is held."""
    if call.name == "sendto":
        return bool(_REPLY.search(call.text))
    return call.name in ("write", "writev") and call.text.startswith("1<")


def last(calls: Sequence[Call]) -> list[Call]:
    """The end of the process, as a point after all the others."""
    return [c for c in calls if c.name == "exit_group"]


def _asks(call: Call) -> bool:
    """Whether a netlink request only reads: RTM_GET..., by their numbers 2 modulo 4 (linux/rtnetlink.h)."""
    found = _NETLINK_TYPE.search(call.text)
    if not found:
        return False
    return int(found[1], 16) % 4 == 2 if found[1] else found[2].startswith("RTM_GET")
