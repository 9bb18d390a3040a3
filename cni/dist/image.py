"""An OCI image that holds a bundle and nothing else, for each architecture that one is given of: an archive that
`podman load`, `ctr images import` and `docker load` (from 25) take. No tool is needed to make it.

Format: image-layout.md, image-index.md, manifest.md, config.md and annotations.md of github.com/opencontainers/image-spec,
version 1. The layout's index names one index, whose manifests the architectures are, as a registry keeps it under a tag.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cni import VERSION
from cni.dist import archive
from cni.dist.contents import PROJECT, CannotBuild, described

PLACE = "/opt/railcni"  # of the bundle in the image
NAME = f"localhost/railcni:{VERSION}"

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Linux and as Go, and so images, call them
_MACHINES = {62: "amd64", 183: "arm64"}  # e_machine of elf(5)
_TYPE = "application/vnd.oci.image"
_LABEL = "org.opencontainers.image"


def build(bundles: Sequence[Path], target: Path, extra: str = "") -> Path:
    """Write the image of the directories `bundles`, which have the set `extra` too, into the directory `target`; return the
    file. CannotBuild: two are of one architecture, or one is of another version."""
    own = f"railcni-{extra}" if extra else "railcni"
    name = NAME.replace("railcni", own)
    labels = _labels()
    blobs: dict[str, bytes] = {}
    manifests: dict[str, dict[str, Any]] = {}

    def add(kind: str, blob: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(blob).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = blob
        return {"mediaType": f"{_TYPE}.{kind}", "digest": f"sha256:{digest}", "size": len(blob)}

    for bundle in bundles:
        architecture = _architecture(bundle)
        if architecture in manifests:
            raise CannotBuild(f"{bundle} is for {architecture} too: give one bundle of each architecture")
        layer = archive.pack(bundle, PLACE.lstrip("/"))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": add("config.v1+json", _json(_config(architecture, layer, labels))),
            "layers": [add("layer.v1.tar+gzip", archive.compress(layer))],
            "annotations": labels,
        }
        manifests[architecture] = add("manifest.v1+json", _json(manifest))
        manifests[architecture]["platform"] = {"architecture": architecture, "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json"}
    described = add("index.v1+json", _json(index | {"manifests": list(manifests.values()), "annotations": labels}))
    described["annotations"] = {f"{_LABEL}.ref.name": name, "io.containerd.image.name": name}
    layout = {
        "index.json": _json(index | {"manifests": [described]}),
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
    }
    architectures = f"-{next(iter(manifests))}" if len(manifests) == 1 else ""
    file = target / f"{own}-{VERSION}{architectures}.oci.tar"
    file.write_bytes(archive.of_bytes(blobs | layout))
    return file


def _architecture(bundle: Path) -> str:
    """The architecture that the bundle's programs are for. CannotBuild: it is no bundle of this version."""
    try:
        found = (bundle / "VERSION").read_text().strip()
        head = (bundle / "bin/railcni").read_bytes()[:20]
    except OSError as fault:
        raise CannotBuild(f"{bundle} is no bundle: {fault.filename} is missing; `make bundle` makes one") from None
    if found != VERSION:
        raise CannotBuild(f"{bundle} is of version {found}, not {VERSION}: make it again, from the same sources")
    machine = int.from_bytes(head[18:20], "little") if head[:4] == b"\x7fELF" else 0
    if machine not in _MACHINES:
        raise CannotBuild(f"{bundle}/bin/railcni is for no known machine (e_machine {machine}): want amd64 or arm64")
    return _MACHINES[machine]


def _labels() -> dict[str, str]:
    """What annotations.md has names for; the revision where git knows it, and addresses where pyproject.toml has them."""
    project = described(PROJECT)
    argv = ["git", "-C", str(PROJECT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        revision = subprocess.run(argv, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        revision = ""
    labels = {
        "title": "railcni",
        "version": VERSION,
        "description": project["description"],
        "licenses": project["license"],
        "source": project.get("urls", {}).get("Source"),
        "documentation": project.get("urls", {}).get("Documentation"),
        "revision": revision,
    }
    return {f"{_LABEL}.{key}": value for key, value in labels.items() if value}


def _config(architecture: str, layer: bytes, labels: dict[str, str]) -> dict[str, Any]:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(archive.epoch()))
    return {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": [f"{PLACE}/bin/railcni"],
            "Cmd": ["--help"],
            "Env": [f"PATH={PLACE}/bin"],
            "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "make image"}],
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
