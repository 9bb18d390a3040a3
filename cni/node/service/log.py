"""The agent's log: a line of key=value pairs (logfmt) on stderr for each action and each fault."""

from __future__ import annotations

import sys
import time

from cni.shared.log import Log

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/@+,[]()")


class AgentLog(Log):
    """A log for people and programs, which the plugins' code can also use. A lasting fault has one line."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__(level="verbose")
        self._last: dict[str, str] = {}

    def say(self, level: str, text: str, **fields: object) -> None:
        """Write a line with the time in UTC, `level`, `text` as `msg`, and `fields`, without empty ones."""
        pairs = {"ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "level": level, "msg": text, **fields}
        line = " ".join(f"{key}={_value(str(value))}" for key, value in pairs.items() if value not in ("", None))
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except OSError:
            pass  # nobody listens

    def state(self, about: str, text: str, **fields: object) -> None:
        """Write the warning `text` if it differs from the last one `about` the same; "" means no fault."""
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
