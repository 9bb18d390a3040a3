"""The places of a node's networks and named namespaces, by convention of all runtimes."""

from __future__ import annotations

import os

from cni.shared.kernel import netns as namespaces

NET_DIRECTORY = "/etc/cni/net.d"
NAMED_NAMESPACES = "/run/netns"


def namespace_path(text: str) -> str:
    """The absolute path of the namespace that a person means by a path or a name. Symbolic links stay, as in cnitool."""
    if not text:
        return ""
    return os.path.abspath(text) if "/" in text else os.path.join(NAMED_NAMESPACES, text)


def is_alive(netns: str) -> bool:
    """Whether a namespace is there, or may be: nothing is collected on a guess."""
    try:
        return not netns or namespaces.exists(netns)
    except OSError:
        return True
