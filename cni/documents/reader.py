"""Read files that have networks: the text becomes JSON or YAML documents, each with the places of its values.

The lint, the commands that attach networks, and the commands `rails` and `nad render` use this module. A syntax error
is a finding, and the documents after the error are read too.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from cni.documents.diagnostic import ERROR, Diagnostic, Scope, name_of
from cni.documents.tree import MOST_DEPTH, MOST_NODES, DocumentTooLarge, Keys, Member, Text, TreeNode, compose, of_yaml
from cni.shared.spec.codec import MOST_BYTES

STDIN = "-"
JSON = (".conflist", ".conf", ".json")  # the extensions that libcni reads in net.d
YAML = (".yaml", ".yml")
_DOCUMENT = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)
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


def read_text(path: str, findings: list[Diagnostic]) -> str | None:
    """Read the file `path` ("-": stdin). Returns None, with a finding, if it is unreadable, too large or not UTF-8."""
    try:
        data = sys.stdin.buffer.read(MOST_BYTES + 1) if path == STDIN else _read(path)
        if len(data) <= MOST_BYTES:
            return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
        found = about(path, f"is larger than {MOST_BYTES >> 20} MiB, which no plugin reads", "make it smaller")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        found = about(path, f"is not UTF-8 text: byte {fault.start}, in line {line}", "save it as UTF-8")
    except OSError as fault:
        found = about(path, f"cannot be read: {fault.strerror or fault}", "name a readable file")
    findings.append(found)
    return None


def _read(path: str) -> bytes:
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(0, "it is a directory")
    if not stat.S_ISREG(kind) and not path.startswith("/dev/fd/"):  # reading a FIFO may never end
        raise OSError(0, "it is no regular file; for a pipe write -")
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)


def shown_path(path: str) -> str:
    """The name of the file `path` in messages."""
    return "<stdin>" if path == STDIN else path


def about(path: str, message: str, fix: str, severity: str = ERROR) -> Diagnostic:
    """A finding about a file as a whole."""
    return Diagnostic(shown_path(path), 0, 0, 0, severity, "", message, fix)


def documents(path: str, text: str | None, findings: list[Diagnostic]) -> Iterator[tuple[bool, Scope]]:
    """Yield (whether it is JSON, the document) for each document in the file `path`. `text` is the content of the file;
    if it is None, the file is read. Faults of reading and of syntax are added to `findings`."""
    text = read_text(path, findings) if text is None else text
    if text is None:
        return
    whole = Text(shown_path(path), text)
    if _is_json(path, text):
        if scope := of_json(whole, findings):
            yield True, scope
        return
    starts = [0, *(m.start() for m in _DOCUMENT.finditer(text) if m.start())]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        lines = (line.strip() for line in text[start:end].splitlines())
        is_empty = all(not line or line.startswith(("#", "%", "---", "...")) for line in lines)
        if not is_empty and (scope := _of_yaml(whole.part(start, end), findings)):
            yield False, scope


def objects(scope: Scope) -> Iterator[Scope]:
    """Yield the document itself or, if it is a Kubernetes List, each of its items."""
    document = scope.root.data
    if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
        items = scope.root.member("items")
        for item in items.node.items or [] if items else []:
            yield from objects(scope.inside(item))
    else:
        yield scope


def of_json(text: Text, findings: list[Diagnostic], network: str = "", prefix: Keys = ()) -> Scope | None:
    """Parse `text` as JSON. Returns None, with a finding, if it is not JSON. Scope explains `network` and `prefix`."""
    scope = Scope(text, TreeNode(0, 0), findings, network, prefix)
    try:
        return scope.inside(parse_json(text.text))
    except SyntaxFault as fault:
        scope.span(ERROR, fault.start, fault.end, name_of(prefix), f"not JSON: {fault}", fault.fix)
        return None


def json_file(path: str, findings: list[Diagnostic], network: str = "") -> Scope | None:
    """Read the JSON file `path`. Returns None, with a finding, when it cannot be read or is not JSON."""
    text = read_text(path, findings)
    return None if text is None else of_json(Text(path, text), findings, network)


def json_inside(scope: Scope, keys: Keys, is_list: bool = False) -> Scope | None:
    """Return the JSON document in the string at the path `keys`. If the string is not JSON, return None, and add a
    finding to `scope`. If `is_list` is true, the string has the members of a list without the brackets."""
    text = string(scope, scope.root.walk(keys)[1])
    return of_json(text.bracketed() if is_list else text, scope.findings, scope.network, keys)


def string(scope: Scope, node: TreeNode) -> Text:
    """The content of the string `node`, as a Text, which has the place of each character in the file."""
    if node.scalar is None:  # the file is JSON
        return scope.text.inner(node.value, node.start + 1, node.end)
    return scope.text.scalar(node.scalar)


def duplicates(scope: Scope) -> None:
    """Add an error for each key that an object has twice."""
    for node in scope.root.objects():
        names: set[str] = set()
        for member in node.members or []:
            if member.name in names:
                message = f'the key "{member.name}" is there twice, and of two the last one counts'
                scope.span(ERROR, member.start, member.end, member.name, message, "remove one")
            names.add(member.name)


def _is_json(path: str, text: str) -> bool:
    extension, begin = os.path.splitext(path)[1], text.lstrip()[:1]
    if begin == "{":
        return not (extension in YAML and _as_yaml(text) is not None)
    return extension in JSON and (begin == "[" or not isinstance(_as_yaml(text), yaml.MappingNode))


def _as_yaml(text: str) -> Any:
    try:
        return compose(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _of_yaml(text: Text, findings: list[Diagnostic]) -> Scope | None:
    scope = Scope(text, TreeNode(0, 0), findings)
    try:
        composed = compose(text.text)
        return None if composed is None else scope.inside(of_yaml(composed))
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        at = mark.index if mark else 0
        fix = "check the quotes and the indentation before it"
        if text.text[at : at + 1] == "\t":
            fix = "indent with spaces: YAML takes no tabs"
        elif "mapping values are not allowed" in str(fault.problem):
            fix = "check the indentation, and put text with a colon between quotes"
        scope.span(ERROR, at, at + 1, "", f"not YAML: {fault.problem or fault}", fix)
    except yaml.reader.ReaderError as fault:
        scope.span(ERROR, fault.position, fault.position + 1, "", f"not YAML: {fault.reason}", "remove this character")
    except (yaml.YAMLError, DocumentTooLarge, ValueError, RecursionError) as fault:
        findings.append(about(text.path, f"not YAML: {fault}", "make it simpler"))
    except (AttributeError, LookupError):  # of PyYAML, for a value that is not of its tag's type, such as !!bool x
        findings.append(about(text.path, "not YAML: a value does not fit its tag (!!)", "remove the tag"))
    return None


# --- JSON with the place of each value; Python's module json checks the syntax ---


class SyntaxFault(ValueError):
    """The first syntax error of a text, at the characters from `start` to `end`. `fix` is the remedy."""

    def __init__(self, start: int, end: int, message: str, fix: str) -> None:
        super().__init__(message)
        self.start, self.end, self.fix = start, end, fix


def parse_json(text: str) -> TreeNode:
    """Return the tree of the JSON text `text`. Raises SyntaxFault when it is not JSON, or too large."""
    try:
        json.loads(text, parse_int=str)  # a number that is too long is found below, with its place
    except json.JSONDecodeError as fault:
        raise _refusal(text, fault) from None
    except RecursionError:
        raise _too_large(0) from None
    tokens, numbers = _TOKEN.finditer(text), itertools.count(1)

    def value(token: re.Match[str], depth: int) -> TreeNode:
        """Return the tree of the value that begins with `token`, at the nesting level `depth`."""
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
