"""An image with busybox alone, made here: no registry is asked. It serves as the sandbox's and as a container's."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

NAME = "localhost/railcni/busybox:1"
BUSYBOX = Path("/bin/busybox")
_COMMANDS = ("sh", "cat", "echo", "ip", "ls", "ping", "sleep", "stat")
_MEDIA = "application/vnd.oci.image"


def write(target: Path) -> None:
    """Write the image as an OCI archive (the OCI Image Layout Specification)."""
    layer = tar([("bin/busybox", BUSYBOX.read_bytes()), *((f"bin/{name}", "/bin/busybox") for name in _COMMANDS)])
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    settings = json.dumps(config).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _descriptor("config.v1+json", settings),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    ).encode()
    named = _descriptor("manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": NAME}}
    blobs = {f"blobs/sha256/{_digest(data)[7:]}": data for data in (layer, settings, manifest)}
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [named]}).encode(),
    }
    target.write_bytes(tar([*files.items(), *blobs.items()]))


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_MEDIA}.{kind}", "digest": _digest(data), "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(members: list[tuple[str, bytes | str]]) -> bytes:
    """Files with their contents; of a str: a symbolic link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()
