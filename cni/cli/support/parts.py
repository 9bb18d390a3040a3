"""What a support bundle holds: each part by itself, so that one that cannot be had keeps no other from being there."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cni import VERSION
from cni.attachment import STATE
from cni.cli.cache import DIRECTORY
from cni.cli.places import NET_DIRECTORY
from cni.cli.support.archive import Part
from cni.spec.errors import CniError

MOST_BYTES = 1 << 20  # of one file: of a log the end, of anything else nothing more
_MOST_FILES = 500
_USUAL_LOGS = ("/var/log/whereabouts.log", "/tmp/whereabouts.log", "/var/log/multus.log")  # noqa: S108
_CERTIFICATES = (".key", ".pem", ".crt", ".p12", ".pfx")  # never read: what they hold is secret or of no use


@dataclass(frozen=True)
class Places:
    """Where a node keeps what is gathered."""

    networks: str = NET_DIRECTORY
    state: str = STATE
    results: str = DIRECTORY
    plugins: tuple[str, ...] = ("/opt/cni/bin", "/usr/lib/cni")
    logs: tuple[str, ...] = ()
    flat: str = ""  # the flat file, "" for the installed one
    usual_logs: tuple[str, ...] = field(default=_USUAL_LOGS)


def gather(places: Places, met: Callable[[str], object]) -> list[Part]:
    """All parts; what cannot be read is one that says why."""
    parts: list[Part] = []
    for about, make in (
        ("files of the node's networks", lambda: _tree("config/net.d", places.networks)),
        ("attachment records", lambda: [_json("attachments.json", "what is attached, and as what", _attachments(places))]),
        ("records as files", lambda: _tree("state/attachments", f"{places.state}/attachments")),
        ("results that runtimes keep", lambda: _tree("results", f"{places.results}/results")),
        ("leases", lambda: [_json("leases.json", "the leases of the node's store", _leases(places))]),
        ("verbs devices", lambda: [_json("rdma.json", "railcni rdma -o json", _rdma())]),
        ("checks", lambda: [_json("doctor.json", "railcni doctor -o json", _doctor(places))]),
        ("lint", lambda: [_json("lint.json", "railcni nad lint -o json", _lint(places))]),
        ("logs", lambda: _logs(places)),
        ("the kernel's log", lambda: [Part("logs/kernel.log", "the kernel's log", _kernel_log())]),
        ("versions", lambda: [_json("versions.json", "versions of what is installed", _versions(places))]),
    ):  # fmt: skip
        met(about)
        parts += _attempt(about, make)
    return parts


def _attempt(about: str, make: Callable[[], list[Part]]) -> list[Part]:
    try:
        return make()
    except CniError as fault:
        why = f"{fault.msg} {fault.details}".strip()
    except OSError as fault:
        why = f"{fault.filename or about}: {fault.strerror or fault}"
    except Exception as fault:  # a bundle is made when something is wrong: that must not be its end
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
            continue
        try:
            parts.append(Part(inside, path, _read(path)))
        except (OSError, ValueError) as fault:
            parts.append(Part(inside, path, fault=getattr(fault, "strerror", None) or str(fault)))
    return parts


def _walk(directory: str) -> Iterator[str]:
    os.listdir(directory)  # its OSError tells why there is nothing
    count = 0
    for folder, names, files in os.walk(directory):
        names.sort()
        for name in sorted(files):
            count += 1
            if count <= _MOST_FILES:
                yield os.path.join(folder, name)


def _read(path: str, end: bool = False) -> str:
    """The text of a file; of a log the `end`. OSError, or ValueError for what is none, or too large."""
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
    parts = []
    for path in dict.fromkeys((*places.logs, *_named_logs(places), *places.usual_logs)):
        name = "logs/" + path.strip("/").replace("/", "_")
        try:
            parts.append(Part(name, path, _read(path, end=True)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as fault:
            parts.append(Part(name, path, fault=getattr(fault, "strerror", None) or str(fault)))
    return parts


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
            head, _, text = record.decode("utf-8", "replace").partition(";")
            lines.append(f"[{int(head.split(',')[2]) / 1e6:12.6f}] {text.splitlines()[0] if text else ''}")
    finally:
        os.close(device)
    return "\n".join(lines)[-MOST_BYTES:] + "\n"


# --- reports ---


def _attachments(places: Places) -> Any:
    from cni.cli import attachments

    return attachments.found(directory=places.state)


def _leases(places: Places) -> Any:
    from cni.cli import holdings, ipam, store

    choice = store.of_flat_file(places.flat)
    held = holdings.read(choice)
    return {"store": choice.identity(), "leases": [ipam.document(one) for one in held.held], "faults": held.faults}


def _rdma() -> Any:
    from cni.cli.rdma import inventory, sandboxes, views

    return views.document(inventory.read(sandboxes.read()))


def _doctor(places: Places) -> Any:
    from cni.cli.doctor import report
    from cni.cli.doctor.facts import Facts
    from cni.cli.doctor.facts import Places as Node

    node = Node(state=places.state, networks=places.networks, cache=places.results, plugins=places.plugins)
    return report.examine(Facts(node)).document()


def _lint(places: Places) -> Any:
    from cni.cli.lint import lint
    from ipam import flatfile

    return [finding.document() for finding in lint([places.networks], flatfile)]


def _versions(places: Places) -> Any:
    release: dict[str, str] = {}
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        pass  # a minimal host has none
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
    """The files of a plugin folder, each with its digest: which version of Go's plugins it is can be told by it."""
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
