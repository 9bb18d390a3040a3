"""Pods, namespaces and directories as a person names them; the place of named namespaces, by convention of all runtimes."""

from __future__ import annotations

import os
import re

from cni.shared.kernel import netns as namespaces
from cni.shared.spec.errors import InvalidConfig

NAMED_NAMESPACES = "/run/netns"
_LABELS = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def read_pod(text: str) -> str:
    """`text` when it is NAMESPACE/POD; ValueError."""
    namespace, slash, name = text.partition("/")
    if not slash or not _LABELS.fullmatch(namespace) or not _LABELS.fullmatch(name) or "." in namespace:
        raise ValueError("want NAMESPACE/POD")
    return text


def require_directory(option: str, shown: str, path: str = "") -> None:
    """InvalidConfig when there is no directory at `path`, which the option calls `shown`."""
    if is_missing(path or shown):
        raise InvalidConfig(f'{option} "{shown}": there is no such directory')
    if os.path.isfile(path or shown):
        raise InvalidConfig(f'{option} "{shown}": is no directory')


def is_missing(path: str) -> bool:
    """Whether nothing is at `path`. Where the user may not look, the opening says so."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def is_of_pod(pod: tuple[str, str], wanted: str) -> bool:
    """Whether (namespace, name) is the pod that [NAMESPACE/]NAME means."""
    namespace, _, name = wanted.rpartition("/")
    return bool(name) and pod[1] == name and namespace in ("", pod[0])


def namespace_path(text: str) -> str:
    """The absolute path of the namespace that a person means by a path or a name. Symbolic links stay, as in cnitool."""
    if not text:
        return ""
    return os.path.abspath(text) if "/" in text else os.path.join(NAMED_NAMESPACES, text)


def is_alive(netns: str) -> bool:
    """Whether a namespace is there, or may be: nothing is collected on a guess."""
    return not netns or namespaces.may_be_at(netns)
