"""All that stands under a prefix in etcd, read without our code, and whether it belongs together."""

from __future__ import annotations

import base64
import ipaddress
import json
from typing import Any

from tests.etcd import post

NO_LEASES = ("cooling", "former", "full", "void")  # kinds of keys that stand without a lease


def dump(url: str, prefix: str = "/railcni") -> dict[str, str]:
    """Every key below PREFIX/v1/, without that, and its value."""
    start = f"{prefix}/v1/".encode()
    request = {"key": base64.b64encode(start).decode(), "range_end": base64.b64encode(start[:-1] + b"0").decode()}
    found = post(url, "kv/range", request).get("kvs") or []
    keys = [(base64.b64decode(kv["key"])[len(start) :].decode(), kv.get("value") or "") for kv in found]
    return {key: base64.b64decode(value).decode() for key, value in keys}


def leases(entries: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(value) for key, value in entries.items() if key.startswith("lease/")]


def faults(entries: dict[str, str]) -> list[str]:
    """Of names without "/" and "%", what cannot be: keys that no lease accounts for, and keys that a lease lacks."""
    wanted: dict[str, str | None] = {}
    for lease in leases(entries):
        address = ipaddress.ip_address(lease["address"])
        place = f"{int(address):0{8 if address.version == 4 else 32}x}"
        pool, (namespace, pod, _) = lease["pool"], lease["pod"]
        document = entries[f"lease/{pool}/{place}"]
        own = f"attachment/{lease['network']}/{lease['containerID']}/{lease['ifname']}/{pool}/{place}"
        wanted |= {f"lease/{pool}/{place}": document, f"{own}/{lease['sequence']:016x}": document}
        wanted[f"node/{lease['node']}/{pool}/{place}"] = ""
        if lease["scope"] is not None:
            wanted[f"reserved/{lease['scope']}/{place}"] = pool
        if pod:
            wanted[f"pod/{namespace}/{pod}/{lease['ifname']}/{pool}/{place}"] = ""
    standing = {key: value for key, value in entries.items() if key.partition("/")[0] not in NO_LEASES}
    found = [f"{key}: {standing.get(key)!r} for {wanted.get(key)!r}" for key in standing.keys() | wanted.keys()]
    return [
        f for f, key in zip(found, standing.keys() | wanted.keys(), strict=True) if standing.get(key) != wanted.get(key)
    ]
