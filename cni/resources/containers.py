"""The variables and files that describe the devices of containers: PCIDEVICE_…, CDI specifications, device-info files
for Multus, and the record of each claim that `railcni dra` has prepared.

The device plugin and the DRA driver write the files. `railcni doctor` reads the records of claims.

Sources: SPEC.md of the Container Device Interface; the variables PCIDEVICE_… of the SR-IOV device plugin; the Device
Information Specification of the Network Plumbing Working Group, 1.1.0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cni.resources.choose import DeviceNode, Offer, Resource
from cni.shared.kernel import files
from cni.shared.spec import codec

CDI_FOLDER = "/var/run/cdi"
INFO_FOLDER = "/var/run/k8s.cni.cncf.io/devinfo/dp"
PERMISSIONS = "rw"
_CDI_VERSION = "0.5.0"  # the first version that has hostPath, and names that begin with a digit
DRIVER = "railcni.io"
KIND = f"{DRIVER}/claim"
PREFIX = f"dra.{DRIVER}-"  # of CDI files; the device plugin removes its own CDI files by another prefix

Record = dict[str, Any]


def variables(resource: Resource, offers: Sequence[Offer]) -> dict[str, str]:
    """The environment variables that name the functions `offers` of an exclusive resource; {} for a shared resource."""
    if not resource.is_exclusive:
        return {}
    variable = "PCIDEVICE_" + resource.name.replace("/", "_").replace(".", "_").upper()
    info = json.dumps({offer.name: offer.info for offer in offers})
    return {variable: ",".join(offer.name for offer in offers), f"{variable}_INFO": info}


def cdi_document(kind: str, devices: Iterable[tuple[str, Sequence[DeviceNode], Mapping[str, str]]]) -> dict[str, Any]:
    """The CDI specification of `devices`, each as (name, nodes, variables). A device with neither nodes nor variables
    is left out, since CDI refuses such a device."""
    made = []
    for name, nodes, environment in devices:
        own = [{"path": inside, "hostPath": path, "permissions": PERMISSIONS} for inside, path in nodes]
        edits = {"deviceNodes": own, "env": [f"{key}={value}" for key, value in environment.items()]}
        if edits := {key: listed for key, listed in edits.items() if listed}:
            made.append({"name": name, "containerEdits": edits})
    return {"cdiVersion": _CDI_VERSION, "kind": kind, "devices": made}


def info_name(resource: str, device: str) -> str:
    """The name of the file in INFO_FOLDER with the device-info of `device`, a device of `resource`."""
    return f"{resource}-{device}-device.json".replace("/", "-")


def write(folder: str, name: str, document: object, durable: bool = False) -> None:
    """Write `document` as JSON to the file `name` in `folder`, atomically. Raises OSError when writing fails."""
    os.makedirs(folder, exist_ok=True)
    files.write_whole(folder, name, json.dumps(document).encode(), durable, mode=0o644)


def remove_others(folder: str, prefix: str, wanted: Container[str]) -> None:
    """Remove files in `folder` whose names begin with `prefix`, except `wanted`. Raises OSError when removing fails."""
    for name in files.names_in(folder):
        if name.startswith(prefix) and name not in wanted:
            Path(folder, name).unlink(missing_ok=True)


# --- the claims of `railcni dra` ---


def named(claim: Record) -> str:
    """The name of a claim in messages."""
    return f"ResourceClaim {claim['namespace']}/{claim['name']}"


def own_folder(kubelet: str) -> str:
    """The DRA driver's folder in kubelet's folder `kubelet`."""
    return f"{kubelet}/plugins/{DRIVER}"


def records_folder(kubelet: str) -> str:
    """The folder with the records of claims, in kubelet's folder `kubelet`."""
    return f"{own_folder(kubelet)}/claims"


def records(folder: str) -> list[Record]:
    """The records of all claims in `folder`. Raises OSError when a file cannot be read."""
    names = sorted(name for name in files.names_in(folder) if name.endswith(".json") and name[0] != ".")
    return [record for name in names if (record := read_record(folder, name.removesuffix(".json")))]


def read_record(folder: str, uid: str) -> Record | None:
    """The record of the claim `uid`; None when it is missing or incomplete. Raises OSError when it cannot be read."""
    try:
        found = codec.loads(files.read_whole(f"{folder}/{uid}.json"))
    except FileNotFoundError:
        return None
    except ValueError:  # incomplete after a power loss, so kubelet had no answer yet
        return None
    return found if isinstance(found, dict) else None


def specification(uid: str, root: str = "") -> str:
    """The path of the CDI specification of the claim `uid`, below `root`."""
    return f"{root}{CDI_FOLDER}/{PREFIX}{uid}.json"


def cdi_name(record: Record, number: int) -> str:
    """The name of the claim's device `number` in the CDI specification."""
    return f"{record['uid']}-{number}"


def cdi_ids(record: Record, number: int) -> list[str]:
    """The CDI device names of the claim's device `number`; [] when the device has neither nodes nor variables."""
    one = record["devices"][number]
    return [f"{KIND}={cdi_name(record, number)}"] if one["nodes"] or one["variables"] else []
