"""Read files that have networks: the text becomes JSON or YAML documents, each a tree with places.

The lint, the commands that attach, `rails` and `nad render` use this module. Syntax errors are findings, so a broken
document does not hide the others.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from cni.documents import jsontext
from cni.documents.diagnostic import ERROR, Diagnostic, Scope
from cni.documents.refusals import name_of
from cni.documents.tree import DocumentTooLarge, Keys, Text, TreeNode, compose, of_yaml
from cni.shared.spec.codec import MOST_BYTES

STDIN = "-"
JSON = (".conflist", ".conf", ".json")  # the extensions that libcni reads in net.d
YAML = (".yaml", ".yml")
_DOCUMENT = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)


def read_text(path: str, findings: list[Diagnostic]) -> str | None:
    """Return the text of the file `path` ("-": stdin); None, with a finding, if it cannot be read, or is no text."""
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
    """Yield, for each document in the file `path`, whether it is JSON, and the document. The file is read if `text` is
    None. Faults of reading and of syntax are added to `findings`."""
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
    """Yield the document, or each member of a Kubernetes List."""
    document = scope.root.data
    if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
        items = scope.root.member("items")
        for item in items.node.items or [] if items else []:
            yield from objects(scope.inside(item))
    else:
        yield scope


def of_json(text: Text, findings: list[Diagnostic], network: str = "", prefix: Keys = ()) -> Scope | None:
    """Return the JSON document `text`; None, with a finding, when the text is not JSON."""
    scope = Scope(text, TreeNode(0, 0), findings, network, prefix)
    try:
        return scope.inside(jsontext.parse(text.text))
    except jsontext.SyntaxFault as fault:
        scope.span(ERROR, fault.start, fault.end, name_of(prefix), f"not JSON: {fault}", fault.fix)
        return None


def json_file(path: str, findings: list[Diagnostic], network: str = "") -> Scope | None:
    """Return the JSON document of the file `path`; None, with a finding, when it cannot be read or is not JSON."""
    text = read_text(path, findings)
    return None if text is None else of_json(Text(path, text), findings, network)


def json_inside(scope: Scope, keys: Keys, is_list: bool = False) -> Scope | None:
    """Return the JSON document in the string at `keys`; None, with a finding, when the string is not JSON. The document
    shares the findings of `scope`. `is_list`: the string has the members of a list, without the brackets."""
    text = string(scope, scope.root.walk(keys)[1])
    return of_json(text.bracketed() if is_list else text, scope.findings, scope.network, keys)


def string(scope: Scope, node: TreeNode) -> Text:
    """The text inside the string `node`, with places in the file."""
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
    return None
