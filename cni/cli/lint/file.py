"""Files and directories: which networks they hold, and what is wrong with each."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from cni.cli.lint import manifest, network
from cni.cli.lint.addresses import Assumed, Files
from cni.cli.lint.finding import ERROR, WARNING, Finding
from cni.cli.lint.plugin import Surroundings
from cni.cli.lint.scope import Scope
from cni.cli.lint.tree import Node, TooMuch, compose, of_yaml
from cni.cli.source import Source
from cni.spec.codec import MOST_BYTES

STDIN = "-"
_RUNTIME = (".conflist", ".conf", ".json")  # what libcni reads in a net.d
_YAML = (".yaml", ".yml")
_DOCUMENT = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)
_NVIDIA = ("MacvlanNetwork", "HostDeviceNetwork", "IPoIBNetwork")


def lint(paths: Iterable[str], flat: Files | None = None) -> list[Finding]:
    """What is wrong in `paths`: files, directories such as /etc/cni/net.d, or "-" for stdin; in their order.

    `flat` reads the flat file of the node that is meant (ipam.flatfile for this one); else one is assumed that names a
    store, as clusters have it. What cannot be read is a finding too.
    """
    findings: list[Finding] = []
    for path in paths:
        if path != STDIN and os.path.isdir(path):
            findings += _directory(path, flat)
        else:
            findings += _file(path, flat)
    return findings


def lint_text(text: str, path: str, flat: Files | None = None, *, inside: bool = False) -> list[Finding]:
    """What is wrong in `text`, which is that of the file `path`; `inside` a directory files of other kinds are passed over."""
    findings: list[Finding] = []
    flat = flat or Assumed()
    text = text.removeprefix("\ufeff")
    source, extension = Source(path, text), os.path.splitext(path)[1]
    begun = text.lstrip()[:1]
    if begun == "{":
        is_json = not (extension in _YAML and _reads_as_yaml(text))
    else:
        is_json = extension in _RUNTIME and (begun == "[" or not _is_mapping(text))
    if is_json:
        _json(source, extension, flat, findings)
        return sorted(findings, key=_order)
    found = 0
    for part in documents(source):
        found += _yaml(part, extension, flat, findings)
    if not found and not findings and not inside:
        message = "there is no network here: neither a CNI configuration nor a NetworkAttachmentDefinition"
        fix = "run `railcni nad render` on it first" if any(kind in text for kind in _NVIDIA) else "name another file"
        findings.append(_about(path, message, fix))
    return sorted(findings, key=_order)


def _order(finding: Finding) -> tuple[int, int]:
    return finding.line, finding.column


def _about(path: str, message: str, fix: str, severity: str = ERROR) -> Finding:
    """A finding about a file as a whole."""
    return Finding(path, 0, 0, 0, severity, "", message, fix)


def _directory(path: str, flat: Files | None) -> list[Finding]:
    try:
        names = sorted(n for n in os.listdir(path) if os.path.splitext(n)[1] in (*_RUNTIME, *_YAML))
    except OSError as fault:
        return [_about(path, f"cannot be listed: {fault.strerror}", "run it as root, or name another directory")]
    findings: list[Finding] = []
    seen: dict[str, str] = {}
    for name in sorted(names, key=lambda n: (os.path.splitext(n)[1] != ".conflist", n)):  # as libcni searches
        one = os.path.join(path, name)
        if os.path.isdir(one):
            continue
        findings += _file(one, flat, inside=True)
        called = _name_in(one)
        if called and called in seen:
            message = f"the network {called} is in {seen[called]} too, which libcni finds first"
            findings.append(_about(one, message, "call one of them otherwise, or remove it", WARNING))
        elif called:
            seen[called] = name
    return findings


def _name_in(path: str) -> str:
    """The name of the network in a file that a runtime reads, or ""."""
    if os.path.splitext(path)[1] not in _RUNTIME:
        return ""
    try:
        document = json.loads(_read(path))
    except (OSError, ValueError, RecursionError):
        return ""
    name = document.get("name") if isinstance(document, dict) and "apiVersion" not in document else None
    return name if isinstance(name, str) else ""


def _file(path: str, flat: Files | None, *, inside: bool = False) -> list[Finding]:
    text = read_text(path)
    return [text] if isinstance(text, Finding) else lint_text(text, shown_path(path), flat, inside=inside)


def shown_path(path: str) -> str:
    """What findings call the file `path`."""
    return "<stdin>" if path == STDIN else path


def read_text(path: str) -> str | Finding:
    """The text of the file `path`, or why it cannot be read."""
    shown = shown_path(path)
    try:
        data = sys.stdin.buffer.read(MOST_BYTES + 1) if path == STDIN else _read(path)
        text = data.decode("utf-8")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        return _about(shown, f"is not UTF-8 text: byte {fault.start}, in line {line}", "save it as UTF-8")
    except OSError as fault:
        return _about(shown, f"cannot be read: {fault.strerror or fault}", "name a file that can")
    if len(data) > MOST_BYTES:
        return _about(shown, f"is larger than {MOST_BYTES >> 20} MiB, which no plugin reads", "make it smaller")
    return text.replace("\r\n", "\n")


def _read(path: str) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode) and not path.startswith("/dev/fd/"):  # a FIFO may never end
        raise OSError(0, "it is no regular file; for a pipe write -")
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)


# --- JSON ---


def _json(source: Source, extension: str, flat: Files, findings: list[Finding]) -> None:
    root = manifest.json_tree(source, findings, "", source.text)
    if root is None:
        return
    document = root.data
    if isinstance(document, dict) and "apiVersion" in document:
        _objects(source, root, flat, findings)
        return
    appended = _appended(source.path, document)
    for name in appended:
        findings += _appended_plugin(name, document, flat)
    network.examine(Scope(source, root, findings), Surroundings(flat=flat), extension, len(appended))


def _appended(path: str, document: Any) -> list[str]:
    """The files of further plugins, which libcni 1.3 appends from the directory of the network's name."""
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str) or "/" in name or not name or document.get("loadOnlyInlinedPlugins"):
        return []
    folder = os.path.join(os.path.dirname(path), name)
    if "type" in document or not os.path.isdir(folder):
        return []
    return [os.path.join(folder, n) for n in sorted(os.listdir(folder)) if n.endswith(".conf")]


def _appended_plugin(path: str, outer: dict[str, Any], flat: Files) -> list[Finding]:
    """What is wrong with a file that holds one plugin of the network `outer`."""
    findings: list[Finding] = []
    try:
        text = _read(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        return [_about(path, f"cannot be read: {fault}", "name a file that can")]
    source = Source(path, text)
    root = manifest.json_tree(source, findings, str(outer.get("name")), text)
    if root is not None and isinstance(root.data, dict):
        network.examine_plugin(Scope(source, root, findings, str(outer.get("name"))), outer, Surroundings(flat=flat))
    return findings


def _objects(source: Source, root: Node, flat: Files, findings: list[Finding]) -> int:
    """Look at a Kubernetes object, or at those of a List; how many NADs there were."""
    document = root.data
    if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
        items = root.member("items")
        return sum(_objects(source, item, flat, findings) for item in (items.node.items or [] if items else []))
    if not manifest.is_nad(document):
        return 0
    manifest.examine(source, root, flat, findings)
    return 1


# --- YAML ---


def documents(source: Source) -> Iterator[Source]:
    """The documents of a YAML file one by one, so that a broken one hides no other."""
    starts = [0, *(m.start() for m in _DOCUMENT.finditer(source.text) if m.start())]
    for start, end in zip(starts, [*starts[1:], len(source.text)], strict=True):
        text = source.text[start:end]
        if any(line.strip() and not line.lstrip().startswith(("#", "%", "---", "...")) for line in text.splitlines()):
            yield source.part(start, end)


def tree(part: Source, findings: list[Finding]) -> Node | None:
    """The tree of one YAML document; None for an empty one, and for one that is none, which `findings` then tell."""
    scope = Scope(part, Node(0, 0), findings)
    try:
        composed = compose(part.text)
        if composed is None:
            return None
        root = of_yaml(composed)
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        at = mark.index if mark else 0
        scope.span(
            ERROR, at, at + 1, "", f"not YAML: {fault.problem or fault}", _yaml_fix(part, at, str(fault.problem))
        )
        return None
    except yaml.reader.ReaderError as fault:
        scope.span(ERROR, fault.position, fault.position + 1, "", f"not YAML: {fault.reason}", "remove this character")
        return None
    except (yaml.YAMLError, TooMuch, ValueError, RecursionError) as fault:
        findings.append(_about(part.path, f"not YAML: {fault}", "make it simpler"))
        return None
    _twice(Scope(part, root, findings))
    return root


def _yaml(part: Source, extension: str, flat: Files, findings: list[Finding]) -> int:
    """Look at one document; 1 when it is a network or broken, else 0."""
    met = len(findings)
    root = tree(part, findings)
    if root is None:
        return int(len(findings) > met)
    document = root.data
    if not isinstance(document, dict):
        return 0
    if "apiVersion" in document or "kind" in document:
        return _objects(part, root, flat, findings)
    if "plugins" not in document and not ("type" in document and ("cniVersion" in document or "name" in document)):
        return 0
    scope = Scope(part, root, findings)
    if extension in _RUNTIME:
        scope.error((), "this is YAML, and a runtime reads JSON alone", "write it as JSON")
    else:
        scope.warn((), "this is YAML: a runtime reads JSON, or a NetworkAttachmentDefinition", "write it as JSON")
    network.examine(scope, Surroundings(flat=flat), extension if extension in _RUNTIME else "")
    return 1


def _yaml_fix(part: Source, at: int, problem: str) -> str:
    if part.text[at : at + 1] == "\t":
        return "indent with spaces: YAML takes no tabs"
    if "mapping values are not allowed" in problem:
        return "see the indentation, and put text with a colon between quotes"
    return "see the quotes and the indentation before it"


def _twice(scope: Scope) -> None:
    for node in scope.root.objects():
        names: set[str] = set()
        for member in node.members or []:
            if member.name in names:
                message = f'the key "{member.name}" is there twice, and of two the last one counts'
                scope.span(ERROR, member.start, member.end, member.name, message, "remove one")
            names.add(member.name)


def _reads_as_yaml(text: str) -> bool:
    try:
        return compose(text) is not None
    except (yaml.YAMLError, ValueError, RecursionError):
        return False


def _is_mapping(text: str) -> bool:
    """Whether text that does not begin as JSON is a mapping of YAML."""
    try:
        return isinstance(compose(text), yaml.MappingNode)
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
