"""Write the bill of materials of a bundle, in which a scanner finds packages with known faults, and their licences.

Usage: python .ci/bill.py BUNDLE, with the paths of the files that were copied from this machine on standard input.

SPDX 2.3 as JSON, https://spdx.github.io/spdx-spec/v2.3/. The published generators know the packages of Python alone,
and not the distribution's, such as OpenSSL and glibc.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sqlite3
import ssl
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cni import VERSION

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
FILE = "bill-of-materials.spdx.json"
NOT_SAID = "NOASSERTION"  # SPDX's word


class Package(NamedTuple):
    """`purl` is its package URL, "" where none fits; `licence` an SPDX expression; `terms` the file of its notice."""

    name: str
    version: str
    purl: str = ""
    licence: str = NOT_SAID
    terms: Path | None = None


def packages(installed: Iterable[Distribution], copied: Sequence[Path]) -> list[Package]:
    """railcni, the distributions of Python, and the packages of the files that were `copied` from this machine.

    A file of the Linux distribution belongs to its package (dpkg); any other of the interpreter's to CPython.
    """
    version, terms = platform.python_version(), Path(sysconfig.get_path("stdlib"), "LICENSE.txt")
    cpython = Package("CPython", version, f"pkg:generic/python@{version}", "Python-2.0.1", _existing(terms))
    found = [Package("railcni", VERSION, f"pkg:generic/railcni@{VERSION}", "Apache-2.0"), *map(_of_python, installed)]
    owners = _debian_owners(copied)
    found += [_of_debian(name) for name in set(owners.values())]
    rest = [file for file in copied if file not in owners]
    found += [cpython] if any(file.is_relative_to(sys.base_prefix) for file in rest) else []
    found += [Package(file.name, NOT_SAID) for file in rest if not file.is_relative_to(sys.base_prefix)]
    return sorted(found)


def _existing(file: Path) -> Path | None:
    return file if file.exists() else None


def _of_python(dist: Distribution) -> Package:
    purl = f"pkg:pypi/{dist.name.lower().replace('_', '-')}@{dist.version}"
    said = dist.metadata.get_all("License-Expression") or [NOT_SAID]
    return Package(dist.name, dist.version, purl, said[0])


def _debian_owners(files: Sequence[Path]) -> dict[Path, str]:
    """The package of each file that dpkg knows. dpkg knows a file by one of two paths, with or without /usr."""
    if not shutil.which("dpkg-query"):
        return {}
    names = {str(file): file for file in files} | {str(file.resolve()): file for file in files}
    names |= {name.removeprefix("/usr") if name.startswith("/usr/") else f"/usr{name}": f for name, f in names.items()}
    done = subprocess.run(["dpkg-query", "--search", *sorted(names)], capture_output=True, text=True)
    found = [line.partition(": ") for line in done.stdout.splitlines() if not line.startswith("diversion ")]
    return {names[path]: re.split("[,:]", package)[0] for package, _, path in found if path in names}


def _of_debian(name: str) -> Package:
    argv = ["dpkg-query", "--show", "--showformat=${Version}\t${Architecture}\n", name]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    version, architecture = listed.splitlines()[0].split("\t")
    system = platform.freedesktop_os_release().get("ID", "debian")
    purl = f"pkg:deb/{system}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"
    return Package(name, version, purl, terms=_existing(Path("/usr/share/doc", name, "copyright")))


def document(name: str, found: Sequence[Package]) -> bytes:
    """The document on the bundle `name`. Its comment has the versions of the interpreter and its libraries."""
    libraries = f"{ssl.OPENSSL_VERSION}, SQLite {sqlite3.sqlite_version}, {' '.join(platform.libc_ver())}"
    described = [_package(package) for package in found]
    namespace = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", _id("railcni"))]
    relations += [(_id("railcni"), "CONTAINS", _id(package.name)) for package in found if package.name != "railcni"]
    names = ("spdxElementId", "relationshipType", "relatedSpdxElement")
    bill = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{namespace}",
        "comment": f"Linked with CPython {platform.python_version()}, {libraries}.",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH)),
            "creators": ["Tool: railcni-bundle"],
        },
        "packages": described,
        "relationships": [dict(zip(names, relation, strict=True)) for relation in relations],
    }
    return f"{json.dumps(bill, indent=1)}\n".encode()


def _package(package: Package) -> dict[str, Any]:
    reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": package.purl}
    return {
        "SPDXID": _id(package.name),
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": NOT_SAID,
        "filesAnalyzed": False,
        "licenseDeclared": package.licence,
        "externalRefs": [reference] if package.purl else [],
    }


def _id(name: str) -> str:
    return "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def write(bundle: Path, copied: Sequence[Path]) -> None:
    """Write both into the bundle."""
    installed = distributions(path=[str(path) for path in bundle.glob("lib/python*/site-packages")])
    found = packages(installed, copied)
    (bundle / FILE).write_bytes(document(bundle.name, found))
    (bundle / "licenses").mkdir()
    for package in found:
        if package.terms:
            (bundle / "licenses" / package.name).write_bytes(package.terms.read_bytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]), [Path(line) for line in sys.stdin.read().splitlines()])
