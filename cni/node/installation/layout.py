"""The names of an installation, and those of them that a plugin folder has. The functions raise OSError."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cni.link.plugins import EXECUTABLES
from cni.shared.kernel.files import target_of

BUNDLE, LOCK, TEMPORARY = "railcni-bundle", ".lock", ".new."
CURRENT, PREVIOUS, REPLACED = "current", "previous", "replaced"
PROGRAMS, SCRIPTS = "bin", "libexec"  # of a version: the executables, and the scripts that they start for a cold call
COPIES = "plain"  # in a version: copies of the programs; the plain names lead to them
PLAIN = EXECUTABLES
PREFIXED = tuple(f"railcni-{name}" for name in PLAIN)
NAMES = (*PREFIXED, *PLAIN)
COMMAND, COMMANDS = "railcni", "/usr/local/bin"  # the command, and the folder of the link for administrators


@dataclass(frozen=True)
class Installation:
    """The part of a plugin folder that belongs to railcni, or has one of its names."""

    current: str = ""  # the version in use; "" for none
    previous: str = ""
    versions: tuple[str, ...] = ()  # all versions
    unfinished: tuple[str, ...] = ()  # temporary files of an installer that was killed
    ours: frozenset[str] = frozenset()  # names that are our links
    foreign: frozenset[str] = frozenset()  # names that another file has
    kept: frozenset[str] = frozenset()  # names that are in replaced/


def read(folder: str) -> Installation:
    """The installation in the plugin folder `folder`, a real path."""
    bundle = f"{folder}/{BUNDLE}"
    inside = _names(bundle)
    ours = {name for name in NAMES if target_of(f"{folder}/{name}") == target(name)}
    return Installation(
        current=_version(bundle, CURRENT),
        previous=_version(bundle, PREVIOUS),
        versions=tuple(n for n in inside if not n.startswith(".") and n != REPLACED and _is_directory(f"{bundle}/{n}")),
        unfinished=tuple(n for n in inside if n.startswith(TEMPORARY)),
        ours=frozenset(ours),
        foreign=frozenset(name for name in NAMES if name not in ours and os.path.lexists(f"{folder}/{name}")),
        kept=frozenset(NAMES).intersection(_names(f"{bundle}/{REPLACED}")),
    )


def target(name: str, version: str = CURRENT) -> str:
    """The path, from the plugin folder, of the plugin to which `name` leads in `version`."""
    place = COPIES if name in PLAIN else PROGRAMS
    return f"{BUNDLE}/{version}/{place}/{name.removeprefix('railcni-')}"


def _version(bundle: str, link: str) -> str:
    """The version to which `link` leads; "" when there is none."""
    name = target_of(f"{bundle}/{link}")
    return name if name and "/" not in name and _is_directory(f"{bundle}/{name}") else ""


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
