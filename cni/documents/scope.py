"""A document in a file, and the list that takes its findings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from cni.documents.diagnostic import ERROR, WARNING, Diagnostic
from cni.documents.refusals import name_of, refusals
from cni.documents.text import Keys, Text
from cni.documents.tree import TreeNode

_SECRET = re.compile(r"""(etcd_password\W{1,6}["'])([^"'\\]*)""", re.IGNORECASE)  # findings are also in logs


@dataclass
class Scope:
    """The document `root` in `text`, and its `findings`, which name `network` once its name is known. For a document
    inside a string of another document, `prefix` are the keys of that string: the keys of findings begin with them."""

    text: Text
    root: TreeNode
    findings: list[Diagnostic]
    network: str = ""
    prefix: Keys = ()

    def inside(self, node: TreeNode) -> Scope:
        """Return the part at `node` as a document of its own."""
        return Scope(self.text, node, self.findings, self.network, self.prefix)

    def warn(self, keys: Keys, message: str, fix: str = "", *, at_key: bool = False) -> None:
        """Add a warning at the value of `keys`; `at_key`: at the key itself."""
        self.error(keys, message, fix, at_key=at_key, severity=WARNING)

    def error(self, keys: Keys, message: str, fix: str = "", *, at_key: bool = False, severity: str = ERROR) -> None:
        """Add a finding, by default an error, at the value of `keys`; `at_key`: at the key itself."""
        member, node, depth = self.root.walk(keys)
        start, end = node.start, node.end
        if depth < len(keys):  # the key is missing: take the opening bracket of its object
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
        self, model: type[BaseModel], document: Any, prefix: Keys = (), fixes: dict[str, str] | None = None
    ) -> Any:
        """Return `document` as a `model`; None, with errors, if refused. `fixes` has remedies by the last key."""
        try:
            return model.model_validate(document)
        except ValidationError as invalid:
            for inner, reason in refusals(invalid):
                keys: Keys = (*prefix, *inner)
                last = next((key for key in reversed(keys) if isinstance(key, str)), "")
                if reason:
                    self.error(keys, reason, (fixes or {}).get(last, ""))
                else:
                    self.error(keys, f"{last} is missing", f'add "{last}"')
            return None
