"""Write log lines, each with its attachment, to stderr and to the log file of the configuration.

Runtimes often discard the stderr of a plugin, so a fact that a user must know is never only in the log. The names of
networks and pods are untrusted. So unprintable characters become "?", and a message stays on one line.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from cni.shared.kernel import files

ROOT = "/var/log/railcni"  # the policy's default directory for log files of networks; made when it is missing
how = "cold"  # in a process that serves only this call; "warm" in a worker, which serves many calls (cni.warm)
LEVELS = ("debug", "verbose", "warning", "error", "panic")  # as in whereabouts; the default is "warning" here


def tell(line: bytes) -> None:
    """Write `line` to stderr, and ignore a failure. No buffer is used, since it would keep a line that cannot be
    written, and a process for several calls would write this line to the stderr of the next caller."""
    try:
        os.write(sys.stderr.fileno(), line)
    except (OSError, AttributeError):
        pass  # the operation goes on


class Log:
    """The log of a call. Each line contains `context`; lines below `level` are not written.

    `path` is the path of the log file, without symbolic links (cni.shared.kernel.files.resolve), or "". `hidden` has
    texts that the call's error message must not contain. The log may contain these texts, because it stays on the node.
    """

    def __init__(self, context: str = "", level: str = "warning", path: str = "") -> None:
        self.context = context
        self.level = level
        self.path = path
        self.hidden: list[str] = []

    def debug(self, text: str) -> None:
        self._write("debug", text)

    def info(self, text: str) -> None:
        self._write("verbose", text)

    def warning(self, text: str) -> None:
        self._write("warning", text)

    def error(self, text: str) -> None:
        self._write("error", text)

    def _write(self, level: str, text: str) -> None:
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = f"{self.context} ({how}): {text}" if self.context else text  # the command `railcni` has no context
        shown = "".join(c if c.isprintable() else "?" for c in text)
        line = f"{stamp} [{level}] {shown}\n".encode("utf-8", "replace")
        tell(line)
        if self.path:
            try:
                fd = _open(self.path)
            except OSError:
                return  # an attachment does not fail because its log cannot be written
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    os.write(fd, line)
            except OSError:
                pass  # a full disk
            finally:
                os.close(fd)


def _open(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return files.open_resolved(path, flags, 0o640)
    except FileNotFoundError:
        directory = path.rpartition("/")[0]
        if directory != files.resolve(ROOT):
            raise
        os.mkdir(directory, 0o750)
        return files.open_resolved(path, flags, 0o640)
