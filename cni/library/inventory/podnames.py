"""Pods as a person names them."""

from __future__ import annotations

import re

_LABELS = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def read_pod(text: str) -> str:
    """`text` when it is NAMESPACE/POD; ValueError."""
    namespace, slash, name = text.partition("/")
    if not slash or not _LABELS.fullmatch(namespace) or not _LABELS.fullmatch(name) or "." in namespace:
        raise ValueError("want NAMESPACE/POD")
    return text


def is_of_pod(pod: tuple[str, str], wanted: str) -> bool:
    """Whether (namespace, name) is the pod that [NAMESPACE/]NAME means."""
    namespace, _, name = wanted.rpartition("/")
    return bool(name) and pod[1] == name and namespace in ("", pod[0])
