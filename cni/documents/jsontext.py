"""JSON with the place of each value. Python's json checks the syntax; the first fault is reported with a remedy."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

from cni.documents.tree import MOST_DEPTH, MOST_NODES, Member, TreeNode

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\],:"]+')  # a token of valid JSON; : and , are skipped
_REMEDIES = (  # a part of Python's message, a pattern of the text at the fault, and the remedy
    ("Unterminated", "", 'write " where it ends'),
    ("control character", "", "write it as an escape, such as \\t or \\n"),
    ("escape", "", "write \\\\ for a backslash"),
    ("", r"//|#|/\*", "remove the comment: JSON has none"),
    ("','", r"(?<=0)\d", "remove the zero before the number"),
    ("','", r"[}\]]|\Z", "write , after this, or close the bracket that is open"),
    ("','", "[;=]", "write , for the character after this"),
    ("','", "", "write , after this"),
    ("':'", "", "write : here"),
    ("Extra data", "", "remove it"),
    ("trailing comma", "", "remove this comma"),
    ("", r"\Z", "write what is missing here, and close each bracket"),
    ("", "['\u2018\u2019\u201c\u201d]", 'write " for this quotation mark'),
    ("", "[,}\\]]", "remove the comma before this, or write what is missing here"),
    ("", "(?i:true|false|null|none)", "write true, false or null"),
    ("", r"[^\W\d]", "write it between double quotes"),
    ("", "", "write a JSON value or key in its place"),
)


class SyntaxFault(ValueError):
    """The first syntax error of a text, at the characters from `start` to `end`; `fix` is the remedy."""

    def __init__(self, start: int, end: int, message: str, fix: str) -> None:
        super().__init__(message)
        self.start, self.end, self.fix = start, end, fix


def parse(text: str) -> TreeNode:
    """Return the tree of the JSON text `text`. Raises SyntaxFault when it is not JSON, or too large."""
    try:
        json.loads(text, parse_int=str)  # a number that is too long is found below, with its place
    except json.JSONDecodeError as fault:
        raise _refusal(text, fault) from None
    except RecursionError:
        raise _too_large(0) from None
    tokens, numbers = _TOKEN.finditer(text), itertools.count(1)

    def value(token: re.Match[str], depth: int) -> TreeNode:
        """The value that begins with `token`."""
        start, end = token.span()
        if depth > MOST_DEPTH or next(numbers) > MOST_NODES:
            raise _too_large(start)
        if token.group() == "{":
            members = []
            while (key := next(tokens)).group() != "}":
                members.append(Member(_scalar(key), *key.span(), value(next(tokens), depth + 1)))
            return TreeNode(start, key.end(), members=members)
        if token.group() == "[":
            items = []
            while (first := next(tokens)).group() != "]":
                items.append(value(first, depth + 1))
            return TreeNode(start, first.end(), items=items)
        return TreeNode(start, end, _scalar(token))

    return value(next(tokens), 1)


def _scalar(token: re.Match[str]) -> Any:
    try:
        value = json.loads(token.group())
    except ValueError:  # a number with more digits than Python converts
        value = math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise SyntaxFault(*token.span(), f"{token.group()[:20]} is no number, or too large", "write a smaller number")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise SyntaxFault(*token.span(), "has half of a surrogate pair (\\ud800 to \\udfff)", "remove it")
    return value


def _refusal(text: str, fault: json.JSONDecodeError) -> SyntaxFault:
    if not text.strip():
        return SyntaxFault(
            0, 0, "is empty: want a JSON object", 'write {"cniVersion": "1.0.0", "name": ..., "type": ...}'
        )
    at = fault.pos
    fix = next(fix for part, ahead, fix in _REMEDIES if part in fault.msg and re.compile(ahead).match(text, at))
    if "','" in fault.msg and " after this" in fix:
        start = len(text[:at].rstrip()) - 1  # the end of the value that lacks the comma
        end = start + 1
    else:
        start = min(at, len(text) - 1)
        end = start + max(1, len(re.findall(r"^\w*", text[start:])[0]))
    return SyntaxFault(start, end, fault.msg[0].lower() + fault.msg[1:].removesuffix(" at"), fix)


def _too_large(at: int) -> SyntaxFault:
    return SyntaxFault(
        at, at, f"it has more than {MOST_DEPTH} levels, or more than {MOST_NODES} values", "make it smaller"
    )
