"""Diagnostics (faults of a file with line, key and remedy), documents that collect diagnostics, messages for refused
values, and the search for the word that a misspelt word most likely means."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from cni.documents.tree import Keys, Text, TreeNode
from cni.shared.config import slip
from cni.shared.spec.errors import InvalidConfig

ERROR, WARNING = "error", "warning"
WIDTH = 100  # the number of characters of a line that are shown
Fixes = Mapping[str, str]
_NONE: Fixes = MappingProxyType({})
_SECRET = re.compile(r"""(etcd_password\W{1,6}["'])([^"'\\]*)""", re.IGNORECASE)  # hidden: findings are also logged
_MOST_CHARACTERS = 60
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_WANTED = {
    "string_type": "want a string",
    "int_type": "want an integer",
    "bool_type": "want true or false",
    "list_type": "want a list",
    "dict_type": "want an object",
    "model_type": "want an object",
    "extra_forbidden": "is no key here",
    "invalid_key": "is no key here",
    "greater_than_equal": "want {ge} or more",
    "less_than_equal": "want {le} at most",
    "too_short": "want {min_length} or more members",
    "too_long": "want {max_length} members at most",
    "string_too_short": "want {min_length} or more characters",
    "value_error": "{error}",
}
"""The messages, by pydantic's error type; other types have pydantic's own message."""


@dataclass(frozen=True)
class Diagnostic:
    """A fault of a document in a file.

    A fault of severity "error" makes an ADD fail or do something unintended. With a "warning", an ADD works, but not as
    well as it could. `line` and `column` count from 1, and are 0 for the file as a whole. `text` is the line, `length`
    its number of faulty characters. `key` is the dotted key in the network's JSON, or in the Kubernetes object.
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
        """Return two lines: the faulty line, and a mark below the fault. Returns [] for a fault of the whole file."""
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
    """Make one error of all `faults` of the file `path`."""
    lines = [fault.sentence for fault in faults]
    if len(lines) == 1:
        return InvalidConfig(lines[0])
    return InvalidConfig(f"{len(lines)} faults in {path}", "\n".join(lines))


@dataclass
class Scope:
    """A document: its `text`, the parsed tree `root`, and the `findings` about it. New findings name the network
    `network`, or "" while it is unknown. If the document is a string inside another document, `prefix` is the path to
    this string; the keys of findings begin with it."""

    text: Text
    root: TreeNode
    findings: list[Diagnostic]
    network: str = ""
    prefix: Keys = ()

    def inside(self, node: TreeNode) -> Scope:
        """Return the part of the document at `node` as a document of its own, with the same findings."""
        return Scope(self.text, node, self.findings, self.network, self.prefix)

    def warn(self, keys: Keys, message: str, fix: str = "", *, at_key: bool = False) -> None:
        """Add a warning at the value with the path `keys`, or at its key if `at_key`."""
        self.error(keys, message, fix, at_key=at_key, severity=WARNING)

    def error(self, keys: Keys, message: str, fix: str = "", *, at_key: bool = False, severity: str = ERROR) -> None:
        """Add a finding, by default an error, at the value with the path `keys`, or at its key if `at_key`."""
        member, node, depth = self.root.walk(keys)
        start, end = node.start, node.end
        if depth < len(keys):  # mark the opening bracket of the object that lacks the key
            end = start + 1
        elif member is not None and at_key:
            start, end = member.start, member.end
        self.span(severity, start, end, name_of((*self.prefix, *keys)), message, fix)

    def span(self, severity: str, start: int, end: int, key: str, message: str, fix: str) -> None:
        """Add a finding about the characters from `start` to `end` of the text."""
        line, column = self.text.position(start)
        last, behind = self.text.position(end)
        shown = self.text.line(line)
        if last != line:
            behind = len(shown) + 1
        length = max(1, behind - column)
        shown = _SECRET.sub(lambda found: found.group(1) + "*" * len(found.group(2)), shown)
        self.findings.append(
            Diagnostic(self.text.path, line, column, length, severity, key, message, fix, self.network, shown)
        )

    def model(
        self, model: type[BaseModel], document: Any, prefix: Keys = (), fixes: Fixes = _NONE, additions: Fixes = _NONE
    ) -> Any:
        """Convert `document`, which is at the path `prefix`, to an instance of `model`. If the model refuses
        `document`, add the errors to the findings, and return None. `fixes` has remedies for refused values,
        `additions` for missing values, both by the last key of the value's path."""
        try:
            return model.model_validate(document)
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                keys: Keys = (*prefix, *error["loc"])
                last = next((key for key in reversed(keys) if isinstance(key, str)), "")
                if error["type"] == "missing":
                    self.error(keys, f"{last} is missing", additions.get(last, f'add "{last}"'))
                else:
                    fix = fixes.get(last, "")
                    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
                        fix = fix or correction(last, (one.alias or name for name, one in model.model_fields.items()))
                    self.error(keys, f"{shown(error['input'])}: {_wanted(error)}", fix)
            return None


# --- messages ---


def _wanted(error: Mapping[str, Any]) -> str:
    """The message for an error of pydantic, such as "want a string"."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":
        choices = [*filter(None, re.findall("'([^']*)'", context["expected"]))]
        return f"want {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
    return _WANTED[kind].format(**context) if kind in _WANTED else error["msg"].lower()


def name_of(keys: Keys) -> str:
    """The dotted name of keys: "plugins[0].mtu" for ("plugins", 0, "mtu")."""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys).removeprefix(".")


def keys_of(name: str) -> Keys:
    """The keys of a dotted name: ("plugins", 0, "mtu") for "plugins[0].mtu"."""
    return tuple(int(number) if number else word for number, word in _PART.findall(name))


def shown(value: Any) -> str:
    """Convert `value` to shortened JSON, or to text if JSON cannot express it, as with a YAML date."""
    parts, size = [], 0
    try:
        for part in json.JSONEncoder(default=str).iterencode(value):  # aliases may make it endless
            parts.append(part)
            size += len(part)
            if size > _MOST_CHARACTERS:
                break
        text = "".join(parts)
    except (TypeError, ValueError, RecursionError):  # a key that JSON refuses, or a YAML alias that contains itself
        text = reprlib.repr(value)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def near(word: str, names: Iterable[str]) -> str:
    """The member of `names` that `word` most likely means; "" when none is similar."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(_bare(name), name)
    bare = _bare(word)
    found = difflib.get_close_matches(bare, folded, n=1, cutoff=0.75)
    return folded.get(found[0] if found else slip(bare, folded), "")  # a slip such as mut for mtu


def correction(word: str, names: Iterable[str], otherwise: str = "remove it") -> str:
    """The remedy for the unknown `word`: to write the most similar of `names`, or `otherwise` if none is similar."""
    likely = near(word, names)
    return f'write "{likely}"' if likely else otherwise


def _bare(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
