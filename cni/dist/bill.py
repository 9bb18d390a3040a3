"""The bill of materials: every file of a bundle with its checksum and the package that it comes from.

SPDX 2.3 as JSON, https://spdx.github.io/spdx-spec/v2.3/.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import sqlite3
import ssl
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from cni import VERSION
from cni.dist.archive import epoch
from cni.dist.contents import PREFIX, Bundle

FILE = "bill-of-materials.spdx.json"
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


# --- the packages ---


def attribute(bundle: Bundle, installed: Sequence[Distribution]) -> list[Package]:
    """Set the origin of each file that has none, and return the packages that are then named, ordered by name.

    A file of the distribution belongs to its package (dpkg); any other of the interpreter's belongs to CPython.
    """
    version, terms = platform.python_version(), Path(sysconfig.get_path("stdlib"), "LICENSE.txt")
    cpython = Package("CPython", version, f"pkg:generic/python@{version}", "Python-2.0.1", _existing(terms))
    own = Package("railcni", VERSION, f"pkg:generic/railcni@{VERSION}", "Apache-2.0")
    unknown = {target: bundle.sources[target] for target, origin in bundle.origins.items() if not origin}
    owners = _debian_owners(list(unknown.values()))
    debian = _debian_packages(sorted(set(owners.values())))
    found = {p.name: p for p in (own, cpython, *map(_of_python, installed), *debian)}
    for target, source in unknown.items():
        origin = owners.get(source, "CPython" if source.is_relative_to(PREFIX) else source.name)
        bundle.origins[target] = origin
        found.setdefault(origin, Package(origin, NOT_SAID))  # a library that is in no package
    return [found[name] for name in sorted(set(bundle.origins.values()))]


def _existing(file: Path) -> Path | None:
    return file if file.exists() else None


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
        packages.append(Package(name, version, purl, terms=_existing(Path("/usr/share/doc", name, "copyright"))))
    return packages


# --- the document ---


def document(name: str, bundle: Bundle, packages: Sequence[Package]) -> bytes:
    """The document on the bundle `name`. Its comment has the versions of the interpreter and its libraries, which a fault
    report names."""
    linked = (
        f"CPython {platform.python_version()}",
        ssl.OPENSSL_VERSION,
        f"SQLite {sqlite3.sqlite_version}",
        " ".join(platform.libc_ver()),
    )
    targets = sorted(bundle.origins)
    files = [_file(target, (bundle.top / target).read_bytes()) for target in targets]
    contents = hashlib.sha256("".join(f["checksums"][1]["checksumValue"] for f in files).encode()).hexdigest()
    relations = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", _package_id("railcni"))]
    relations += [
        _relation(_package_id("railcni"), "DEPENDS_ON", _package_id(p.name)) for p in packages if p.name != "railcni"
    ]
    relations += [_relation(_package_id(bundle.origins[target]), "CONTAINS", _file_id(target)) for target in targets]
    bill = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{contents[:32]}",
        "comment": f"Linked with {', '.join(linked)}.",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch())),
            "creators": ["Tool: railcni-bundle"],
        },
        "packages": [_package(p) for p in packages],
        "files": files,
        "relationships": relations,
    }
    return f"{json.dumps(bill, indent=1)}\n".encode()


def _package(package: Package) -> dict[str, Any]:
    described: dict[str, Any] = {
        "SPDXID": _package_id(package.name),
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": NOT_SAID,
        "filesAnalyzed": False,
        "licenseConcluded": NOT_SAID,
        "licenseDeclared": package.licence,
        "copyrightText": NOT_SAID,
    }
    if package.terms:
        described["licenseComments"] = f"licenses/{package.name} in the bundle"
    if package.purl:
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": package.purl}
        described["externalRefs"] = [reference]
    return described


def _file(target: str, data: bytes) -> dict[str, Any]:
    return {
        "SPDXID": _file_id(target),
        "fileName": f"./{target}",
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": hashlib.sha1(data, usedforsecurity=False).hexdigest()},
            {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()},
        ],
        "licenseConcluded": NOT_SAID,
        "copyrightText": NOT_SAID,
    }


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _package_id(name: str) -> str:
    return "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def _file_id(target: str) -> str:
    return "SPDXRef-File-" + hashlib.sha256(target.encode()).hexdigest()[:24]
