"""The package that each file of a bundle comes from."""

from __future__ import annotations

import platform
import re
import shutil
import sqlite3
import ssl
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from cni import VERSION
from cni.dist.contents import BundleEntry, Interpreter

NOT_SAID = "NOASSERTION"  # SPDX's word

_ID = "(MIT|PSF-2.0|Python-2.0|Apache-2.0|BSD-2-Clause|BSD-3-Clause|MPL-2.0|GPL-2.0-or-later|ISC|Unlicense)"
_EXPRESSION = re.compile(f"{_ID}( (AND|OR) {_ID})*")  # other words of distributions are left to their files


@dataclass(frozen=True)
class Package:
    """`purl` is its package URL (github.com/package-url/purl-spec), "" where none fits; `licence` an SPDX expression,
    or NOASSERTION; `terms` the file of its copyright notice."""

    name: str
    version: str
    purl: str = ""
    licence: str = NOT_SAID
    terms: Path | None = None


def attribute(entries: Sequence[BundleEntry], python: Interpreter, installed: Sequence[Distribution]) -> list[Package]:
    """Set the origin of each entry, and return the packages that it then names, ordered by name.

    A file of the distribution belongs to its package (dpkg); any other of the interpreter's belongs to CPython.
    """
    found = {p.name: p for p in (_own(), _cpython(), *map(_of_python, installed))}
    unknown = [e for e in entries if not e.origin and e.source]
    owners = _debian_owners([e.source for e in unknown if e.source])
    found |= {p.name: p for p in _debian_packages(sorted(set(owners.values())))}
    for entry in unknown:
        assert entry.source is not None  # noqa: S101
        inside = entry.source.is_relative_to(python.prefix)
        entry.origin = owners.get(entry.source, "CPython" if inside else entry.source.name)
        if entry.origin not in found:  # a library that is in no package
            found[entry.origin] = Package(entry.origin, NOT_SAID)
    used = {e.origin for e in entries}
    return [found[name] for name in sorted(used)]


def linked() -> list[str]:
    """The versions of the interpreter and its libraries, which a fault report names."""
    openssl = ssl.OPENSSL_VERSION
    return [
        f"CPython {platform.python_version()}",
        openssl,
        f"SQLite {sqlite3.sqlite_version}",
        " ".join(platform.libc_ver()),
    ]


def _own() -> Package:
    return Package("railcni", VERSION, f"pkg:generic/railcni@{VERSION}", "Apache-2.0")


def _cpython() -> Package:
    version = platform.python_version()
    terms = Path(sysconfig.get_path("stdlib"), "LICENSE.txt")
    return Package(
        "CPython", version, f"pkg:generic/python@{version}", "Python-2.0.1", terms if terms.exists() else None
    )


def _of_python(dist: Distribution) -> Package:
    metadata = dist.metadata
    said = [metadata[key] for key in ("License-Expression", "License") if key in metadata]
    licence = said[0].splitlines()[0] if said else NOT_SAID
    expression = licence if _EXPRESSION.fullmatch(licence) else NOT_SAID
    purl = f"pkg:pypi/{dist.name.lower().replace('_', '-')}@{dist.version}"
    return Package(dist.name, dist.version, purl, expression)


def _debian_owners(files: Sequence[Path]) -> dict[Path, str]:
    """The package of each file that dpkg knows. dpkg knows a file by one of two paths, with or without /usr."""
    if not shutil.which("dpkg-query"):
        return {}
    names = {form: file for file in files for form in (str(file), str(file.resolve()), _other_form(file.resolve()))}
    done = subprocess.run(["dpkg-query", "--search", *sorted(names)], capture_output=True, text=True)
    owners = {}
    for line in done.stdout.splitlines():
        package, _, path = line.partition(": ")
        if path in names and not line.startswith("diversion "):
            owners[names[path]] = package.partition(",")[0].partition(":")[0]
    return owners


def _other_form(file: Path) -> str:
    text = str(file)
    return text.removeprefix("/usr") if text.startswith("/usr/") else f"/usr{text}"


def _debian_packages(names: Sequence[str]) -> list[Package]:
    if not names:
        return []
    form = "${Package}\t${Version}\t${Architecture}\n"
    argv = ["dpkg-query", "--show", f"--showformat={form}", *names]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    system = platform.freedesktop_os_release().get("ID", "debian")
    packages = []
    for line in listed.splitlines():
        name, version, architecture = line.split("\t")
        purl = f"pkg:deb/{system}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"
        terms = Path("/usr/share/doc", name, "copyright")
        packages.append(Package(name, version, purl, terms=terms if terms.exists() else None))
    return packages
