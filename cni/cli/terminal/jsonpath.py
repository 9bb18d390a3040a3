"""kubectl's JSONPath templates: text, {PATH}, {"text"} and {range PATH}…{end}; a path has .key, ['key'], [NUMBER], [*]."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from cni.shared.spec.errors import InvalidConfig

FORM = "jsonpath="  # the beginning of this form of -o
_STEP = re.compile(r"\.?\[(?:'(?P<quoted>[^']*)'|(?P<number>-?\d+)|\*)\]|\.(?:(?P<key>(?:\\.|[\w/-])+)|\*)")
_PART = re.compile(
    r"(?P<plain>[^{}]+)|\{\s*(?:(?P<end>end)|\"(?P<text>[^\"]*)\"|(?P<range>range\s+)?(?P<path>[$@]?(?:"
    + re.sub(r"\?P<\w+>", "?:", _STEP.pattern)
    + r")*|\.))\s*\}"
)
_ESCAPED = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def read(template: str) -> list[Any]:
    """Parse `template` to texts, paths, and tuples of a range's path and parts. Raises ValueError."""
    parts: list[Any] = []
    open_parts, at = [parts], 0
    while found := _PART.match(template, at):
        at, path = found.end(), found["path"]
        if found["plain"] or found["text"] is not None:
            text: str = found["plain"] or found["text"]
            open_parts[-1].append(re.sub(r"\\[nt\\]", lambda one: _ESCAPED[str(one[0])], text))
        elif found["range"]:
            open_parts[-1].append((_Path(path), []))
            open_parts.append(open_parts[-1][-1][1])
        elif found["end"]:
            open_parts.pop()
        if path is not None and not found["range"]:
            open_parts[-1].append(_Path(path))
        if not open_parts:
            raise ValueError(f"{{end}} without a {{range}} before {template[at:]!r}")
    if at < len(template):
        raise ValueError(f"{template[at:]} is not understood: a path has .key, ['key'], [NUMBER] and [*]")
    if len(open_parts) > 1 or not any(not isinstance(part, str) for part in parts):
        raise ValueError("a {range} has no {end}" if len(open_parts) > 1 else "want {PATH}, such as {[*].node}")
    return parts


def fill(parts: Sequence[Any], here: Any, root: Any) -> str:
    """The text of a template for the value `here` of the document `root`. Raises InvalidConfig."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, _Path):
            texts.append(" ".join(v if isinstance(v, str) else json.dumps(v) for v in part.values(here, root)))
        else:
            texts += [fill(part[1], value, root) for value in part[0].values(here, root)]
    return "".join(texts)


class _Path:
    """A path; its values are those of `root` if it begins with $, otherwise of the value at hand."""

    def __init__(self, text: str) -> None:
        self.text, self.steps = text, list(_STEP.finditer(text))

    def values(self, here: Any, root: Any) -> list[Any]:
        """The values at the path; none where a key is missing, as in kubectl."""
        values = [root if self.text.startswith("$") else here]
        for step in self.steps:
            values = [one for value in values for one in self._next(step, value)]
        return values

    def _next(self, step: re.Match[str], value: Any) -> Sequence[Any]:
        key = step["quoted"] or re.sub(r"\\(.)", r"\1", step["key"] or "")
        if (key and isinstance(value, list)) or (step["number"] and isinstance(value, dict)):
            kind, remedy = ("an object", ".key") if step["number"] else ("a list", "[*]")
            raise InvalidConfig(f"-o jsonpath: {{{self.text}}}: {step[0]} is asked of {kind}: want {remedy} there")
        if isinstance(value, dict):
            return [value[key]] if key in value else [] if key else [*value.values()]
        if not isinstance(value, list):
            return []
        number = int(step["number"] or 0)
        return value[number:][:1] if step["number"] and number >= -len(value) else [] if step["number"] else value
