"""An OCI image that holds a bundle and nothing else, as an archive that `podman load`, `ctr images import` and
`docker load` (from 25) take; no tool is needed to make it.

Format: image-layout.md, manifest.md and config.md of github.com/opencontainers/image-spec, version 1.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import time
from pathlib import Path
from typing import Any

from cni.dist import archive
from cni import VERSION

PLACE = "/opt/railcni"  # of the bundle in the image
NAME = f"localhost/railcni:{VERSION}"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image"


def build(bundle: Path, target: Path) -> Path:
    """Write the image of the directory `bundle` into the directory `target`; return the file."""
    architecture = _ARCHITECTURES[platform.machine()]
    layer = archive.pack(bundle, PLACE.lstrip("/"))
    packed = archive.compress(layer)
    config = _json(_config(architecture, layer))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar+gzip", packed)],
        }
    )
    described = _descriptor("manifest.v1+json", manifest)
    described["annotations"] = {"org.opencontainers.image.ref.name": NAME, "io.containerd.image.name": NAME}
    described["platform"] = {"architecture": architecture, "os": "linux"}
    index = _json({"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [described]})
    files = {f"blobs/sha256/{_hash(blob)}": blob for blob in (config, manifest, packed)}
    files |= {"index.json": index, "oci-layout": _json({"imageLayoutVersion": "1.0.0"})}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in sorted(files.items()):
            archive.add_bytes(tar, path, data)
    file = target / f"railcni-{VERSION}-{architecture}.oci.tar"
    file.write_bytes(buffer.getvalue())
    return file


def _config(architecture: str, layer: bytes) -> dict[str, Any]:
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
            "Labels": {
                "org.opencontainers.image.title": "railcni",
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_hash(layer)}"]},
        "history": [{"created": created, "created_by": "make image"}],
    }


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_TYPE}.{kind}", "digest": f"sha256:{_hash(blob)}", "size": len(blob)}


def _hash(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
