"""railcni support-bundle: the state of a node for remote support, in one file without secrets.

Each part is read by itself, so that a missing part does not affect the others. The same parts give the same bytes.
Only the owner of the archive may read it.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import errno
import gzip
import hashlib
import io
import json
import os
import platform
import re
import stat
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from os.path import isfile
from typing import Any
from urllib.parse import quote

import yaml

from cni import VERSION
from cni.cli import ipam
from cni.cli.doctor import report
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit import snapshot, store
from cni.documents import NET_DIRECTORY
from cni.node.inventory import attachments as recorded
from cni.node.runtime.cache import DIRECTORY
from cni.shared.kernel.node import host_name
from cni.shared.records import STATE
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, IoFailure

TOP = "railcni-support"
INDEX = "index.json"
FORMAT = 1
MOST_BYTES = 1 << 20  # of a file; a larger log is cut to its end, other larger files are left out
_MOST_FILES = 500
_PLUGINS = "/opt/cni/bin:/usr/lib/cni"
_USUAL_LOGS = ("/var/log/whereabouts.log", "/tmp/whereabouts.log", "/var/log/multus.log")  # noqa: S108
_LOG_KEY = re.compile(r'"log_?file"\s*:\s*"(/[^"\\]+)"', re.IGNORECASE)
_CERTIFICATES = (".key", ".pem", ".crt", ".p12", ".pfx")  # never read: their content is secret or of no use
_READ_ALL = 3  # syslog(2): SYSLOG_ACTION_READ_ALL
REMOVED = "REMOVED"
_NAME = r"[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|bearer|authorization|api[-_]?key|access[-_]?key|private[-_]?key|client-key-data|client-certificate-data|credentials?)(?:[-_]?data)?"
_IS_SECRET = re.compile(rf"{_NAME}\Z", re.IGNORECASE)
_NO_SECRET = re.compile(r".*(file|path|name|expiry|ref|account|annotation|ttl|seconds|mode|source|s)\Z", re.IGNORECASE)
_KEY = "[A-Z0-9 ]*PRIVATE KEY-----"
_MARKS = (  # strings that look like a secret, each with its replacement
    (re.compile(rf"(?s)-----BEGIN {_KEY}.*?(?:-----END {_KEY}|\Z)"), REMOVED),
    (re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=\s]{20,}(?<!\s)"), REMOVED),  # "-----BEGIN" in base64
    (re.compile(r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?"), REMOVED),  # a JSON web token
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{4,}"), rf"\1{REMOVED}"),
    (re.compile(r"(://[^/\s:@\"']*:)[^/\s\"']+(@)"), rf"\1{REMOVED}\2"),  # the password in a URL, which may have an "@"
    (re.compile(rf"(?i)(--?{_NAME}[= ])(\S+)"), rf"\1{REMOVED}"),  # an option of a command
)
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w.-])({_NAME})(\\*[\"']?\s*[:=]\s*)(\\*[\"'](?:[^\"'\\\n]|\\[^\"'\n])*\\*[\"']?|[^\s,;}}\]\"'|>][^\s,;}}\]]*)"
)
_ENCODED = re.compile(
    r"(?<![\w+/=.-])(?:e[wy]|W[3w])[A-Za-z0-9+/]{18,}={0,2}(?![\w+/=.-])"
)  # JSON in base64, and no token
_SHORT = 6
_MOST_DEPTH = 50


@dataclass(frozen=True)
class Part:
    """A file of the bundle, at the path `name`. `fault` is the reason why the file is missing; "" if it is there."""

    name: str
    about: str
    text: str = ""
    fault: str = ""


def register(commands: subcommand.Commands) -> None:
    """Add the command `support-bundle`."""
    about = "write reports, configurations, records, leases and logs of this node into one .tar.gz"
    more = (
        ". Its index.json names the files that cannot be read. Passwords, tokens, private keys and the environment of exec"
        " helpers are removed everywhere; still, look through the bundle before you send it."
    )
    parser = subcommand.add(commands, "support-bundle", about, more, run=_run, shows=True)
    about = "default: railcni-support-NODE-TIME.tar.gz in the working directory, mode 0600"
    subcommand.option(parser, "--file", "", about, "FILE")
    for flag, default in (("conf", NET_DIRECTORY), ("state", STATE), ("cache", DIRECTORY)):
        common.add(parser, f"{flag}-dir", "", default)
    common.add(parser, "flat-file", "default: the installed one", "")
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a further log; can be repeated")
    common.add(parser, "cni-path", "", _PLUGINS)


def _run(options: argparse.Namespace) -> None:
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.file or f"railcni-support-{host_name()}-{now}.tar.gz"
    with output.progress() as say:
        parts = cleaned(gather(options, say))
    output.write_file("support bundle", path, pack(parts, {"node": host_name(), "created": now, "railcni": VERSION}))
    missing = [part for part in parts if part.fault]
    for part in missing:
        output.print_fault(f"railcni: not in the bundle: {part.name}: {part.fault}")
    count, size = len(parts) - len(missing), os.path.getsize(path)
    document = {"file": path, "files": count, "bytes": size, "missing": [part.name for part in missing]}
    text = f"{path}: {count} files, {size} bytes; its index is {TOP}/{INDEX}"
    output.show(options.output, document, lambda: print(text))


def cleaned(parts: list[Part]) -> list[Part]:
    """`parts` without their secrets. A secret found in one part is removed from all parts. JSON in base64 is decoded: it
    may have secrets, as the configuration that libcni keeps with a result."""
    parts = [replace(part, text=_ENCODED.sub(_decoded, part.text)) for part in parts]
    known = {secret for part in parts for secret in find_secrets(part.text)}
    return [Part(*(scrub(text, known) for text in vars(part).values())) for part in parts]


def _decoded(found: re.Match[str]) -> str:
    """The JSON in a base64 string, escaped for the JSON string in which it stands. Other strings stay as they are."""
    encoded = found.group().rstrip("=")
    encoded = encoded[: len(encoded) - (len(encoded) % 4 == 1)]  # the file may be cut
    text = base64.b64decode(encoded + "=" * (-len(encoded) % 4)).decode("utf-8", "replace").rstrip("\ufffd")
    is_text = "\ufffd" not in text and "".join(text.split()).isprintable()
    return json.dumps(text, ensure_ascii=False)[1:-1] if is_text else found.group()


# --- the parts ---


def gather(options: argparse.Namespace, say: Callable[[str], object]) -> list[Part]:
    """Read all parts. If a part cannot be read, its `fault` has the reason. `say` prints the name of a step."""
    state, networks, cache = options.state_dir, options.conf_dir, options.cache_dir
    plugins = tuple(filter(None, options.cni_path.split(":")))
    places = NodePlaces(state=state, networks=networks, cache=cache, plugins=plugins)
    parts: list[Part] = []
    makers: Iterable[tuple[str, Callable[[], list[Part]]]] = (
        ("files of the node's networks", lambda: _tree("config/net.d", networks)),
        ("attachment records", lambda: [_json("attachments.json", "attachments and their records", recorded.found(directory=state))]),
        ("records as files", lambda: _tree("state/attachments", f"{state}/attachments")),
        ("results that runtimes keep", lambda: _tree("results", f"{cache}/results")),
        ("leases", lambda: [_json("leases.json", "the leases of the node's store", _leases(options.flat_file))]),
        ("checks", lambda: [_json("doctor.json", "railcni doctor -o json", report.examine(NodeFacts(places)).document())]),
        ("logs", lambda: _logs(options)),
        ("the kernel's log", lambda: [Part("logs/kernel.log", "the kernel's log", _kernel_log())]),
        ("the system", lambda: [_file("os-release", "/etc/os-release")]),
        ("versions", lambda: [_json("versions.json", "installed versions", _versions(places.plugins))]),
    )  # fmt: skip
    for about, make in makers:
        say(about)
        try:
            parts += make()
        except Exception as fault:  # a bundle is made when something is wrong: it must not fail for that
            parts.append(Part(about.replace(" ", "-").replace("'", ""), about, fault=_why(fault, about)))
    return parts


def _why(fault: Exception, about: str) -> str:
    if isinstance(fault, CniError):
        return f"{fault.msg} {fault.details}".strip()
    if isinstance(fault, OSError):
        return f"{fault.filename or about}: {fault.strerror or fault}"
    return f"a fault of railcni itself: {type(fault).__name__}: {fault}"


def _json(name: str, about: str, document: Any) -> Part:
    return Part(name, about, json.dumps(document, indent=2, default=str) + "\n")


# --- files ---


def _tree(name: str, directory: str) -> list[Part]:
    """Read each file below `directory` as a part. Raises OSError if the directory cannot be listed."""
    os.listdir(directory)  # raises OSError, unlike os.walk
    paths = sorted(os.path.join(folder, file) for folder, _, files in os.walk(directory) for file in files)
    return [_file(f"{name}/{os.path.relpath(path, directory)}", path) for path in paths[:_MOST_FILES]]


def _file(name: str, path: str, end: bool = False) -> Part:
    """Read a file as a part. If `end`, a file larger than MOST_BYTES is cut to its last bytes; otherwise it is left
    out, and `fault` has the reason. A binary file is always left out."""
    try:
        if path.endswith(_CERTIFICATES):
            raise ValueError("certificates and keys are not gathered")
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("is no regular file")
            if status.st_size > MOST_BYTES and not end:
                raise ValueError(f"is larger than {MOST_BYTES >> 20} MiB")
            file.seek(max(0, status.st_size - MOST_BYTES))
            data = file.read(MOST_BYTES)
        if b"\0" in data:
            raise ValueError("is no text")
    except (OSError, ValueError) as fault:
        return Part(name, path, fault=getattr(fault, "strerror", None) or str(fault))
    return Part(name, path, data.decode("utf-8", "replace"))


def _logs(options: argparse.Namespace) -> list[Part]:
    """Read the logs of --log, and the existing logs whose paths are in the node's network files or in _USUAL_LOGS."""
    named = [path for part in _tree("", options.conf_dir) for path in _LOG_KEY.findall(part.text)]
    paths = dict.fromkeys((*options.log, *named, *_USUAL_LOGS))
    parts = [_file("logs/" + path.strip("/").replace("/", "_"), path, end=True) for path in paths]
    return [part for part in parts if part.about in options.log or part.fault != os.strerror(errno.ENOENT)]


def _kernel_log() -> str:
    """The text of the kernel's log buffer, or its end. Raises IoFailure if this user may not read it."""
    buffer = ctypes.create_string_buffer(MOST_BYTES)
    libc: Any = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(_READ_ALL, buffer, MOST_BYTES)
    if size < 0:
        raise IoFailure(f"{os.strerror(ctypes.get_errno())}: reading it needs root with CAP_SYSLOG")
    return buffer.raw[:size].decode("utf-8", "replace")


# --- reports ---


def _leases(flat_file: str) -> Any:
    choice = store.of_flat_file(os.path.abspath(flat_file) if flat_file else "")
    found = snapshot.read(choice)
    return {"store": choice.identity(), "leases": [*map(ipam.document, found.leases)], "faults": [*found.unread]}


def _versions(folders: Sequence[str]) -> Any:
    plugins = {
        folder: {name: _digest(f"{folder}/{name}") for name in sorted(os.listdir(folder)) if isfile(f"{folder}/{name}")}
        for folder in filter(os.path.isdir, folders)
    }
    kernel = " ".join(platform.uname()[i] for i in (0, 2, 3, 4))
    return {"railcni": VERSION, "python": sys.version, "kernel": kernel, "plugins": plugins}


def _digest(path: str) -> str:
    """The SHA-256 digest of a file, which identifies the version of a Go plugin; if unreadable, the reason."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as fault:
        return fault.strerror or str(fault)


# --- the archive ---


def pack(parts: Sequence[Part], facts: Mapping[str, str]) -> bytes:
    """The bytes of the .tar.gz. Its first file is the index of the present and the missing files; the parts follow."""
    ordered = sorted(parts, key=lambda part: part.name)
    texts = {part.name: part.text for part in ordered if not part.fault}
    files = [{"path": p.name, "about": p.about, "bytes": len(p.text.encode())} for p in ordered if not p.fault]
    missing = [{"path": p.name, "about": p.about, "why": p.fault} for p in ordered if p.fault]
    index = {"kind": "SupportBundle", "format": FORMAT, **facts, "files": files, "missing": missing}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in {INDEX: json.dumps(index, indent=2) + "\n", **texts}.items():
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{TOP}/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


# --- the secrets in a text, and the text without them; pure ---
#
# There are two steps. `find_secrets` looks for secrets by their place: a key called password, a kubeconfig's token, an
# exec helper's environment, a Secret's data. `scrub` removes these secrets everywhere in every text, and also strings
# that look like a secret: private keys, JSON web tokens, bearer headers, passwords in URLs. It removes too much rather
# than too little.


def is_secret(name: str) -> bool:
    """Whether a key of this name has a secret value. `tokenFile` and `secretName` only say where a secret is."""
    return bool(_IS_SECRET.match(name)) and not (name != "credentials" and _NO_SECRET.match(name))


def find_secrets(text: str) -> set[str]:
    """The secrets in `text` if it is JSON or YAML. A string in `text` that is itself JSON is searched too."""
    found: set[str] = set()
    for document in _documents(text):
        found.update(_secrets_of(document))
    return {part for secret in found for part in _parts(secret)}


def _documents(text: str) -> Iterator[Any]:
    with suppress(ValueError):
        yield codec.loads(text.encode())
        return
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        yield from yaml.safe_load_all(text)


def _secrets_of(value: Any, depth: int = 0, hidden: bool = False) -> Iterator[str]:
    """Yield the secrets in `value`, which is at the nesting level `depth` of a document. If `hidden`, all strings and
    numbers in `value` are secret."""
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if not hidden and isinstance(inner, dict) and key == "exec":  # a kubeconfig's helper, with its arguments
                env = inner["env"] if isinstance(inner.get("env"), list) else []
                entries = [entry.get("value") for entry in env if isinstance(entry, dict)]
                yield from _secrets_of(entries, depth + 1, hidden=True)
                arguments = [*_secrets_of(inner.get("args"), depth + 1, hidden=True)]
                for before, argument in pairwise(["", *arguments]):
                    if is_secret(before.lstrip("-")) or "=" in argument or len(argument) > 12:
                        yield argument
            elif not hidden and isinstance(inner, dict) and key == "auth-provider":
                yield from _secrets_of(inner.get("config"), depth + 1, hidden=True)
            else:
                yield from _secrets_of(inner, depth + 1, hidden or _hides(str(key), value))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets_of(item, depth + 1, hidden)
    elif hidden and value is not None and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        for document in _documents(value):
            if not isinstance(document, str):
                yield from _secrets_of(document, depth + 1)


def _hides(key: str, holder: dict[Any, Any]) -> bool:
    """Whether `holder[key]` is secret: `key` is the name of a secret, or `holder` is a Kubernetes Secret and `key` its
    data. If `key` is "value", the member `name` of `holder` is judged instead."""
    if key in ("data", "stringData") and holder.get("kind") == "Secret":
        return True
    return is_secret(str(holder.get("name"))) if key == "value" else is_secret(key)


def _parts(secret: str) -> Iterator[str]:
    """Yield the forms in which a secret may appear: whole, by words, escaped, in base64, and decoded from base64."""
    forms = {secret, secret.strip(), *(word for word in secret.split() if len(word) >= 8)}
    if "=" in secret:
        forms.add(secret.partition("=")[2])
    for form in list(forms):
        for escaped in (json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1]):
            forms |= {escaped, json.dumps(escaped)[1:-1], json.dumps(json.dumps(escaped)[1:-1])[1:-1]}
        forms.add(quote(form, safe=""))
        forms.add(base64.b64encode(form.encode("utf-8", "replace")).decode())
    with suppress(ValueError):
        forms.add(base64.b64decode(secret, validate=True).decode())
    yield from (form for form in forms if len(form) >= 3)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without `secrets`, and without strings that look like a secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORT:
            text = text.replace(secret, REMOVED)
        elif secret in text:  # a short secret may be a part of other words
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", REMOVED, text)
    for mark, left in _MARKS:
        text = mark.sub(left, text)
    return _ASSIGNED.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    if not is_secret(name):
        return found.group()
    quote_mark = re.match(r"\\*[\"']", value)
    opening = quote_mark.group() if quote_mark else ""
    return f"{name}{sign}{opening}{REMOVED}{opening if value.endswith(opening or ' ') else ''}"
