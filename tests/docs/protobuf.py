"""Objects that kubectl and helm send as Protocol Buffers, as documents: the fields that the pages' commands set, by their numbers
in Kubernetes' generated.proto files.
"""

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\0"
_MAP, _BYTES = {1: ("key", str), 2: ("value", str)}, {1: ("key", str), 2: ("value", bytes)}
_METADATA = {
    1: ("name", str), 2: ("generateName", str), 3: ("namespace", str), 11: ("labels", _MAP), 12: ("annotations", _MAP),
}  # fmt: skip
_HOST_PATH = {1: ("path", str)}
_VOLUME = {1: ("name", str), 2: ("", {1: ("hostPath", _HOST_PATH)})}
_CONTAINER = {
    1: ("name", str), 2: ("image", str), 3: ("command", [str]), 4: ("args", [str]),
    9: ("volumeMounts", [{1: ("name", str), 3: ("mountPath", str)}]),
    15: ("securityContext", {2: ("privileged", bool)}),
}  # fmt: skip
_POD = {
    1: ("volumes", [_VOLUME]), 2: ("containers", [_CONTAINER]), 3: ("restartPolicy", str), 10: ("nodeName", str),
    11: ("hostNetwork", bool), 12: ("hostPID", bool),
}  # fmt: skip
_SUBJECT = {1: ("kind", str), 2: ("apiGroup", str), 3: ("name", str), 4: ("namespace", str)}
_ROLE = {1: ("apiGroup", str), 2: ("kind", str), 3: ("name", str)}
_KINDS: dict[str, Any] = {
    "Namespace": {1: ("metadata", _METADATA)},
    "Secret": {1: ("metadata", _METADATA), 2: ("data", _BYTES), 3: ("type", str)},
    "ClusterRoleBinding": {1: ("metadata", _METADATA), 2: ("subjects", [_SUBJECT]), 3: ("roleRef", _ROLE)},
    "Pod": {1: ("metadata", _METADATA), 2: ("spec", _POD)},
}
_HEAD = {1: ("apiVersion", str), 2: ("kind", str)}


def document(body: bytes) -> dict[str, Any]:
    """The object in the body of a request; without fields when its kind is not here, as DeleteOptions."""
    head, raw = (dict(_fields(body.removeprefix(MAGIC)))[number] for number in (1, 2))
    found = _message(head, _HEAD)
    return {**found, **_message(raw, _KINDS.get(found["kind"], {}))}


def _message(data: bytes, fields: dict[int, tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in _fields(data):
        if number not in fields:
            continue
        name, kind = fields[number]
        if kind in (_MAP, _BYTES):
            entry = _message(value, kind)
            found.setdefault(name, {})[entry["key"]] = entry.get("value", "")
        elif isinstance(kind, list):
            found.setdefault(name, []).append(_value(value, kind[0]))
        elif name:
            found[name] = _value(value, kind)
        else:  # its fields are this message's
            found |= _value(value, kind)
    return {key: value for key, value in found.items() if value != ""}


def _value(value: Any, kind: Any) -> Any:
    if isinstance(kind, dict):
        return _message(value, kind)
    if kind is bytes:
        return base64.b64encode(value).decode()
    return value.decode() if kind is str else bool(value)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of a message: integers, and bytes for all else (the encoding's wire types 0 and 2)."""
    at = 0

    def integer() -> int:
        nonlocal at
        found = shift = 0
        while True:
            found |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return found

    while at < len(data):
        number, kind = divmod(integer(), 8)
        found = integer()
        if kind == 2:
            at += found
            yield number, data[at - found : at]
        else:
            yield number, found
