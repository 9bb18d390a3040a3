"""railcni support-bundle: the state of a node for remote support, in one file without secrets.

Each part is read by itself, so that a missing one does not affect the others. The same parts give the same bytes, and only
the owner of the archive may read it.
"""

from __future__ import annotations

import argparse
import errno
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cni import VERSION
from cni.cli import ipam, rdma
from cni.cli.support import secrets
from cni.cli.terminal import output, subcommand
from cni.library.audit import snapshot, store
from cni.library.inventory import attachments as recorded
from cni.library.inventory import devices as inventory
from cni.library.inventory import sandboxes
from cni.library.inventory.places import NET_DIRECTORY
from cni.library.runtime.cache import DIRECTORY
from cni.shared.kernel.node import host_name
from cni.shared.records import STATE
from cni.shared.spec.errors import CniError, IoFailure
from ipam import flatfile

TOP = "railcni-support"
INDEX = "index.json"
FORMAT = 1
MOST_BYTES = 1 << 20  # of one file: of a log the end, of anything else nothing more
_MOST_FILES = 500
_USUAL_LOGS = ("/var/log/whereabouts.log", "/tmp/whereabouts.log", "/var/log/multus.log")  # noqa: S108
_CERTIFICATES = (".key", ".pem", ".crt", ".p12", ".pfx")  # never read: their content is secret or of no use
_ABOUT = "write reports, configurations, records, leases and logs of this node into one .tar.gz"


@dataclass(frozen=True)
class Part:
    """A file of the bundle, `name` its path inside; or, with `fault`, the reason why it is missing."""

    name: str
    about: str
    text: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Places:
    """The places on a node from which parts are gathered."""

    networks: str = NET_DIRECTORY
    state: str = STATE
    results: str = DIRECTORY
    plugins: tuple[str, ...] = ("/opt/cni/bin", "/usr/lib/cni")
    logs: tuple[str, ...] = ()
    flat: str = ""  # the flat file, "" for the installed one
    usual_logs: tuple[str, ...] = field(default=_USUAL_LOGS)


def register(commands: subcommand.Commands) -> None:
    """Add `support-bundle`."""
    more = (
        ". Its index.json names the files that cannot be read. Passwords, tokens, private keys and the environment of exec"
        " helpers are removed everywhere; still, look through the bundle before you send it."
    )
    parser = subcommand.add(commands, "support-bundle", _ABOUT, more, run=_run, shows=True)
    about = "default: railcni-support-NODE-TIME.tar.gz in the working directory, mode 0600"
    parser.add_argument("-f", "--file", default="", metavar="FILE", help=about)
    for flag, default in (("conf", NET_DIRECTORY), ("state", STATE), ("cache", Places.results)):
        subcommand.option(parser, f"--{flag}-dir", default)
    parser.add_argument("--config", default="", metavar="FLATFILE", help="default: the installed flat file")
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a further log; can be repeated")
    subcommand.option(parser, "--cni-path", ":".join(Places.plugins), "the plugin folders", "DIR:DIR")


def _run(options: argparse.Namespace) -> int:
    places = Places(
        networks=options.conf_dir,
        state=options.state_dir,
        results=options.cache_dir,
        plugins=tuple(d for d in options.cni_path.split(":") if d),
        logs=tuple(options.log),
        flat=os.path.abspath(options.config) if options.config else "",
    )
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.file or f"railcni-support-{host_name()}-{now}.tar.gz"
    with output.progress() as say:
        parts = cleaned(gather(places, say))
    output.write_file("support bundle", path, pack(parts, {"node": host_name(), "created": now, "railcni": VERSION}))
    missing = [part for part in parts if part.fault]
    for part in missing:
        output.print_fault(f"railcni: not in the bundle: {part.name}: {part.fault}")
    count, size = len(parts) - len(missing), os.path.getsize(path)
    document = {"file": path, "files": count, "bytes": size, "missing": [part.name for part in missing]}
    text = f"{path}: {count} files, {size} bytes; its index is {TOP}/{INDEX}"
    output.show(options.output, document, lambda: print(text))
    return 0


def cleaned(parts: list[Part]) -> list[Part]:
    """`parts` without their secrets: a secret of one is removed from all."""
    known: set[str] = set()
    for part in parts:
        known |= secrets.find(part.text)
    return [
        replace(
            part, **{name: secrets.scrub(getattr(part, name), known) for name in ("text", "fault", "about", "name")}
        )
        for part in parts
    ]


# --- the parts ---


def gather(places: Places, report: Callable[[str], object]) -> list[Part]:
    """All parts; one that cannot be read has the reason."""
    parts: list[Part] = []
    for about, make in (
        ("files of the node's networks", lambda: _tree("config/net.d", places.networks)),
        ("attachment records", lambda: [_json("attachments.json", "attachments and their records", recorded.found(directory=places.state))]),
        ("records as files", lambda: _tree("state/attachments", f"{places.state}/attachments")),
        ("results that runtimes keep", lambda: _tree("results", f"{places.results}/results")),
        ("leases", lambda: [_json("leases.json", "the leases of the node's store", _leases(places))]),
        ("verbs devices", lambda: [_json("rdma.json", "railcni rdma -o json", rdma.document(inventory.read(sandboxes.read())))]),
        ("checks", lambda: [_json("doctor.json", "railcni doctor -o json", _doctor(places))]),
        ("lint", lambda: [_json("lint.json", "railcni nad lint -o json", _lint(places))]),
        ("logs", lambda: _logs(places)),
        ("the kernel's log", lambda: [Part("logs/kernel.log", "the kernel's log", _kernel_log())]),
        ("versions", lambda: [_json("versions.json", "installed versions", _versions(places))]),
    ):  # fmt: skip
        report(about)
        parts += _attempt(about, make)
    return parts


def _attempt(about: str, make: Callable[[], list[Part]]) -> list[Part]:
    try:
        return make()
    except CniError as fault:
        why = f"{fault.msg} {fault.details}".strip()
    except OSError as fault:
        why = f"{fault.filename or about}: {fault.strerror or fault}"
    except Exception as fault:  # a bundle is made when something is wrong: it must not fail for that
        why = f"a fault of railcni itself: {type(fault).__name__}: {fault}"
    return [Part(about.replace(" ", "-").replace("'", ""), about, fault=why)]


def _json(name: str, about: str, document: Any) -> Part:
    return Part(name, about, json.dumps(document, indent=2, default=str) + "\n")


# --- files ---


def _tree(name: str, directory: str) -> list[Part]:
    """The files below `directory`, those that are text, each by itself."""
    parts: list[Part] = []
    for path in _walk(directory):
        inside = f"{name}/{os.path.relpath(path, directory)}"
        if path.endswith(_CERTIFICATES):
            parts.append(Part(inside, path, fault="certificates and keys are not gathered"))
        else:
            parts.append(_file(inside, path))
    return parts


def _file(name: str, path: str, end: bool = False) -> Part:
    try:
        return Part(name, path, _read(path, end))
    except (OSError, ValueError) as fault:
        return Part(name, path, fault=getattr(fault, "strerror", None) or str(fault))


def _walk(directory: str) -> Iterator[str]:
    os.listdir(directory)  # its OSError is the reason for a missing part
    count = 0
    for folder, names, files in os.walk(directory):
        names.sort()
        for name in sorted(files):
            count += 1
            if count <= _MOST_FILES:
                yield os.path.join(folder, name)


def _read(path: str, end: bool = False) -> str:
    """The text of a file; of a log the `end`. OSError, or ValueError for other files, and large ones."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        if status.st_size > MOST_BYTES:
            if not end:
                raise ValueError(f"is larger than {MOST_BYTES >> 20} MiB")
            opened.seek(-MOST_BYTES, os.SEEK_END)
        data = opened.read(MOST_BYTES)
    if b"\0" in data:
        raise ValueError("is no text")
    return data.decode("utf-8", "replace")


def _logs(places: Places) -> list[Part]:
    paths = dict.fromkeys((*places.logs, *_named_logs(places), *places.usual_logs))
    parts = [_file("logs/" + path.strip("/").replace("/", "_"), path, end=True) for path in paths]
    return [part for part in parts if part.fault != os.strerror(errno.ENOENT)]


def _named_logs(places: Places) -> Iterator[str]:
    """The log files that the node's configurations name."""
    for path in _walk(places.networks):
        try:
            document = json.loads(_read(path))
        except (OSError, ValueError, RecursionError):
            continue
        pending, seen = [document], 0
        while pending and seen < 10_000:
            value, seen = pending.pop(), seen + 1
            if isinstance(value, dict):
                pending += list(value.values())
                pending_log = next((v for k, v in value.items() if k.lower() in ("log_file", "logfile")), None)
                if isinstance(pending_log, str) and pending_log.startswith("/"):
                    yield pending_log
            elif isinstance(value, list):
                pending += value


def _kernel_log() -> str:
    """What the kernel's buffer holds, each record a line."""
    device = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines: list[str] = []
    try:
        while len(lines) < 20_000:
            try:
                record = os.read(device, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # it was overwritten meanwhile
                continue
            if not record:  # in a container it is often no device, or /dev/null
                break
            head, _, text = record.decode("utf-8", "replace").partition(";")
            microseconds = (*head.split(","), "", "", "")[2]
            when = f"{int(microseconds) / 1e6:12.6f}" if microseconds.isdigit() else "?"
            lines.append(f"[{when}] {(text or head).partition(chr(10))[0]}")
    finally:
        os.close(device)
    if not lines:
        raise IoFailure("/dev/kmsg is empty here: run the command on the node itself, in no container")
    return "\n".join(lines)[-MOST_BYTES:] + "\n"


# --- reports ---


def _leases(places: Places) -> Any:
    choice = store.of_flat_file(places.flat)
    found = snapshot.read(choice)
    return {
        "store": choice.identity(),
        "leases": [ipam.document(one) for one in found.leases],
        "faults": list(found.unread),
    }


def _doctor(places: Places) -> Any:
    from cni.cli.doctor import report
    from cni.cli.doctor.facts import NodeFacts, NodePlaces

    node = NodePlaces(state=places.state, networks=places.networks, cache=places.results, plugins=places.plugins)
    return report.examine(NodeFacts(node)).document()


def _lint(places: Places) -> Any:
    from cni.library.lint import Named, lint

    return [finding.document() for finding in lint([places.networks], Named(places.flat) if places.flat else flatfile)]


def _versions(places: Places) -> Any:
    release: dict[str, str] = {}
    try:
        release = platform.freedesktop_os_release()
    except (OSError, ValueError):
        pass  # a minimal host has none, or one that is no text
    packages = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    return {
        "railcni": VERSION,
        "python": sys.version,
        "kernel": " ".join(platform.uname()[i] for i in (0, 2, 3, 4)),
        "system": {key: release[key] for key in ("ID", "VERSION_ID", "PRETTY_NAME") if key in release},
        "packages": dict(sorted(packages.items())),
        "plugins": {folder: _executables(folder) for folder in places.plugins if os.path.isdir(folder)},
    }


def _executables(folder: str) -> dict[str, Any]:
    """The files of a plugin folder, each with its digest, which identifies a version of Go's plugins."""
    found: dict[str, Any] = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        try:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"leads_to": os.path.realpath(path), "bytes": os.path.getsize(path), "sha256": digest}
        except OSError as fault:
            found[name] = {"fault": fault.strerror}
    return found


# --- the archive ---


def index(parts: Sequence[Part], facts: Mapping[str, str]) -> str:
    """The files in the bundle, and the missing ones, as JSON."""
    files = [{"path": p.name, "about": p.about, "bytes": len(p.text.encode())} for p in parts if not p.fault]
    missing = [{"path": p.name, "about": p.about, "why": p.fault} for p in parts if p.fault]
    document = {"kind": "SupportBundle", "format": FORMAT, **facts, "files": files, "missing": missing}
    return json.dumps(document, indent=2) + "\n"


def pack(parts: Sequence[Part], facts: Mapping[str, str]) -> bytes:
    """The bytes of the .tar.gz: the index first, then the parts by name."""
    ordered = sorted(parts, key=lambda part: part.name)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in [(INDEX, index(ordered, facts)), *((p.name, p.text) for p in ordered if not p.fault)]:
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{TOP}/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)
