"""Where a rule looks: a network in a file, and the list that its findings go to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from cni.cli import refusals
from cni.cli.lint.finding import ERROR, WARNING, Finding
from cni.cli.lint.tree import Node
from cni.cli.source import Keys, Source
from cni.spec import codec

_SECRET = re.compile(r"""(etcd_password\W{1,6}["'])([^"'\\]*)""", re.IGNORECASE)  # a finding may go far from its file
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def keys_of(name: str) -> Keys:
    """ "plugins[0].mtu" as ("plugins", 0, "mtu")."""
    return tuple(int(number) if number else word for number, word in _PART.findall(name))


def shown(value: Any) -> str:
    """`value` as JSON, shortened."""
    text = codec.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass
class Scope:
    """The document `root` in `source`; `network` is its name, once that is known, for the findings."""

    source: Source
    root: Node
    findings: list[Finding]
    network: str = ""

    def error(self, keys: Keys, message: str, fix: str = "", *, at_key: bool = False) -> None:
        self._note(ERROR, keys, message, fix, at_key)

    def warn(self, keys: Keys, message: str, fix: str = "", *, at_key: bool = False) -> None:
        self._note(WARNING, keys, message, fix, at_key)

    def span(self, severity: str, start: int, end: int, key: str, message: str, fix: str) -> None:
        """A finding about the characters from `start` to `end` of the source."""
        line, column = self.source.position(start)
        last, behind = self.source.position(end)
        text = self.source.line(line)
        if last != line:
            behind = len(text) + 1
        length = max(1, behind - column)
        text = _SECRET.sub(lambda found: found.group(1) + "*" * len(found.group(2)), text)
        self.findings.append(
            Finding(self.source.path, line, column, length, severity, key, message, fix, self.network, text)
        )

    def model(
        self, model: type[BaseModel], document: Any, prefix: Keys = (), fixes: dict[str, str] | None = None
    ) -> Any:
        """`document` as `model`, or None and its faults; `fixes` by the last key of a fault."""
        try:
            return model.model_validate(document)
        except ValidationError as invalid:
            for refusal in refusals.of(invalid):
                keys: Keys = (*prefix, *refusal.keys)
                last = str(keys[-1]) if keys else ""
                if refusal.is_missing:
                    self.error(keys, f"{last} is missing", f'add "{last}"')
                else:
                    self.error(keys, f"{refusals.shown(refusal.value)}: {refusal.wanted}", (fixes or {}).get(last, ""))
            return None

    def _note(self, severity: str, keys: Keys, message: str, fix: str, at_key: bool) -> None:
        member, node, depth = self.root.walk(keys)
        start, end = node.start, node.end
        if depth < len(keys):  # it is missing: the bracket of what lacks it
            end = start + 1
        elif member is not None and at_key:
            start, end = member.start, member.end
        self.span(severity, start, end, refusals.name_of(keys), message, fix)
