"""What the product says of each attribute of a device that is moved: that it comes back, is refused, or is lost.

The table is that of docs/devices.md, read as rows of (what, what becomes of it, note).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

KEPT, REFUSED, LOST = "kept", "refused", "lost"
_DOCUMENT = Path(__file__).parents[2] / "docs/devices.md"
_BEGIN, _END = "<!-- table:", "<!-- end of table -->"
_TOLD = "log"  # in the note of a line: the log of ADD says what is lost


@cache
def rows() -> tuple[tuple[str, str, str], ...]:
    """The rows of the table, without its heading."""
    text = _DOCUMENT.read_text().partition(_BEGIN)[2].partition(_END)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return tuple((what, fate, note) for what, fate, note in cells)


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
