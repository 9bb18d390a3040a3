"""What the lint says of a file: one finding a fault, with its place, its key and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ERROR, WARNING = "error", "warning"
WIDTH = 100  # characters of a line that are shown


@dataclass(frozen=True)
class Finding:
    """A fault of the network in a file.

    An `error` makes an ADD fail, or do what was not meant; with a `warning` it works, but not as well as it could.
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
        """ "file:line:column"."""
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path

    def document(self) -> dict[str, Any]:
        """The finding for programs."""
        return {
            "file": self.path,
            "line": self.line,
            "column": self.column,
            "length": self.length,
            "severity": self.severity,
            "network": self.network,
            "key": self.key,
            "message": self.message,
            "fix": self.fix,
            "text": self.text,
        }

    def snippet(self) -> list[str]:
        """The line, and below it a mark under what is meant; [] when there is none."""
        if not self.line or not self.text.strip():
            return []
        text, begin, length = self.text, self.column - 1, max(1, self.length)
        if len(text) > WIDTH:
            first = max(0, min(begin - WIDTH // 3, len(text) - WIDTH))
            last = first + WIDTH
            length = max(1, min(length, last - begin))
            text = ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")
            begin += (1 if first else 0) - first
        head = f"{self.line} | "
        before = "".join("\t" if c == "\t" else " " for c in text[:begin])
        return [f"{head}{text}", " " * (len(head) - 2) + f"| {before}{'^' * length}"]
