"""Wishes: what a process that waits for its turn at a pool leaves for who has it, and the answer that it finds.

A wish is a file beside the lock, which its process keeps locked: who finds one that is not locked knows that its process
has ended, and nobody may wish for a process that has ended. The answer is appended once what was wished is done. A
wish without an answer costs nothing but time: its process does all of it itself, once it has its turn, and finds by the
pool what was done for it all the same.
"""

from __future__ import annotations

import fcntl
import posix
from time import monotonic_ns

from cni.spec import codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Document = dict[str, Any]

MOST = 128  # that are read at once
_BYTES = 64 << 10  # of a wish and its answer
_END = b"\n"  # of either


class Wish:
    """A file of one wish, kept open as `fd`; `document` is what is wished."""

    __slots__ = ("_fd", "_path", "document")

    def __init__(self, path: str, fd: int, document: Document) -> None:
        self._path = path
        self._fd = fd
        self.document = document

    def answer(self, document: Document) -> None:
        """Say what was done. An answer that cannot be written is none."""
        try:
            posix.write(self._fd, codec.dumps(document).encode() + _END)
        except OSError:
            pass

    def answered(self) -> Document | None:
        """What was done; None for nothing."""
        try:
            return _read(self._fd)[1]
        except OSError:
            return None

    def close(self) -> None:
        posix.close(self._fd)

    def withdraw(self) -> None:
        """Be no more; what is read of it from now on counts for nothing."""
        try:
            posix.unlink(self._path)
        except OSError:
            pass
        self.close()


def leave(directory: str, prefix: str, document: Document) -> Wish | None:
    """A new wish of this process; None when there can be none."""
    path = f"{directory}/{prefix}{posix.getpid()}-{monotonic_ns()}"
    try:
        fd = posix.open(path, posix.O_RDWR | posix.O_CREAT | posix.O_EXCL | posix.O_APPEND | posix.O_CLOEXEC, 0o600)
    except OSError:
        return None
    wish = Wish(path, fd, document)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever finds it before removes it: then it has no answer
        posix.write(fd, codec.dumps(document).encode() + _END)
    except OSError:
        wish.withdraw()
        return None
    return wish


def standing(directory: str, names: Sequence[str]) -> list[Wish]:
    """The wishes of living processes that have no answer yet, of the files `names`; the others' files are removed."""
    found: list[Wish] = []
    for name in names:
        path = f"{directory}/{name}"
        try:
            fd = posix.open(path, posix.O_RDWR | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOFOLLOW)
        except OSError:
            continue  # it was withdrawn
        try:
            if _is_abandoned(fd):
                posix.unlink(path)
            else:
                wished, answered = _read(fd)
                if wished is not None and answered is None and len(found) < MOST:
                    found.append(Wish(path, fd, wished))
                    continue
        except OSError:
            pass
        posix.close(fd)
    return found


def _is_abandoned(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> tuple[Document | None, Document | None]:
    """(the wish, its answer); None for what is not written, or not whole."""
    lines = posix.pread(fd, _BYTES, 0).split(_END)[:-1]
    documents: list[Document | None] = [None, None]
    for i, line in enumerate(lines[:2]):
        try:
            document = codec.loads(line)
        except ValueError:
            continue
        documents[i] = document if isinstance(document, dict) else None
    return documents[0], documents[1]
