"""Part of kubectl's JSONPath: text, {PATH}, {"text"}, {range PATH}…{end}. PATH has .key, ['key'], [NUMBER] and [*]."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from cni.shared.spec.errors import InvalidConfig

FORM = "jsonpath="  # the prefix of a template as the value of -o
_STEP = re.compile(r"\.?\[(?:'(?P<quoted>[^']+)'|(?P<number>-?\d+)|\*)\]|\.(?:(?P<key>(?:\\.|[\w/-])+)|\*)")
_PART = re.compile(
    r"(?P<plain>[^{}]+)|\{\s*(?:(?P<end>end)|\"(?P<text>[^\"]*)\"|(?P<range>range\s+)?(?P<path>[$@]?(?:"
    + re.sub(r"\?P<\w+>", "?:", _STEP.pattern)
    + r")*|\.))\s*\}"
)
_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}
Parts = list[tuple[str, str | None, Any]]  # (text, path or None, Parts of a {range} or None)


def read(template: str) -> Parts:
    """Parse `template`. Raises ValueError if its syntax is wrong, or if it has no {PATH}."""
    parts: Parts = []
    open_parts, at = [parts], 0
    while found := _PART.match(template, at):
        at = found.end()
        if not found["end"]:
            text = re.sub(r"\\([nt\\])", lambda one: _ESCAPED[str(one[1])], found["text"] or "")
            open_parts[-1].append((found["plain"] or text, found["path"], [] if found["range"] else None))
            open_parts += [open_parts[-1][-1][2]] if found["range"] else []
        elif not open_parts.pop() or not open_parts:
            raise ValueError(f"{{end}} without a {{range}}, or directly after it, before {template[at:]!r}")
    if at < len(template):
        raise ValueError(f"{template[at:]} is not understood: a path has .key, ['key'], [NUMBER] and [*]")
    if len(open_parts) > 1 or all(path is None for _, path, _ in parts):
        raise ValueError("a {range} has no {end}" if len(open_parts) > 1 else "want {PATH}, such as {[*].node}")
    return parts


def fill(parts: Parts, here: Any, root: Any) -> str:
    """Return the text of the template `parts`. A path that begins with $ starts at the document `root`, any other path
    at `here`. Raises InvalidConfig if a path applies a key to a list, or a number to an object."""
    texts = []
    for text, path, inner in parts:
        values = [] if path is None else _values(path, here, root)
        if inner is not None:
            texts += [fill(inner, value, root) for value in values]
        else:
            texts.append(text + " ".join(v if isinstance(v, str) else json.dumps(v) for v in values))
    return "".join(texts)


def _values(path: str, here: Any, root: Any) -> list[Any]:
    """The values at `path` in `here`, or in `root` if the path begins with $; [] if a key is missing."""
    values = [root if path.startswith("$") else here]
    for step in _STEP.finditer(path):
        key, number = step["quoted"] or re.sub(r"\\(.)", r"\1", step["key"] or ""), step["number"]
        for kind, asked, remedy in ((list, key, "[*]"), (dict, number, ".key")):
            if asked and any(isinstance(value, kind) for value in values):
                what = "a list" if kind is list else "an object"
                raise InvalidConfig(f"-o jsonpath: {{{path}}}: {step[0]} is asked of {what}: want {remedy} there")
        values = [one for value in values for one in _next(value, key, number)]
    return values


def _next(value: Any, key: str, number: str | None) -> Sequence[Any]:
    if isinstance(value, dict):
        return [value[key]] if key in value else [] if key else [*value.values()]
    if not isinstance(value, list) or number is None:
        return value if isinstance(value, list) else []
    return value[int(number) :][:1] if int(number) >= -len(value) else []
