"""What a plugin folder holds of an installation. OSError passes through, but for what does not exist."""

from __future__ import annotations

import os

from cni.cli.installation.layout import (
    BUNDLE,
    CURRENT,
    LOCK,
    NAMES,
    PREVIOUS,
    REPLACED,
    TEMPORARY,
    Facts,
    target,
)


def read(folder: str) -> Facts:
    """The facts about the plugin folder `folder`, a real path."""
    bundle = f"{folder}/{BUNDLE}"
    inside = _names(bundle)
    ours = {name for name in NAMES if _link(f"{folder}/{name}") == target(name)}
    return Facts(
        current=_version(bundle, CURRENT),
        previous=_version(bundle, PREVIOUS),
        versions=tuple(n for n in inside if not n.startswith(".") and n != REPLACED and _is_directory(f"{bundle}/{n}")),
        leftovers=tuple(n for n in inside if n.startswith(TEMPORARY) and n != LOCK),
        ours=frozenset(ours),
        foreign=frozenset(name for name in NAMES if name not in ours and os.path.lexists(f"{folder}/{name}")),
        kept=frozenset(name for name in _names(f"{bundle}/{REPLACED}") if name in NAMES),
    )


def _version(bundle: str, link: str) -> str:
    """The version that a link leads to; "" when it leads nowhere."""
    name = _link(f"{bundle}/{link}")
    return name if name and "/" not in name and _is_directory(f"{bundle}/{name}") else ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
