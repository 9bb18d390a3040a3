"""The lint of files and directories. It applies the rules for the kind of a document to each document."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from cni.documents import networks, reader
from cni.documents.diagnostic import WARNING, Diagnostic, Scope
from cni.documents.reader import JSON, STDIN, YAML, about
from cni.documents.tree import string_at
from cni.lint import network, objects
from cni.lint.addresses import FlatFile, overlaps
from cni.lint.plugin import Surroundings
from cni.resources import config, rails
from cni.shared.spec.errors import IoFailure

_PLAN = {"count", "subnet"}  # keys that every plan of rails has, and that no network has


def lint(paths: Iterable[str], flat_file: str = "") -> list[Diagnostic]:
    """Return the findings about each of `paths`: a file, a directory such as /etc/cni/net.d, or "-" for stdin. The
    findings of a file are sorted by line and column. A file that cannot be read is a finding too. `flat_file` is the
    path of a copy of the nodes' whereabouts.conf."""
    around = Surroundings(flat=FlatFile(flat_file))
    parts: list[list[Diagnostic]] = []
    for path in paths:
        if path != STDIN and os.path.isdir(path):
            parts += _directory(path, around)
        else:
            parts.append(_file(path, around)[0])
    overlaps(around.uses)
    objects.compare(around)
    return [finding for part in parts for finding in sorted(part, key=lambda f: (f.line, f.column))]


def _file(path: str, around: Surroundings, inside: bool = False) -> tuple[list[Diagnostic], int, str]:
    """Return (the findings about a file, the number of objects of known kinds in it, the name of its network). The name
    is "" if libcni does not read the file. A file without such objects gets a finding, unless it is `inside` a
    directory."""
    findings: list[Diagnostic] = []
    count, name, extension = 0, "", os.path.splitext(path)[1]
    for is_json, scope in reader.documents(path, None, findings):
        reader.duplicates(scope)
        count += _examine(is_json, scope, extension, around)
        name = string_at(scope.root.data, "name") if is_json and extension in JSON else ""
    if not count and not findings and not inside:
        message = "there is no network here: neither a CNI configuration nor a NetworkAttachmentDefinition"
        findings.append(about(path, message, "name another file"))
    return findings, count, name


def _examine(is_json: bool, scope: Scope, extension: str, around: Surroundings) -> int:
    """Examine one document. Returns the number of networks and other objects of known kinds in the document."""
    document = scope.root.data
    keys = {*document} if isinstance(document, dict) else set()
    if "apiVersion" in keys or ("kind" in keys and not is_json):
        count = 0
        for one in reader.objects(scope):
            if network.is_nad(one.root.data):
                network.examine_nad(one, around)
                count += 1
            else:
                count += objects.examine(one, around)
        return count
    if keys >= _PLAN:
        rails.of_document(scope)
    elif config.is_own(document):
        objects.device_plugin(scope, around)
    elif is_json:
        appended = _appended(scope.text.path, document)
        for path in appended:
            inner = reader.json_file(path, scope.findings, str(document.get("name")))
            if inner is not None and isinstance(inner.root.data, dict):
                reader.duplicates(inner)
                network.examine_plugin(inner, document, around)
        network.examine(scope, around, extension, len(appended))
    elif "plugins" in keys or ("type" in keys and {"cniVersion", "name"} & keys):
        if extension in JSON:
            scope.error((), "this is YAML, and a runtime reads JSON alone", "write it as JSON")
        else:
            scope.warn((), "this is YAML: a runtime reads JSON, or a NetworkAttachmentDefinition", "write it as JSON")
        network.examine(scope, around, extension if extension in JSON else "")
    else:
        return 0
    return 1


def _appended(path: str, document: Any) -> list[str]:
    """The .conf files whose plugins libcni 1.3 appends to the conflist `document` at `path`. They are in a directory
    beside `path` that has the name of the network."""
    name = string_at(document, "name")
    if not name or "/" in name or "type" in document or document.get("loadOnlyInlinedPlugins"):
        return []
    return networks.files(os.path.join(os.path.dirname(path), name), (".conf",))


def _directory(path: str, around: Surroundings) -> list[list[Diagnostic]]:
    try:  # in the order of libcni
        files = networks.files(path, JSON[:1]) + networks.files(path, (*JSON[1:], *YAML))
    except IoFailure as fault:
        return [[about(path, fault.msg.removeprefix(f"{path} "), "run it as root, or name another directory")]]
    parts: list[list[Diagnostic]] = []
    count = 0
    seen: dict[str, str] = {}
    for one in files:
        findings, known, name = _file(one, around, inside=True)
        count += known
        parts.append(findings)
        if name and (first := seen.setdefault(name, os.path.basename(one))) != os.path.basename(one):
            message = f"the network {name} is in {first} too, which libcni finds first"
            parts.append([about(one, message, "give one of them another name, or remove it", WARNING)])
    if not count and not any(parts):
        parts.append([about(path, "there is no network in this folder", "name the folder or the files that have them")])
    return parts
