"""The YAML that kubeconfigs are written in, read strictly: PyYAML costs a plugin 20 ms and is not on every node.

It reads block mappings and sequences, plain and quoted scalars, literal blocks (`|`), comments, and JSON, as a whole or as
a value on its line. Plain scalars are texts, but for true, false and null. It refuses all else with its line: anchors, tags,
several documents, folded blocks, flow mappings that are no JSON, keys that are no scalars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.spec import codec

if TYPE_CHECKING:
    from typing import Any

_DEPTH = 50
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/", " ": " "}


def loads(data: bytes) -> Any:
    """The value that the UTF-8 text `data` stands for; ValueError names the line of what is not understood."""
    text = data.decode().removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        try:
            return codec.loads(text.encode())
        except ValueError:
            pass  # a flow mapping may still be YAML
    reader = _Reader(text)
    value = reader.block(reader.indent(), 0)
    if reader.line() is not None:
        raise reader.fault("is not indented as the lines above")
    return value


class _Reader:
    """The lines of a text, read one after the other."""

    __slots__ = ("_at", "_lines")

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._at = 0
        for i, line in enumerate(self._lines):
            if line.rstrip() == "---":
                self._at = i + 1
            if line.strip() and not line.startswith("#"):
                break

    def fault(self, what: str) -> ValueError:
        return ValueError(f"line {self._at + 1} {what}")

    def line(self) -> str | None:
        """The next line with something on it, without its indentation; None at the end."""
        while self._at < len(self._lines):
            line = self._lines[self._at].rstrip()
            stripped = line.lstrip(" ")
            if stripped and not stripped.startswith("#"):
                if stripped.startswith("\t"):
                    raise self.fault("is indented by a tab")
                if line in ("---", "...") or line.startswith("%"):
                    if line == "..." or all(not rest.strip() for rest in self._lines[self._at + 1 :]):
                        self._at = len(self._lines)
                        return None
                    raise self.fault("begins another document")
                return stripped
            self._at += 1
        return None

    def indent(self) -> int:
        """How far the next line is indented; -1 at the end."""
        line = self.line()
        return -1 if line is None else len(self._lines[self._at].rstrip()) - len(line)

    def block(self, indent: int, depth: int) -> Any:
        """The node whose lines are indented by `indent`."""
        if depth > _DEPTH:
            raise self.fault("is nested too deeply")
        line = self.line()
        if line is None:
            return None
        if line == "-" or line.startswith("- "):
            return self._sequence(indent, depth)
        if _key_end(line) >= 0 and line[0] not in "{[":
            return self._mapping(indent, depth)
        self._at += 1
        return self._scalar(line, self._at - 1)

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        found = []
        while self.indent() == indent and ((line := self.line() or "") == "-" or line.startswith("- ")):
            rest = line[1:].lstrip(" ")
            if rest and not rest.startswith("#"):  # what follows the dash is a line of its own, indented as it stands
                inner = indent + len(line) - len(rest)
                self._lines[self._at] = " " * inner + rest
                found.append(self.block(inner, depth + 1))
            else:
                self._at += 1
                found.append(self.block(self.indent(), depth + 1) if self.indent() > indent else None)
        return found

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.indent() == indent:
            line = self.line() or ""
            if line.startswith("- "):
                break
            end = _key_end(line)
            if end < 0:
                raise self.fault("has no key")
            key = self._scalar(line[:end], self._at)
            name = key if isinstance(key, str) else line[:end]
            if name in found:
                raise self.fault("has a key a second time")
            found[name] = self._value(line[end + 1 :].lstrip(" "), indent, depth)
        if self.indent() > indent:
            raise self.fault("is not indented as the lines above")
        return found

    def _value(self, rest: str, indent: int, depth: int) -> Any:
        """What stands after a key: on its line, or on those below."""
        self._at += 1
        if rest[:1] == "|":
            return self._literal(rest, indent)
        if rest and not rest.startswith("#"):
            return self._scalar(rest, self._at - 1)
        below = self.indent()
        line = self.line() or ""
        if below > indent or (below == indent and (line == "-" or line.startswith("- "))):
            return self.block(below, depth + 1)
        return None

    def _literal(self, header: str, indent: int) -> str:
        header = header.partition(" #")[0].rstrip()
        if header not in ("|", "|-"):
            self._at -= 1
            raise self.fault("begins a block in a form that is not read: want |")
        lines: list[str] = []
        inner = 0
        while self._at < len(self._lines):
            line = self._lines[self._at]
            have = len(line) - len(line.lstrip(" "))
            if line.strip() and have <= indent:
                break
            inner = inner or (have if line.strip() else 0)
            lines.append(line[inner:])
            self._at += 1
        while lines and not lines[-1].strip():
            lines.pop()
        return "\n".join(lines) + ("\n" if header == "|" and lines else "")

    def _scalar(self, text: str, at: int) -> Any:
        """The value of `text`, which is the rest of the line `at`."""
        try:
            value, end = _value(text)
            rest = text[end:].strip()
            if rest and not rest.startswith("#"):
                raise ValueError("goes on after its value")
        except ValueError as fault:
            raise ValueError(f"line {at + 1} {fault}") from None
        return value


def _key_end(line: str) -> int:
    """Where the colon after a line's key is; -1 when there is none."""
    start = 0
    if line[0] in "\"'":
        try:
            start = _quoted(line, 0)[1]
        except ValueError:
            return -1
        return start if line[start : start + 1] == ":" and line[start + 1 : start + 2] in ("", " ") else -1
    while (end := line.find(":", start)) >= 0:
        if line[end + 1 : end + 2] in ("", " "):
            return -1 if " #" in line[:end] else end
        start = end + 1
    return -1


def _value(text: str) -> tuple[Any, int]:
    """(the value that `text` begins with, its end); ValueError."""
    first = text[:1]
    if first in ("{", "["):
        end = text.find(" #") if " #" in text else len(text)
        try:
            return codec.loads(text[:end].encode()), end
        except ValueError:
            raise ValueError(
                f"has a value that begins with {first} and is no JSON: write it in lines or as JSON"
            ) from None
    if first in ('"', "'"):
        return _quoted(text, 0)
    if first and first in "&*!|>%@`":
        raise ValueError(f"has a value that begins with {first}, which is not read here: write it in quotes or JSON")
    plain = text[:1] if first == "#" else text.partition(" #")[0]
    if f"{plain} ".find(": ") >= 0:
        raise ValueError('has ": " within a value: write it in quotes')
    return _WORDS.get(plain.rstrip(), plain.rstrip()), len(plain)


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote, out = text[at], ""
    at += 1
    while at < len(text):
        char = text[at]
        if char == quote:
            if quote == '"' or text[at + 1 : at + 2] != "'":
                return out, at + 1
            at += 1
        elif char == "\\" and quote == '"':
            at += 1
            if text[at : at + 1] not in _ESCAPES or at == len(text):
                raise ValueError("has an escape in quotes that is not read here")
            char = _ESCAPES[text[at]]
        out += char
        at += 1
    raise ValueError("has a quote that is not closed on it")
