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
            parts.append(_File(path, around).findings)
    overlaps(around.uses)
    objects.compare(around)
    return [finding for part in parts for finding in sorted(part, key=lambda f: (f.line, f.column))]


class _File:
    """The lint of one file: its `findings`, the `count` of objects of known kinds in it, and the `name` of its network.
    `name` is "" if libcni does not read the file. A file without such objects gets a finding, unless the file is
    `inside` a directory."""

    def __init__(self, path: str, around: Surroundings, inside: bool = False) -> None:
        self.findings: list[Diagnostic] = []
        self.name, self.count = "", 0
        self._extension, self._around = os.path.splitext(path)[1], around
        for is_json, scope in reader.documents(path, None, self.findings):
            reader.duplicates(scope)
            self.count += self._examine(is_json, scope)
        if not self.count and not self.findings and not inside:
            message = "there is no network here: neither a CNI configuration nor a NetworkAttachmentDefinition"
            self.findings.append(about(path, message, "name another file"))

    def _examine(self, is_json: bool, scope: Scope) -> int:
        """Examine one document. Returns the number of networks and other objects of known kinds in the document."""
        document, around = scope.root.data, self._around
        if isinstance(document, dict) and ("apiVersion" in document or ("kind" in document and not is_json)):
            count = 0
            for one in reader.objects(scope):
                if network.is_nad(one.root.data):
                    network.examine_nad(one, around)
                    count += 1
                else:
                    count += objects.examine(one, around)
            return count
        if isinstance(document, dict) and {*document} >= _PLAN:
            rails.of_document(scope)
            return 1
        if config.is_own(document):
            objects.device_plugin(scope, around)
            return 1
        if is_json:
            appended = _appended(scope.text.path, document)
            for path in appended:
                inner = reader.json_file(path, self.findings, str(document.get("name")))
                if inner is not None and isinstance(inner.root.data, dict):
                    reader.duplicates(inner)
                    network.examine_plugin(inner, document, around)
            self.name = string_at(document, "name") if self._extension in JSON else ""
            network.examine(scope, around, self._extension, len(appended))
            return 1
        if not isinstance(document, dict) or not (
            "plugins" in document or ("type" in document and {"cniVersion", "name"} & {*document})
        ):
            return 0
        if self._extension in JSON:
            scope.error((), "this is YAML, and a runtime reads JSON alone", "write it as JSON")
        else:
            scope.warn((), "this is YAML: a runtime reads JSON, or a NetworkAttachmentDefinition", "write it as JSON")
        network.examine(scope, around, self._extension if self._extension in JSON else "")
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
        name = os.path.basename(one)
        file = _File(one, around, inside=True)
        count += file.count
        parts.append(file.findings)
        if file.name and seen.setdefault(file.name, name) != name:
            message = f"the network {file.name} is in {seen[file.name]} too, which libcni finds first"
            parts.append([about(one, message, "give one of them another name, or remove it", WARNING)])
    if not count and not any(parts):
        parts.append([about(path, "there is no network in this folder", "name the folder or the files that have them")])
    return parts
