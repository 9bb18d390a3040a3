"""The claims that `railcni dra` has prepared on a node. Each has a record, and a CDI specification for the runtime.

The driver writes both files. `railcni doctor` reads them with this module, which does not import the driver.
"""

from __future__ import annotations

import json
from typing import Any

from cni.resources.containers import CDI_FOLDER
from cni.shared.kernel import files

DRIVER = "railcni.io"
KIND = f"{DRIVER}/claim"
PREFIX = f"dra.{DRIVER}-"  # of CDI files; the device plugin has another prefix, and removes its own files by it

Record = dict[str, Any]


def named(claim: Record) -> str:
    """The claim's name in messages."""
    return f"ResourceClaim {claim['namespace']}/{claim['name']}"


def own_folder(kubelet: str) -> str:
    """The driver's folder in the folder `kubelet`."""
    return f"{kubelet}/plugins/{DRIVER}"


def records_folder(kubelet: str) -> str:
    """The folder with the record of each claim."""
    return f"{own_folder(kubelet)}/claims"


def records(folder: str) -> list[Record]:
    """All records in `folder`. Raises OSError when a file cannot be read."""
    names = sorted(name for name in files.names_in(folder) if name.endswith(".json") and name[0] != ".")
    return [record for name in names if (record := read(folder, name.removesuffix(".json")))]


def read(folder: str, uid: str) -> Record | None:
    """The record of the claim `uid`; None when it is missing or incomplete. Raises OSError when it cannot be read."""
    try:
        found = json.loads(files.read_whole(f"{folder}/{uid}.json"))
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
