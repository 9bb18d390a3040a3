"""The cache of libcni: for each attachment a "cniCacheV1" file, DIRECTORY/results/NETWORK-CONTAINERID-IFNAME.

The file names and fields are libcni's (libcni/api.go, cachedInfo). So cnitool, containerd, podman and railcni can each
detach an attachment that another one made. The field `config` is the conflist, in base64 as Go encodes bytes.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from cni.shared.kernel.files import read_whole, write_whole_below
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure, StateDamaged

DIRECTORY = "/var/lib/cni"
_KIND = "cniCacheV1"
_MISSING = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True)
class Parameters:
    """The parameters of one attachment, except its network (SPEC.md section 3, "Attachment Parameters"). `args` become
    CNI_ARGS. A plugin gets the members of `capability_args` that its `capabilities` name."""

    container_id: str
    netns: str
    ifname: str
    args: tuple[tuple[str, str], ...] = ()
    capability_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CachedResult:
    """One attachment in the cache. `config` is the network's conflist as JSON, `result` the last plugin's result."""

    network: str
    parameters: Parameters
    config: bytes
    result: dict[str, Any] | None

    @property
    def pod(self) -> str:
        """The pod as "namespace/name", from the CNI_ARGS of Kubernetes runtimes; "" without a pod."""
        args = dict(self.parameters.args)
        return f"{args.get('K8S_POD_NAMESPACE', '')}/{args['K8S_POD_NAME']}" if args.get("K8S_POD_NAME") else ""


class Cache:
    """The cache entries in `directory`. Network, containerID and ifname identify an entry."""

    def __init__(self, directory: str = DIRECTORY) -> None:
        self.directory = directory
        self._results = os.path.join(directory, "results")

    def read(self, network: str, parameters: Parameters) -> CachedResult | None:
        """The entry of an attachment; None if there is none. Raises StateDamaged when the file does not have libcni's
        format, and IoFailure when it cannot be read."""
        return self._load(_name(network, parameters))

    def write(self, entry: CachedResult) -> None:
        """Write `entry` to the cache. Raises IoFailure when the file cannot be written."""
        known = entry.parameters
        document = {
            "kind": _KIND,
            "containerId": known.container_id,
            "config": base64.b64encode(entry.config).decode(),
            "ifName": known.ifname,
            "networkName": entry.network,
            "netns": known.netns,
            "cniArgs": [list(pair) for pair in known.args],
            "capabilityArgs": known.capability_args,
            "result": entry.result,
        }
        needed = ("kind", "containerId", "config", "ifName", "networkName")
        document = {k: v for k, v in document.items() if v or k in needed}
        with worded(f"the result cannot be kept in {self._results}"):
            write_whole_below(self._results, _name(entry.network, known), json.dumps(document).encode())

    def remove(self, network: str, parameters: Parameters) -> None:
        """Remove the entry, if there is one. Raises IoFailure when the file cannot be removed."""
        with worded(f"the result cannot be removed from {self._results}"), suppress(*_MISSING):
            os.unlink(os.path.join(self._results, _name(network, parameters)))

    def all(self, network: str = "") -> list[CachedResult]:
        """All entries, or only those of `network`, sorted by file name. Files that are no valid entry are skipped.
        Raises IoFailure if the directory cannot be listed."""
        names, found = [], []
        with worded(f"{self._results} cannot be listed"), suppress(*_MISSING):
            names = os.listdir(self._results)
        for name in sorted(names):
            with suppress(StateDamaged, IoFailure):
                entry = self._load(name)
                if entry is not None and entry.network and network in ("", entry.network):
                    found.append(entry)
        return found

    def _load(self, name: str) -> CachedResult | None:
        path = os.path.join(self._results, name)
        with worded(f"{path} cannot be read"), suppress(*_MISSING):
            try:
                document = codec.loads(read_whole(path))
                if document.get("kind") != _KIND:  # before 0.8 libcni kept the bare result
                    return CachedResult("", Parameters("", "", ""), b"", document)
                return _entry(document)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise StateDamaged(f"{path} is no cached result of libcni: detach, then remove the file") from None
        return None


@contextmanager
def worded(action: str) -> Iterator[None]:
    """Turn an OSError in the `with` block into an IoFailure, whose message begins with `action`."""
    try:
        yield
    except OSError as fault:
        remedy = "; run as root" if isinstance(fault, PermissionError) else ""
        raise IoFailure(f"{action}: {fault.strerror}{remedy}") from None


def _entry(document: dict[str, Any]) -> CachedResult:
    result = document.get("result")
    netns = document.get("netns")
    if not netns:  # libcni before 1.2 writes no netns
        of_interfaces = [one.get("sandbox") for one in (result or {}).get("interfaces") or []]
        netns = next(filter(None, of_interfaces), "")
    parameters = Parameters(
        container_id=str(document["containerId"]),
        netns=str(netns),
        ifname=str(document["ifName"]),
        args=tuple((str(key), str(value)) for key, value in document.get("cniArgs") or []),
        capability_args=dict(document.get("capabilityArgs") or {}),
    )
    config = base64.b64decode(document["config"] or "", validate=True)
    return CachedResult(str(document["networkName"]), parameters, config, dict(result) if result else None)


def _name(network: str, parameters: Parameters) -> str:
    return f"{network}-{parameters.container_id}-{parameters.ifname}"
