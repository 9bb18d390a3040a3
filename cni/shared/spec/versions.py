"""Which cniVersions there are, and which verb exists from which of them (SPEC.md, section 2)."""

from __future__ import annotations

from cni.shared.spec.errors import IncompatibleVersion

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
NEWEST = SUPPORTED[-1]
VERBS_SINCE = {"ADD": "0.1.0", "DEL": "0.1.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}


def at_least(version: str, floor: str) -> bool:
    """Whether the supported `version` is `floor` or newer."""
    return SUPPORTED.index(version) >= SUPPORTED.index(floor)


def require(version: str, verb: str) -> None:
    """Refuse a version that is unknown, or in which `verb` does not exist (code 1)."""
    if version not in SUPPORTED:
        raise IncompatibleVersion(
            f'cniVersion "{version[:40]}" is not supported: use one of {", ".join(SUPPORTED)}',
            f"cniVersion of the network configuration: {version[:200]!r}",
        )
    since = VERBS_SINCE[verb]
    if not at_least(version, since):
        raise IncompatibleVersion(
            f"{verb} does not exist in cniVersion {version}: it needs {since} or newer",
            f"cniVersion of the network configuration: {version}",
        )
