"""What the product says of each attribute of a device that is moved: that it comes back, is refused, or is lost.

This is the only place where the matrix knows of the product's table, a tuple of (what, what becomes of it, note).
"""

from __future__ import annotations

from importlib import import_module

KEPT, REFUSED, LOST = "kept", "refused", "lost"
_MODULE = "cni.plugins.host_device.hoststate"
_TOLD = "log"  # in the note of a line: the log of ADD says what is lost


def rows() -> tuple[tuple[str, str, str], ...]:
    """The lines of the table; none while the product has no table."""
    try:
        found: tuple[tuple[str, str, str], ...] = import_module(_MODULE).TABLE
    except (ImportError, AttributeError):
        return ()
    return found


def row(words: str) -> tuple[str, str, str]:
    """The line that has these words; without one everything comes back."""
    return next((line for line in rows() if words in line[0]), (words, KEPT, ""))


def fate(words: str) -> str:
    """KEPT, REFUSED or LOST."""
    said = row(words)[1]
    return said if said in (REFUSED, LOST) else KEPT


def is_told(words: str) -> bool:
    """Whether the log of an ADD is to say that it is lost."""
    return _TOLD in row(words)[2]
