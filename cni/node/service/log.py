"""The agent's log: a line of key=value pairs (logfmt) on stderr for each action and each fault."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from cni.shared.log import Log

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/@+,[]()")


LEVELS = ("debug", "info", "warning", "error")


class AgentLog(Log):
    """The log of a program that keeps running; code that the program shares with the plugins writes to it too. Lines
    below the level `threshold`, one of LEVELS, are not written."""

    __slots__ = ("_last", "_shown")

    def __init__(self, threshold: str = "info") -> None:
        super().__init__()
        self._last: dict[str, str] = {}
        self._shown = LEVELS[LEVELS.index(threshold) :]

    def say(self, level: str, text: str, **fields: object) -> None:
        """Write a line with the time in UTC, `level`, `text` as `msg`, and the `fields` that are not empty."""
        if level not in self._shown:
            return
        pairs = {"ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "level": level, "msg": text, **fields}
        line = " ".join(f"{key}={_value(str(value))}" for key, value in pairs.items() if value not in ("", None))
        with suppress(OSError):  # nobody reads stderr
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def state(self, about: str, text: str, **fields: object) -> None:
        """Write the warning `text` about the subject `about`, unless the last text about this subject was the same. The
        text "" means that the fault has ended, and writes nothing."""
        if self._last.get(about, "") != text:
            self._last[about] = text
            if text:
                self.say("warning", text, **fields)

    def _write(self, level: str, text: str) -> None:
        self.say({"verbose": "info"}.get(level, level), text)


def _value(text: str) -> str:
    if text and _PLAIN.issuperset(text):
        return text
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
