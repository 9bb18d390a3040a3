"""The bill of materials: every file of a bundle with its checksum and the package that it comes from.

SPDX 2.3 as JSON, https://spdx.github.io/spdx-spec/v2.3/.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from typing import Any

from cni.dist.archive import epoch
from cni.dist.contents import BundleEntry
from cni.dist.origins import NOT_SAID, Package

FILE = "bill-of-materials.spdx.json"


def document(name: str, entries: Sequence[BundleEntry], packages: Sequence[Package], linked: Sequence[str]) -> bytes:
    """The document on the bundle `name`; `linked` are versions that its comment names."""
    files = [_file(entry) for entry in entries if not entry.link]
    contents = hashlib.sha256("".join(f["checksums"][1]["checksumValue"] for f in files).encode()).hexdigest()
    relations = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", _package_id("railcni"))]
    relations += [
        _relation(_package_id("railcni"), "DEPENDS_ON", _package_id(p.name)) for p in packages if p.name != "railcni"
    ]
    relations += [_relation(_package_id(e.origin), "CONTAINS", _file_id(e)) for e in entries if not e.link]
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


def _file(entry: BundleEntry) -> dict[str, Any]:
    data = entry.read()
    return {
        "SPDXID": _file_id(entry),
        "fileName": f"./{entry.target}",
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


def _file_id(entry: BundleEntry) -> str:
    return "SPDXRef-File-" + hashlib.sha256(entry.target.encode()).hexdigest()[:24]
