"""The claims that `railcni dra` has prepared on a node: a record of each, and the CDI specification that the runtime reads.

The driver writes them, and `railcni doctor` reads them, without the packages that the driver needs.
"""

from __future__ import annotations

import json
from typing import Any

from cni.resources.containers import CDI_FOLDER
from cni.shared.kernel import files

DRIVER = "railcni.io"
KIND = f"{DRIVER}/claim"
PREFIX = f"dra.{DRIVER}-"  # of the specifications; the device plugin removes those that begin with its own

Record = dict[str, Any]


def own_folder(kubelet: str) -> str:
    """The driver's folder below that of kubelet."""
    return f"{kubelet}/plugins/{DRIVER}"


def records_folder(kubelet: str) -> str:
    """The folder of the records."""
    return f"{own_folder(kubelet)}/claims"


def records(folder: str) -> list[Record]:
    """All records; OSError."""
    names = sorted(name for name in files.names_in(folder) if name.endswith(".json") and name[0] != ".")
    return [record for name in names if (record := read(folder, name.removesuffix(".json")))]


def read(folder: str, uid: str) -> Record | None:
    """The record of the claim `uid`; None without one. Raises OSError."""
    try:
        found = json.loads(files.read_whole(f"{folder}/{uid}.json"))
    except FileNotFoundError:
        return None
    except ValueError:  # a power loss tore it, so no answer was given from it
        return None
    return found if isinstance(found, dict) else None


def specification(uid: str, root: str = "") -> str:
    """The path of the claim's CDI specification."""
    return f"{root}{CDI_FOLDER}/{PREFIX}{uid}.json"


def cdi_name(record: Record, number: int) -> str:
    """The name of the claim's device `number` in its specification."""
    return f"{record['uid']}-{number}"


def cdi_ids(record: Record, number: int) -> list[str]:
    """The CDI devices of the claim's device `number`."""
    one = record["devices"][number]
    return [f"{KIND}={cdi_name(record, number)}"] if one["nodes"] or one["variables"] else []
