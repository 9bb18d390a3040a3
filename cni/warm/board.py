"""Shared memory in which a supervisor and its workers note their state. The supervisor makes it before it forks
workers.

Each field has one writer at a time, so there is no lock: a worker writes its slot, the supervisor the rest.
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct

_SLOT = Struct("=B7xQ104s")  # state, calls served by all former and present workers of the slot, current call
_HEAD = Struct("=Q360s")  # start (seconds since 1970), the last fault
FREE, IDLE, BUSY = range(3)


class Board:
    """The board of a supervisor, with a slot for each of at most `size` workers."""

    __slots__ = ("_memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = mmap(-1, _HEAD.size + size * _SLOT.size)

    def set(self, slot: int, state: int, calls: int = 0, call: bytes = b"") -> None:
        """Set a slot's state and current call, and add `calls` to its count."""
        place = _HEAD.size + slot * _SLOT.size
        _, served, _ = _SLOT.unpack_from(self._memory, place)
        _SLOT.pack_into(self._memory, place, state, served + calls, call)

    def call(self, slot: int) -> str:
        """The current call of the slot's worker, "PLUGIN VERB CONTAINERID"; "" when the worker is idle."""
        return _text(_SLOT.unpack_from(self._memory, _HEAD.size + slot * _SLOT.size)[2])

    def states(self) -> list[int]:
        """The state of every slot: FREE, IDLE or BUSY."""
        return list(self._memory[_HEAD.size :: _SLOT.size])[: self.size]

    @property
    def calls(self) -> int:
        """The number of calls that all workers have served."""
        return sum(_SLOT.unpack_from(self._memory, _HEAD.size + n * _SLOT.size)[1] for n in range(self.size))

    @property
    def head(self) -> tuple[int, str]:
        """The start of the supervisor, in seconds since 1970, and the text of the last fault."""
        began, fault = _HEAD.unpack_from(self._memory)
        return began, _text(fault)

    def note(self, began: int = 0, fault: str = "") -> None:
        """Set the start of the supervisor and the last fault; 0 and "" leave them unchanged."""
        former, last = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, began or former, fault.encode()[:360] or last)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("utf-8", "replace")
