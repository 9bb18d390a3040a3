"""A diagnostic: a fault of a file, with its place, its key and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cni.shared.spec.errors import InvalidConfig

ERROR, WARNING = "error", "warning"
WIDTH = 100  # characters of a line that are shown


@dataclass(frozen=True)
class Diagnostic:
    """A fault of the network in a file.

    An `error` makes an ADD fail, or do something unintended; with a `warning` it works, but not as well as it could.
    `line` and `column` count from 1 (0: of the file as a whole), `length` is how many characters of `text`, which is
    that line, are meant. `key` is the dotted key inside the network's JSON, or of the Kubernetes object.
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
        """Its place, key, message and remedy in a line."""
        network = f" (network {self.network})" if self.network else ""
        return ": ".join(filter(None, (self.place, self.key, self.message))) + network + (self.fix and f"; {self.fix}")

    def document(self) -> dict[str, Any]:
        """The finding for programs."""
        found = asdict(self)
        return {"file": found.pop("path"), **found}

    def snippet(self, width: int = WIDTH) -> list[str]:
        """The line, and below it a mark under the fault; [] for a file as a whole."""
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
    """The error for the faults of the file `path`."""
    lines = [fault.sentence for fault in faults]
    if len(lines) == 1:
        return InvalidConfig(lines[0])
    return InvalidConfig(f"{len(lines)} faults in {path}", "\n".join(lines))
