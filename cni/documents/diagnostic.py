"""A diagnostic: a fault of a file, with its place, its key and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cni.shared.spec.errors import InvalidConfig

ERROR, WARNING = "error", "warning"
WIDTH = 100  # the most characters of a line that are shown


@dataclass(frozen=True)
class Diagnostic:
    """A fault of a document in a file.

    With the severity `error` an ADD fails, or does something unintended; with `warning` an ADD works, but not as well
    as it could. `line` and `column` count from 1, and are 0 for the file as a whole. `text` is the line, and `length`
    the number of its faulty characters. `key` is the dotted key in the network's JSON, or in the Kubernetes object.
    """

    path: str
    line: int
    column: int
    length: int
    severity: str
    key: str
    message: str
    fix: str = ""
    network: str = ""
    text: str = ""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path

    @property
    def sentence(self) -> str:
        """The place, key, message and remedy, in one line."""
        network = f" (network {self.network})" if self.network else ""
        return ": ".join(filter(None, (self.place, self.key, self.message))) + network + (self.fix and f"; {self.fix}")

    def document(self) -> dict[str, Any]:
        """The diagnostic as an object for JSON output."""
        found = asdict(self)
        return {"file": found.pop("path"), **found}

    def snippet(self, width: int = WIDTH) -> list[str]:
        """Two lines: the faulty line, and a mark below the fault; [] for a fault of the whole file."""
        if not self.line or not self.text.strip():
            return []
        text, begin, length = self.text, self.column - 1, max(1, self.length)
        if len(text) > width:
            first = max(0, min(begin - width // 3, len(text) - width))
            last = first + width
            length = max(1, min(length, last - begin))
            text = ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")
            begin += (1 if first else 0) - first
        head = f"{self.line} | "
        before = "".join("\t" if c == "\t" else " " for c in text[:begin])
        return [f"{head}{text}", " " * (len(head) - 2) + f"| {before}{'^' * length}"]


def refusal(path: str, faults: Sequence[Diagnostic]) -> InvalidConfig:
    """Return one error that has all `faults` of the file `path`."""
    lines = [fault.sentence for fault in faults]
    if len(lines) == 1:
        return InvalidConfig(lines[0])
    return InvalidConfig(f"{len(lines)} faults in {path}", "\n".join(lines))
